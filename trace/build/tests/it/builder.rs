//! Tests of the builder, which reads several files and writes one file.

use hypertrace_trace_build::{Builder, Error, OUTPUT};
use std::error::Error as _;
use tempfile::TempDir;

/// Makes a folder with these files, and runs a builder on them.
fn build(files: &[(&str, &[u8])]) -> (TempDir, Result<(), Error>) {
    let dir = TempDir::new().unwrap();
    let mut builder = Builder::new();
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).unwrap();
        builder = builder.file(*name);
    }
    let result = builder.generate_in(dir.path(), dir.path());
    (dir, result)
}

fn shown(result: Result<(), Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn several_files_are_one_file() {
    let (dir, result) = build(&[("one", b"a(int x) \"%d\""), ("two", b"\nb(int x) \"%d\"")]);
    result.unwrap();
    let source = std::fs::read_to_string(dir.path().join(OUTPUT)).unwrap();
    assert!(source.contains("pub fn a(") && source.contains("\"one\", 1);"), "{source}");
    assert!(source.contains("pub fn b(") && source.contains("\"two\", 2);"), "{source}");
}

#[test]
fn several_files_have_one_set_of_names_and_one_list_of_errors() {
    let (dir, result) = build(&[("one", b"a(void) \"\"\nb"), ("two", b"\n\na(void) \"\"")]);
    let expected = "one:2:2: expected '(' after the name of the event, found the end of the line\n\
                    two:3:1: expected a name that no other event has, found 'a', which is declared at one:1";
    assert_eq!(shown(result), expected);
    assert!(!dir.path().join(OUTPUT).exists());
}

#[test]
fn a_file_that_is_no_text_is_reported_with_its_position() {
    let (_dir, result) = build(&[("one", b"# \xc3\xa4\n# \xc3\xa4\xff\xfe")]);
    assert_eq!(shown(result), "one:2:4: expected UTF-8 text, found '\\xff'");
}

#[test]
fn files_that_cannot_be_read_or_written_are_reported() {
    let dir = TempDir::new().unwrap();
    let missing = Builder::new().file("missing").generate_in(dir.path(), dir.path()).unwrap_err();
    assert_eq!(missing.to_string(), format!("cannot read {}/missing", dir.path().display()));
    assert!(missing.source().unwrap().to_string().contains("No such file"));
    std::fs::write(dir.path().join("empty"), "").unwrap();
    let nowhere = dir.path().join("nowhere");
    let error = Builder::new().file("empty").generate_in(dir.path(), &nowhere).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot write {}/trace-events.rs", nowhere.display()));
    let none = Builder::new().generate_in(dir.path(), dir.path());
    assert_eq!(shown(none), "no trace-events file is named");
}
