//! Where to look for the device, and what was found.

use super::mapping::MemoryType;
use crate::time::Clock;
use std::ops::Range;
use std::path::PathBuf;

/// Where to look for the device. The default searches all places.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The file of a segment, if that is to be used; else the one that the
    /// environment variable `HYPERTRACE_SEGMENT` names.
    pub segment: Option<PathBuf>,
    /// The physical address of the MMIO window, if there is one to be used.
    pub window: Option<u64>,
    /// The PCI function, as in `0000:00:04.0`; else the first one that is a
    /// hypertrace device.
    pub function: Option<String>,
    /// The clock to stamp with; else the one that the environment variable `HYPERTRACE_CLOCK` names (`tsc`,
    /// `monotonic_raw`), else the TSC where that is one clock.
    pub clock: Option<Clock>,
    /// Where sysfs is mounted: `/sys`.
    pub sysfs: PathBuf,
    /// Where device nodes are, for `/dev/hypertrace` and `/dev/uioN`: `/dev`.
    pub dev: PathBuf,
    /// Where procfs is mounted, for `cmdline` and `cpuinfo`: `/proc`.
    pub proc: PathBuf,
    /// Physical memory, for an MMIO window: `/dev/mem`.
    pub memory: PathBuf,
}

impl Options {
    /// Returns the options as `change` leaves it.
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
    /// The PCI function with this folder in sysfs, mapped by its uio device: the kernel is locked
    /// down.
    Uio(PathBuf),
    /// The memory of the PCI function with this folder in sysfs: ivshmem, which is a file of the VM's host.
    Ivshmem(PathBuf),
    /// The MMIO window at this physical address.
    Window(u64),
    /// The segment in this file, made by `hypertrace record` or the like.
    Segment(PathBuf),
    /// The program provided it, by [`install`](crate::install).
    Installed,
}

/// A process's channel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The place where it was found.
    pub place: ChannelLocation,
    /// The clients that processes share; those below belong to vCPUs.
    pub clients: Range<u32>,
    /// How the rings are mapped, as timed.
    pub memory_type: MemoryType,
    /// The clock of its records' timestamps.
    pub clock: Clock,
    /// Ticks per second of the counter, as the host says; 0 if it does not.
    pub frequency: u64,
    /// Whether stores to registers trap to a host. If not, it is shared memory.
    pub traps: bool,
    /// Arguments of an event of the interface of 2016.
    pub legacy_args: u32,
}
