//! Stand-ins for the PCI bus of Cloud Hypervisor: the trait of a device, its config space, and a bus of
//! one device.

use std::io;
use std::ops::Range;

/// A BAR that the guest has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarReprogrammingParams {
    /// Address before.
    pub old_base: u64,
    /// Address now.
    pub new_base: u64,
    /// Size.
    pub len: u64,
    /// Whether the BAR's address has 64 bits.
    pub is_64_bit: bool,
}

/// A PCI device.
pub trait PciDevice: Send {
    /// Returns a dword of config space.
    fn read_config_register(&mut self, register: usize) -> u32;

    /// Stores to a dword of config space, from byte `offset` of the dword on. Returns the BARs that moved.
    fn write_config_register(
        &mut self,
        register: usize,
        offset: u64,
        data: &[u8],
    ) -> Vec<BarReprogrammingParams>;

    /// Loads from the BAR at `base`.
    fn read_bar(&mut self, base: u64, offset: u64, data: &mut [u8]);

    /// Stores to the BAR at `base`.
    fn write_bar(&mut self, base: u64, offset: u64, data: &[u8]);

    /// Moves a BAR to another address, because the VMM has accepted the move.
    fn move_bar(&mut self, old_base: u64, new_base: u64) -> io::Result<()>;

    /// Sets a BAR back to its earlier address, because the VMM cannot put the BAR at the new address.
    fn restore_bar_addr(&mut self, params: &BarReprogrammingParams);
}

/// A memory BAR that a VMM adds to its config space.
#[derive(Clone, Copy, Debug)]
pub struct PciBarConfiguration {
    /// Index of the BAR.
    pub index: usize,
    /// Address that the VMM has allocated.
    pub address: u64,
    /// Size, a power of two.
    pub size: u64,
    /// Whether the BAR takes two dwords.
    pub is_64_bit: bool,
    /// Whether loads have no side effects.
    pub is_prefetchable: bool,
}

/// A VMM's own config space.
#[derive(Debug)]
pub struct PciConfiguration {
    registers: [u32; 16],
    writable: [u32; 16],
    bars: Vec<PciBarConfiguration>,
}

const BAR0: usize = 4;

impl PciConfiguration {
    /// Makes config space with these ids and no BARs. `class` has class and subclass.
    pub fn new(vendor: u16, device: u16, class: u16, revision: u8, subsystem: [u16; 2]) -> Self {
        let mut registers = [0; 16];
        registers[0] = u32::from(vendor) | u32::from(device) << 16;
        registers[2] = u32::from(revision) | u32::from(class) << 16;
        registers[11] = u32::from(subsystem[0]) | u32::from(subsystem[1]) << 16;
        let mut writable = [0; 16];
        writable[1] = 0b10;
        PciConfiguration { registers, writable, bars: Vec::new() }
    }

    /// Adds a BAR.
    pub fn add_pci_bar(&mut self, bar: PciBarConfiguration) {
        let low = BAR0 + bar.index;
        let kind = u32::from(bar.is_64_bit) << 2 | u32::from(bar.is_prefetchable) << 3;
        self.registers[low] = bar.address as u32 | kind;
        self.writable[low] = !(bar.size - 1) as u32 & !0xf;
        if bar.is_64_bit {
            self.registers[low + 1] = (bar.address >> 32) as u32;
            self.writable[low + 1] = (!(bar.size - 1) >> 32) as u32;
        }
        self.bars.push(bar);
    }

    /// Returns a dword.
    pub fn read_reg(&self, register: usize) -> u32 {
        self.registers.get(register).copied().unwrap_or(0)
    }

    /// Sets a BAR back to its earlier address.
    pub fn restore_bar_addr(&mut self, params: &BarReprogrammingParams) {
        let Some(bar) = self.bars.iter_mut().find(|bar| bar.address == params.new_base) else {
            return;
        };
        bar.address = params.old_base;
        let low = BAR0 + bar.index;
        self.registers[low] = params.old_base as u32 | self.registers[low] & 0xf;
        if bar.is_64_bit {
            self.registers[low + 1] = (params.old_base >> 32) as u32;
        }
    }

    /// Stores to a dword. Once the guest has enabled memory space, returns the BARs that moved.
    pub fn write_config_register(
        &mut self,
        register: usize,
        offset: u64,
        data: &[u8],
    ) -> Vec<BarReprogrammingParams> {
        let Some(&writable) = self.writable.get(register) else { return Vec::new() };
        let mut bytes = self.registers[register].to_le_bytes();
        for (to, from) in bytes.iter_mut().skip(offset as usize).zip(data) {
            *to = *from;
        }
        let (old, new) = (self.registers[register], u32::from_le_bytes(bytes));
        self.registers[register] = old & !writable | new & writable;
        if self.registers[1] & 0b10 == 0 {
            return Vec::new();
        }
        let mut moved = Vec::new();
        for bar in &mut self.bars {
            let low = u64::from(self.registers[BAR0 + bar.index] & !0xf);
            let high = if bar.is_64_bit { self.registers[BAR0 + bar.index + 1] } else { 0 };
            let (old_base, new_base) = (bar.address, low | u64::from(high) << 32);
            if old_base != new_base {
                bar.address = new_base;
                let (len, is_64_bit) = (bar.size, bar.is_64_bit);
                moved.push(BarReprogrammingParams { old_base, new_base, len, is_64_bit });
            }
        }
        moved
    }
}

/// A bus of one device: config space by dword, and the ranges of the device's BARs.
pub struct PciBus<D> {
    /// The device.
    pub device: D,
    /// Range of RAM, in which the bus has no BAR.
    pub ram: Range<u64>,
    ranges: Vec<(u64, u64)>,
}

impl<D: PciDevice> PciBus<D> {
    /// Makes a bus of a device whose BARs have these bases and sizes.
    pub fn new(device: D, bars: impl IntoIterator<Item = (u64, u64)>) -> Self {
        PciBus { device, ram: 0..0, ranges: bars.into_iter().collect() }
    }

    /// Performs a guest's load from config space.
    pub fn config_read(&mut self, register: usize) -> u32 {
        self.device.read_config_register(register)
    }

    /// Performs a guest's store to config space, and moves each BAR whose address the store changes.
    pub fn config_write(&mut self, register: usize, value: u32) {
        for moved in self.device.write_config_register(register, 0, &value.to_le_bytes()) {
            let range = self.ranges.iter_mut().find(|(base, _)| *base == moved.old_base);
            let Some(range) = range.filter(|_| !self.ram.contains(&moved.new_base)) else {
                self.device.restore_bar_addr(&moved);
                continue;
            };
            *range = (moved.new_base, moved.len);
            let _ = self.device.move_bar(moved.old_base, moved.new_base);
        }
    }

    /// Performs a guest's load that trapped. If no BAR is at this address, the load returns ones.
    pub fn read(&mut self, gpa: u64, data: &mut [u8]) {
        match self.find(gpa) {
            Some(base) => self.device.read_bar(base, gpa - base, data),
            None => data.fill(0xff),
        }
    }

    /// Performs a guest's store that trapped.
    pub fn write(&mut self, gpa: u64, data: &[u8]) {
        if let Some(base) = self.find(gpa) {
            self.device.write_bar(base, gpa - base, data);
        }
    }

    fn find(&self, gpa: u64) -> Option<u64> {
        let is_inside = |(base, len): &&(u64, u64)| gpa >= *base && gpa - base < *len;
        self.ranges.iter().find(is_inside).map(|(base, _)| *base)
    }
}
