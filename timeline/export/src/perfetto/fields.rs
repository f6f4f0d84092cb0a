// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Numbers of fields and values: `perfetto_trace.proto` of Perfetto's release 57.

/// `Trace`.
pub(super) const PACKET: u32 = 1;

/// `TracePacket`.
pub(super) mod packet {
    pub const FTRACE_EVENTS: u32 = 1;
    pub const CLOCK_SNAPSHOT: u32 = 6;
    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const SEQUENCE_FLAGS: u32 = 13;
    pub const SYSTEM_INFO: u32 = 45;
    pub const CLOCK: u32 = 58;
    pub const DEFAULTS: u32 = 59;
    pub const TRACK_DESCRIPTOR: u32 = 60;
    pub const TRACE_UUID: u32 = 89;
    pub const MACHINE: u32 = 98;
    pub const TASK_STATE: u32 = 117;
    pub const TRACE_ATTRIBUTES: u32 = 126;

    /// `SequenceFlags`: with `CLEARED`, readers forget the names and defaults of the sequence. With `NEEDED`,
    /// the packet refers to names or defaults.
    pub const CLEARED: u64 = 1;
    pub const NEEDED: u64 = 2;
}

/// `ClockSnapshot`, and its message `Clock`.
pub(super) mod clock {
    pub const CLOCKS: u32 = 1;
    pub const PRIMARY: u32 = 2;

    pub const ID: u32 = 1;
    pub const TIMESTAMP: u32 = 2;
    pub const IS_INCREMENTAL: u32 = 3;

    pub const REALTIME: u64 = 1;
    pub const BOOTTIME: u64 = 6;
    /// First id for clocks that belong to one sequence.
    pub const OF_SEQUENCE: u64 = 64;
}

/// `SystemInfo`, and its message `Utsname`.
pub(super) mod system {
    pub const UTSNAME: u32 = 1;
    pub const MACHINE_NAME: u32 = 17;

    pub const SYSNAME: u32 = 1;
    pub const RELEASE: u32 = 3;
    pub const MACHINE: u32 = 4;
}

/// `TraceUuid`, and `Attribute` of `TraceAttributes`.
pub(super) mod attributes {
    pub const MSB: u32 = 1;
    pub const LSB: u32 = 2;

    pub const ATTRIBUTE: u32 = 1;
    pub const KEY: u32 = 1;
    pub const STRING: u32 = 3;
}

/// `InternedData`, and its entries.
pub(super) mod interned {
    pub const DATA: u32 = 12;
    pub const EVENT_NAMES: u32 = 2;
    pub const ARGUMENT_NAMES: u32 = 3;
    pub const VALUES: u32 = 29;

    pub const IID: u32 = 1;
    pub const TEXT: u32 = 2;
}

/// `TrackDescriptor`, with `ProcessDescriptor`, `ThreadDescriptor` and `CounterDescriptor`.
pub(super) mod track {
    pub const UUID: u32 = 1;
    pub const NAME: u32 = 2;
    pub const PROCESS: u32 = 3;
    pub const THREAD: u32 = 4;
    pub const PARENT: u32 = 5;
    pub const COUNTER: u32 = 8;
    pub const CHILD_ORDERING: u32 = 11;
    /// `sibling_order_rank`.
    pub const RANK: u32 = 12;
    pub const STATE: u32 = 18;

    /// `ChildTracksOrdering`: by rank.
    pub const EXPLICIT: u64 = 3;

    pub const PID: u32 = 1;
    pub const TID: u32 = 2;
    pub const THREAD_NAME: u32 = 5;
    pub const PROCESS_NAME: u32 = 6;

    pub const UNIT: u32 = 3;
    pub const NANOSECONDS: u64 = 1;
}

/// `TrackEvent`.
pub(super) mod event {
    pub const ARGUMENTS: u32 = 4;
    pub const TYPE: u32 = 9;
    pub const NAME_IID: u32 = 10;
    pub const TRACK: u32 = 11;
    pub const COUNTER_VALUE: u32 = 30;
    pub const FLOW_IDS: u32 = 47;

    pub const SLICE_BEGIN: u64 = 1;
    pub const SLICE_END: u64 = 2;
    pub const INSTANT: u64 = 3;
    pub const COUNTER: u64 = 4;
    pub const STATE: u64 = 5;
}

/// `FtraceEventBundle`, and its message `CompactSched`.
pub(super) mod scheduling {
    pub const CPU: u32 = 1;
    pub const HAS_LOST: u32 = 3;
    pub const COMPACT: u32 = 4;

    pub const NAMES: u32 = 5;
    /// Time, state of the last thread, and the next thread's id, priority and name.
    pub const SWITCH: [u32; 5] = [1, 2, 3, 4, 6];
    /// Time, the thread's id, CPU, priority and name, and the event's flags.
    pub const WAKING: [u32; 6] = [7, 8, 9, 10, 11, 12];
}

/// `GenericKernelTaskStateEvent`.
pub(super) mod task {
    pub const CPU: u32 = 1;
    pub const NAME: u32 = 2;
    pub const TID: u32 = 3;
    pub const STATE: u32 = 4;
    pub const PRIO: u32 = 5;

    pub const RUNNABLE: u64 = 2;
    pub const RUNNING: u64 = 3;
    pub const SLEEPING: u64 = 4;
    pub const UNINTERRUPTIBLE: u64 = 5;
    pub const STOPPED: u64 = 6;
    pub const DESTROYED: u64 = 8;
}

/// `DebugAnnotation`.
pub(super) mod argument {
    pub const NAME_IID: u32 = 1;
    pub const BOOL: u32 = 2;
    pub const UNSIGNED: u32 = 3;
    pub const SIGNED: u32 = 4;
    pub const DOUBLE: u32 = 5;
    pub const STRING: u32 = 6;
    pub const POINTER: u32 = 7;
    pub const ENTRIES: u32 = 11;
    pub const ARRAY: u32 = 12;
    pub const STRING_IID: u32 = 17;
}
