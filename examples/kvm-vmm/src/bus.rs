//! The bus, which passes the guest's MMIO exits to devices.

use std::fmt;
use std::ops::Range;

type Read = Box<dyn Fn(u64, &mut [u8]) + Send + Sync>;
type Write = Box<dyn Fn(u64, &[u8]) + Send + Sync>;

/// Address windows, each with two functions that take the offset into the window.
///
/// The vCPU threads call these functions concurrently. A load from an address outside of all windows returns
/// all ones, and a store there is ignored, as on an empty bus. An access that begins in a window and crosses
/// the window's end goes to this window: devices check their own bounds.
#[derive(Default)]
pub struct Bus {
    windows: Vec<Window>,
}

struct Window {
    range: Range<u64>,
    read: Read,
    write: Write,
}

impl Bus {
    /// Adds a window. If windows overlap, the window that was added first answers.
    pub fn add(
        &mut self,
        range: Range<u64>,
        read: impl Fn(u64, &mut [u8]) + Send + Sync + 'static,
        write: impl Fn(u64, &[u8]) + Send + Sync + 'static,
    ) {
        self.windows.push(Window { range, read: Box::new(read), write: Box::new(write) });
    }

    /// Handles a guest load of `data.len()` bytes.
    pub fn read(&self, gpa: u64, data: &mut [u8]) {
        match self.find(gpa) {
            Some(window) => (window.read)(gpa - window.range.start, data),
            None => data.fill(0xff),
        }
    }

    /// Handles a guest store.
    pub fn write(&self, gpa: u64, data: &[u8]) {
        if let Some(window) = self.find(gpa) {
            (window.write)(gpa - window.range.start, data);
        }
    }

    fn find(&self, gpa: u64) -> Option<&Window> {
        self.windows.iter().find(|window| window.range.contains(&gpa))
    }
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.windows.iter().map(|window| &window.range)).finish()
    }
}
