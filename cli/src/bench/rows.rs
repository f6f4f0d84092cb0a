//! The rows: each with its measurement, its floor and its target.

use super::child::Child;
use super::{
    c, device, drain, hostile, kvm, peers, qemu, ring, sigsegv, trace, tracefs, trigger, user,
};
use anyhow::Result;

/// Resources that the rows share, each created once.
pub struct Context {
    /// Ticks of the counter per nanosecond.
    pub ticks_per_ns: f64,
    pub ring: ring::Bench,
    pub write_floor: Option<drain::Floor>,
    pub tracefs: Option<tracefs::Instance>,
    pub lttng: Option<peers::Lttng>,
    pub bpftrace: Option<peers::Bpftrace>,
    pub sigsegv: Option<Child>,
    pub qemu: Option<qemu::Bench>,
    pub c: Option<c::Program>,
}

impl Context {
    pub fn new() -> Result<Context> {
        Ok(Context {
            ticks_per_ns: ring::ticks_per_ns(),
            ring: ring::Bench::new()?,
            write_floor: None,
            tracefs: None,
            lttng: None,
            bpftrace: None,
            sigsegv: None,
            qemu: None,
            c: None,
        })
    }

    /// Converts the ticks of `turns` turns to nanoseconds per turn.
    pub fn ns(&self, ticks: u64, turns: u64) -> f64 {
        ticks as f64 / self.ticks_per_ns / turns as f64
    }
}

type Run = fn(&mut Context) -> Result<f64>;

/// Measurement that a row is compared with.
#[derive(Clone, Copy)]
pub enum Floor {
    /// Another row.
    Row(&'static str),
    /// A measurement without a row of its own.
    Part(&'static str, Run),
}

impl Floor {
    pub fn name(self) -> &'static str {
        match self {
            Floor::Row(name) | Floor::Part(name, _) => name,
        }
    }

    pub fn run(self, context: &mut Context) -> Result<f64> {
        match self {
            Floor::Row(name) => match ROWS.iter().find(|row| row.name == name) {
                Some(row) => (row.run)(context),
                None => anyhow::bail!("no row {name}"),
            },
            Floor::Part(_, run) => run(context),
        }
    }
}

/// Limit that a row should keep.
#[derive(Clone, Copy)]
pub struct Target {
    pub text: &'static str,
    at_most: bool,
    value: f64,
}

impl Target {
    pub fn is_met(&self, value: f64) -> bool {
        if self.at_most { value <= self.value } else { value >= self.value }
    }
}

/// Way to compare a row's time with its floor's.
#[derive(Clone, Copy, PartialEq)]
enum Compare {
    /// Time over floor.
    Ratio,
    /// Time minus floor, in nanoseconds.
    Difference,
    /// Floor over time: the gain in throughput.
    Speedup,
}

/// Row of the benchmark.
pub struct Row {
    pub name: &'static str,
    pub run: Run,
    pub floor: Option<Floor>,
    compare: Compare,
    pub target: Option<Target>,
    pub note: &'static str,
}

impl Row {
    pub fn compare(&self, ns: f64, floor: f64) -> f64 {
        match self.compare {
            Compare::Ratio => ns / floor,
            Compare::Difference => ns - floor,
            Compare::Speedup => floor / ns,
        }
    }

    const fn over(self, floor: Floor) -> Row {
        Row { floor: Some(floor), compare: Compare::Ratio, ..self }
    }

    const fn less(self, floor: Floor) -> Row {
        Row { floor: Some(floor), compare: Compare::Difference, ..self }
    }

    const fn speedup_of(self, floor: Floor) -> Row {
        Row { floor: Some(floor), compare: Compare::Speedup, ..self }
    }

    const fn at_most(self, text: &'static str, value: f64) -> Row {
        Row { target: Some(Target { text, at_most: true, value }), ..self }
    }

