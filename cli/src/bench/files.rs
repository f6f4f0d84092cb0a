//! Code that tests have, too: the writers of sessions and traces, and of a guest's first file system.
#![allow(dead_code)] // Tests use the rest.

#[path = "../../../tests/support/src/initramfs.rs"]
pub mod initramfs;
#[path = "../../../tests/support/src/made.rs"]
pub mod made;
#[path = "../../../tests/support/src/trace_dat.rs"]
pub mod trace_dat;
#[path = "../../../tests/support/src/vcpu.rs"]
pub mod vcpu;
