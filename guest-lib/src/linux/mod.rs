//! Linux: finds the device, and gives each thread a client of its own.
//!
//! ```text
//! event! -> thread   CURRENT: one thread-local pointer ----------> Seat: Client
//!             | first event, fork, revoked, stale                    ^
//!             v                                                      | claim
//!           process  the channel, a bitmap of clients, wiped states -+
//!             | opened once        | one byte per client
//!             v                    v
//!  device: segment, pci, window   lock file
//! ```
//!
//! A first event in a signal handler leases a client without allocating; but
//! if it is the process's first, it looks for the device, which allocates:
//! programs of that kind call [`open`] first.

mod clock;
mod counts;
mod device;
mod lock;
mod mapping;
mod pci;
mod process;
mod refresher;
mod seat;
mod segment;
mod sys;
pub(crate) mod thread;
mod window;

pub use counts::{Counts, counts};
pub use mapping::MemoryType;
pub use thread::{poll, stamp, with_client};

pub(crate) use counts::unanswered;
pub(crate) use sys::{cpu, is_root, nanoseconds, sleep, tell_plugin, wake};

use crate::channel::Channel;
use crate::error::OpenError;
use crate::mmio::Store;
use crate::time::Clock;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;

/// Where to look for the device. The default finds the one that there is.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file of a segment, if that is to be used; else the one that the
    /// environment variable `HYPERTRACE_SEGMENT` names.
    pub segment: Option<PathBuf>,
    /// The physical address of the MMIO window, if there is one to be used.
    pub window: Option<u64>,
    /// The PCI function, as in `0000:00:04.0`; else the first one that is a
    /// hypertrace device.
    pub function: Option<String>,
    /// The clock to stamp with; else the TSC where it is steady.
    pub clock: Option<Clock>,
    /// How to store to a segment's registers; else as the environment variable
    /// `HYPERTRACE_STORE` says (`marked`, `syscall`), else [`Store::Marked`].
    pub store: Option<Store>,
    /// Where sysfs is mounted: `/sys`.
    pub sysfs: PathBuf,
    /// Where procfs is mounted, for `cmdline` and `cpuinfo`: `/proc`.
    pub proc: PathBuf,
    /// Physical memory, for an MMIO window: `/dev/mem`.
    pub memory: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment: None,
            window: None,
            function: None,
            clock: None,
            store: None,
            sysfs: "/sys".into(),
            proc: "/proc".into(),
            memory: "/dev/mem".into(),
        }
    }
}

/// Where a process's channel comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The PCI function with this folder in sysfs.
    Function(PathBuf),
    /// The MMIO window at this physical address.
    Window(u64),
    /// The segment in this file, made by `hypertrace run` or the like.
    Segment(PathBuf),
    /// The program brought it: [`install`].
    Installed,
}

/// A process's channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Where it comes from.
    pub place: Place,
    /// The clients that processes share; those below belong to vCPUs.
    pub clients: Range<u32>,
    /// How the rings are mapped, as timed.
    pub memory_type: MemoryType,
    /// What records are stamped with.
    pub clock: Clock,
    /// Ticks per second of the counter, as the host says; 0 if it does not.
    pub frequency: u64,
    /// Whether a host answers at once. If not, it is shared memory.
    pub traps: bool,
}

/// Opens the device for this process, or tells why not. An event without an
/// open channel does the same with the default options, but tells nobody, and
/// no event after it tries again; this always does.
///
/// If a channel is open already, it stays, and this tells about it. A forked
/// child opens what its parent had.
///
/// # Errors
/// If there is no device, or the system does not let this process use it. The
/// message says what, where, and what to do.
pub fn open(options: &Options) -> Result<Info, OpenError> {
    process::open(options)
}

/// Makes `channel` this process's, in place of a device: shared memory, or a
/// device that the program has mapped by itself.
///
/// Processes that share it give each a descriptor of the same `lock` file,
/// open for writing (the memory's own file will do), whose byte *n* stands for
/// client *n*. A forked child goes on with the same memory, which has to be
/// inherited, and with the same file, which `/proc/self/fd` opens anew; without
/// a file, it gets no client.
///
/// # Errors
/// If a channel is open already, or has no client to lease.
pub fn install(channel: Channel<'static>, lock: Option<File>) -> Result<Info, OpenError> {
    process::install(channel, lock)
}
