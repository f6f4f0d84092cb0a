//! Tests that the generated code writes an event's text in the same way as C's printf. The tests compile
//! both, and compare their texts for many conversions and values.

use crate::compiled;
use compiled::{Workshop, capability, run};
use hypertrace_trace_build::{MAX_ARGUMENTS, generate, parse};
use std::fmt::Write;
use std::process::Command;

/// Definitions that C needs for the types and macros of the file of events.
const PRELUDE: &str = r#"
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
"#;

/// A value in C and in Rust.
#[derive(Clone)]
struct Value {
    c: String,
    rust: String,
}

/// Conversions that are tried with the same values of a type.
struct Case {
    ty: &'static str,
    /// The conversions, as they stand between quotes.
    conversions: Vec<String>,
    values: Vec<Value>,
}

impl Case {
    /// Declares an event with these conversions, at most ten.
    fn declaration(&self, name: &str, conversions: &[String]) -> String {
        let arguments: Vec<_> =
            (0..conversions.len()).map(|i| format!("{} a{i}", self.ty)).collect();
        format!("{name}({}) {}\n", arguments.join(", "), format(conversions))
    }
}

fn format(conversions: &[String]) -> String {
    let all: String = conversions.iter().map(|conversion| format!("[{conversion}] ")).collect();
    format!("\"{all}\"")
}

/// The conversions that QEMU's own files use for integers of at most 32 bits. A macro stands in this list
/// without the quotes that surround the macro in a file.
const QEMU_INT: &str = "%d %02d %2d %3d %4d %i %u %02u %o %x %01x %02x %03x %04x %05x %06x %08x \
    %.2x %.8x %2.2x %8.8x %X %04X %08X %PRId8 %PRIu8 %PRIx8 %02PRIx8 %PRIu16 %4PRIu16 %PRIx16 \
    %02PRIx16 %04PRIx16 %04PRIX16 %PRId32 %PRIi32 %PRIu32 %2PRIu32 %PRIx32 %1PRIx32 %02PRIx32 \
    %04PRIx32 %05PRIx32 %06PRIx32 %08PRIx32 %PRIX32 %04PRIX32";

/// The conversions that QEMU's own files use for integers of 64 bits.
const QEMU_LONG: &str = "%ld %lu %llu %lx %08lx %zd %zu %zx %04zx %08zx %PRId64 %PRIi64 %PRIu64 \
    %03PRIu64 %PRIx64 %02PRIx64 %03PRIx64 %04PRIx64 %06PRIx64 %08PRIx64 %010PRIx64 %016PRIx64 \
    %PRIxPTR";

fn integers(bits: u32, signed: bool) -> Vec<Value> {
    let values: [i128; 13] = [
        0,
        1,
        -1,
        7,
        8,
        65,
        255,
        4096,
        -123_456,
        i32::MAX.into(),
        i32::MIN.into(),
        i64::MAX.into(),
        i64::MIN.into(),
    ];
    let sign = if signed { 'i' } else { 'u' };
    let value = |value: i128| {
        // C has no literal for the smallest number.
        let c = if value == i64::MIN.into() {
            format!("({}LL - 1)", value + 1)
        } else {
            format!("{value}LL")
        };
        Value { c, rust: format!("({value}i128 as {sign}{bits})") }
    };
    values.into_iter().map(value).collect()
}

/// Returns QEMU's conversions and all conversions that consist of a padding, a length and a letter. Instead
/// of the length and the letter, a conversion can have a macro such as `PRId64`.
fn conversions(of_qemu: &str, lengths: &[&str], sizes: &[&str]) -> Vec<String> {
    let mut all: Vec<String> = of_qemu.split(' ').map(str::to_owned).collect();
    for padding in ["", "0", "1", "01", "5", "05", "14", "014", "0014"] {
        for letter in ["d", "i", "u", "o", "x", "X"] {
            all.extend(lengths.iter().map(|length| format!("%{padding}{length}{letter}")));
            all.extend(sizes.iter().map(|size| format!("%{padding}PRI{letter}{size}")));
        }
    }
    for precision in [".1", ".8", "1.5", "05.5", "14.14"] {
        all.extend(lengths.iter().map(|length| format!("%{precision}{length}x")));
    }
    let quoted = |conversion: String| match conversion.split_once("PRI") {
        Some((before, name)) => format!("{before}\" PRI{name} \""),
        None => conversion,
    };
    all.into_iter().map(quoted).collect()
}

