//! The writers of sessions and traces that the tests of the timeline have, too.

#[path = "../../../timeline/tests/made/mod.rs"]
pub mod made;
#[path = "../../../timeline/tests/made/trace_dat.rs"]
pub mod trace_dat;
#[path = "../../../timeline/tests/made/vcpu.rs"]
pub mod vcpu;
