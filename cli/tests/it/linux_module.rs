//! The kernel module of guest-lib/linux-module, in a Linux guest of a stock QEMU.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use hypertrace_abi::config::ConfigPage;
use hypertrace_abi::layout::local::PAGE_L;
use hypertrace_abi::layout::{MASK_BYTES, PAGE, Region};
use hypertrace_device::adapter::vfio_user::{End, serve};
use hypertrace_device::{Chip, ChipConfig, Counter, Geometry, Memory, PciFunction};
use hypertrace_tests::build::{root, succeed};
use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::linux::{LATER, Linux, static_program};
use hypertrace_tests::linux_module::Module;
use hypertrace_tests::report::Line;
use hypertrace_tests::serve::{Server, device_at};
use hypertrace_tests::wait_until;
use hypertrace_trace::{Session, SessionConfig};
use rustix::process::Signal;
use serde_json::{Value, json};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// A plain user in the group that may open the module's node. If udev is here, rules for udev give the node
/// to this group.
const USER: &str = r#"
printf 'root:x:0:\nhypertrace:x:990:plain\n' >/etc/group
printf 'root:x:0:0::/:/bin/sh\nplain:x:1000:1000::/:/bin/sh\n' >/etc/passwd
as_user() { su -s /bin/sh plain -c "$1"; echo "$1: $?"; }
parameters=/sys/module/hypertrace/parameters
driver=/sys/bus/pci/drivers/hypertrace
if test -e /bin/udevadm; then systemd-udevd --daemon; fi
give() { if test -e /bin/udevadm; then udevadm settle; else chown plain /dev/hypertrace; fi; ls -l /dev/hypertrace; }
"#;

/// Runs the script in a guest with the module. Returns the guest's console.
#[track_caller]
fn run(linux: &Linux, module: &Module, folder: &Path, device: &[String], script: &str) -> String {
    let check = folder.join("check");
    let source = root().join("guest-lib/linux-module/tests/check.c");
    succeed(
        std::process::Command::new("cc")
            .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-I"])
            .args([&*root().join("guest-lib/include"), Path::new("-o"), &check, &source]),
    );
    let program = static_program("hypertrace-linux-guest");
    let mark = static_program("hypertrace-mark");
    let rules = root().join("guest-lib/linux/70-hypertrace.rules");
    let udev = Linux::udev().unwrap_or_default();
    let own = module.files();
    let mut files: Vec<(&str, &Path)> =
        udev.iter().chain(&own).map(|(name, path)| (&**name, &**path)).collect();
    files.extend([
        ("program", &*program),
        ("check", &*check),
        ("mark", &*mark),
        ("etc/udev/rules.d/70-hypertrace.rules", &*rules),
    ]);
    let console = linux.start(folder, device, &files, &format!("{USER}{script}")).console();
    if !udev.is_empty() {
        assert_says(&console, &["crw-rw----    1 root     hypertra"]);
        Linux::used_udev();
    }
    console
}

/// Asserts that the console has these texts.
#[track_caller]
fn assert_says(console: &str, parts: &[&str]) {
    for part in parts {
        assert!(console.contains(part), "{part:?} is not in {console}");
    }
}

/// Returns the events of a session with these names.
#[track_caller]
fn events(session: &Path, names: &[&str]) -> Vec<Line> {
    let mut found = Vec::new();
    HYPERTRACE.report_each(session, |line| {
        if names.contains(&&*line.event) {
            found.push(line);
        }
    });
    found
}

