//! Tests of this program with KVM, repeated in a machine with a real KVM. In that machine, entries and exits,
//! offsets of the TSC, and the parts of a virtual CPU's state are like those of users' machines.

use hypertrace_tests::capability;
use hypertrace_tests::machine::Machine;

const TESTS: [&str; 3] = [
    "ftrace::each_reference_point_is_between_its_exit_and_the_next_entry",
    "reset::",
    "snapshots::",
];

#[test]
#[ignore = "cargo xtask full --only machine"]
fn a_vmms_tests_pass_under_a_kvm_that_tells_of_its_entries_and_exits() {
    let Some(machine) = Machine::find() else { return };
    let program = std::env::current_exe().unwrap();

    let (ran, shared) = machine.run(&format!(
        "export {}=$shared/capabilities; '{}' --test-threads=1 {}",
        capability::FILE,
        program.display(),
        TESTS.join(" ")
    ));

    assert_eq!(ran.code, 0, "{ran:?}");
    println!("{}", ran.stdout);
    for tests in TESTS {
        assert!(ran.stdout.contains(&format!("test {tests}")), "{tests}: {}", ran.stdout);
    }
    let said = std::fs::read_to_string(shared.join("capabilities")).unwrap();
    let used = |name: &str| said.lines().any(|line| line.starts_with(&format!("used\t{name}\t")));
    assert!(used("kvm") && used("tracefs") && !said.contains("missing\t"), "{said}");
}
