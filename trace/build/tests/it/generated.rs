//! Tests of the generated source: its shape, that it compiles without a warning, and that it traces the
//! events and values of its calls.

use crate::compiled;
use compiled::{Workshop, capability};
use hypertrace_trace_build::{generate, parse};

const EVENTS: &str = include_str!("../data/trace-events");
const PROGRAM: &str = include_str!("../data/program.rs");
const EXPECTED: &str = include_str!("../data/expected.txt");

fn generated(text: &str) -> String {
    generate(
        "trace-events",
        &parse("trace-events", text).unwrap_or_else(|errors| panic!("{errors}")),
    )
}

fn workshop() -> Workshop {
    let workshop = Workshop::new();
    workshop.write("trace-events.rs", &generated(EVENTS));
    workshop.write("program.rs", PROGRAM);
    workshop
}

#[test]
fn an_event_is_a_function_and_a_module() {
    let text = r#"virtio_irq(int vq, uint8_t isr, const char *name, void *p) "vq %d isr 0x%02x name %s p %p""#;
    assert_eq!(generated(text), include_str!("../data/virtio_irq.rs.txt"));
}

#[test]
fn a_disabled_event_is_an_empty_function_that_is_never_on() {
    let source = generated("disable a(int x, const char *type) \"%d %s\"");
    assert!(source.contains("pub fn a(_x: i32, _type: impl AsRef<[u8]>) {}\n"), "{source}");
    assert!(source.contains("\"%d %s\" (trace-events:1), where it is disabled"), "{source}");
    assert!(
        source.contains("pub static EVENT: ::hypertrace_trace::generated::DisabledEvent"),
        "{source}"
    );
    assert!(!source.contains("distributed_slice"), "{source}");
}

#[test]
fn a_file_of_many_events_traces_the_expected_output() {
    let workshop = workshop();
    workshop.rust("rustc", &workshop.dir.path().join("program.rs"), &["--crate-type=bin"]);

    let printed = workshop.output_of("program", &[("PROBES", "1")]);

    assert_eq!(printed, EXPECTED);
}

#[test]
fn any_word_that_is_not_refused_can_be_a_name() {
    let words = "abstract as async await become box break const continue do dyn else enum extern false final fn for gen \
        if impl in let loop macro match mod move mut override priv pub ref return static struct trait true try type typeof \
        unsafe unsized use virtual where while yield union raw safe auto default macro_rules \
        g on out fire Names Values FIRE EVENT EVENT_ None Some Ok Err Site Bytes Hex Line core std alloc str usize isize char \
        Option Vec String Sized Copy Clone Fn write println concat env self Self super crate _ __ hypertrace hypertrace_trace linkme probe trace \
        main inline allow doc derive clippy i8 u8 bool f64 u64 AsRef";
    let mut text = String::new();
    for word in words.split_whitespace() {
        // Some words are the names of types in C, and some are names in the generated code. The parser
        // refuses some of these words in some places.
        for line in [
            format!("{word}(bool {word}, const char *on, unsigned {word}_) \"%d %20s %o\"\n"),
            format!("a_{word}(int {word}, char *out) \"%x %s\"\n"),
            format!("disable d_{word}(int {word}, int _{word}) \"%d %d\"\n"),
        ] {
            if parse("", &line).is_ok() {
                text.push_str(&line);
            }
        }
    }
    assert!(text.lines().count() > 250, "{}", text.lines().count());
    let workshop = Workshop::new();
    workshop.write("trace-events.rs", &generated(&text));
    let source = "#![deny(warnings)] pub mod trace { include!(\"trace-events.rs\"); }";
    let source = workshop.write("names.rs", source);
    workshop.rust("rustc", &source, &["--crate-type=lib", "--emit=metadata"]);
}

#[test]
fn clippy_has_no_findings() {
    if capability::program("clippy-driver").is_none() {
        return;
    }
    let workshop = workshop();
    let arguments = ["--crate-type=bin", "--emit=metadata"];
    workshop.rust("clippy-driver", &workshop.dir.path().join("program.rs"), &arguments);
    capability::used("clippy-driver");
}

#[test]
fn rustdoc_has_no_findings() {
    if capability::program("rustdoc").is_none() {
        return;
    }
    let workshop = workshop();
    let arguments = ["--crate-type=lib", "-Dwarnings", "-o", "doc"];
    workshop.rust("rustdoc", &workshop.dir.path().join("program.rs"), &arguments);
    let page = workshop.dir.path().join("doc/program/trace/fn.percent.html");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(r#"[*_`&lt;b&gt;#$]"#), "{page}");
    capability::used("rustdoc");
}
