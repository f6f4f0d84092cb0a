//! `hypertrace boot`, of made machines.

use hypertrace_test_support::boots::booted;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::golden::golden;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

#[test]
fn the_stages_of_a_boot_are_shown() {
    let commands =
        ["boot --of S", "boot --of S --with S --json", "boot --of S S", "boot --of S --with S"];

    golden("boot", HYPERTRACE.transcript(&[booted()], &commands));
}

#[test]
fn wrong_usage_is_said() {
    for (args, why) in [
        (&["boot"][..], "required"),
        (&["boot", "--with", "S"], "--of"),
        (&["boot", "--of", "none"], "none"),
        (&["boot", "--mark", "a b", "--of", "S"], "expected `where` in place of b"),
    ] {
        let ran = run(&mut HYPERTRACE.command(args));
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(why), "{args:?}: {ran:?}");
    }
}

#[test]
fn a_stage_of_ones_own_and_an_end_are_chosen() {
    let made = booted();
    let mut command = HYPERTRACE.command(["boot", "--of"]);
    command.arg(made.path()).args(["--mark", "clock=kvm:kvm_pio where port == 0x70"]);

    let shown = run(command.args(["--until", "second vCPU"])).stdout;

    let stages = shown.lines().skip(2).map_while(|line| line.split_whitespace().next());
    assert_eq!(Vec::from_iter(stages.take(4)), ["VMM", "firmware", "clock", "kernel"], "{shown}");
    assert!(!shown.contains("user space"), "{shown}");
}

#[test]
fn a_boot_that_cannot_be_recorded_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("boots");
    let boot = || run(HYPERTRACE.command(["boot", "-o"]).arg(&out).args(["--", "true"]));

    let ran = boot();

    // Without tracefs, there are no events of KVM. With it, `true` is no VMM.
    assert!(matches!(ran.code, Some(1 | 2)), "{ran:?}");
    let whys = ["true was not recorded", "has no boot: "];
    assert!(whys.iter().any(|why| ran.stderr.contains(why)), "{ran:?}");
    assert!(boot().stderr.contains("is not empty"));
}
