//! Output to the VMM's console.
#![allow(unsafe_code)]

use core::fmt;

use crate::layout;
use crate::mmio::store;

/// The VMM's console. Every store is an exit, so the console is for a few words, not for tracing.
#[derive(Debug)]
pub struct Console {
    register: Option<u64>,
}

impl Console {
    /// Returns the console of the control page at `control`; with 0, output is discarded.
    ///
    /// # Safety
    /// `control` must be 0, the address of the VMM's control page, or the address of a page of memory that
    /// stands for the control page.
    pub unsafe fn new(control: u64) -> Self {
        let register = (control != 0).then_some(control + layout::CONTROL_CONSOLE);
        Console { register }
    }
}

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let Some(register) = self.register else {
            return Ok(());
        };
        // Whole words come first, because eight bytes then take one exit.
        let mut words = text.as_bytes().chunks_exact(8);
        for word in &mut words {
            let value = word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
            // SAFETY: the register is aligned to 8, and the constructor's caller promised a control page at
            // this address.
            unsafe { store(register, value, 8) };
        }
        for byte in words.remainder() {
            // SAFETY: as above.
            unsafe { store(register, u64::from(*byte), 1) };
        }
        Ok(())
    }
}
