//! Constants that the writer and the reader of `kernel.dat` share. `kernel.dat` is a trace.dat of trace-cmd,
//! as described in trace-cmd.dat.v7(5).

/// The file's first bytes, before its version.
pub const MAGIC: &[u8; 10] = b"\x17\x08\x44tracing";

/// Maximum number of a recording's intervals in which a hypervisor took CPU time. The intervals of all
/// counters count together. A machine has fewer CPUs than this number, so the counter of each CPU can have at
/// least one interval.
pub const MAX_STEALS: usize = 1 << 15;

/// Maximum number of VMs' TSCs that a recording of a host's kernel lists.
pub const MAX_TSCS: usize = 1 << 12;

/// Maximum number of listed TSCs of one VM. If a VM has more TSCs, the recording lists none of this VM's
/// TSCs.
pub const MAX_TSCS_OF_VM: usize = 1 << 8;

/// Ids of sections and options. An option with the id of a section holds the section's offset. Any other
/// option has no section.
pub mod id {
    /// Id of a section that holds options. The option that ends such a section has the same id.
    pub const OPTIONS: u16 = 0;
    /// Difference between Unix time and the trace's clock in microseconds, as a text.
    pub const DATE: u16 = 1;
    /// Counters of a CPU's buffer.
    pub const CPUSTAT: u16 = 2;
    /// The buffers of an instance.
    pub const BUFFER: u16 = 3;
    /// The clock.
    pub const TRACECLOCK: u16 = 4;
    /// The system, as uname(2) describes it.
    pub const UNAME: u16 = 5;
    /// Pairs of events that `trace-cmd report` combines.
    pub const HOOK: u16 = 6;
    /// Nanoseconds to add to all times, as a text.
    pub const OFFSET: u16 = 7;
    /// Number of CPUs.
    pub const CPUCOUNT: u16 = 8;
    /// The program that wrote the file.
    pub const VERSION: u16 = 9;
    /// Addresses of libraries in traced processes.
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
    /// Texts that events refer to by address.
    pub const PRINTK: u16 = 20;
    /// Names of threads.
    pub const CMDLINES: u16 = 21;
    /// Text of a latency tracer. A file has this section if a buffer has text and no pages.
    pub const BUFFER_TEXT: u16 = 22;
}
