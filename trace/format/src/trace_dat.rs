//! What the writer and the reader of `kernel.dat` share: a trace.dat of trace-cmd, which
//! trace-cmd.dat.v7(5) describes.

/// The first bytes, without the version.
pub const MAGIC: &[u8; 10] = b"\x17\x08\x44tracing";

/// Most times of a recording in which a hypervisor took time, of all counters together: more than there are CPUs.
pub const MAX_STEALS: usize = 1 << 15;

/// Most TSCs of VMs that a recording of a host's kernel lists.
pub const MAX_TSCS: usize = 1 << 12;

/// Most of them of one VM: of a VM with more, none is listed.
pub const MAX_TSCS_OF_VM: usize = 1 << 8;

/// Ids of sections, of the options that have their offsets, and of options alone.
pub mod id {
    /// The options; among them, the end.
    pub const OPTIONS: u16 = 0;
    /// Microseconds from the trace's clock to Unix time, as a text.
    pub const DATE: u16 = 1;
    /// Counters of a CPU's buffer.
    pub const CPUSTAT: u16 = 2;
    /// The buffers of an instance.
    pub const BUFFER: u16 = 3;
    /// The clock.
    pub const TRACECLOCK: u16 = 4;
    /// The system, as uname(2) has it.
    pub const UNAME: u16 = 5;
    /// Pairs of events that `trace-cmd report` combines.
    pub const HOOK: u16 = 6;
    /// Nanoseconds to add to all times, as a text.
    pub const OFFSET: u16 = 7;
    /// Number of CPUs.
    pub const CPUCOUNT: u16 = 8;
    /// The program that wrote it.
    pub const VERSION: u16 = 9;
    /// Places of libraries in the memory of traced processes.
    pub const PROCMAPS: u16 = 10;
    /// Identity of the trace.
    pub const TRACEID: u16 = 11;
    /// Corrections of a guest's times.
    pub const TIME_SHIFT: u16 = 12;
    /// A guest that was traced with its host.
    pub const GUEST: u16 = 13;
    /// Map from ticks to nanoseconds.
    pub const TSC2NSEC: u16 = 14;
    /// Descriptions of sections.
    pub const STRINGS: u16 = 15;
    /// Layout of pages and events.
    pub const HEADER_INFO: u16 = 16;
    /// Formats of the tracer's own events.
    pub const FTRACE_EVENTS: u16 = 17;
    /// Formats of events.
    pub const EVENT_FORMATS: u16 = 18;
    /// Addresses of the kernel's functions.
    pub const KALLSYMS: u16 = 19;
    /// Texts that events name by address.
    pub const PRINTK: u16 = 20;
    /// Names of threads.
    pub const CMDLINES: u16 = 21;
    /// A tracer's text, as latency tracers write it, in place of a buffer's pages.
    pub const BUFFER_TEXT: u16 = 22;
}