    const fn at_least(self, text: &'static str, value: f64) -> Row {
        Row { target: Some(Target { text, at_most: false, value }), ..self }
    }
}

/// Returns a row that is compared with nothing: another row's floor, or a peer.
const fn row(name: &'static str, run: Run, note: &'static str) -> Row {
    Row { name, run, floor: None, compare: Compare::Ratio, target: None, note }
}

/// All rows, in the order of `docs/benchmarks.md`.
pub const ROWS: &[Row] = &[
    row("tsc", ring::tsc, "one read of the counter"),
    row("ring_floor", ring::floor, "by hand: counter, 32-byte record, full check, release store"),
    row("write_floor", drain::write_floor, "64 KiB pwrite to reused tmpfs pages, per 32 bytes"),
    row("ring_emit", ring::emit, "event! with two u64, not inlined; consumer every 200 us")
        .over(Floor::Row("ring_floor"))
        .at_most("<= 1.3 x ring_floor", 1.3),
    row(
        "ring_emit_disabled",
        ring::disabled,
        "the same, switched off by the mask; ratio is the difference in ns",
    )
    .less(Floor::Part("empty loop", ring::empty))
    .at_most("<= 0.5 ns over an empty loop", 0.5),
    row(
        "ring_emit_2threads",
        ring::emit_two_threads,
        "two threads, two clients, rings that hold the run",
    )
    .speedup_of(Floor::Part("one thread", ring::emit_one_thread))
    .at_least(">= 1.9 x one thread's throughput", 1.9),
    row("c_emit", c::emit, "HYPERTRACE_EVENT with two uint64_t, from C; host every 200 us")
        .over(Floor::Part("ring_floor", c::floor))
        .at_most("<= 1.3 x ring_floor", 1.3),
    row("c_disabled", c::disabled, "the same, switched off; ratio is the difference in ns")
        .less(Floor::Part("empty loop", c::empty))
        .at_most("<= 0.5 ns over an empty loop", 0.5),
    row("ring_drain", drain::buffer, "copy and every check, into a packet buffer")
        .at_most("<= 7 ns a record", 7.0),
    row("ring_drain_file", drain::file, "the same, into the session's file on tmpfs")
        .over(Floor::Row("write_floor"))
        .at_most("<= 1.8 x write_floor", 1.8),
    row(
        "drain_hostile",
        hostile::beside,
        "drain time per record of a client beside 15 hostile ones; ratio is the part of its fair share that it gets",
    )
    .speedup_of(Floor::Part("fair share", hostile::fair))
    .at_least(">= 0.9 x its fair share", 0.9),
    row(
        "device_reference_point",
        device::reference_point,
        "the device call alone, as a vCPU thread makes it, session on",
    )
    .over(Floor::Row("ring_floor"))
    .at_most("<= 4 x ring_floor", 4.0),
    row(
        "trace_disabled",
        trace::disabled,
        "a declared event that is off; ratio is the difference in ns",
    )
    .less(Floor::Part("empty loop", ring::empty))
    .at_most("<= 0.5 ns over an empty loop", 0.5),
    row(
        "trace_session_burst",
        trace::session_burst,
        "declared event with two u64; session drained every 200 us",
    )
    .over(Floor::Row("ring_floor"))
    .at_most("<= 1.3 x ring_floor", 1.3),
    row("trace_simple_burst", trace::simple_burst, "the same, to the simple backend's file alone")
        .over(Floor::Row("ring_floor"))
        .at_most("<= 1.3 x ring_floor", 1.3),
    row(
        "trace_session_sustained",
        trace::session_sustained,
        "a million to a file on tmpfs, 32 bytes each; the producer waits",
    )
    .over(Floor::Part("ring + 32 B write", trace::session_sustained_floor))
    .at_most("<= 1.5 x (ring_floor + write_floor)", 1.5),
    row(
        "trace_session_lttng",
        trace::session_sustained,
        "trace_session_sustained, against LTTng-UST",
    )
    .over(Floor::Row("lttng_ust"))
    .at_most("<= 0.6 x lttng_ust", 0.6),
    row(
        "trace_simple_sustained",
        trace::simple_sustained,
        "the same to the simple backend's file alone, 48 bytes each",
    )
    .over(Floor::Part("ring + 48 B write", trace::simple_sustained_floor))
    .at_most("<= 1.5 x (ring_floor + write_floor)", 1.5),
    row("trace_simple_lttng", trace::simple_sustained, "trace_simple_sustained, against LTTng-UST")
        .over(Floor::Row("lttng_ust"))
        .at_most("<= 0.6 x lttng_ust", 0.6),
    row("trace_2threads", trace::two_threads, "two threads, rings that hold the run")
        .speedup_of(Floor::Part("one thread", trace::one_thread))
        .at_least(">= 1.9 x one thread's throughput", 1.9),
    row("trace_marker_floor", tracefs::marker, "bare write(2) of an event's text, 29 bytes"),
    row(
        "trace_ftrace",
        tracefs::ftrace,
        "the ftrace backend, text of the same bytes, to the same trace_marker",
    )
    .over(Floor::Row("trace_marker_floor"))
    .at_most("<= 1.15 x trace_marker_floor", 1.15),
    row(
        "trigger_match",
        trigger::hit,
        "a reference point's call with 16 rules, one fires; ratio is the difference in ns",
    )
    .less(Floor::Part("no rules", trigger::none))
    .at_most("<= 20 ns more", 20.0),
    row("trigger_miss", trigger::miss, "the same, none fires")
        .less(Floor::Part("no rules", trigger::none))
        .at_most("<= 2 ns more", 2.0),
    row("user_commit", ring::commit, "commit! with two u64, otherwise as ring_emit")
        .over(Floor::Row("ring_floor"))
        .at_most("<= 1.3 x ring_floor", 1.3),
    row("handshake_floor", user::floor_awake, "by hand: slot, store, host that spins, reply"),
    row(
        "user_acknowledged",
        user::awake,
        "reference_point! with two u64 over a segment, host spinning, session on",
    )
    .over(Floor::Row("handshake_floor"))
    .at_most("<= 1.2 x handshake_floor", 1.2),
    row("handshake_asleep_floor", user::floor_asleep, "the same, host asleep on a futex"),
    row(
        "user_acknowledged_asleep",
        user::asleep,
        "reference_point! every 300 us, so that the host sleeps",
    )
    .over(Floor::Row("handshake_asleep_floor"))
    .at_most("<= 1.2 x handshake_asleep_floor", 1.2),
    row("lttng_ust", peers::lttng, "LTTng-UST, two u64, to a file; a full buffer blocks"),
    row("uftrace_pg", peers::uftrace, "a call of a function built with -pg, to a file by uftrace"),
    row("sigsegv_2016", sigsegv::event, "user mode of 2016: 2 signals, 4 mprotects an event"),
    row("uprobe", tracefs::uprobe, "a call of a function with a uprobe, to an instance"),
    row("sdt_bpftrace", peers::bpftrace, "the sdt backend, counted by bpftrace"),
    row("kvm_exit_null", kvm::exit_null, "the guest's stores on a device that does nothing"),
    row("kvm_reference_point", kvm::reference_point, "with the device, session on")
        .over(Floor::Row("kvm_exit_null"))
        .at_most("<= 1.05 x kvm_exit_null", 1.05),
    row(
        "kvm_reference_point_2vcpu",
        kvm::speedup_device,
        "two vCPUs' throughput over one's (not ns), against the null device's",
    )
    .over(Floor::Part("null device's", kvm::speedup_null))
    .at_least(">= 0.95 x the null device's", 0.95),
    row("kvm_stamp", kvm::stamp, "ring record and a store that the host's kernel completes")
        .over(Floor::Row("kvm_exit_null"))
        .at_most("<= 0.5 x kvm_exit_null", 0.5),
    row("kvm_ring_emit", kvm::ring_emit, "ring_emit inside the guest")
        .over(Floor::Row("ring_emit"))
        .at_most("<= 1.2 x ring_emit", 1.2),
    row("qemu_plugin_floor", qemu::floor, "a plugin's callback on a store: counter, 32 bytes"),
    row(
        "qemu_marked_store",
        qemu::marked_store,
        "the same store as a reference point with two u64: recorded and answered",
    )
    .over(Floor::Row("qemu_plugin_floor"))
    .at_most("<= 1.5 x qemu_plugin_floor", 1.5),
    row("qemu_marked_store_2016", qemu::marked_store, "qemu_marked_store, against sigsegv_2016")
        .speedup_of(Floor::Row("sigsegv_2016"))
        .at_least(">= 500 x faster than sigsegv_2016", 500.0),
    row("qemu_syscall", qemu::syscall, "the same by a system call")
        .over(Floor::Row("qemu_marked_store")),
    row(
        "qemu_reference_point",
        qemu::point,
        "a whole reference_point!, with the emulated library's part",
    )
    .over(Floor::Row("qemu_marked_store")),
    row("qemu_bystander", qemu::bystander, "code with no marked store, per sorted number")
        .over(Floor::Part("no plugin", qemu::undisturbed))
        .at_most("<= 1.03 x without the plugin", 1.03),
];
