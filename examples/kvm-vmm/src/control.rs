//! The control page: the guest program's console, and its exit.

use std::sync::{Mutex, PoisonError};

use hypertrace_guest::layout;

/// Maximum size of the kept console output in bytes, because the guest must not fill the host's memory.
const CONSOLE_LIMIT: usize = 64 << 10;

#[derive(Debug, Default)]
pub struct Control {
    console: Mutex<Vec<u8>>,
}

impl Control {
    /// Handles a guest store at `gpa`. Returns `None` if `gpa` is not in the control page, and
    /// `Some(Some(code))` if this vCPU's program has ended.
    pub fn write(&self, gpa: u64, data: &[u8]) -> Option<Option<u32>> {
        let offset =
            gpa.checked_sub(layout::CONTROL).filter(|offset| *offset < layout::CONTROL_SIZE)?;
        match offset {
            layout::CONTROL_EXIT => {
                let mut code = [0; 4];
                let bytes = data.len().min(4);
                code[..bytes].copy_from_slice(&data[..bytes]);
                Some(Some(u32::from_le_bytes(code)))
            }
            layout::CONTROL_CONSOLE => {
                let mut console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
                let room = CONSOLE_LIMIT - console.len();
                console.extend_from_slice(&data[..data.len().min(room)]);
                Some(None)
            }
            _ => Some(None),
        }
    }

    /// Takes the console output so far.
    pub fn take_console(&self) -> Vec<u8> {
        std::mem::take(&mut *self.console.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
