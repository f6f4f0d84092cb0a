//! The control page: how the guest's program says something, and how it ends.

use std::sync::{Mutex, PoisonError};

use hypertrace_guest::layout;

/// More console output than this is dropped: the guest must not fill the host's memory.
const CONSOLE_LIMIT: usize = 64 << 10;

#[derive(Debug, Default)]
pub struct Control {
    console: Mutex<Vec<u8>>,
}

impl Control {
    /// A guest store at `gpa`. `None`: not the control page. `Some(Some(code))`: this vCPU's
    /// program has ended.
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

    /// Takes what the guest has said so far.
    pub fn take_console(&self) -> Vec<u8> {
        std::mem::take(&mut *self.console.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
