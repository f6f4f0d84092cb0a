//! What the tests share: a machine where there is KVM, and saying so where there is none.
#![allow(dead_code)] // every test file uses a part of it

#[path = "../../../../tests/src/capability.rs"]
pub mod capability;

use std::time::Duration;

use hypertrace_guest::Args;
use kvm_vmm::{Error, Machine, Outcome};

/// Far more than any of these guests needs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A machine, or `None`, said loudly, where there is no KVM.
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

/// Runs a guest that has to end well.
pub fn run(machine: Machine, args: &Args) -> Outcome {
    let outcome = machine.run(args, LIMIT).unwrap();
    capability::used("kvm");
    outcome
}

fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}
