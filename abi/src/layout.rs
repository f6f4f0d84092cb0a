// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The layout of the device: PCI identity, BARs, register offsets, client pages.
//!
//! Offsets and sizes are in bytes, unless the name of a constant contains the unit "words". `docs/abi.md`
//! lists the same layout and says who writes each word.

#[doc(hidden)]
pub mod local;
/// PCI vendor id of Red Hat, which sets 10f0 to 10ff aside for experiments.
pub const PCI_VENDOR: u16 = 0x1af4;
/// Default PCI device id. A guest also checks the config page's magic word.
pub const PCI_DEVICE: u16 = 0x10f0;
/// PCI subsystem id: "ht" in ASCII.
pub const PCI_SUBSYSTEM: u16 = 0x6874;
/// PCI device id of ivshmem, a PCI function with the same vendor id. BAR 2 of this function is a file of the
/// host. The file may contain a segment.
#[doc(hidden)]
pub const IVSHMEM_DEVICE: u16 = 0x1110;
/// Index of the ivshmem BAR that maps the file.
#[doc(hidden)]
pub const IVSHMEM_BAR: usize = 2;
/// PCI class: memory controller, RAM.
pub const PCI_CLASS: u16 = 0x0500;
/// PCI revision: the version of this interface.
pub const PCI_REVISION: u8 = 3;

/// Unit of mapping: the size of register pages and client pages.
pub const PAGE: u64 = 4096;
/// Minimum size of a BAR, so that a host with 64 KiB pages can map each BAR separately.
pub const MIN_BAR: u64 = 64 * 1024;
/// Size in bytes of a 64-bit word, the unit of rings and logs.
pub const WORD: u64 = 8;

/// Distance from one client's 2016 argument slot in BAR 1 to the next client's slot, in bytes for each
/// argument of an event. The 2016 code advances `u64` pointers by `client * args * 8`.
#[doc(hidden)]
pub const LEGACY_SLOT_STRIDE_PER_ARG: u64 = 64;
/// Maximum number of arguments of a 2016 event.
#[doc(hidden)]
pub const MAX_LEGACY_ARGS: u32 = 16;

/// Offsets of the registers in a client's page of BAR 2.
pub mod register {
    /// Register for reference points. The low half of the value is the slot's `seq`.
    pub const EMIT: u64 = 0x00;
    /// Register for the token of a new holder, nonzero.
    pub const LEASE: u64 = 0x08;
    /// End of the registers. The rest of the page reads as zero. The device ignores stores to the rest of the
    /// page, but counts these stores.
    pub const END: u64 = 0x10;
}

/// Marks in a program's code that identify a store to a register. An emulator that translates the code
/// recognises the store by its mark. A mark does not change the effect of the store.
#[doc(hidden)]
pub mod mark {
    /// Displacement of the marked store on x86-64: `mov [reg + DISPLACEMENT], reg`, 64 bits wide. Before the
    /// store, the program subtracts the displacement from the address. The displacement's bytes are "prTh".
    pub const DISPLACEMENT: i32 = 0x6854_7270;
    /// Operand of the instruction `movz xzr, #IMMEDIATE` that precedes the marked 64-bit `str` on AArch64.
    /// The instruction has no effect, and compilers do not emit it. The operand is "ht".
    pub const IMMEDIATE: u16 = 0x6874;
}

/// Ioctls of `/dev/hypertrace`, which the kernel module of a Linux guest creates. The argument of an ioctl is
/// the address of a u32 that holds a client's id.
#[doc(hidden)]
pub mod module {
    /// Ioctl that leases the client to the open file description: `_IOWR(0xe7, 0, u32)`.
    pub const LEASE: u32 = 0xc004_e700;
    /// Ioctl that gives the client back: `_IOW(0xe7, 1, u32)`.
    pub const RELEASE: u32 = 0x4004_e701;
}

/// Indices of words in page G of a client, which the guest writes.
#[doc(hidden)]
pub mod guest_page {
    /// Ring position after the last published record, in words.
    pub const HEAD: usize = 0;
    /// The guest's [`Counter`](crate::clock::Counter), which each new holder stores.
    pub const COUNTER: usize = 1;
    /// Running total of events dropped because the ring was full.
    pub const LOST_FULL: usize = 8;
    /// Running total of events dropped because they interrupted another emit.
    pub const LOST_BUSY: usize = 9;
    /// Running total of events that threads without a client have dropped. If a client gets a new holder, the
    /// total continues. A process adds its events to the total of a client that it holds.
    pub const LOST_UNATTACHED: usize = 10;
    /// Running total of words written to the schema log.
    pub const SCHEMA_LEN: usize = 16;
    /// In a segment, nonzero while the client sleeps on the reply's u32 `seq`, a shared futex.
    pub const SLEEPS: usize = 24;
    /// The slot of a reference point: four header words, then up to 256 payload words.
    pub const SLOT: usize = 0x400 / 8;
    /// The slot's header word with the number of payload words (u16). In a segment, the upper half is the
    /// `seq` of the point that the client asks the host to serve. While the upper half is 0, the host does
    /// not serve the point, because an emulator's plugin may be serving the point.
    pub const SLOT_LEN: usize = SLOT + 3;
}

