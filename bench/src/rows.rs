//! All rows of the benchmark, in the order of `docs/benchmarks.md`.

use super::row::{Floor, Row, row};
use super::trace::To;
use super::trigger::Rules;
use super::{
    c, device, drain, functions, hostile, kvm, linux, peers, qemu, regions, ring, sigsegv, spans,
    trace, trace_dat, tracefs, trigger, user, vfio_user,
};
use hypertrace_trace::Output;
use kvm_vmm::Answer;

// Floors of several rows, and those that are no rows.
const RING_FLOOR: Floor = ("ring_floor", ring::floor);
const WRITE_FLOOR: Floor = ("write_floor", drain::write_floor);
const EMPTY_LOOP: Floor = ("empty loop", ring::empty);
const NO_RULES: Floor = ("no rules", |_| trigger::points(Rules::None));
const RING_ONE_THREAD: Floor = ("one thread", |context| ring::emit_threads(context, 1));
const TRACE_ONE_THREAD: Floor = ("one thread", |_| trace::threads(1));
const SESSION_WRITE: Floor =
    ("ring + 32 B write", |context| trace::sustained_floor(context, To::Session));
const SIMPLE_WRITE: Floor =
    ("ring + 48 B write", |context| trace::sustained_floor(context, To::Simple));
const EMPTY_INSTRUCTIONS: Floor = ("empty loop", ring::instructions_empty);
const LTTNG_UST: Floor = ("lttng_ust", peers::lttng);
const KVM_EXIT_NULL: Floor = ("kvm_exit_null", kvm::exit_null);
const QEMU_MARKED_STORE: Floor = ("qemu_marked_store", qemu::marked_store);

