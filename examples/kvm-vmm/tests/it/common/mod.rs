//! Machines for the tests, and a message if there is no KVM.
#![allow(dead_code)] // every test file uses a part of it

pub use hypertrace_test_support::capability;

use std::time::Duration;

use hypertrace_guest::Args;
use kvm_vmm::{Error, Machine, Outcome};

/// Time limit that is far longer than any of these guests needs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Makes a machine. Without KVM, returns `None`, with a report.
pub fn machine(vcpus: usize) -> Option<Machine> {
    match Machine::new(vcpus) {
        Ok(machine) => Some(machine),
        Err(Error::Unusable(why)) => {
            capability::missing("kvm", format!("{why}; not run: {}", test_name()));
            None
        }
        Err(error) => panic!("cannot make a machine: {error:?}"),
    }
}

/// Runs a guest that has to succeed.
pub fn run(machine: Machine, args: &Args) -> Outcome {
    let outcome = machine.run(args, LIMIT).unwrap();
    capability::used("kvm");
    outcome
}

fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}
