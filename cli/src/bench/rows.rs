//! The rows: what is measured, against what, and what it should come to.

use super::child::Child;
use super::{device, drain, kvm, peers, qemu, ring, sigsegv, trace, tracefs, trigger, user};
use anyhow::Result;

/// What the rows share: things that are made once.
pub struct Context {
    /// Ticks of the counter per nanosecond.
    pub ticks_per_ns: f64,
    pub ring: ring::Bench,
    pub write_floor: Option<drain::Floor>,
    pub tracefs: Option<tracefs::Instance>,
    pub lttng: Option<peers::Lttng>,
    pub bpftrace: Option<peers::Bpftrace>,
    pub qemu: Option<qemu::Bench>,
    pub sigsegv: Option<Child>,
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
            qemu: None,
            sigsegv: None,
        })
    }

    /// Nanoseconds of each of `turns` turns.
    pub fn ns(&self, ticks: u64, turns: u64) -> f64 {
        ticks as f64 / self.ticks_per_ns / turns as f64
    }
}

type Run = fn(&mut Context) -> Result<f64>;

/// What a row is compared with.
#[derive(Clone, Copy)]
pub enum Floor {
    /// Another row.
    Row(&'static str),
    /// Something that is not worth a row.
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

/// What a row should come to.
#[derive(Clone, Copy)]
pub struct Target {
    pub text: &'static str,
    at_most: bool,
    value: f64,
}

impl Target {
    const fn at_most(text: &'static str, value: f64) -> Option<Target> {
        Some(Target { text, at_most: true, value })
    }

    const fn at_least(text: &'static str, value: f64) -> Option<Target> {
        Some(Target { text, at_most: false, value })
    }

    pub fn is_met(&self, value: f64) -> bool {
        if self.at_most { value <= self.value } else { value >= self.value }
    }
}

/// How a row's time and its floor's make one number.
#[derive(Clone, Copy, PartialEq)]
enum Compare {
    /// Time over floor.
    Ratio,
    /// Time less floor, nanoseconds.
    Difference,
    /// Floor over time: how much more gets done.
    Speedup,
}

/// A row.
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
}

const fn floor(name: &'static str, run: Run, note: &'static str) -> Row {
    Row { name, run, floor: None, compare: Compare::Ratio, target: None, note }
}

/// All rows, in the order of `docs/benchmarks.md`.
pub const ROWS: &[Row] = &[
    floor("tsc", ring::tsc, "one read of the counter"),
    floor("ring_floor", ring::floor, "by hand: counter, 32-byte record, full check, release store"),
    floor("write_floor", drain::write_floor, "64 KiB pwrite to reused tmpfs pages, per 32 bytes"),
    Row {
        name: "ring_emit",
        run: ring::emit,
        floor: Some(Floor::Row("ring_floor")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.3 x ring_floor", 1.3),
        note: "event! with two u64, not inlined; consumer every 200 us",
    },
    Row {
        name: "ring_emit_disabled",
        run: ring::disabled,
        floor: Some(Floor::Part("empty loop", ring::empty)),
        compare: Compare::Difference,
        target: Target::at_most("<= 0.5 ns over an empty loop", 0.5),
        note: "the same, switched off by the mask; ratio is the difference in ns",
    },
    Row {
        name: "ring_emit_2threads",
        run: ring::emit_two_threads,
        floor: Some(Floor::Part("one thread", ring::emit_one_thread)),
        compare: Compare::Speedup,
        target: Target::at_least(">= 1.9 x one thread's throughput", 1.9),
        note: "two threads, two clients, rings that hold the run",
    },
    Row {
        name: "ring_drain",
        run: drain::buffer,
        floor: None,
        compare: Compare::Ratio,
        target: Target::at_most("<= 7 ns a record", 7.0),
        note: "copy and every check, into a packet buffer",
    },
    Row {
        name: "ring_drain_file",
        run: drain::file,
        floor: Some(Floor::Row("write_floor")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.8 x write_floor", 1.8),
        note: "the same, into the session's file on tmpfs",
    },
    Row {
        name: "device_reference_point",
        run: device::reference_point,
        floor: Some(Floor::Row("ring_floor")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 4 x ring_floor", 4.0),
        note: "the device call alone, as a vCPU thread makes it, session on",
    },
    Row {
        name: "trace_disabled",
        run: trace::disabled,
        floor: Some(Floor::Part("empty loop", ring::empty)),
        compare: Compare::Difference,
        target: Target::at_most("<= 0.5 ns over an empty loop", 0.5),
        note: "a declared event that is off; ratio is the difference in ns",
    },
    Row {
        name: "trace_session_burst",
        run: trace::session_burst,
        floor: Some(Floor::Row("ring_floor")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.3 x ring_floor", 1.3),
        note: "declared event with two u64; session drained every 200 us",
    },
    Row {
        name: "trace_simple_burst",
        run: trace::simple_burst,
        floor: Some(Floor::Row("ring_floor")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.3 x ring_floor", 1.3),
        note: "the same, written to the simple backend's file as well",
    },
    Row {
        name: "trace_session_sustained",
        run: trace::session_sustained,
        floor: Some(Floor::Part("ring + 32 B write", trace::session_sustained_floor)),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.5 x (ring_floor + write_floor)", 1.5),
        note: "a million to a file on tmpfs, 32 bytes each; the producer waits",
    },
    Row {
        name: "trace_session_lttng",
        run: trace::session_sustained,
        floor: Some(Floor::Row("lttng_ust")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 0.6 x lttng_ust", 0.6),
        note: "trace_session_sustained, against LTTng-UST",
    },
    Row {
        name: "trace_simple_sustained",
        run: trace::simple_sustained,
        floor: Some(Floor::Part("ring + 80 B write", trace::simple_sustained_floor)),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.5 x (ring_floor + write_floor)", 1.5),
        note: "the same to both files, 32 + 48 bytes each",
    },
    Row {
        name: "trace_simple_lttng",
        run: trace::simple_sustained,
        floor: Some(Floor::Row("lttng_ust")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 0.6 x lttng_ust", 0.6),
        note: "trace_simple_sustained, against LTTng-UST",
    },
    Row {
        name: "trace_2threads",
        run: trace::two_threads,
        floor: Some(Floor::Part("one thread", trace::one_thread)),
        compare: Compare::Speedup,
        target: Target::at_least(">= 1.9 x one thread's throughput", 1.9),
        note: "two threads, rings that hold the run",
    },
    floor("trace_marker_floor", tracefs::marker, "bare write(2) of an event's text, 29 bytes"),
    Row {
        name: "trace_ftrace",
        run: tracefs::ftrace,
        floor: Some(Floor::Row("trace_marker_floor")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.15 x trace_marker_floor", 1.15),
        note: "the ftrace backend, text of the same bytes, to the same trace_marker",
    },
    Row {
        name: "trigger_match",
        run: trigger::hit,
        floor: Some(Floor::Part("no rules", trigger::none)),
        compare: Compare::Difference,
        target: Target::at_most("<= 20 ns more", 20.0),
        note: "a reference point's call with 16 rules, one fires; ratio is the difference in ns",
    },
    Row {
        name: "trigger_miss",
        run: trigger::miss,
        floor: Some(Floor::Part("no rules", trigger::none)),
        compare: Compare::Difference,
        target: Target::at_most("<= 2 ns more", 2.0),
        note: "the same, none fires",
    },
    Row {
        name: "user_commit",
        run: ring::commit,
        floor: Some(Floor::Row("ring_floor")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.3 x ring_floor", 1.3),
        note: "commit! with two u64, otherwise as ring_emit",
    },
    floor("handshake_floor", user::floor_awake, "by hand: slot, store, host that spins, reply"),
    Row {
        name: "user_acknowledged",
        run: user::awake,
        floor: Some(Floor::Row("handshake_floor")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.2 x handshake_floor", 1.2),
        note: "reference_point! with two u64 over a segment, host spinning, session on",
    },
    floor("handshake_asleep_floor", user::floor_asleep, "the same, host asleep on a futex"),
    Row {
        name: "user_acknowledged_asleep",
        run: user::asleep,
        floor: Some(Floor::Row("handshake_asleep_floor")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.2 x handshake_asleep_floor", 1.2),
        note: "reference_point! every 300 us, so that the host sleeps",
    },
    floor("lttng_ust", peers::lttng, "LTTng-UST, two u64, to a file; a full buffer blocks"),
    floor("sigsegv_2016", sigsegv::event, "user mode of 2016: 2 signals, 4 mprotects an event"),
    floor("uprobe", tracefs::uprobe, "a call of a function with a uprobe, to an instance"),
    floor("sdt_bpftrace", peers::bpftrace, "the sdt backend, counted by bpftrace"),
    floor("kvm_exit_null", kvm::exit_null, "the guest's stores on a device that does nothing"),
    Row {
        name: "kvm_reference_point",
        run: kvm::reference_point,
        floor: Some(Floor::Row("kvm_exit_null")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.05 x kvm_exit_null", 1.05),
        note: "with the device, session on",
    },
    Row {
        name: "kvm_reference_point_2vcpu",
        run: kvm::speedup_device,
        floor: Some(Floor::Part("null device's", kvm::speedup_null)),
        compare: Compare::Ratio,
        target: Target::at_least(">= 0.95 x the null device's", 0.95),
        note: "two vCPUs' throughput over one's (not ns), against the null device's",
    },
    Row {
        name: "kvm_stamp",
        run: kvm::stamp,
        floor: Some(Floor::Row("kvm_exit_null")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 0.5 x kvm_exit_null", 0.5),
        note: "ring record and a store that the host's kernel completes",
    },
    Row {
        name: "kvm_ring_emit",
        run: kvm::ring_emit,
        floor: Some(Floor::Row("ring_emit")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.2 x ring_emit", 1.2),
        note: "ring_emit inside the guest",
    },
    floor("qemu_plugin_floor", qemu::floor, "a plugin's callback on a store: counter, 32 bytes"),
    Row {
        name: "qemu_marked_store",
        run: qemu::marked_store,
        floor: Some(Floor::Row("qemu_plugin_floor")),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.5 x qemu_plugin_floor", 1.5),
        note: "the same store, of a reference point with two u64: recorded and answered",
    },
    Row {
        name: "qemu_marked_store_2016",
        run: qemu::marked_store,
        floor: Some(Floor::Row("sigsegv_2016")),
        compare: Compare::Speedup,
        target: Target::at_least(">= 500 x faster than sigsegv_2016", 500.0),
        note: "qemu_marked_store, against the way of 2016",
    },
    Row {
        name: "qemu_syscall",
        run: qemu::syscall,
        floor: Some(Floor::Row("qemu_marked_store")),
        compare: Compare::Ratio,
        target: None,
        note: "the same by a system call",
    },
    Row {
        name: "qemu_reference_point",
        run: qemu::point,
        floor: Some(Floor::Row("qemu_marked_store")),
        compare: Compare::Ratio,
        target: None,
        note: "all of a reference_point!, the emulated library's part with it",
    },
    Row {
        name: "qemu_bystander",
        run: qemu::bystander,
        floor: Some(Floor::Part("no plugin", qemu::undisturbed)),
        compare: Compare::Ratio,
        target: Target::at_most("<= 1.03 x without the plugin", 1.03),
        note: "code with no marked store, per sorted number",
    },
];
