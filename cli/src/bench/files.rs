//! Code that tests have, too: the writers of sessions and traces, and of a guest's first file system.

#[path = "../../../tests/src/initramfs.rs"]
pub mod initramfs;
#[path = "../../../timeline/tests/made/mod.rs"]
pub mod made;
#[path = "../../../timeline/tests/made/trace_dat.rs"]
pub mod trace_dat;
#[path = "../../../timeline/tests/made/vcpu.rs"]
pub mod vcpu;
