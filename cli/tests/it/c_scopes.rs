//! Regions of C and C++ programs that end with a scope or an object, and fields that only C++ has.

use std::collections::BTreeMap;
use std::process::Command;

use hypertrace_tests::c::{self, Compiler, Linked};
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::report::Line;
use serde_json::{Value, json};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Compiles a program and records it. Returns the events.
#[track_caller]
fn traced(compiler: &Compiler, source: &str) -> Vec<Line> {
    let folder = tempfile::tempdir().unwrap();
    let program = compiler.program(&c::source(source), Linked::Archive, folder.path());
    let session = folder.path().join("session");
    let mut record = HYPERTRACE.command(["record", "--quiet", "-o"]);
    assert_eq!(run(record.arg(&session).arg(&program)).ok(), "");
    assert!(run(&mut Command::new(&program)).ok().is_empty(), "without a recorder");
    HYPERTRACE.report(&session)
}

/// Returns the fields of all events of a name.
fn fields(lines: &[Line], event: &str) -> Vec<Value> {
    let named = lines.iter().filter(|line| line.event == event);
    named.map(|line| Value::Object(line.fields.clone())).collect()
}

/// Returns the compilers of C++, each for the oldest language and for one with `string_view`.
fn cxx() -> impl Iterator<Item = (Compiler, bool)> {
    let all = c::compilers().into_iter().filter(Compiler::is_cxx);
    all.flat_map(|compiler| [(compiler.with(&["-std=c++11"]), false), (compiler, true)])
}

#[test]
fn a_region_ends_once_however_its_scope_is_left() {
    for compiler in c::compilers() {
        for compiler in [compiler.plain(), compiler] {
            let lines = traced(&compiler, "tests/c/scope.c");

            let events = lines.iter().filter(|line| line.event != "lease");
            let found: Vec<_> =
                events.map(|line| (&*line.event, Value::Object(line.fields.clone()))).collect();
            let expected = [
                ("outer_begin", json!({"id": 1, "n": 1, "text": "one", "twice": 2})),
                ("inner_begin", json!({"id": 1})),
                ("inner_end", json!({"id": 1})),
                ("outer_end", json!({"id": 1})),
                ("outer_begin", json!({"id": 2, "n": 2, "text": "two", "twice": 4})),
                ("inner_begin", json!({"id": 2})),
                ("before_end", json!({"n": 2})),
                ("inner_end", json!({"id": 2})),
                ("outer_end", json!({"id": 2})),
                ("loop_begin", json!({"id": 0})),
                ("loop_end", json!({"id": 0})),
                ("loop_begin", json!({"id": 1})),
                ("loop_end", json!({"id": 1})),
                ("end", json!({"computed": 2})),
            ];
            assert_eq!(found, expected, "{compiler:?}");
        }
    }
}

#[test]
fn objects_of_cxx_are_regions_and_fields() {
    for (compiler, has_views) in cxx() {
        let lines = traced(&compiler, "tests/c/objects.cc");
        let of = |event| fields(&lines, event);

        // Each exception ends the inner scope first, and then the object around it.
        let events = lines.iter().map(|line| &*line.event).filter(|event| *event != "lease");
        let thrown: Vec<_> = events.take(12).collect();
        let once = ["object_begin", "scope_begin", "scope_end", "object_end"];
        assert_eq!(thrown, [once; 3].concat(), "{compiler:?}");
        let ids: Vec<_> = (0..3).map(|id| json!({"id": id})).collect();
        assert_eq!((of("object_begin"), of("object_end")), (ids.clone(), ids));

        let (forty, text) = ("m".repeat(40), "a string");
        let strings = json!({
            "text": text, "same": text, "temporary": forty, "empty": "", "with_zero": "a",
            "nothing": "(null)",
        });
        assert_eq!(of("strings"), [strings], "{compiler:?}");
        let [others] = of("others").try_into().unwrap();
        assert_eq!(others["color"], 1);
        assert_eq!((&others["yes"], &others["less"]), (&json!(true), &json!(true)));
        assert_eq!(others["null"], 0);
        let begin = json!({"id": 7, "text": text, "temporary": "m".repeat(50)});
        assert_eq!(of("with_string_begin"), [begin]);
        assert_eq!(of("committed"), [json!({"temporary": "m".repeat(60)})]);
        assert_eq!(of("point"), [json!({"temporary": "m".repeat(70)})]);
        assert_eq!(of("long_string"), [json!({"temporary": "m".repeat(1024)})]);
        let views = has_views.then(|| json!({"view": text, "part": "str", "empty": ""}));
        assert_eq!(of("views"), Vec::from_iter(views));
        let cut = has_views.then(|| json!({"wide": format!("x{}", "m".repeat(1022))}));
        assert_eq!(of("long_view"), Vec::from_iter(cut));

        // Four threads began and ended regions of these names at the same time.
        let mut counts = BTreeMap::new();
        for line in &lines {
            *counts.entry(&*line.event).or_insert(0) += 1;
        }
        let long = "a_name_of_the_greatest_length_that_a_region_can_have_1234";
        for name in ["one", long] {
            for end in ["begin", "end"] {
                assert_eq!(counts[&*format!("{name}_{end}")], 400, "{name}_{end}");
            }
        }
    }
}

#[test]
fn what_cannot_be_a_field_is_one_error_of_one_sentence() {
    const SENTENCE: &str = "hypertrace: a field is a number, a bool, a string or a pointer";
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(c::source("tests/c/refused.c")).unwrap();
    let errors = |compiler: &Compiler, wrong: u32| {
        let source = folder.path().join("refused.c");
        std::fs::write(&source, format!("#define WRONG {wrong}\n{text}")).unwrap();
        let said = compiler.refuses(&source);
        let errors = said.lines().filter(|line| line.contains("error: "));
        errors.map(str::to_owned).collect::<Vec<_>>()
    };
    let compilers = c::compilers();
    let old = cxx().map(|(compiler, _)| compiler);
    for compiler in compilers.iter().cloned().chain(old) {
        // `WRONG` 3 is a struct, 5 is a long double, and 7 has both as fields of a scope.
        for wrong in [3, 5, 7] {
            let said = errors(&compiler, wrong);
            assert!(matches!(&said[..], [one] if one.contains(SENTENCE)), "{compiler:?} {said:?}");
        }
        if compiler.is_cxx() {
            let said = errors(&compiler, 8);
            assert!(matches!(&said[..], [one] if one.contains(SENTENCE)), "{compiler:?} {said:?}");
            let said = errors(&compiler, 9);
            let long = "hypertrace: a region's name has at most 58 bytes";
            assert!(matches!(&said[..], [one] if one.contains(long)), "{compiler:?} {said:?}");
        }
    }
}
