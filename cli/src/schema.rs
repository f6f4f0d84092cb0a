//! Test that docs/json.md lists the members of the commands' JSON.

use hypertrace_test_support::json_md::Members;

#[test]
fn the_types_of_json_are_those_of_the_documentation() {
    use crate::info::{machine, names};
    use crate::{demo, functions};

    let machine = Members::default().with::<Vec<machine::Shown>>("machine");
    machine.with::<u32>("version").are_documented_in("info", &["machine", "version"]);
    Members::of::<names::Shown>().is_documented_as("info --names");
    Members::of::<functions::Json>().is_documented_as("functions");
    Members::of::<demo::Counts>().is_documented_as("demo");
}
