//! Opens a segment that is the memory of a PCI function: ivshmem, whose BAR 2 is a file of the VM's host.

use super::function;
use super::opened::{Opened, Window, not_a_device, open_bar};
use super::options::{ChannelLocation, Options};
use crate::error::OpenError;
use crate::local::LocalHost;
use crate::os;
use hypertrace_abi::atomic::Ordering;
use hypertrace_abi::config::Features;
use hypertrace_abi::layout::{IVSHMEM_BAR, Region};
use hypertrace_segment::LockFile;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Longest wait, in milliseconds, until the host has seen the number of this boot.
const MAX_MS: u32 = 2000;

/// Returns true if the memory of this function is a segment.
///
/// # Errors
/// If the system does not let this program look.
pub(super) fn is_segment(function: &Path) -> Result<bool, OpenError> {
    function::enable(function)?;
    let path = function::combining(function, IVSHMEM_BAR);
    let window = Window { file: &open_bar(&path, true)?, path: &path, offset: 0 };
    Ok(window.config_page()?.geometry().is_ok())
}

pub(super) fn open(function: &Path, options: &Options) -> Result<Opened, OpenError> {
    function::enable(function)?;
    let path = function::combining(function, IVSHMEM_BAR);
    let file = open_bar(&path, false)?;
    let window = Window { file: &file, path: &path, offset: 0 };
    let page = window.config_page()?;
    let geometry = page.geometry().map_err(|why| not_a_device(&path, why))?;
    let unusable = |why: &str| OpenError::because("use as a segment", &path, io::Error::other(why));
    if page.features().contains(Features::TRAPS) || !page.features().contains(Features::REMOTE) {
        return Err(unusable("its config page is a device's, or of a segment that no VM shares"));
    }
    let has = file.metadata().map_err(|why| OpenError::because("look at", &path, why))?.len();
    let used = geometry.window_offset(Region::Rings) + geometry.rings_size();
    if has < used {
        return Err(unusable(&format!(
            "it has {has} bytes, of which its host uses {used}: give the VM's memory backend the size that \
             `hypertrace serve` has printed"
        )));
    }
    let (channel, mapping) = window.map(&page)?;
    if let Some(host) = &channel.local
        && !host.has_ended()
        && !is_boot_seen(host, options)
    {
        return Err(unusable("its host does not answer: is `hypertrace serve` running there?"));
    }
    let lock = LockFile::new(file, 0, LockFile::ANY);
    Opened::new(
        ChannelLocation::Ivshmem(function.to_owned()),
        channel,
        vec![mapping],
        lock,
        options,
    )
}

/// Tells the host the number of this boot, and waits until the host has seen the number. A new boot has a new
/// clock, so the rings must hold no records of the last boot.
fn is_boot_seen(host: &LocalHost, options: &Options) -> bool {
    let boot = boot(options);
    for _ in 0..MAX_MS {
        // ORDERING: pairs with the Release store that the host makes after the host has emptied the rings.
        if host.pages.boot_seen().load(Ordering::Acquire) == boot {
            return true;
        }
        host.pages.boot().store(boot, Ordering::Release);
        os::nap(Duration::from_millis(1));
    }
    false
}

/// Returns a number of this boot, nonzero: a hash of the kernel's id of the boot.
fn boot(options: &Options) -> u64 {
    let id = fs::read_to_string(options.proc.join("sys/kernel/random/boot_id")).unwrap_or_default();
    // FNV-1a.
    let hash = id.trim().bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    u64::max(hash, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_has_one_number_and_another_boot_another() {
        let proc = tempfile::tempdir().unwrap();
        let options = Options { proc: proc.path().into(), ..Options::default() };
        let random = proc.path().join("sys/kernel/random");
        fs::create_dir_all(&random).unwrap();
        let number = |id: &str| {
            fs::write(random.join("boot_id"), id).unwrap();
            boot(&options)
        };
        let [first, again, next] = ["0a7f\n", "0a7f", "0a7e\n"].map(number);
        assert_eq!(first, again);
        assert_ne!(first, next);
        assert_ne!(boot(&Options { proc: "/absent".into(), ..options }), 0);
    }
}