#[test]
fn a_plain_user_traces_by_the_module_beside_the_kernels_own_events() {
    let Some(linux) = Linux::find() else { return };
    let Some(module) = Module::build(&linux) else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_file(HYPERTRACE, folder.path());
    let script = r#"
        insmod /hypertrace.ko events=sched:sched_switch; echo "loaded: $?"
        give
        cat $parameters/events
        program 5000 20
        as_user "check look"
        as_user "program 5000 20"
        as_user check
        echo sched:none >$parameters/events; echo "unknown: $?"
        echo >$parameters/events; echo "none: $?"
        as_user "check hold" >/tmp/hold &
        until grep -q holds /tmp/hold; do sleep 0.1; done
        for f in $driver/0*; do basename $f >$driver/unbind; done; echo "unbound: $?"
        wait; cat /tmp/hold
        ls /dev/hypertrace
        rmmod hypertrace; echo "removed: $?"
        insmod /hypertrace.ko; insmod /hypertrace_test.ko; echo "tested: $?"
        dmesg | grep hypertrace
        echo c >/proc/sysrq-trigger
    "#;

    let console = run(&linux, &module, folder.path(), &server.device, script);

    assert_says(
        &console,
        &[
            "loaded: 0",
            "found Module(\"/dev/hypertrace\")",
            "failed: 0",
            "program 5000 20: 0",
            "ok: nothing of another user's events is left",
            "check look: 0",
            "checks failed: 0",
            "check: 0",
            "unknown: 1",
            "none: 0",
            "unbound: 0",
            "ok: a mapping outlives its device",
            "check hold: 0",
            "ls: /dev/hypertrace: No such file",
            "removed: 0",
            "tested: 0",
            // The guest's kernel does not use the TSC, although an emulated CPU has a TSC.
            "write-combining, clock counter (emulated)",
        ],
    );
    let session = server.session.clone();
    let stat = server.end();
    assert_eq!(stat["total"]["faults"], json!({}), "{stat}");
    let steps = events(&session, &["step"]);
    assert_eq!(steps.len(), 2 * 4 * 5000);
    let switches = events(&session, &["sched_switch"]);
    let next: BTreeSet<&str> =
        switches.iter().filter_map(|line| line.fields["next_comm"].as_str()).collect();
    assert!(next.contains("worker0") && next.contains("check"), "{next:?}");
    assert!(switches.iter().all(|line| line.fields["prev_pid"].is_number()));
    check_contexts(&session, &stat, &console);
    check_panic(&session);
    module.used();
}

#[test]
fn a_plain_user_and_the_kernel_trace_to_the_device_by_the_module() {
    let Some(linux) = Linux::find() else { return };
    let Some(module) = Module::build(&linux) else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_socket(HYPERTRACE, folder.path(), &[]);
    let script = r#"
        insmod /hypertrace.ko clock=tsc; echo "loaded: $?"
        give
        as_user "program 5000 20"
        as_user check
        insmod /hypertrace_test.ko; echo "tested: $?"
        echo sched:sched_switch,irq:irq_handler_entry >$parameters/events; echo "chosen: $?"
        ls /
        dmesg | grep hypertrace
        echo c >/proc/sysrq-trigger
    "#;

    let console = run(&linux, &module, folder.path(), &server.device, script);

    let program = ["found Module(\"/dev/hypertrace\")", "failed: 0", "program 5000 20: 0"];
    assert_says(&console, &program);
    assert_says(&console, &["loaded: 0", "checks failed: 0", "tested: 0", "chosen: 0"]);
    assert_says(&console, &["write-combining, clock counter (named)"]);
    let session = server.session.clone();
    let stat = server.end();
    let text = std::fs::read(session.join("session.json")).unwrap();
    let json: Value = serde_json::from_slice(&text).unwrap();
    let mut clocks = json["clocks"].as_array().unwrap().iter();
    assert!(clocks.any(|clock| clock["domain"] == "guest" && clock["kind"] == "tsc"), "{json}");
    assert!(clocks.all(|clock| clock["kind"] != "counter"), "{json}");
    assert_eq!(stat["total"]["faults"], json!({}), "{stat}");
    assert_eq!(events(&session, &["step"]).len(), 4 * 5000);
    assert_ne!(events(&session, &["sched_switch"]).len(), 0);
    let interrupts = events(&session, &["irq_handler_entry"]);
    assert!(interrupts.iter().any(|line| line.fields["name"] == "ttyS0"), "{interrupts:?}");
    check_contexts(&session, &stat, &console);
    check_panic(&session);
    module.used();
}

#[test]
fn another_user_who_silences_bells_and_leaves_clients_in_disorder_changes_no_event() {
    let Some(linux) = Linux::find() else { return };
    let Some(module) = Module::build(&linux) else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_file(HYPERTRACE, folder.path());
    let script = r#"
        insmod /hypertrace.ko; give
        as_user "check silence" >/tmp/silence &
        until grep -q silences /tmp/silence; do sleep 0.1; done
        program 20 20
        killall check
        as_user "check leave"
        check look
        program 20 20
    "#;

    let console = run(&linux, &module, folder.path(), &server.device, script);

    assert_says(&console, &["check leave: 0", "ok: no other word of another user's is left"]);
    assert_eq!(console.matches("failed: 0").count(), 2, "{console}");
    let stat = server.end();
    // A commit counts as a point in the ring.
    assert_eq!(stat["total"]["reference_points"], 2 * 2 * 4 * 20, "{stat}");
    assert_eq!(stat["total"]["events"], 2 * 4 * 20, "{stat}");
    let faults = stat["total"]["faults"].as_object().unwrap();
    let of_others = ["head", "length", "losses", "schema_log", "sequence", "token"];
    assert!(faults.keys().all(|name| of_others.contains(&&**name)), "{stat}");
    module.used();
}

