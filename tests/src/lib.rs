//! The harness of the end-to-end tests. The functions of this module make a test read like a scenario.
//!
//! Each module has a subject. A function that needs a special capability of the machine reports a missing
//! capability, and returns `None`.

pub use hypertrace_test_support::{
    babeltrace2, capability, child, initramfs, kill, namespace, this_test, wait_until,
};

pub mod acts;
pub mod bare;
pub mod build;
pub mod c;
pub mod command;
pub mod forger;
pub mod golden;
pub mod host;
pub mod inject;
pub mod interface_2016;
pub mod interrupt;
pub mod kvm;
pub mod linux;
pub mod linux_module;
pub mod machine;
mod modules;
pub mod packets;
pub mod peak;
pub mod probes;
pub mod random;
pub mod report;
pub mod serve;
pub mod simpletrace;
pub mod slow;
pub mod syslog;
pub mod trace_cmd;
pub mod traced;
pub mod tracefs;
pub mod truth;

/// Whether the tests are of a release build. Tests that repeat an action repeat it most often in a release
/// build.
pub const FULL_SIZE: bool = !cfg!(debug_assertions);

/// Events declared in the tests' `trace-events` file.
pub mod trace {
    hypertrace_trace::include_events!();
}

/// Emits one event for each kind of argument, and a disabled event.
pub fn trace_each_kind() {
    trace::test_none();
    trace::test_pair(1, u64::MAX);
    trace::test_small(-1, 65_535, i32::MIN, true);
    trace::test_text(7, "héllo\n");
    trace::test_two_texts(b"\xff\xfe", String::new(), -5);
    trace::test_address(0xdead_beef, i64::MIN);
    trace::test_disabled(1);
}