/// Indices of words in page H of a client, which the host writes.
#[doc(hidden)]
pub mod host_page {
    /// Ring position up to which the host has taken records, in words.
    pub const TAIL: usize = 0;
    /// Position up to which the host has stored the schema log on disk, in words.
    pub const SCHEMA_SEEN: usize = 1;
    /// Nonzero while the host cannot write the records of this ring, so that clients do not wait for room in
    /// a full ring.
    pub const WRITE_FAILED: usize = 2;
    /// Token that was last stored to LEASE, if stores trap.
    pub const LEASE: usize = 8;
    /// Version of the enable mask, which changes with each change of the mask.
    pub const MASK_VERSION: usize = 9;
    /// Reply: u32 seq, u32 status, stored last.
    pub const REPLY: usize = 16;
    /// Reply: the host's raw counter at entry.
    pub const REPLY_HOST_TIME: usize = 17;
    /// Reply: the clock epoch.
    pub const REPLY_EPOCH: usize = 18;
}

/// Words in the header of a slot.
#[doc(hidden)]
pub const SLOT_HEADER_WORDS: usize = 4;
/// Maximum number of payload words of a reference point.
#[doc(hidden)]
pub const SLOT_WORDS: usize = 256;
/// Only reference points may use the last part of a ring: 1/16 of the ring.
#[doc(hidden)]
pub const RESERVED_PART: u64 = 16;
/// Size of the enable mask in bytes: one byte per value of `hash(name) & 0xfff`.
pub const MASK_BYTES: u64 = 4096;

/// Sizes that the host chooses. Every offset follows from these sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of clients, 1 to 1,024.
    pub clients: u32,
    /// Number of arguments of a 2016 event, 1 to 16.
    pub legacy_args: u32,
    /// Size of one client's ring in bytes, a power of two.
    pub ring_bytes: u64,
    /// Size of one block of a ring in bytes, a power of two, at most 1/16 of the ring.
    pub block_bytes: u64,
    /// Size of one client's schema log in bytes, a power of two.
    pub schema_bytes: u64,
}

/// The bound that a [`Geometry`] violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeometryError(pub &'static str);

impl core::fmt::Display for GeometryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for GeometryError {}

impl Default for Geometry {
    fn default() -> Self {
        Geometry {
            clients: 16,
            legacy_args: 8,
            ring_bytes: 1 << 20,
            block_bytes: 1 << 16,
            schema_bytes: 1 << 14,
        }
    }
}

/// Number of clients for threads of programs, in a geometry [for vCPUs](Geometry::for_vcpus).
const LEASED: u32 = 16;

impl Geometry {
    /// Returns this geometry with as many clients as a VM of `vcpus` vCPUs needs: one for each vCPU, and 16
    /// that threads of programs lease. Set [`clients`](Geometry::clients) afterwards if more than 16 threads
    /// trace at the same time.
    #[must_use]
    pub const fn for_vcpus(self, vcpus: u32) -> Geometry {
        Geometry { clients: vcpus.saturating_add(LEASED), ..self }
    }

    /// Returns the sizes for `clients` threads of programs that come and go. Each thread begins a block, so
    /// the blocks are smaller than the blocks of a vCPU's ring: a block has 1/256 of the ring, but at least 4
    /// KiB and at most 64 KiB. A ring of at least 64 KiB then has 16 blocks.
    #[must_use]
    pub fn for_programs(clients: u32, ring_bytes: u64) -> Geometry {
        let block_bytes = (ring_bytes / 256).clamp(1 << 12, 1 << 16);
        Geometry { clients, ring_bytes, block_bytes, ..Geometry::default() }
    }

    /// Checks every bound that the offsets below rely on.
    ///
    /// # Errors
    /// Returns the first bound that is violated.
    pub fn check(&self) -> Result<(), GeometryError> {
        let fail = |why| Err(GeometryError(why));
        if self.clients == 0 || self.clients > 1024 {
            return fail("clients must be 1 to 1024");
        }
        if !(1..=MAX_LEGACY_ARGS).contains(&self.legacy_args) {
            return fail("legacy_args must be 1 to 16");
        }
        if !self.ring_bytes.is_power_of_two() || !(PAGE..=1 << 32).contains(&self.ring_bytes) {
            return fail("ring_bytes must be a power of two from 4 KiB to 4 GiB");
        }
        if !self.block_bytes.is_power_of_two() || !(256..=1 << 20).contains(&self.block_bytes) {
            return fail("block_bytes must be a power of two from 256 B to 1 MiB");
        }
        if self.block_bytes > self.ring_bytes / 16 {
            return fail("a ring must have at least 16 blocks");
        }
        if !self.schema_bytes.is_power_of_two() || !(PAGE..=1 << 16).contains(&self.schema_bytes) {
            return fail("schema_bytes must be a power of two from 4 KiB to 64 KiB");
        }
        if self.rings_size() > 1 << 40 {
            return fail("the rings of all clients exceed 1 TiB");
        }
        Ok(())
    }