#[test]
fn a_guest_learns_that_its_server_has_ended() {
    let Some(linux) = Linux::find() else { return };
    let Some(module) = Module::build(&linux) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::of_file(HYPERTRACE, folder.path());
    let session = server.session.clone();
    let script = r#"
        insmod /hypertrace.ko events=sched:sched_switch; give
        until dmesg | grep -q 'the host has ended'; do sleep 0.2; done
        mark late; echo "late: $?"
        mark --require late; echo "by the module: $?"
        rmmod hypertrace; insmod /hypertrace.ko; rmmod hypertrace
        mark --require late; echo "by sysfs: $?"
        dmesg | grep hypertrace
    "#;

    let console = thread::scope(|scope| {
        let guest = scope.spawn(|| run(&linux, &module, folder.path(), &server.device, script));
        wait_until("an event", || {
            HYPERTRACE.info(&session)["total"]["events"] != 0 || guest.is_finished()
        });
        server.signal(Signal::TERM);
        guest.join().unwrap()
    });

    server.wait();
    assert_says(&console, &["late: 0", "by the module: 125", "by sysfs: 125"]);
    assert_says(&console, &["the host has ended: events are off", "the segment's host has ended"]);
    let said = "its host has ended, and takes no events any more";
    assert_eq!(console.matches(said).count(), 2, "{console}");
    assert_eq!(HYPERTRACE.info(&session)["total"]["faults"], json!({}));
}

#[test]
fn programs_outlive_their_device_and_count_what_is_lost() {
    // Number of events that keeps a program running until its device is gone.
    const EVENTS: u64 = 1_000_000;
    let Some(linux) = Linux::find() else { return };
    let Some(module) = Module::build(&linux) else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_file(HYPERTRACE, folder.path());
    // The first program maps the device's memory through sysfs until the driver binds the device. The second
    // program maps the memory through the driver until the device is unbound from the driver.
    let script = format!(
        r#"
        begin() {{ program {EVENTS} 0 >/tmp/$1 2>&1 & until grep -q found /tmp/$1; do :; done; usleep 100000; }}
        end() {{ wait $!; echo "$1: $?"; cat /tmp/$1; }}
        begin sysfs; insmod /hypertrace.ko; give; end sysfs
        begin module; for f in $driver/0*; do basename $f >$driver/unbind; done; end module
    "#
    );

    let console = run(&linux, &module, folder.path(), &server.device, &script);

    // Both programs exit with 1, because some of their events had no room in a ring.
    assert_says(&console, &["sysfs: 1", "module: 1"]);
    assert_eq!(console.matches("hypertrace: the device is gone").count(), 2, "{console}");
    let lost = console.lines().filter_map(|line| {
        let count = line.strip_prefix("hypertrace: ")?.split_once(" events of this process")?.0;
        count.parse::<u64>().ok()
    });
    let lost: Vec<u64> = lost.collect();
    assert_eq!(lost.len(), 2, "{console}");
    let stat = server.end();
    let total = |name: &str| stat["total"][name].as_u64().unwrap();
    let emitted = 2 * 4 * EVENTS;
    assert!(total("events") + total("lost") + lost[0] + lost[1] >= emitted, "{lost:?} {stat}");
    assert!(lost[0] + lost[1] < emitted && total("events") > 0, "{lost:?} {stat}");
    module.used();
}

