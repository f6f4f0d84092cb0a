//! `--trace` and `--trace-backend` of `hypertrace demo`.

use std::fs;
use std::path::Path;

use hypertrace_tests::command::{Demo, Hypertrace, Ran, run};
use hypertrace_tests::kvm;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn demo(dir: &Path, options: &[&str]) -> Ran {
    run(HYPERTRACE.demo(&dir.join("S"), 1).args(options))
}

/// Returns the distinct names of the VMM's own events in the session.
fn vmm_events(dir: &Path) -> Vec<String> {
    let lines = HYPERTRACE.report(&dir.join("S"));
    let own = lines.into_iter().filter(|line| line.source.starts_with("vmm/"));
    let mut names: Vec<String> =
        own.map(|line| line.event).filter(|name| name != "lease").collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn only_events_that_fit_the_patterns_are_recorded() {
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let patterns = dir.path().join("patterns");
    fs::write(&patterns, "# all of the vCPUs', but ...\n\nvcpu_*\n-vcpu_run\n").unwrap();

    let ran = demo(dir.path(), &["--trace", &format!("events={}", patterns.display())]);

    let demo: Demo = ran.json();
    assert_eq!(
        (demo.ring_events, demo.reference_points),
        (100_000, 1_000),
        "the guest's events are on"
    );
    assert_eq!(vmm_events(dir.path()), ["vcpu_exit"]);
}

#[test]
fn a_backend_and_a_file_get_the_same_events() {
    if !kvm::is_usable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("simple");
    let trace = format!("enable=bar_mapped,file={}", file.display());

    let ran = demo(dir.path(), &["--trace", &trace, "--trace-backend", "log"]);

    assert_eq!(ran.code, Some(0));
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 4, "one line for each region of the device: {}", ran.stderr);
    assert!(lines.iter().all(|line| line.contains(":bar_mapped bar ")), "{lines:?}");
    assert_eq!(vmm_events(dir.path()), ["bar_mapped"]);
    let bytes = fs::read(file).unwrap();
    assert_eq!(bytes[..8], [0xff; 8]);
    assert_eq!(
        bytes.windows(10).filter(|window| window == b"bar_mapped").count(),
        1,
        "its mapping"
    );
}

#[test]
fn options_are_written_as_for_qemu() {
    let dir = tempfile::tempdir().unwrap();
    // In the option, a comma of the name is written twice.
    let file = dir.path().join("a,b");
    let doubled = file.display().to_string().replace(',', ",,");

    let ran = demo(dir.path(), &["--trace", &format!("vcpu_*,-vcpu_run,file={doubled}")]);

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(fs::read(file).unwrap()[..8], [0xff; 8]);
    if kvm::is_usable() {
        assert_eq!(vmm_events(dir.path()), ["vcpu_exit"]);
    }
}

#[test]
fn help_lists_the_events_and_runs_nothing() {
    let dir = tempfile::tempdir().unwrap();

    let listed = demo(dir.path(), &["--trace", "help"]).ok();

    let names: Vec<&str> = listed.lines().collect();
    assert!(names.contains(&"vcpu_exit") && names.contains(&"bar_mapped"), "{listed}");
    assert!(names.is_sorted() && !dir.path().join("S").exists(), "{listed}");
}

#[test]
fn a_pattern_that_fits_no_event_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let ran = demo(dir.path(), &["--trace", "virtio_*"]);
    assert_eq!(ran.code, Some(0));
    assert_eq!(ran.stderr, "hypertrace: no declared event fits virtio_*\n");
}

#[test]
fn an_invalid_option_is_wrong_usage_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad");
    fs::write(&bad, "vcpu_*\nvcpu-exit\n").unwrap();
    let (bad, folder) = (bad.display(), dir.path().display());
    for (options, expected) in [
        (vec!["--trace", "vcpu exit"], "is no pattern of event names"),
        (vec!["--trace", "backend=log"], "expected [enable=]PATTERN, events=FILE or file=FILE"),
        (vec!["--trace", "events=/nowhere"], "cannot read /nowhere: No such file"),
        (
            vec!["--trace", &format!("events={bad}")],
            &format!("{bad}:2: \"vcpu-exit\" is no pattern"),
        ),
        (vec!["--trace", &format!("file={bad}")], "nothing was overwritten"),
        (vec!["--trace", &format!("file={folder}")], &format!("cannot begin a trace in {folder}")),
        (vec!["--trace-backend", "printer"], "no backend \"printer\""),
        (vec!["--trace-backend", "ftrace:/nowhere"], "is tracefs mounted?"),
    ] {
        let ran = demo(dir.path(), &options);
        assert_eq!(ran.code, Some(2), "{options:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{options:?}: {}", ran.stderr);
        let _ = fs::remove_dir_all(dir.path().join("S"));
    }
    assert_eq!(fs::read_to_string(dir.path().join("bad")).unwrap(), "vcpu_*\nvcpu-exit\n");
}
