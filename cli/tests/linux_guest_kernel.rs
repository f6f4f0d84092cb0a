//! `hypertrace record --guest`: a Linux guest's kernel beside its programs' events, on the host's clock.

use std::collections::BTreeMap;
use std::path::Path;

use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::linux::{Linux, libraries_of, static_program};
use hypertrace_tests::serve::Server;
use hypertrace_tests::trace_cmd;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
/// Events and points of each of four threads.
const EVENTS: u64 = 2_000;
const POINTS: u64 = 20;

/// Thread of the guest, by the switches of the guest's kernel.
#[derive(Debug, Default)]
struct Thread {
    /// Whether it has a CPU; `None` before its first switch.
    is_on: Option<bool>,
    /// Its events while it had a CPU, and while it had none.
    on: u64,
    off: u64,
}

#[test]
fn the_kernel_of_a_guest_stands_beside_its_programs() {
    let Some(linux) = Linux::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::of_file(HYPERTRACE, folder.path());
    let program = static_program("hypertrace-linux-guest");
    let libraries = libraries_of(Path::new(HYPERTRACE.0));
    let mut programs = vec![("program", &*program), ("hypertrace", Path::new(HYPERTRACE.0))];
    programs.extend(libraries.iter().map(|(name, path)| (&**name, &**path)));
    let script =
        format!("hypertrace record --guest -- program {EVENTS} {POINTS}; echo \"ended: $?\"");

    let console = linux.start(folder.path(), &server.device, &programs, &script).console();

    assert!(console.contains("failed: 0") && console.contains("ended: 0"), "{console}");
    let session = server.session.clone();
    server.stop();
    let made = run(HYPERTRACE.command(["report", "--limit", "0"]).arg(&session));
    assert!(made.stderr.contains("kernel events (by tracefs)"), "{made:?}");
    assert!(made.stderr.contains("none lost"), "{made:?}");
    let stat = HYPERTRACE.stat(&session);
    assert_eq!(stat["total"]["lost"], 0, "{stat}");
    let mut threads: BTreeMap<u64, Thread> = BTreeMap::new();
    let mut tids: BTreeMap<String, u64> = BTreeMap::new();
    let mut switches = 0;
    HYPERTRACE.report_each(&session, |line| {
        let number = |name: &str| line.number(name).unwrap_or_else(|| panic!("{name}: {line:?}"));
        match line.event.as_str() {
            "lease" => drop(tids.insert(line.source.clone(), number("tid"))),
            "sched:sched_switch" => {
                assert!(line.source.starts_with("guest-kernel/"), "{line:?}");
                switches += 1;
                threads.entry(number("prev_pid")).or_default().is_on = Some(false);
                threads.entry(number("next_pid")).or_default().is_on = Some(true);
            }
            "step" => {
                let thread = threads.entry(tids[&line.source]).or_default();
                match thread.is_on {
                    Some(true) => thread.on += 1,
                    Some(false) => thread.off += 1,
                    None => {}
                }
            }
            "guest_kernel" | "guest_kernel_clock" => panic!("{line:?}"),
            _ => {}
        }
    });
    let (on, off) = threads.values().fold((0, 0), |(on, off), t| (on + t.on, off + t.off));
    assert!(switches > 8 && on > 2 * EVENTS && off == 0, "{switches} {on} {off}");
    if let Some(events) = trace_cmd::read(&session.join("guest-kernel-0.dat")) {
        let all = events.iter().filter(|event| event.name == "sched_switch").count();
        assert_eq!(all, switches);
    }
    Linux::used();
}
