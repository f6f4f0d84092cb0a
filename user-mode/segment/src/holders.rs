//! Asks the operating system which processes have a segment. This module does not ask the segment, because
//! any program can write to the segment.

use crate::file::Segment;
use hypertrace_abi::layout::local::ENVIRONMENT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, fstat, makedev, statx};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Longest time between two looks at processes.
const PERIOD: Duration = Duration::from_millis(200);
/// Time without any process that has the segment. If no process has the segment for so long, no further
/// process is expected. The time is longer than the time between a process's start and the moment at which
/// the process has its environment.
const GRACE: Duration = Duration::from_secs(1);

/// A process that has a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Id of the process.
    pub pid: u32,
    /// The kernel's name of the process: at most 15 bytes, which may have any values.
    pub name: Vec<u8>,
}

/// Index of the start time among the fields that follow the name in `/proc/PID/stat`.
const START_TIME: usize = 19;

impl Segment {
    /// Returns the other processes that can trace into the segment. Such a process has the segment's file
    /// open, or an environment that names the segment. Leaves out processes that began before this process.
    /// Only root sees processes of other users.
    pub fn holders(&self) -> Vec<Holder> {
        let own = fs::read_link("/proc/self").ok().and_then(|pid| pid.to_str()?.parse().ok());
        let began = own.and_then(start_time);
        let (Some(own), Some(began)) = (own, began) else { return Vec::new() };
        let pids = fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| {
            entry.ok()?.file_name().to_str()?.parse::<u32>().ok().filter(|pid| *pid != own)
        });
        let holders = pids.filter(|pid| start_time(*pid).is_some_and(|time| time >= began));
        let holders = holders.filter(|pid| self.is_in_environment(*pid) || self.is_open_in(*pid));
        let named = holders.filter_map(|pid| {
            let mut name = fs::read(format!("/proc/{pid}/comm")).ok()?;
            name.pop_if(|last| *last == b'\n');
            Some(Holder { pid, name })
        });
        named.collect()
    }

    /// Waits until no process has had the segment for a second (see [`Segment::holders`]), or until `is_over`
    /// returns true. This function calls `is_over` at least every 200 ms. If `has_begun` is true, a process
    /// already had the segment before this call. Otherwise, the wait of one second begins only after a
    /// process has had the segment.
    pub fn wait_for_holders(&self, has_begun: bool, is_over: impl Fn() -> bool) {
        let mut last = has_begun.then(Instant::now);
        while !is_over() && last.is_none_or(|last| last.elapsed() < GRACE) {
            let holders = self.holders();
            let has_any = !holders.is_empty();
            let mut held = Vec::from_iter(holders.into_iter().filter_map(open));
            if held.is_empty() {
                thread::sleep(PERIOD);
                last = if has_any { Some(Instant::now()) } else { last };
                continue;
            }
            // If further processes get the segment during this loop, they are children of the processes in
            // `held`, or the next round finds them.
            while !held.is_empty() && !is_over() {
                held.pop_if(|process| has_ended(process, PERIOD));
            }
            last = Some(Instant::now());
        }
    }

    fn is_in_environment(&self, pid: u32) -> bool {
        // Only the owner and root can open the segment: a process of another user that names the segment
        // cannot trace.
        let owner = fstat(self.file()).map_or(0, |own| own.st_uid);
        let user = fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
        if !user.is_ok_and(|user| user == owner || user == 0) {
            return false;
        }
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let location = self.location();
        environment.split(|byte| *byte == 0).any(|variable| {
            let value = variable.strip_prefix(ENVIRONMENT.as_bytes()).unwrap_or_default();
            value.strip_prefix(b"=").map(OsStr::from_bytes) == Some(&location)
        })
    }

    fn is_open_in(&self, pid: u32) -> bool {
        let Ok(own) = fstat(self.file()) else { return false };
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        // AT_STATX_DONT_SYNC makes the kernel answer without a request to the file system. A file system that
        // does not answer would block this process.
        let known = |path: &Path| statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
        files.filter_map(|entry| known(&entry.path()).ok()).any(|found| {
            let device = makedev(found.stx_dev_major, found.stx_dev_minor);
            (device, found.stx_ino) == (own.st_dev, own.st_ino)
        })
    }
}

/// Opens a process. Returns `None` if the process has ended, or the kernel is older than 5.3.
fn open(holder: Holder) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(holder.pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until a process has ended, but at most for `time` or until a signal. Returns whether the process has
/// ended.
fn has_ended(process: &OwnedFd, time: Duration) -> bool {
    let time = Timespec::try_from(time).ok();
    // A signal only makes the wait shorter.
    poll(&mut [PollFd::new(process, PollFlags::IN)], time.as_ref()).is_ok_and(|ended| ended > 0)
}

/// Returns when a process began, in the kernel's ticks. Returns `None` if the process has ended, or is a
/// zombie, which has nothing open.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The process's name comes before the start time, and may have any bytes.
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let time = fields.nth(START_TIME - 1)?.parse().ok()?;
    (state != "Z" && state != "X").then_some(time)
}
