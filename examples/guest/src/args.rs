//! What the VMM and a guest program tell each other through guest memory.

use core::sync::atomic::{AtomicU64, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::layout;

/// The most vCPUs (or threads) a program runs on: what [`Board`] and the stacks have room for.
pub const MAX_VCPUS: usize = 16;

/// Words per vCPU on the [`Board`].
pub const BOARD_RESULTS: usize = 8;

/// What the VMM tells the program. Addresses are pointers of the place where the program runs:
/// guest-physical ones in the image, the process's own when it runs on host threads.
#[derive(Clone, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Args {
    /// A [`Program`](crate::Program) by number.
    pub program: u32,
    /// How many vCPUs run it; whoever starts them fills it in.
    pub vcpus: u32,
    /// The control page, 0 for none.
    pub control: u64,
    /// The hypertrace device's MMIO window, 0 for none.
    pub device: u64,
    /// PCI configuration space, 0 for none.
    pub ecam: u64,
    /// How many ring events each vCPU emits.
    pub events: u64,
    /// How many reference points each vCPU takes.
    pub reference_points: u64,
    /// How many kernel-stamped points each vCPU takes.
    pub stamps: u64,
    /// A program's own parameters.
    pub params: [u64; 4],
}

impl Args {
    /// The arguments of `program` in a guest with no device, all counts 0.
    pub fn new(program: crate::Program) -> Self {
        Args {
            program: program as u32,
            vcpus: 1,
            control: layout::CONTROL,
            device: 0,
            ecam: 0,
            events: 0,
            reference_points: 0,
            stamps: 0,
            params: [0; 4],
        }
    }
}

/// What the vCPUs tell each other, and leave for the VMM to read: no exit is needed to tell a
/// number.
///
/// All zero is its initial state, which is what fresh guest memory holds.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Board {
    /// How many vCPUs have come to [`Board::meet`], over all meetings.
    arrived: AtomicU64,
    /// Where the device's regions are: config, data, control, rings; 0 for nowhere.
    regions: [AtomicU64; 4],
    results: [[AtomicU64; BOARD_RESULTS]; MAX_VCPUS],
}

impl Board {
    /// Offset of vCPU `cpu`'s results, for a VMM that reads them out of guest memory.
    pub const fn results_offset(cpu: usize) -> usize {
        core::mem::offset_of!(Board, results) + cpu * 8 * BOARD_RESULTS
    }

    /// Waits until all of `vcpus` vCPUs have called this as often; so they start what follows
    /// together.
    pub fn meet(&self, vcpus: u32) {
        let vcpus = u64::from(vcpus.max(1));
        // ORDERING: pairs with the load below in the other vCPUs: what was written before the
        // meeting is seen after.
        let arrived = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (arrived / vcpus + 1) * vcpus;
        while self.arrived.load(Ordering::Acquire) < all {
            core::hint::spin_loop();
        }
    }

    /// Where the device's regions are (config, data, control, rings), 0 for nowhere.
    pub fn regions(&self) -> [u64; 4] {
        core::array::from_fn(|i| self.regions[i].load(Ordering::Relaxed))
    }

    /// Tells where the device's regions are.
    pub fn set_regions(&self, addresses: [u64; 4]) {
        for (word, address) in self.regions.iter().zip(addresses) {
            word.store(address, Ordering::Relaxed);
        }
    }

    /// Leaves result number `index` of vCPU `cpu`; numbers out of range are dropped.
    pub fn post(&self, cpu: u32, index: usize, value: u64) {
        if let Some(word) = self.results.get(cpu as usize).and_then(|r| r.get(index)) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The results of vCPU `cpu`, once its program has ended.
    pub fn results(&self, cpu: u32) -> [u64; BOARD_RESULTS] {
        match self.results.get(cpu as usize) {
            Some(words) => core::array::from_fn(|i| words[i].load(Ordering::Relaxed)),
            None => [0; BOARD_RESULTS],
        }
    }
}
