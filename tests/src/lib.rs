//! The harness of the end-to-end tests: what a scenario needs so that it reads top to bottom.
//!
//! A module per subject. Those that need something special of the machine say so themselves where it
//! is missing, and give `None`.

pub mod acts;
pub mod babeltrace2;
pub mod c;
pub mod capability;
pub mod command;
pub mod forger;
pub mod host;
pub mod kvm;
pub mod namespace;
pub mod packets;
pub mod random;
pub mod report;
pub mod simpletrace;
pub mod slow;
pub mod traced;
pub mod tracefs;

/// The events of the tests' `trace-events` file.
pub mod trace {
    hypertrace_trace::include_events!();
}
