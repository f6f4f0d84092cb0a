//! Programs by number, arguments and results, which a guest and its VMM exchange through guest memory.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::layout;

/// Maximum number of vCPUs (or threads) of a program. [`Board`] and the space for stacks have room for this
/// number of vCPUs.
pub const MAX_VCPUS: usize = 16;

/// Number of words per vCPU on the [`Board`].
pub const BOARD_RESULTS: usize = 8;

/// A guest program. A program is a function of the vCPU's index, the arguments and the board, and returns an
/// exit code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Program {
    /// Greets on the console.
    Hello = 0,
    /// Checks floating-point sums, which show that SSE is on, and that every vCPU has its own registers.
    Sse,
    /// Stores the numbers from 0 to `params[0]` - 1 one after the other to the address `params[1]`, each with
    /// width `params[2]`.
    Store,
    /// Runs without an end.
    Hang,
    /// Panics.
    Panic,
    /// Touches an address that no page table maps.
    Fault,
    /// The demo: `events` ring events with work between them, and `reference_points` points spread among
    /// them. The demo waits for room rather than lose an event, and fails if a reference point was not
    /// recorded.
    Demo,
    /// Emits `events` ring events of two u64 in a row. Posts the ticks, and the number of events that the
    /// ring took.
    RingEmit,
    /// Makes `reference_points` reference points of two u64 in a row. Posts the ticks, and the number of
    /// points that were recorded.
    ReferencePoints,
    /// A driver of 2016: each of the first `params[0]` clients makes `events` events, alternately with one
    /// store of 8 bytes and with two stores of 4 bytes.
    Legacy,
    /// vCPU 0 moves BAR 4 to `params[0]` and back and switches decoding off and on, `events` times, while the
    /// other vCPUs store to the first places of all BARs.
    MoveBars,
    /// Makes `reference_points` rounds. A round is a point `outside`, and a region `measured` of two
    /// reference points with a point `inside` between them.
    Regions,
    /// The last vCPU moves BAR 4 as in [`Program::MoveBars`], while the other vCPUs trace events and
    /// reference points through the library.
    MoveTraced,
    /// `events` rounds of a region for each way to spend time: in the guest for `params[1]` ticks, in the
    /// VMM, asleep, and waiting for a CPU. `params[0]` is the address of the VMM's device that spends time in
    /// these ways ([`spend`](crate::spend)). If more than `params[2]` ticks pass between two readings of its
    /// counter, the guest assumes that it was away.
    Spend,
    /// `events` regions `store`, with ids from `params[1]` on. Each region has a load from `params[2]`, if
    /// this address is not 0, and a store to `params[0]`. Reference points and regions `empty` are between
    /// some of the regions. Posts the ticks of the regions.
    StoreRegions,
    /// Emits `events` ring events, each after a pause of `params[0]` ticks.
    Sparse,
}

impl Program {
    const ALL: [Program; 16] = [
        Program::Hello,
        Program::Sse,
        Program::Store,
        Program::Hang,
        Program::Panic,
        Program::Fault,
        Program::Demo,
        Program::RingEmit,
        Program::ReferencePoints,
        Program::Legacy,
        Program::MoveBars,
        Program::Regions,
        Program::MoveTraced,
        Program::Spend,
        Program::StoreRegions,
        Program::Sparse,
    ];

    /// Returns the program with this number. A table is searched, because the number comes from memory and
    /// may be wrong.
    pub fn from_number(number: u32) -> Option<Program> {
        Program::ALL.into_iter().find(|program| *program as u32 == number)
    }
}

/// Arguments from the VMM to the program. If the program runs in the image, the addresses are guest-physical.
/// If the program runs on host threads, the addresses are addresses of the process.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Args {
    /// Discriminant of a [`Program`].
    pub program: u32,
    /// Number of vCPUs that run the program, filled in when the vCPUs are started.
    pub vcpus: u32,
    /// Address of the control page, or 0 if there is none.
    pub control: u64,
    /// Address of the hypertrace device's MMIO window, or 0 if there is none.
    pub device: u64,
    /// Address of the PCI configuration space, or 0 if there is none.
    pub ecam: u64,
    /// Number of ring events of each vCPU.
    pub events: u64,
    /// Number of reference points of each vCPU.
    pub reference_points: u64,
    /// Parameters whose meaning depends on the program.
    pub params: [u64; 4],
}

impl Args {
    /// Returns arguments for `program` in a guest without a device, with all counts 0.
    pub fn new(program: Program) -> Self {
        Args {
            program: program as u32,
            vcpus: 1,
            control: layout::CONTROL,
            device: 0,
            ecam: 0,
            events: 0,
            reference_points: 0,
            params: [0; 4],
        }
    }

    /// Returns the words of the arguments, as the image finds them in memory.
    pub fn words(&self) -> [u64; size_of::<Args>() / 8] {
        let Args { program, vcpus, control, device, ecam, events, reference_points, params } =
            *self;
        let [a, b, c, d] = params;
        let both = u64::from(program) | u64::from(vcpus) << 32;
        [both, control, device, ecam, events, reference_points, a, b, c, d]
    }
}

/// Values that the vCPUs share with each other and with the VMM in guest memory, without exits.
///
/// The initial state is all zero, as fresh guest memory is.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Board {
    /// How often all vCPUs together have called [`Board::meet`].
    arrived: AtomicU64,
    /// Addresses of the device's regions: config, data, control, rings; 0 for none.
    regions: [AtomicU64; 4],
    results: [[AtomicU64; BOARD_RESULTS]; MAX_VCPUS],
}

impl Board {
    /// Returns the offset of vCPU `cpu`'s results, for a VMM that reads them from guest memory.
    pub const fn results_offset(cpu: usize) -> usize {
        core::mem::offset_of!(Board, results) + cpu * 8 * BOARD_RESULTS
    }

    /// Waits until all of `vcpus` vCPUs have called this function equally often, so that they continue
    /// together.
    pub fn meet(&self, vcpus: u32) {
        let vcpus = u64::from(vcpus.max(1));
        // ORDERING: pairs with the load below in the other vCPUs: values written before the
        // meeting are seen after it.
        let arrived = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (arrived / vcpus + 1) * vcpus;
        while self.arrived.load(Ordering::Acquire) < all {
            core::hint::spin_loop();
        }
    }

    /// Returns the addresses of the device's regions (config, data, control, rings), 0 for none.
    pub fn regions(&self) -> [u64; 4] {
        core::array::from_fn(|i| self.regions[i].load(Ordering::Relaxed))
    }

    /// Sets the addresses of the device's regions.
    pub fn set_regions(&self, addresses: [u64; 4]) {
        for (word, address) in self.regions.iter().zip(addresses) {
            word.store(address, Ordering::Relaxed);
        }
    }

    /// Stores result number `index` of vCPU `cpu`; numbers out of range are dropped.
    pub fn post(&self, cpu: u32, index: usize, value: u64) {
        if let Some(word) = self.results.get(cpu as usize).and_then(|r| r.get(index)) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Returns the results of vCPU `cpu`, which are final once its program has ended.
    pub fn results(&self, cpu: u32) -> [u64; BOARD_RESULTS] {
        match self.results.get(cpu as usize) {
            Some(words) => core::array::from_fn(|i| words[i].load(Ordering::Relaxed)),
            None => [0; BOARD_RESULTS],
        }
    }
}