pub const ROWS: &[Row] = &[
    row("tsc", ring::tsc).note("one read of the counter"),
    row("ring_floor", ring::floor)
        .note("by hand: counter, 32-byte record, full check, release store"),
    row("write_floor", drain::write_floor)
        .note("64 KiB pwrite to reused tmpfs pages, per 32 bytes"),
    row("write_new_pages", drain::write_new_pages)
        .compared_with(WRITE_FLOOR)
        .note("the same to new pages, as a session's file has them"),
    row("ring_emit", ring::emit)
        .over(RING_FLOOR, "<= 1.3 x ring_floor")
        .note("event! with two u64, not inlined; consumer every 200 us"),
    row("ring_emit_two_ids", ring::emit_two_ids)
        .over(("ring_emit", ring::emit), "<= 1.3 x ring_emit")
        .note("two such events alternately, their ids in one slot of the table of known ids"),
    row("ring_emit_disabled", ring::disabled)
        .less(EMPTY_LOOP, "<= 0.5 ns over an empty loop")
        .note("the same, switched off by the mask; ratio is the difference in ns"),
    row("ring_emit_2threads", |context| ring::emit_threads(context, 2))
        .speedup_of(RING_ONE_THREAD, ">= 1.9 x one thread's throughput")
        .note("two threads, two clients, rings that hold the run"),
    row("event_instructions", ring::instructions)
        .less(EMPTY_INSTRUCTIONS, "<= 40 more than an empty loop")
        .note("user instructions of the event of ring_emit (not ns); ratio is the difference"),
    row("event_instructions_off", ring::instructions_off)
        .less(EMPTY_INSTRUCTIONS, "<= 4 more than an empty loop")
        .note("the same, switched off by the mask"),
    row("c_emit", c::emit)
        .over(("ring_floor", c::floor), "<= 1.3 x ring_floor")
        .note("HYPERTRACE_EVENT with two uint64_t, from C; host every 200 us"),
    row("c_disabled", c::disabled)
        .less(("empty loop", c::empty), "<= 0.5 ns over an empty loop")
        .note("the same, switched off; ratio is the difference in ns"),
    row("c_function_call", c::function_call)
        .over(("a C emit", c::emit_one), "<= 2.2 x c_emit of one field")
        .note("a call with its two events, of a function built with -finstrument-functions"),
    row("c_function_call_off", c::function_call_off)
        .less(("a plain call", c::call), "<= 5 ns over a call")
        .note("the same, switched off; ratio is the difference in ns"),
    row("tracing_span", spans::layer)
        .over(("region! in a span", spans::region), "<= 1.2 x an empty layer and region!")
        .note("a span of the crate tracing with one u64: made, entered, left, closed"),
    row("tracing_span_fmt", spans::layer)
        .over(("fmt layer", spans::text), "<= 0.2 x the fmt layer to /dev/null")
        .note("tracing_span, against tracing-subscriber's text of entry and exit"),
    row("ring_drain", |_| drain::drain(Output::Nothing))
        .target("<= 7 ns a record")
        .note("copy and every check, into a packet buffer"),
    row("ring_drain_file", |_| drain::drain(Output::Trace))
        .over(WRITE_FLOOR, "<= 1.8 x write_floor")
        .note("the same, into the session's file on tmpfs"),
    row("drain_hostile", hostile::beside)
        .speedup_of(("fair share", hostile::fair), ">= 0.9 x its fair share")
        .note(
            "drain time per record of a client beside 15 hostile ones; \
             ratio is the part of its fair share that it gets",
        ),
    row("device_reference_point", device::reference_point)
        .over(RING_FLOOR, "<= 4 x ring_floor")
        .note("the device call alone, as a vCPU thread makes it, session on"),
    row("vfio_user_null", vfio_user::null)
        .note("a store as a message to a thread that does one recv and one send, on one CPU"),
    row("vfio_user_point", vfio_user::point)
        .over(("vfio_user_null", vfio_user::null), "<= 1.1 x vfio_user_null")
        .note("a reference point as a message to the server of vfio-user, on one CPU, session on"),
    row("restore", device::restore)
        .target("<= 1000000 ns")
        .note("Chip::restore, 64 clients of 8 event types each, to a new session"),
    row("idle_cpu", device::idle_cpu)
        .target("<= 100000 ns")
        .note("CPU time in a second of a VMM's threads while 16 clients trace nothing"),
    row("trace_disabled", trace::disabled)
        .less(EMPTY_LOOP, "<= 0.5 ns over an empty loop")
        .note("a declared event that is off; ratio is the difference in ns"),
    row("trace_session_burst", |_| trace::burst(To::Session))
        .over(RING_FLOOR, "<= 1.3 x ring_floor")
        .note("declared event with two u64; session drained every 200 us"),
    row("trace_simple_burst", |_| trace::burst(To::Simple))
        .over(RING_FLOOR, "<= 1.3 x ring_floor")
        .note("the same, to the simple backend's file alone"),
    row("trace_session_sustained", |_| trace::sustained(To::Session))
        .over(SESSION_WRITE, "<= 1.5 x (ring_floor + write_floor)")
        .note("a million to a file on tmpfs, 32 bytes each; the producer waits"),
    row("trace_session_lttng", |_| trace::sustained(To::Session))
        .over(LTTNG_UST, "<= 0.6 x lttng_ust")
        .note("trace_session_sustained, against LTTng-UST"),
    row("trace_simple_sustained", |_| trace::sustained(To::Simple))
        .over(SIMPLE_WRITE, "<= 1.5 x (ring_floor + write_floor)")
        .note("the same to the simple backend's file alone, 48 bytes each"),
    row("trace_simple_lttng", |_| trace::sustained(To::Simple))
        .over(LTTNG_UST, "<= 0.6 x lttng_ust")
        .note("trace_simple_sustained, against LTTng-UST"),
    row("session_create", trace::create)
        .target("<= 1000000 ns")
        .note("a process's first session, its counter's frequency known; to tmpfs"),
    row("trace_2threads", |_| trace::threads(2))
        .speedup_of(TRACE_ONE_THREAD, ">= 1.9 x one thread's throughput")
        .note("two threads, rings that hold the run"),
    row("trace_marker_floor", tracefs::marker).note("bare write(2) of an event's text, 29 bytes"),
    row("trace_ftrace", tracefs::ftrace)
        .over(("trace_marker_floor", tracefs::marker), "<= 1.15 x trace_marker_floor")
        .note("the ftrace backend, text of the same bytes, to the same trace_marker"),
    row("trigger_match", |_| trigger::points(Rules::Two))
        .less(NO_RULES, "<= 20 ns more")
        .note("a reference point's call with 16 rules, one fires; ratio is the difference in ns"),
    row("trigger_miss", |_| trigger::points(Rules::Others))
        .less(NO_RULES, "<= 2 ns more")
        .note("the same, none fires"),
    row("user_commit", ring::commit)
        .over(RING_FLOOR, "<= 1.3 x ring_floor")
        .note("commit! with two u64, otherwise as ring_emit"),
    row("handshake_floor", user::floor_awake).note("by hand: slot, store, host that spins, reply"),
    row("user_acknowledged", user::awake)
        .over(("handshake_floor", user::floor_awake), "<= 1.2 x handshake_floor")
        .note("reference_point! with two u64 over a segment, host spinning, session on"),
    row("handshake_asleep_floor", user::floor_asleep).note("the same, host asleep on a futex"),
    row("user_acknowledged_asleep", user::asleep)
        .over(("handshake_asleep_floor", user::floor_asleep), "<= 1.2 x handshake_asleep_floor")
        .note("reference_point! every 300 us, so that the host sleeps"),
    row("lttng_ust", peers::lttng).note("LTTng-UST, two u64, to a file; a full buffer blocks"),
    row("uftrace_pg", peers::uftrace)
        .over(("c_function_call", c::function_call), ">= 3 x c_function_call")
        .note("a call of a function built with -pg, to a file by uftrace"),
    row("report_trace_dat", trace_dat::report)
        .speedup_of(
            ("trace-cmd report", trace_dat::trace_cmd),
            ">= 5 x faster than trace-cmd report",
        )
        .note("report of a kernel's trace to text, per event, with the start of the process"),
    row("regions", regions::regions)
        .over(("merge to null", regions::merge), "<= 1.2 x merging the same files to null")
        .note("CPU time for a session with its kernel.dat, per event, from opening the files on"),
    row("sigsegv_2016", sigsegv::event).note("user mode of 2016: 2 signals, 4 mprotects an event"),
    row("uprobe", tracefs::uprobe).note("a call of a function with a uprobe, to an instance"),
    row("sdt_bpftrace", peers::bpftrace).note("the sdt backend, counted by bpftrace"),
    row("kvm_exit_null", kvm::exit_null).note("the guest's stores on a device that does nothing"),
    row("kvm_reference_point", kvm::reference_point)
        .over(KVM_EXIT_NULL, "<= 1.05 x kvm_exit_null")
        .note("with the device, session on"),
    row("kvm_reference_point_2vcpu", |_| kvm::speedup(Answer::Device))
        .over(("null device's", |_| kvm::speedup(Answer::Null)), ">= 0.95 x the null device's")
        .note("two vCPUs' throughput over one's (not ns), against the null device's"),
    row("record_cost", kvm::recorded)
        .less(("kvm_reference_point", kvm::reference_point), "<= 1500 ns more")
        .note("kvm_reference_point while the kernel is recorded; ratio is the difference in ns"),
    row("kvm_stamp", kvm::stamp)
        .over(KVM_EXIT_NULL, "<= 0.5 x kvm_exit_null")
        .note("ring record and a store that the host's kernel completes"),
    row("bar_move", kvm::bar_move)
        .target("<= 1000000 ns")
        .note("BAR 2 of a device with 64 clients: doorbells disarmed and armed elsewhere"),
    row("kvm_ring_emit", kvm::ring_emit)
        .over(("ring_emit", ring::emit), "<= 1.2 x ring_emit")
        .note("ring_emit inside the guest"),
    row("linux_ring_emit_sysfs", linux::emit_sysfs)
        .target("<= 120 ns")
        .note("event! with two u64 in a Linux guest without KVM, the device over vfio-user"),
    row("linux_ring_emit_ivshmem", linux::emit_ivshmem)
        .target("<= 120 ns")
        .note("the same, a shared file"),
    row("linux_ring_emit_module", linux::emit_module)
        .target("<= 120 ns")
        .note("the same, the device from hypertrace's kernel module"),
    row("linux_socket_messages", linux::messages)
        .over(("leases + kicks", linux::leases_and_kicks), "<= 1 x leases + kicks")
        .note("messages to the server of vfio-user for a million events (not ns)"),
    row("shared_file_point", linux::point_asleep)
        .target("<= 3000000 ns")
        .note("reference_point! by a shared file every 5 ms, so that the host sleeps"),
    row("shared_file_point_awake", linux::point_awake)
        .target("<= 100000 ns")
        .note("the same without a pause"),
    row("qemu_plugin_floor", qemu::floor).note("a plugin's callback on a store: counter, 32 bytes"),
    row("qemu_marked_store", qemu::marked_store)
        .over(("qemu_plugin_floor", qemu::floor), "<= 1.5 x qemu_plugin_floor")
        .note("the same store as a reference point with two u64: recorded and answered"),
    row("qemu_marked_store_2016", qemu::marked_store)
        .speedup_of(("sigsegv_2016", sigsegv::event), ">= 500 x faster than sigsegv_2016")
        .note("qemu_marked_store, against sigsegv_2016"),
    row("qemu_syscall", qemu::syscall)
        .compared_with(QEMU_MARKED_STORE)
        .note("the same by a system call"),
    row("qemu_reference_point", qemu::point)
        .compared_with(QEMU_MARKED_STORE)
        .note("a whole reference_point!, with the emulated library's part"),
    row("qemu_bystander", qemu::bystander)
        .over(("no plugin", qemu::undisturbed), "<= 1.03 x without the plugin")
        .note("code with no marked store, per sorted number"),
    row("functions_boot_x86", functions::traced_x86)
        .over(("plain boot", functions::plain_x86), "<= 1.4 x without the plugin")
        .note("CPU time of a boot with a function trace to tmpfs")
        .slow(3),
    row("functions_boot_aarch64", functions::traced_aarch64)
        .over(("plain boot", functions::plain_aarch64), "<= 1.7 x without the plugin")
        .note("the same, of AArch64")
        .slow(3),
    row("functions_off", functions::closed_x86)
        .over(("plain boot", functions::plain_x86), "<= 1.15 x without the plugin")
        .note("CPU time of a boot with a function trace of a region that never begins")
        .slow(3),
    row("functions_user", functions::traced_user)
        .over(("plain run", functions::plain_user), "<= 2 x without the plugin")
        .note("CPU time of a sort under qemu-user, functions of a microsecond and more traced")
        .slow(3),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::is_met;

    #[test]
    fn every_target_has_a_limit() {
        for target in ROWS.iter().filter_map(|row| row.target) {
            assert!(is_met(target, 1.0).is_some(), "{target}");
        }
    }

    #[test]
    fn a_floor_that_is_a_row_has_its_name() {
        for (name, _) in ROWS.iter().filter_map(|row| row.floor) {
            let is_row = ROWS.iter().any(|row| row.name == name);
            assert!(is_row || !name.contains('_'), "{name}");
        }
    }
}
