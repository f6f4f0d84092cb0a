//! The program of `examples/bare-guest`, and its events.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::c::{self, Compiler};
use crate::report::Line;

/// Compiles the program. The part for firmware is compiled without libc.
#[track_caller]
pub fn program(compiler: &Compiler, folder: &Path) -> PathBuf {
    let object = compiler.freestanding(&c::source("examples/bare-guest/guest.c"), folder);
    compiler.with_object(&c::source("examples/bare-guest/linux.c"), &object, folder)
}

/// Asserts that this many events and points of a client are there, in order. `are_points` says whether the
/// host has answered the points.
#[track_caller]
pub fn check(lines: &[Line], client: u32, events: u64, points: u64, are_points: bool) {
    // If the bare program runs without a VM, then its source is `program` and not `guest`.
    let sources = [format!("guest/{client} bare"), format!("program/{client} bare")];
    let lines =
        lines.iter().filter(|line| line.event != "lease" && line.event.starts_with("bare_"));
    let mut expected = Vec::new();
    for n in 0..events.max(points) {
        if n < events {
            expected.push(("bare_step", json!({"n": n, "minus": -(n as i64)})));
        }
        if n < points {
            expected.push(("bare_point", json!({"n": n})));
        }
    }
    expected.push(("bare_end", json!({})));
    let found = lines.map(|line| {
        assert!(sources.contains(&line.source), "{line:?}");
        assert_eq!(line.reference.is_some(), are_points && line.event == "bare_point", "{line:?}");
        (&*line.event, Value::Object(line.fields.clone()))
    });
    assert_eq!(Vec::from_iter(found), expected);
}
