//! What this process may record on this machine.

use crate::error::Error;
use crate::instance::AVAILABLE;
use crate::perf::Perf;
use crate::tracefs;
use std::path::PathBuf;

/// Memory that perf locks for each CPU in a recording, in KiB: the CPU's ring, and the page before the ring.
pub const PERF_KIB: u64 = Perf::BUFFER_KIB as u64 + 4;

/// Returns the path of the kernel's trace, if this process may record from it.
///
/// # Errors
/// If this process may not record. The message names the reason, and then, after a semicolon, a remedy.
pub fn tracefs() -> Result<PathBuf, Error> {
    Ok(tracefs::find()?.path().to_owned())
}

/// Checks that this process may record the process's own scheduling with perf.
///
/// # Errors
/// If this process may not record. The message names a remedy.
pub fn perf() -> Result<(), Error> {
    Perf::check()
}

/// Returns the events that this kernel offers, as `SYSTEM:EVENT`, in alphabetical order.
///
/// # Errors
/// As [`tracefs`].
pub fn events() -> Result<Vec<String>, Error> {
    let root = tracefs::find()?;
    let path = root.path().join(AVAILABLE);
    let text = root.text(AVAILABLE);
    let text = text.map_err(|source| Error::File { action: "read", path, source })?;
    let mut events = Vec::from_iter(text.lines().map(str::to_owned));
    events.sort_unstable();
    Ok(events)
}