#[test]
fn leases_wait_for_nobody_elses_ring_or_mappings_and_dropped_events_kick_no_host() {
    let Some(linux) = Linux::find() else { return };
    let Some(module) = Module::build(&linux) else { return };
    let folder = tempfile::tempdir().unwrap();
    // The rings are large, nobody drains them, and the host wants kicks.
    let geometry = Geometry { clients: 4, ring_bytes: 64 << 20, ..Geometry::default() };
    let session = Session::create(SessionConfig::new(folder.path().join("session"))).unwrap();
    let config = ChipConfig::default().with(|config| config.has_doorbells = true);
    let memory = Memory::anonymous(geometry).unwrap();
    let chip = Arc::new(Chip::new(memory, &config, session, ()));
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let function = PciFunction::new(Arc::clone(&chip));
    let server = thread::spawn(move || serve(&function, &listener.accept().unwrap().0).unwrap());
    let script = r#"
        insmod /hypertrace.ko; give
        check erase; echo "erased: $?"
        check crowd; echo "crowd: $?"
        insmod /hypertrace_test.ko alternate=600000
        dmesg | grep hypertrace_test
    "#;

    let device = device_at(socket.to_str().unwrap());
    let console = run(&linux, &module, folder.path(), &device, script);

    assert_says(&console, &["ok: a client is erased", "erased: 0", "crowd: 0"]);
    let (_, dropped) = console.split_once("hypertrace_test: of 600000 events dropped ").unwrap();
    let dropped: u64 = dropped.lines().next().unwrap().trim().parse().unwrap();
    assert!((100_000..200_000).contains(&dropped), "{dropped}");
    // For events that stay in a ring, the module kicks the host fewer than 100 times in a second. Full blocks
    // and pauses cause some more kicks.
    let kicks = chip.count(Counter::KickTrapped);
    assert!((1..50_000).contains(&kicks), "{kicks}");
    assert_eq!(server.join().unwrap(), End::Closed);
    module.used();
}

#[test]
fn an_unknown_tracepoint_is_named_and_the_others_are_forwarded() {
    let Some(linux) = Linux::find() else { return };
    let Some(module) = Module::build(&linux) else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_file(HYPERTRACE, folder.path());
    let script = r#"
        insmod /hypertrace.ko events=sched:none,none,sched:sched_switch,; echo "loaded: $?"
        give
        echo irq:irq_handler_entry,sched:none >$parameters/events; echo "changed: $?"
        mark late
        dmesg | grep hypertrace
    "#;

    let console = run(&linux, &module, folder.path(), &server.device, script);

    assert_says(&console, &["loaded: 0", "changed: 1"]);
    assert_says(&console, &["no tracepoint sched:none", "no tracepoint none"]);
    let session = server.session.clone();
    server.end();
    assert_ne!(events(&session, &["sched_switch"]).len(), 0);
    assert_eq!(events(&session, &["irq_handler_entry"]).len(), 0);
    module.used();
}

#[test]
fn the_newest_kernel_has_the_module_too() {
    check_kernels(&LATER[LATER.len() - 1..]);
}

#[test]
#[ignore = "boots each of them: cargo xtask full"]
fn kernels_of_later_releases_have_the_module_too() {
    check_kernels(&LATER);
}

