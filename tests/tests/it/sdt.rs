//! The `sdt` backend: probes that the system's tools list, attach to and count.

use std::process::Command;

use hypertrace_tests::{capability, child, trace};
use hypertrace_trace::backend::{self, Backends};
use hypertrace_trace::control::set_declared;
use hypertrace_trace::event::EVENTS;

/// Environment variable that is set in the program to be probed.
const PROBED: &str = "HYPERTRACE_TEST_PROBED";
const EVENTS_MADE: u64 = 1000;

#[test]
fn readelf_lists_a_probe_for_every_event() {
    let exe = std::env::current_exe().unwrap();
    let Some(readelf) = capability::program("readelf") else { return };
    let ran = Command::new(readelf).arg("--notes").arg(&exe).env("LC_ALL", "C").output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    let mut probes: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.contains("Provider: hypertrace"))
        .filter_map(|line| line.trim().strip_prefix("Name: "))
        .collect();
    probes.sort();
    probes.dedup();
    // The program has probes only for events that it calls, because the linker removes the other probes.
    for event in ["test_pair", "test_text", "test_none"] {
        assert!(probes.contains(&event), "{event} is not among {probes:?}");
        assert!(EVENTS.iter().any(|declared| declared.name() == event));
    }
    assert!(!probes.contains(&"test_disabled"), "{probes:?}");
    capability::used("readelf");
}

#[test]
fn bpftrace_counts_the_events_and_reads_their_arguments() {
    if std::env::var_os(PROBED).is_some() {
        return;
    }
    let Some(bpftrace) = capability::program("bpftrace") else { return };
    let exe = std::env::current_exe().unwrap();
    let exe = exe.display();
    let script = format!(
        "usdt:{exe}:hypertrace:test_pair {{ @pairs = count(); @sum = sum(arg1); }}
         usdt:{exe}:hypertrace:test_text {{ @texts[str(arg1)] = count(); }}"
    );
    let program = child::full_name("the_program_that_is_probed");
    let child = format!("{exe} --exact {program} --nocapture");
    // bpftrace looks for tracefs at the usual place, where tracefs may not be mounted.
    let mounted = "[ -e /sys/kernel/tracing/trace ] || mount -t tracefs none /sys/kernel/tracing\n\
                   exec \"$@\"";
    let ran = Command::new("unshare")
        .args(["--mount", "sh", "-c", mounted, "sh"])
        .arg(bpftrace)
        .args(["-e", &script, "-c", &child])
        .env(PROBED, "1")
        .output();
    let ran = match ran {
        Ok(ran) if ran.status.success() => ran,
        Ok(ran) => {
            let said = String::from_utf8_lossy(&ran.stderr);
            let why = said.lines().find(|line| !line.starts_with("WARNING")).unwrap_or_default();
            return capability::missing("bpftrace", format!("cannot be run (root?): {why}"));
        }
        Err(error) => return capability::missing("bpftrace", format!("unshare: {error}")),
    };

    let text = String::from_utf8_lossy(&ran.stdout);
    let n = EVENTS_MADE;
    for line in [
        format!("@pairs: {n}"),
        format!("@sum: {}", n * (n - 1)),
        // A NUL ends a string for readers of C strings.
        format!("@texts[a]: {}", n / 4),
        format!("@texts[other]: {}", n / 4 * 3),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}{:?}", ran.stderr);
    }
    capability::used("bpftrace");
}

/// This is the program that bpftrace runs, and not a test by itself.
#[test]
fn the_program_that_is_probed() {
    if std::env::var_os(PROBED).is_none() {
        return;
    }
    backend::add(Backends::SDT);
    set_declared(&"test_*".parse().unwrap(), true);
    for n in 0..EVENTS_MADE {
        trace::test_pair(n, 2 * n);
        trace::test_text(n as u32, if n % 4 == 0 { "a\0b" } else { "other" });
    }
    trace::test_none();
}