fn integer_cases() -> Vec<Case> {
    let ints = || conversions(QEMU_INT, &[""], &["8", "16", "32"]);
    let longs = || conversions(QEMU_LONG, &["l", "ll", "z"], &["64", "PTR"]);
    let mut cases = Vec::new();
    for (ty, bits, signed) in [
        ("char", 8, true),
        ("int8_t", 8, true),
        ("unsigned char", 8, false),
        ("uint8_t", 8, false),
        ("short", 16, true),
        ("int16_t", 16, true),
        ("short unsigned int", 16, false),
        ("int", 32, true),
        ("int32_t", 32, true),
        ("unsigned", 32, false),
        ("uint32_t", 32, false),
        ("long", 64, true),
        ("int64_t", 64, true),
        ("ssize_t", 64, true),
        ("off_t", 64, true),
        ("ptrdiff_t", 64, true),
        ("intptr_t", 64, true),
        ("intmax_t", 64, true),
        ("unsigned long", 64, false),
        ("unsigned long long int", 64, false),
        ("uint64_t", 64, false),
        ("size_t", 64, false),
        ("uintptr_t", 64, false),
        ("uintmax_t", 64, false),
    ] {
        let conversions = if bits == 64 { longs() } else { ints() };
        cases.push(Case { ty, conversions, values: integers(bits, signed) });
    }
    let of_bool = |value: bool| Value { c: value.to_string(), rust: value.to_string() };
    let values = [false, true].map(of_bool).to_vec();
    cases.push(Case { ty: "bool", conversions: ints(), values });
    cases
}

fn text_cases() -> Vec<Case> {
    let same = |c: &str, rust: &str| Value { c: c.to_owned(), rust: rust.to_owned() };
    let strings =
        ["\"\"", "\"a\"", "\"hello\"", "\"a longer text {of} 100%\""].map(|s| same(s, s)).to_vec();
    let characters = [32, 65, 126, 126 + 256]
        .map(|c: i128| Value { c: c.to_string(), rust: format!("{c}i128 as _") })
        .to_vec();
    let addresses = ["0x1", "0x7fff12345678", "0xffffffffffffffff"];
    let addresses = addresses.map(|a| same(&format!("(void *){a}"), a)).to_vec();
    let case = |ty, conversions: &[&str], values: &[Value]| Case {
        ty,
        conversions: conversions.iter().map(|c| (*c).to_owned()).collect(),
        values: values.to_vec(),
    };
    let of_strings = ["%s", "%20s", "%23s", "%1s", "%5s"];
    vec![
        case("const char *", &of_strings, &strings),
        case("char *", &of_strings, &strings),
        case("int", &["%c"], &characters),
        case("uint8_t", &["%c"], &characters),
        case("char", &["%c"], &characters),
        case("void *", &["%p"], &addresses),
        case("const struct Foo *", &["%p", "100%% %p"], &addresses),
    ]
}

/// Conversions whose width is an argument, each with the type of the shown argument.
const STARS: &[(&str, &str)] = &[
    ("int", "%*d"),
    ("int", "%0*d"),
    ("unsigned", "%*u"),
    ("unsigned", "%0*x"),
    ("unsigned", "%*o"),
    ("uint64_t", "%0*\" PRIX64 \""),
    ("int64_t", "%0*ld"),
    ("const char *", "%*s"),
];

