//! The monitor of a running VM: `hypertrace ctl` switches events of the VMM and the guest, and the session
//! shows when they were off.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hypertrace_device::RingMode;
use hypertrace_guest::{Args, Program, layout};
use hypertrace_test_support::kept::Event;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::host::{Host, geometry};
use hypertrace_tests::kvm;
use hypertrace_trace::SessionConfig;
use kvm_vmm::{Answer, attach_window, record_in};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Time in nanoseconds that is far longer than a guest clock's error bound.
const MARGIN: i64 = 2_000_000;

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64
}

/// Client of the monitor.
struct Ctl {
    dir: PathBuf,
}

impl Ctl {
    fn new(dir: &Path) -> Ctl {
        Ctl { dir: dir.to_owned() }
    }

    /// Executes a command. Returns its reply.
    #[track_caller]
    fn say(&self, command: &str) -> String {
        run(HYPERTRACE.command(["ctl", "-d"]).arg(&self.dir).args(command.split(' '))).ok()
    }

    /// Waits while the VM runs, then executes a command. Returns the times of the command and of its reply.
    #[track_caller]
    fn later(&self, command: &str) -> (i64, i64) {
        thread::sleep(Duration::from_millis(200));
        let before = now();
        self.say(command);
        (before, now())
    }
}

/// Returns the times of the events with a name.
fn times(events: &[Event], name: &str) -> Vec<i64> {
    events.iter().filter(|event| &*event.name == name).map(|event| event.ts_ns).collect()
}

#[test]
fn events_are_switched_off_and_on_while_the_vm_runs() {
    let Some(mut machine) = kvm::machine(1) else { return };
    let dir = tempfile::tempdir().unwrap();
    // On a busy machine, the drain may get no CPU for tenths of a second. The guest makes points meanwhile,
    // so the host's ring is large.
    let config = SessionConfig::new(dir.path()).with(|config| config.host_ring_bytes = 4 << 20);
    let host = Host::of(dir, config, geometry(1), RingMode::Discard);
    let drain = host.drain();
    let monitor = host.session.serve().unwrap();
    machine.observe(record_in(host.session.clone()));
    attach_window(&mut machine, &host.device, layout::DEVICE, Answer::Device).unwrap();
    let args = Args {
        device: layout::DEVICE,
        events: 300_000,
        reference_points: 80_000,
        ..Args::new(Program::Demo)
    };
    let ctl = Ctl::new(host.session.dir());

    let vm = thread::spawn(move || kvm::run(machine, &args));
    let guest_off = ctl.later("trace-event cache_* off");
    let host_off = ctl.later("trace-event vcpu_* off");
    let states = ctl.say("info trace-events");
    let trace = ctl.say("info trace");
    let guest_on = ctl.later("trace-event cache_* on");
    let host_on = ctl.later("trace-event vcpu_* on");
    let runs = !vm.is_finished();
    vm.join().unwrap();
    drop(monitor);
    drain.finish();

    assert!(runs, "the VM ended before the last command: give it more to do");
    for row in
        ["cache_miss : state 0 (guest)\n", "reply : state 1 (guest)\n", "vcpu_exit : state 0\n"]
    {
        assert!(states.contains(row), "{states}");
    }
    assert!(trace.contains("backends: rings\n") && trace.contains("guest client 0:"), "{trace}");
    let recorded = host.finish();
    assert_eq!(recorded.summary.lost, 0);
    let events = recorded.events();
    for (name, off, on) in [("cache_miss", guest_off, guest_on), ("vcpu_exit", host_off, host_on)] {
        let times = times(&events, name);
        let count = |from: i64, to: i64| times.iter().filter(|t| (from..to).contains(*t)).count();
        assert!(count(0, off.0) > 0, "{name} before");
        assert_eq!(count(off.1 + MARGIN, on.0 - MARGIN), 0, "{name} while it is off");
        assert!(count(on.1, i64::MAX) > 0, "{name} after");
    }
    // Other events were recorded all the time.
    let others = times(&events, "request");
    assert!(others.iter().any(|time| (guest_off.1..guest_on.0).contains(time)));
}

#[test]
fn an_unknown_command_is_answered_with_the_list() {
    let host = Host::new(geometry(1));
    let _monitor = host.session.serve().unwrap();
    let ctl = |command: &str| {
        run(HYPERTRACE.command(["ctl", "-d"]).arg(host.session.dir()).args(command.split(' ')))
    };
    // As in QEMU's monitor, `trace-file set` without a name selects no other file.
    assert_eq!(ctl("trace-file set").ok(), "");
    for (command, expected) in [
        ("trace-events on", "no command"),
        ("trace-event", "usage of trace-event:\ntrace-event NAME|PATTERN on|off "),
        ("info", "usage of info:\ninfo trace-events [PATTERN] "),
        ("trace-event a;b on", "is no pattern"),
        ("trace-event vcpu_* maybe", "expected on or off"),
        ("trace-file on", "there is no file: trace-file set PATH"),
        ("trace-backend printer on", "no backend \"printer\""),
        ("trace-backend ftrace:/tmp on", "give the folder of a tracefs instance"),
        ("trigger add when x", "expected \"on NAME\""),
        ("trigger add on x do call nobody", "this VMM has no callback \"nobody\""),
        ("trigger remove 7", "no rule 7"),
        ("info trace-events nothing_like_it", "no event fits"),
    ] {
        let ran = ctl(command);
        assert_eq!(ran.code, Some(1), "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{command}: {}", ran.stderr);
    }
    assert!(ctl("trace-events").stderr.contains("trace-event NAME|PATTERN on|off"));
    assert_eq!(
        ctl("trace-event not_yet off").ok(),
        "no event not_yet so far; a guest's event of that name will be off\n"
    );
    assert!(ctl("trace-events-all").ok().contains("vcpu_run(uint32_t vcpu) \"vcpu %u\"\n"));
}
