//! The clock of a guest of KVM with two CPUs whose kernel has dropped the TSC: programs, the kernel's module
//! and `hypertrace forward` each choose a clock, and all choose the same clock.

use super::{FILE, HYPERTRACE, kvm_guest, program, run};
use crate::linux_guest::check_numbers;
use crate::linux_guest_kernel::{check_cpus, check_cpus_by, recorder};
use hypertrace_tests::command::run as run_command;
use hypertrace_tests::linux::Linux;
use hypertrace_tests::linux_module::Module;
use hypertrace_tests::machine::Machine;
use serde_json::json;

/// Events and points of each of four threads.
const EVENTS: u64 = 10_000;
const POINTS: u64 = 20;

/// Boots a guest with these kernel parameters, and runs these commands first. Asserts that a program, the
/// module and `forward` choose the same clock: the module prints `counter`, the program prints `program_has`,
/// and the session states `kind` and `reason`. Asserts also that each event of the program lies between two
/// switches of the program's thread. The switches that `forward` recorded must show this, and the switches
/// that the module recorded must show this, too.
#[track_caller]
fn check(
    parameters: &str,
    before: &str,
    [counter, program_has, kind, reason]: [&str; 4],
    shown: &str,
) {
    let (Some(machine), Some(linux)) = (Machine::find(), Linux::find()) else { return };
    let Some(module) = Module::build(&linux) else { return };
    let folder = tempfile::tempdir().unwrap();
    let msr = ("/msr.ko".to_owned(), linux.module("arch/x86/kernel/msr"));
    let files = [&[program(), msr], &module.files()[..], &recorder()].concat();
    // `forward` gives its clock to a program that it runs, but this program runs beside `forward` and chooses
    // by itself.
    let script = format!(
        "{before}
        cat /sys/devices/system/clocksource/clocksource0/available_clocksource
        insmod /hypertrace.ko events=sched:sched_switch; echo \"loaded: $?\"; dmesg | grep 'clock '
        hypertrace info --json
        hypertrace forward >/tmp/forward 2>&1 & recorder=$!
        until grep recording /tmp/forward; do sleep 0.1; done
        program {EVENTS} {POINTS}; echo \"ended: $?\"
        kill -INT $recorder; wait $recorder; echo \"forwarded: $?\"; cat /tmp/forward"
    );
    let parameters = format!("console=ttyS0 quiet panic=-1 {parameters}");
    let device = [&FILE[..], &["-append", &parameters]].concat();
    let qemu = kvm_guest(&linux, folder.path(), &device, &files, &script);

    let (console, shared) =
        run(machine, &format!("serve --file /dev/shm/guest; linux {qemu}; end $server serve"));

    let clock = format!("clock {counter} ({reason})");
    let said = ["loaded: 0", "ended: 0", "forwarded: 0", &clock, program_has, shown];
    assert!(said.iter().all(|text| console.contains(text)), "{said:?}: {console}");
    // The kernel does not offer the TSC.
    assert!(!console.lines().any(|line| line.split(' ').any(|word| word == "tsc")), "{console}");
    let session = shared.join("S");
    let stat = HYPERTRACE.info(&session);
    assert_eq!(stat["total"]["faults"], json!({}), "{stat}");
    let clocks = stat["clocks"].as_array().unwrap().iter();
    let clocks = clocks.map(|clock| [&clock["kind"], &clock["reason"]].map(|of| of.as_str()));
    assert_eq!(Vec::from_iter(clocks), [[Some(kind), Some(reason)]], "{stat:#}");
    let text = run_command(HYPERTRACE.command(["info"]).arg(&session)).ok();
    assert!(text.contains(&format!("chosen       {shown}")), "{text}");
    check_numbers(&session, EVENTS, POINTS);
    check_cpus(&session, 2 * EVENTS);
    check_cpus_by(&session, 2 * EVENTS, |line| line.event == "sched_switch");
    Linux::used();
    module.used();
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_guest_whose_cpus_agree_has_the_tsc_alone() {
    check(
        "tsc=unstable",
        "",
        ["counter", "clock Counter", "tsc", "agreeing"],
        "the kernel has dropped the TSC, but all CPUs agree",
    );
}

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_guest_whose_cpus_differ_has_clock_monotonic_raw_alone() {
    // The guest adds 2^32 ticks to its second CPU's TSC. Because of the parameter, programs ask the kernel
    // for the time, and the kernel asks each CPU's kvm-clock, which knows of the change.
    let before = r"insmod /msr.ko
        printf '\0\0\0\0\1\0\0\0' | dd of=/dev/cpu/1/msr bs=8 count=1 oflag=seek_bytes seek=59 conv=notrunc";
    check(
        "tsc=unstable no-kvmclock-vsyscall",
        before,
        ["monotonic_raw", "clock MonotonicRaw", "monotonic_raw", "differing"],
        "the TSCs of the CPUs differ",
    );
}
