//! Names of leases: the name of the thread, or the names of the process and the thread.

use super::options::Options;
use hypertrace_abi::event::cut;

/// The name of a process. Threads of the process that the program did not name have this name, too.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProcessName {
    /// Name of the process.
    pub name: Box<str>,
    /// Name of the emulator, if there is one. Threads of the emulator have this name.
    pub emulator: Option<Box<str>>,
}

impl ProcessName {
    /// Returns true if `thread` is the name that the process or its emulator gives every thread.
    pub(super) fn is_of_all(&self, thread: &str) -> bool {
        *thread == *self.name || self.emulator.as_deref() == Some(thread)
    }
}

/// Returns the kernel's name of the process, and the emulator's, if any: QEMU's user mode shows the program
/// under `self`, and itself under `thread-self`.
pub(super) fn of_process(options: &Options) -> Option<ProcessName> {
    let in_proc = |file: &str| options.proc.join(file);
    let stat = std::fs::read_to_string(in_proc("self/stat")).ok()?;
    let exe = |of: &str| std::fs::read_link(in_proc(of).join("exe")).ok();
    let emulator =
        exe("thread-self").filter(|real| exe("self").is_some_and(|shown| shown != *real));
    Some(ProcessName {
        name: name_in_stat(&stat)?.into(),
        emulator: emulator.and_then(|real| {
            let file = real.file_name()?.to_str()?;
            // Cuts the name off as the kernel does.
            Some(file.get(..file.len().min(15))?.into())
        }),
    })
}

/// Returns the name in a line of `stat`. The line has the name in parentheses, and the name itself may have
/// parentheses.
fn name_in_stat(stat: &str) -> Option<&str> {
    let (_, behind) = stat.split_once('(')?;
    Some(behind.rsplit_once(')')?.0)
}

/// A lease's name, put together without allocating; cut off if too long.
pub(super) struct LeaseName {
    text: [u8; 64],
    len: usize,
}

impl Default for LeaseName {
    fn default() -> Self {
        LeaseName { text: [0; 64], len: 0 }
    }
}

impl LeaseName {
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..self.len]).unwrap_or_default()
    }
}

impl std::fmt::Write for LeaseName {
    fn write_str(&mut self, piece: &str) -> std::fmt::Result {
        let room = &mut self.text[self.len..];
        let piece = cut(piece, room.len()).as_bytes();
        room[..piece.len()].copy_from_slice(piece);
        self.len += piece.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_the_kernels_name_for_it() {
        assert_eq!(name_in_stat("12 (a) S 1"), Some("a"));
        assert_eq!(name_in_stat("12 (a) (b)) S 1"), Some("a) (b)"));
        assert_eq!(name_in_stat("12 a S 1"), None);
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        let name = of_process(&Options::default()).unwrap();
        assert_eq!((&*name.name, name.emulator), (comm.trim_end(), None));
    }
}
