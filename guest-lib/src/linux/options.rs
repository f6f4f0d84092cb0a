//! Where to look for the device, and the description of what was found.

use super::mapping::MemoryType;
use crate::time::Clock;
use std::ops::Range;
use std::path::PathBuf;

/// Options for the search for the device. The default options search all places.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// File of the segment to use. Without an option, the environment variable `HYPERTRACE_SEGMENT` may name
    /// a segment.
    pub segment: Option<PathBuf>,
    /// Physical address of the MMIO window to use.
    pub window: Option<u64>,
    /// PCI function to use, as in `0000:00:04.0`. If `None`, the library uses the first function that is a
    /// hypertrace device.
    pub function: Option<String>,
    /// Clock that stamps events. If `None`, the library uses the clock that the environment variable
    /// `HYPERTRACE_CLOCK` names (`tsc`, `monotonic_raw`). Without this variable, the library uses the TSC if
    /// the TSC is one clock, and CLOCK_MONOTONIC_RAW otherwise.
    pub clock: Option<Clock>,
    /// Folder where sysfs is mounted: `/sys`.
    pub sysfs: PathBuf,
    /// Folder of device nodes, for `/dev/hypertrace` and `/dev/uioN`: `/dev`.
    pub dev: PathBuf,
    /// Folder where procfs is mounted, for `cmdline` and `cpuinfo`: `/proc`.
    pub proc: PathBuf,
    /// File of physical memory, for an MMIO window: `/dev/mem`.
    pub memory: PathBuf,
}

impl Options {
    /// Returns the options after `change` has modified them.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Options)) -> Options {
        change(&mut self);
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment: None,
            window: None,
            function: None,
            clock: None,
            sysfs: "/sys".into(),
            dev: "/dev".into(),
            proc: "/proc".into(),
            memory: "/dev/mem".into(),
        }
    }
}

/// Place where the library finds a process's channel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChannelLocation {
    /// The node of the guest's kernel module, which has the device: `/dev/hypertrace`.
    Module(PathBuf),
    /// The PCI function with this folder in sysfs.
    Function(PathBuf),
    /// The PCI function with this folder in sysfs, mapped through the function's uio device, because the
    /// kernel is locked down.
    Uio(PathBuf),
    /// The memory of the ivshmem function with this folder in sysfs, which is a file of the VM's host.
    Ivshmem(PathBuf),
    /// The MMIO window at this physical address.
    Window(u64),
    /// The segment in this file, made by `hypertrace record` or the like.
    Segment(PathBuf),
    /// Memory that the program provided, by [`install`](crate::install).
    Installed,
}

/// Description of a process's channel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Place where the channel was found.
    pub place: ChannelLocation,
    /// Clients that processes share. Clients with lower numbers belong to vCPUs.
    pub clients: Range<u32>,
    /// Memory type of the rings' mapping, as measured by the time of loads.
    pub memory_type: MemoryType,
    /// Clock of the records' timestamps.
    pub clock: Clock,
    /// Ticks per second of the counter, as the host says; 0 if the host does not know.
    pub frequency: u64,
    /// Whether stores to registers trap to a host; if they do not trap, the channel is shared memory.
    pub traps: bool,
    /// Number of arguments of an event of the 2016 interface.
    pub legacy_args: u32,
}
