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
pub mod inject;
pub mod interrupt;
pub mod kvm;
pub mod namespace;
pub mod packets;
pub mod peak;
pub mod probes;
pub mod random;
pub mod report;
pub mod simpletrace;
pub mod slow;
pub mod syslog;
pub mod traced;
pub mod tracefs;

/// The events of the tests' `trace-events` file.
pub mod trace {
    hypertrace_trace::include_events!();
}

/// One event of each kind of argument, and one that is disabled.
pub fn trace_each_kind() {
    trace::test_none();
    trace::test_pair(1, u64::MAX);
    trace::test_small(-1, 65_535, i32::MIN, true);
    trace::test_text(7, "héllo\n");
    trace::test_two_texts(b"\xff\xfe", String::new(), -5);
    trace::test_address(0xdead_beef, -0.5);
    trace::test_disabled(1);
}
