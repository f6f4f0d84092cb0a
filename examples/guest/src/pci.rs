//! Sets up a PCI function as firmware does: finds the function, sizes the BARs, gives the BARs addresses, and
//! switches decoding on.
#![allow(unsafe_code)]

/// Number of BARs of a type 0 function.
pub const BARS: usize = 6;

// Offsets in configuration space (PCI Local Bus 3.0, 6.1).
const ID: u64 = 0x00;
const COMMAND: u64 = 0x04;
const BAR0: u64 = 0x10;

const COMMAND_MEMORY: u32 = 1 << 1;
/// Bit 0 of a BAR, which marks I/O ports. A BAR of I/O ports is ignored.
const BAR_IO: u32 = 1 << 0;
/// Bits 1 and 2 of a memory BAR. A 64-bit BAR has its upper half in the next BAR.
const BAR_TYPE: u32 = 3 << 1;
const BAR_64: u32 = 2 << 1;

/// Configuration space of a function in the ECAM window.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    config: u64,
}

impl Function {
    /// Finds the first function 0 on bus 0 with these ids.
    ///
    /// # Safety
    /// `ecam` must be the address of an ECAM window with bus 0.
    pub unsafe fn find(ecam: u64, vendor: u16, device: u16) -> Option<Function> {
        (0..32)
            .map(|slot| Function { config: ecam + (slot << 15) })
            .find(|function| function.read(ID) == u32::from(device) << 16 | u32::from(vendor))
    }

    /// Gives every memory BAR an address, from `window` upwards and aligned to its size, and switches memory
    /// decoding on. Returns the address of each BAR, or 0 for a register that is no memory BAR.
    pub fn enable(self, window: u64) -> [u64; BARS] {
        let mut addresses = [0; BARS];
        let mut next = window;
        // Sizing writes all ones, which must not be decoded as an address.
        self.set_decoding(false);
        let mut bar = 0;
        while bar < BARS {
            let register = BAR0 + 4 * bar as u64;
            let kind = self.read(register);
            let wide = kind & (BAR_IO | BAR_TYPE) == BAR_64;
            if let Some(size) = self.size(register, wide).filter(|_| kind & BAR_IO == 0) {
                let address = next.next_multiple_of(size);
                self.move_bar(bar, address, wide);
                addresses[bar] = address;
                next = address + size;
            }
            bar += if wide { 2 } else { 1 };
        }
        self.set_decoding(true);
        addresses
    }

    /// Moves a BAR to `address`.
    pub fn move_bar(self, bar: usize, address: u64, wide: bool) {
        let register = BAR0 + 4 * bar as u64;
        self.write(register, address as u32);
        if wide {
            self.write(register + 4, (address >> 32) as u32);
        }
    }

    /// Switches the decoding of memory BARs on or off.
    pub fn set_decoding(self, on: bool) {
        let command = self.read(COMMAND) & 0xffff & !COMMAND_MEMORY;
        self.write(COMMAND, command | if on { COMMAND_MEMORY } else { 0 });
    }

    /// Determines a BAR's size from the address bits that stay zero. Returns `None` if there is no BAR.
    fn size(self, register: u64, wide: bool) -> Option<u64> {
        self.write(register, u32::MAX);
        let low = self.read(register) & !0xf;
        let high = if wide {
            self.write(register + 4, u32::MAX);
            self.read(register + 4)
        } else {
            u32::MAX
        };
        let mask = u64::from(high) << 32 | u64::from(low);
        (low != 0 || (wide && high != 0)).then(|| mask.wrapping_neg())
    }

    fn read(self, offset: u64) -> u32 {
        // SAFETY: `find`'s caller promised an ECAM window; the offset is a register's.
        unsafe { ((self.config + offset) as *const u32).read_volatile() }
    }

    fn write(self, offset: u64, value: u32) {
        // SAFETY: as in `read`.
        unsafe { ((self.config + offset) as *mut u32).write_volatile(value) }
    }
}
