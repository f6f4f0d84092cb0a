//! Virtual machines for tests.

use std::time::Duration;

use hypertrace_guest::Args;
use kvm_vmm::{Error, Machine, Outcome};

use crate::capability;

/// Time limit that is far longer than any of these guests needs.
const LIMIT: Duration = Duration::from_secs(60);

/// Makes a machine. Without KVM, returns `None`, with a report.
pub fn machine(vcpus: usize) -> Option<Machine> {
    match Machine::new(vcpus) {
        Ok(machine) => Some(machine),
        Err(Error::Unusable(why)) => {
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            capability::missing("kvm", format!("{why}; not run: {test}"));
            None
        }
        Err(error) => panic!("cannot make a machine: {error:?}"),
    }
}

/// Returns whether this machine has KVM. Reports a missing KVM.
pub fn is_usable() -> bool {
    machine(1).is_some()
}

/// Runs a guest that has to succeed.
#[track_caller]
pub fn run(machine: Machine, args: &Args) -> Outcome {
    let outcome = machine.run(args, LIMIT).unwrap();
    capability::used("kvm");
    outcome
}