#[test]
fn a_width_that_is_an_argument_writes_the_same_as_c() {
    if capability::program("cc").is_none() {
        return;
    }
    let (mut events, mut c) = (String::new(), format!("{PRELUDE}int main(void) {{\n"));
    let mut rust = "pub mod trace { include!(\"trace-events.rs\"); }\nfn main() {\n".to_owned();
    for (n, (ty, conversion)) in STARS.iter().enumerate() {
        writeln!(events, "e{n}(int self, {ty} x, int last) \"[{conversion}] %d\"").unwrap();
        let values = if ty.contains('*') { ["\"\"", "\"text\""] } else { ["0", "1234"] };
        for width in [0, 1, 3, 9, 400, -1, -9, -400] {
            for value in values {
                writeln!(c, "printf(\"[{conversion}] %d\\n\", {width}, ({ty}){value}, 7);")
                    .unwrap();
                writeln!(rust, "trace::e{n}({width}, {value}, 7);").unwrap();
            }
        }
    }
    // If an argument gives a larger width than a format may have, the width is the largest width of a format.
    rust.push_str("trace::e0(i32::MAX, 1, 7); trace::e0(i32::MIN, 1, 7);\n}\n");
    c.push_str("printf(\"[%999d] 7\\n[%-999d] 7\\n\", 1, 1); return 0; }\n");
    let workshop = Workshop::new();
    let parsed = parse("trace-events", &events).unwrap_or_else(|e| panic!("{e}"));
    workshop.write("trace-events.rs", &generate("trace-events", &parsed));
    let source = workshop.write("rust.rs", &rust);
    workshop.rust("rustc", &source, &["--crate-type=bin", "-Awarnings"]);
    let source = workshop.write("c.c", &c);
    run(Command::new("cc").arg("-w").arg("-o").arg(workshop.dir.path().join("c")).arg(source));

    let of_c = workshop.output_of("c", &[]);

    assert_eq!(of_c.lines().count(), STARS.len() * 16 + 2);
    assert_eq!(of_c, workshop.output_of("rust", &[]));
    capability::used("cc");
}

/// Returns the file of events, and the C and Rust programs that trace these events.
fn programs(cases: &[Case]) -> (String, String, String) {
    let mut events = String::new();
    let mut c = format!("{PRELUDE}int main(void) {{\n");
    let mut rust = "pub mod trace { include!(\"trace-events.rs\"); }\nfn main() {\n".to_owned();
    let mut n = 0;
    for case in cases {
        for conversions in case.conversions.chunks(MAX_ARGUMENTS) {
            events.push_str(&case.declaration(&format!("e{n}"), conversions));
            let (ty, text) = (case.ty, format(conversions));
            let v = vec!["v"; conversions.len()].join(", ");
            let values: Vec<_> =
                case.values.iter().map(|value| format!("({ty})({})", value.c)).collect();
            let values = values.join(", ");
            writeln!(c, "{{ {ty} vs[] = {{{values}}};").unwrap();
            writeln!(c, "for (size_t i = 0; i < sizeof vs / sizeof *vs; i++) {{").unwrap();
            writeln!(c, "{ty} v = vs[i]; printf({text} \"\\n\", {v}); }} }}").unwrap();
            let values: Vec<_> = case.values.iter().map(|value| value.rust.as_str()).collect();
            writeln!(rust, "for v in [{}] {{ trace::e{n}({v}); }}", values.join(", ")).unwrap();
            n += 1;
        }
    }
    c.push_str("return 0; }\n");
    rust.push_str("}\n");
    (events, c, rust)
}

#[test]
fn every_conversion_writes_the_same_as_c() {
    if capability::program("cc").is_none() {
        return;
    }
    let mut cases = integer_cases();
    cases.extend(text_cases());
    let (events, c, rust) = programs(&cases);
    let workshop = Workshop::new();
    let parsed = parse("trace-events", &events).unwrap_or_else(|e| panic!("{e}"));
    workshop.write("trace-events.rs", &generate("trace-events", &parsed));
    let source = workshop.write("rust.rs", &rust);
    workshop.rust("rustc", &source, &["--crate-type=bin", "-Awarnings"]);
    let source = workshop.write("c.c", &c);
    run(Command::new("cc").arg("-w").arg("-o").arg(workshop.dir.path().join("c")).arg(source));

    let of_c = workshop.output_of("c", &[]);
    let of_rust = workshop.output_of("rust", &[]);

    let mut formats = cases.iter().flat_map(|case| {
        case.conversions.chunks(MAX_ARGUMENTS).flat_map(|c| vec![(case.ty, c); case.values.len()])
    });
    let mut compared = 0;
    let mut different = Vec::new();
    for (c, rust) in of_c.lines().zip(of_rust.lines()) {
        let (ty, conversions) = formats.next().unwrap();
        compared += conversions.len();
        if c != rust {
            different.push(format!("{ty} {}\n   C: {c}\nRust: {rust}", conversions.join(" ")));
        }
    }
    assert!(
        different.is_empty(),
        "{} differ:\n{}",
        different.len(),
        different[..different.len().min(20)].join("\n")
    );
    assert_eq!(of_c.lines().count(), of_rust.lines().count());
    assert_eq!(formats.count(), 0);
    assert!(compared > 50_000, "{compared}");
    capability::used("cc");
}