#[track_caller]
fn check_kernels(names: &[&'static str]) {
    for name in names {
        let Some(linux) = Linux::find_kernel(name) else { continue };
        let Some(module) = Module::build(&linux) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let server = Server::of_file(HYPERTRACE, folder.path());
        let script = r#"
            insmod /hypertrace.ko events=sched:sched_switch; echo "loaded: $?"
            give
            as_user "program 5000 20"
            as_user check
            insmod /hypertrace_test.ko; echo "tested: $?"
            dmesg | grep -E 'hypertrace|BUG|Oops|WARNING'
            dmesg -n 1
            echo c >/proc/sysrq-trigger
        "#;

        let console = run(&linux, &module, folder.path(), &server.device, script);

        assert_says(&console, &["loaded: 0", "failed: 0", "checks failed: 0", "tested: 0"]);
        for wrong in ["BUG", "Oops", "WARNING"] {
            assert!(!console.contains(wrong), "{console}");
        }
        let session = server.session.clone();
        let stat = server.end();
        assert_eq!(stat["total"]["faults"], json!({}), "{stat}");
        assert_eq!(events(&session, &["step"]).len(), 4 * 5000);
        assert_ne!(events(&session, &["sched_switch"]).len(), 0);
        check_contexts(&session, &stat, &console);
        check_panic(&session);
        module.used();
    }
}

#[test]
fn a_guest_lives_while_a_host_writes_anything_anywhere() {
    let Some(linux) = Linux::find() else { return };
    let Some(module) = Module::build(&linux) else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_file(HYPERTRACE, folder.path());
    let script = r#"
        insmod /hypertrace.ko events=sched:sched_switch,sched:sched_wakeup; give
        for n in 1 2 3; do insmod /hypertrace_test.ko; rmmod hypertrace_test; done
        for f in $driver/0*; do basename $f >$driver/unbind; done; echo "unbound: $?"
        dmesg | grep -E 'hypertrace|BUG|Oops|WARNING|stall'
    "#;
    let memory = File::options().read(true).write(true).open(folder.path().join("memory")).unwrap();
    let ended = AtomicBool::new(false);

    let console = thread::scope(|scope| {
        scope.spawn(|| {
            // The host records an event only after the module has found the device.
            wait_until("an event", || {
                HYPERTRACE.info(&server.session)["total"]["events"] != 0 || ended.load(Relaxed)
            });
            corrupt(&memory, &ended);
        });
        let _ends = Ends(&ended);
        run(&linux, &module, folder.path(), &server.device, script)
    });

    assert_says(&console, &["unbound: 0", "hypertrace_test: errors"]);
    for wrong in ["BUG", "Oops", "WARNING", "stall"] {
        assert!(!console.contains(wrong), "{console}");
    }
    module.used();
}

/// Ends another thread on drop, also if a test has failed.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Stores random numbers in a segment that a guest uses, until the guest has ended. Most of these numbers are
/// stored in words that both sides share.
fn corrupt(memory: &File, ended: &AtomicBool) {
    let load = |at: u64| {
        let mut word = [0; 8];
        // The word is 0 if the file does not reach that far yet.
        let _ = memory.read_exact_at(&mut word, at);
        u64::from_le_bytes(word)
    };
    let page = ConfigPage::from_words(&std::array::from_fn(|word| load(8 * word as u64)));
    let geometry = page.geometry().unwrap();
    let rings = geometry.window_offset(Region::Rings) + MASK_BYTES;
    let (clients, stride) = (geometry.clients.into(), geometry.client_stride());
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |most: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % most
    };
    while !ended.load(Relaxed) {
        // Half of the cases are in the areas of the first two clients, which are the kernel's clients.
        let area = rings + [below(2), below(clients)][below(2) as usize] * stride;
        let at = match below(4) {
            0 => PAGE_L + below(48) * 8,
            1 => area + below(stride / 8) * 8,
            _ => area + below(2) * PAGE + below(32) * 8,
        };
        let any = below(u64::MAX);
        let near = load(at).wrapping_add(below(64)).wrapping_sub(32);
        let value = [any, any >> 40, near, u64::MAX, 0][below(5) as usize];
        memory.write_all_at(&value.to_le_bytes(), at).unwrap();
    }
}

/// Asserts that the session has the events of the test's module, except for those that the module counts as
/// dropped.
#[track_caller]
pub fn check_contexts(session: &Path, stat: &Value, console: &str) {
    let said = console.lines().find(|line| line.contains("hypertrace_test: errors")).unwrap();
    let numbers: Vec<u64> = said
        .rsplit("hypertrace_test: ")
        .next()
        .unwrap()
        .split([' ', ','])
        .filter_map(|word| word.trim().parse().ok())
        .collect();
    let [errors, steps, steps_dropped, nmis, nmis_dropped] = numbers[..] else { panic!("{said}") };
    assert_eq!(errors, 0);
    assert_ne!(nmis, 0);
    let count = |name| events(session, &[name]).len() as u64;
    let found = [count("stressed") + steps_dropped, count("in_nmi") + nmis_dropped];
    assert_eq!(found, [steps, nmis], "{said}");
    assert_eq!(stat["total"]["lost"], steps_dropped + nmis_dropped, "{stat}");
    let context = |line: &Line| line.fields["context"].as_u64().unwrap();
    let mut contexts: Vec<u64> = events(session, &["in_context"]).iter().map(context).collect();
    contexts.sort_unstable();
    assert_eq!(contexts, [0, 0, 1, 1, 2, 2, 3, 3]);
}

/// Asserts that the session has the point of the panic, with its message.
#[track_caller]
pub fn check_panic(session: &Path) {
    let panics = events(session, &["guest_panic"]);
    let why: Vec<&Value> = panics.iter().map(|line| &line.fields["why"]).collect();
    assert_eq!(why, ["sysrq triggered crash"]);
}
