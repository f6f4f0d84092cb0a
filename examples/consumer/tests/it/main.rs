//! The lines that the example prints for sessions that the tests write.

use hypertrace_test_support::made::{Made, Packet};
use hypertrace_test_support::vcpu::{self, Vcpu};
use std::process::Command;

/// Returns the lines of a session's regions.
fn lines(made: &Made) -> Vec<String> {
    let out = Command::new(env!("CARGO_BIN_EXE_region-lines")).arg(made.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_region_is_a_line_with_its_parts_in_the_order_of_the_begins() {
    let packet = Packet::new(1, 0, 0)
        .with64(80, 9)
        .event_str(1, 1, &[9, 50, 60, 0], b"pro\"gram")
        .event(100, vcpu::BEGIN, &[1, 0])
        .event(150, vcpu::BEGIN, &[2, 0])
        .event(170, vcpu::END, &[2])
        .event(400, vcpu::END, &[1]);
    let made =
        Made::of_programs(vcpu::EVENTS).stream("guest-000-0000", &[Packet::new(1, 0, 0), packet]);

    let lines = lines(&made);

    let by = r#"by "program/0 pro\"gram""#;
    let expected =
        [(1, 300), (2, 20)].map(|(id, ns)| format!("batch {id} duration={ns} unknown={ns} {by}"));
    assert_eq!(lines, expected);
}

#[test]
fn the_parts_of_all_lines_are_those_of_the_machine() {
    let vcpus = [Vcpu::rounds(0, 60, 5)];
    let made = vcpu::session(&vcpus);
    made.kernel(&vcpu::trace(&vcpus, |_| true));

    let lines = lines(&made);

    let [_, kernel, vmm, runnable, blocked] = vcpus[0].truth;
    for (part, truth) in
        [("kernel", kernel), ("vmm", vmm), ("runnable", runnable), ("blocked", blocked)]
    {
        let words = lines.iter().flat_map(|line| line.split(' '));
        let times = words.filter_map(|word| word.strip_prefix(part)?.strip_prefix('='));
        let sum: u64 = times.map(|ns| ns.parse::<u64>().unwrap()).sum();
        assert_eq!(sum, truth, "{part}");
    }
    assert_eq!(lines.len(), 60);
}