    /// Returns the size of one client's area in BAR 4: pages G and H, schema log, ring.
    pub const fn client_stride(&self) -> u64 {
        2 * PAGE + self.schema_bytes + self.ring_bytes
    }

    /// Returns the offset of a client's area in BAR 4.
    pub const fn client_offset(&self, client: u32) -> u64 {
        MASK_BYTES + client as u64 * self.client_stride()
    }

    /// Returns the size of the used part of BAR 4.
    pub const fn rings_size(&self) -> u64 {
        self.client_offset(self.clients)
    }

    /// Returns the distance in bytes from one 2016 argument slot to the next in BAR 1.
    pub const fn legacy_slot_stride(&self) -> u64 {
        LEGACY_SLOT_STRIDE_PER_ARG * self.legacy_args as u64
    }

    /// Returns the size of the used part of BAR 1: whole pages of 2016 argument slots.
    pub const fn data_size(&self) -> u64 {
        (self.clients as u64 * self.legacy_slot_stride()).next_multiple_of(PAGE)
    }

    /// Returns the offset of KICK in BAR 2. A store to KICK requests a drain of all rings. KICK has a page of
    /// its own, which a kernel can map for each program. The 2016 registers are below this page. The register
    /// of a client is a u64 at `client * 8`.
    pub const fn kick_offset(&self) -> u64 {
        (self.clients as u64 * WORD).next_multiple_of(PAGE)
    }

    /// Returns the offset of the first client's register page in BAR 2.
    pub const fn control_pages_offset(&self) -> u64 {
        self.kick_offset() + PAGE
    }

    /// Returns the size of the used part of BAR 2.
    pub const fn control_size(&self) -> u64 {
        self.control_pages_offset() + self.clients as u64 * PAGE
    }

    /// Returns the size of a region, both as a BAR and in the MMIO window: a power of two, at least
    /// [`MIN_BAR`].
    pub const fn bar_size(&self, region: Region) -> u64 {
        let used = match region {
            Region::Config => PAGE,
            Region::Data => self.data_size(),
            Region::Control => self.control_size(),
            Region::Rings => self.rings_size(),
        };
        let size = used.next_power_of_two();
        if size < MIN_BAR { MIN_BAR } else { size }
    }

    /// Returns the offset of a region in the MMIO window. The regions follow each other
    /// in order without gaps, each in the size of its BAR.
    pub const fn window_offset(&self, region: Region) -> u64 {
        match region {
            Region::Config => 0,
            Region::Data => self.bar_size(Region::Config),
            Region::Control => self.window_offset(Region::Data) + self.bar_size(Region::Data),
            Region::Rings => self.window_offset(Region::Control) + self.bar_size(Region::Control),
        }
    }

    /// Returns the size of the MMIO window.
    pub const fn window_size(&self) -> u64 {
        self.window_offset(Region::Rings) + self.bar_size(Region::Rings)
    }
}

/// The four regions of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Region {
    /// BAR 0: the config page, read-only.
    Config,
    /// BAR 1: RAM with the 2016 argument slots.
    Data,
    /// BAR 2: registers. Accesses trap.
    Control,
    /// BAR 4 (and 5, for the upper half of the address): RAM with the enable mask and the rings.
    Rings,
}

impl Region {
    /// All regions, in the order of the window.
    pub const ALL: [Region; 4] = [Region::Config, Region::Data, Region::Control, Region::Rings];

    /// Returns the index of the region's BAR.
    pub const fn bar(self) -> usize {
        match self {
            Region::Config => 0,
            Region::Data => 1,
            Region::Control => 2,
            Region::Rings => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_geometry_is_valid_and_regions_do_not_overlap() {
        let g = Geometry::default();
        g.check().unwrap();
        let mut end = 0;
        for region in Region::ALL {
            assert_eq!(g.window_offset(region), end);
            assert!(g.bar_size(region).is_power_of_two());
            end += g.bar_size(region);
        }
        assert_eq!(g.window_size(), end);
        assert!(g.rings_size() <= g.bar_size(Region::Rings));
    }

    #[test]
    fn each_vcpu_has_a_client_besides_those_of_programs() {
        let most = Geometry::default().for_vcpus(1008);
        assert_eq!((most.clients, most.check()), (1024, Ok(())));
        for vcpus in [1009, u32::MAX] {
            let error = Geometry::default().for_vcpus(vcpus).check().unwrap_err();
            assert_eq!(error.to_string(), "clients must be 1 to 1024");
        }
    }

    #[test]
    fn the_blocks_of_programs_grow_with_their_ring() {
        for (ring_bytes, blocks) in [(1 << 16, 16), (1 << 20, 256), (1 << 23, 256), (1 << 26, 1024)]
        {
            let g = Geometry::for_programs(4, ring_bytes);
            assert_eq!((g.check(), g.ring_bytes / g.block_bytes), (Ok(()), blocks));
        }
    }

    #[test]
    fn a_ring_of_fewer_than_16_blocks_is_refused() {
        let g = Geometry { ring_bytes: 1 << 16, block_bytes: 1 << 13, ..Geometry::default() };
        assert_eq!(g.check(), Err(GeometryError("a ring must have at least 16 blocks")));
    }
}
