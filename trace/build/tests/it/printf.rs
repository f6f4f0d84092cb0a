//! The text of events is what C's printf writes: both are compiled and
//! compared, for many conversions and values.

use crate::compiled;
use compiled::{Workshop, capability, run};
use hypertrace_trace_build::{MAX_ARGUMENTS, generate, parse};
use std::fmt::Write;
use std::process::Command;

/// Definitions that the file of events can use and C does not have by itself.
const PRELUDE: &str = r#"
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
typedef uint64_t hwaddr, ram_addr_t, vaddr, target_ulong, dma_addr_t;
#define HWADDR_PRIx PRIx64
#define HWADDR_PRIX PRIX64
#define HWADDR_PRIu PRIu64
#define HWADDR_FMT_plx "%016" PRIx64
#define VADDR_PRIx PRIx64
#define VADDR_PRId PRId64
#define TARGET_PRIx PRIx64
#define TARGET_FMT_lx "%016" PRIx64
#define TARGET_FMT_plx "%016" PRIx64
#define TARGET_FMT_ld "%" PRId64
#define TARGET_FMT_lu "%" PRIu64
#define RAM_ADDR_FMT "%" PRIx64
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
    /// As between quotes.
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

/// Returns conversions with all subsets of `flags`, with widths and precisions.
fn variants(flags: &str, widths: &[&str], precisions: &[&str], letter: &str) -> Vec<String> {
    let flags: Vec<char> = flags.chars().collect();
    let mut all = Vec::new();
    for subset in 0..1_usize << flags.len() {
        let set: String = flags
            .iter()
            .enumerate()
            .filter(|(i, _)| subset >> i & 1 == 1)
            .map(|(_, f)| f)
            .collect();
        for width in widths {
            for precision in precisions {
                all.push(format!("%{set}{width}{precision}{letter}"));
            }
        }
    }
    all
}

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
        // C has no literal for the smallest.
        let c = if value == i64::MIN.into() {
            format!("({}LL - 1)", value + 1)
        } else {
            format!("{value}LL")
        };
        Value { c, rust: format!("({value}i128 as {sign}{bits})") }
    };
    values.into_iter().map(value).collect()
}

fn integer_cases() -> Vec<Case> {
    let (widths, precisions) = (["", "1", "5", "14"], ["", ".", ".0", ".3", ".12"]);
    let every = |length: &str| {
        let mut all = Vec::new();
        for (flags, letters) in [("-+ 0", "di"), ("-0", "u"), ("-#0", "oxX")] {
            for letter in letters.chars() {
                all.extend(variants(flags, &widths, &precisions, &format!("{length}{letter}")));
            }
        }
        all
    };
    let some = |lengths: &[&str]| {
        let mut all = Vec::new();
        for length in lengths {
            for conversion in [
                "%d", "%i", "%+5d", "%05d", "%-5u|", "%u", "%x", "%#X", "%#06x", "%o", "%.4d",
                "% d",
            ] {
                let (before, letter) =
                    conversion.split_at(conversion.find(|c: char| c.is_alphabetic()).unwrap());
                all.push(format!("{before}{length}{letter}"));
            }
        }
        all
    };
    let case =
        |ty, conversions, bits, signed| Case { ty, conversions, values: integers(bits, signed) };
    let mut cases = vec![
        case("int", every(""), 32, true),
        case("uint32_t", every(""), 32, false),
        case("int64_t", every("l"), 64, true),
        case("unsigned long long int", every("ll"), 64, false),
    ];
    for (ty, bits, signed) in [
        ("char", 8, true),
        ("int8_t", 8, true),
        ("unsigned char", 8, false),
        ("uint8_t", 8, false),
        ("short", 16, true),
        ("short unsigned int", 16, false),
        ("int32_t", 32, true),
        ("unsigned", 32, false),
    ] {
        cases.push(case(ty, some(&["", "h", "hh"]), bits, signed));
    }
    for (ty, signed) in [
        ("long", true),
        ("ssize_t", true),
        ("off_t", true),
        ("ptrdiff_t", true),
        ("intptr_t", true),
        ("intmax_t", true),
        ("unsigned long", false),
        ("size_t", false),
        ("uintptr_t", false),
        ("uintmax_t", false),
        ("hwaddr", false),
    ] {
        cases.push(case(ty, some(&["l", "ll", "z", "j", "t"]), 64, signed));
    }
    let of_bool = |value: bool| Value { c: value.to_string(), rust: value.to_string() };
    let conversions = some(&["", "h", "hh"]);
    cases.push(Case { ty: "bool", conversions, values: [false, true].map(of_bool).to_vec() });
    cases
}

fn macro_cases() -> Vec<Case> {
    let pri = |bits: &[&str]| {
        let mut all = Vec::new();
        for bits in bits {
            for letter in ["d", "i", "o", "u", "x", "X"] {
                all.extend(
                    ["", "08", "-12", "#"]
                        .iter()
                        .filter(|flags| **flags != "#" || "oxX".contains(letter))
                        .map(|flags| format!("%{flags}\" PRI{letter}{bits} \"")),
                );
            }
        }
        all
    };
    let own = [
        "%\" HWADDR_PRIx \"",
        "0x%08\" HWADDR_PRIX\"",
        "%\"HWADDR_PRIu\"",
        "\" HWADDR_FMT_plx \"",
        "%\" VADDR_PRIx \"",
        "%\" VADDR_PRId \"",
        "%#\" TARGET_PRIx \"",
        "\" TARGET_FMT_lx \"",
        "\" TARGET_FMT_plx \"",
        "\" TARGET_FMT_ld \"",
        "\" TARGET_FMT_lu \"",
        "\" RAM_ADDR_FMT \"",
    ];
    let own = || own.map(str::to_owned).to_vec();
    let case =
        |ty, conversions, bits, signed| Case { ty, conversions, values: integers(bits, signed) };
    vec![
        case("uint8_t", pri(&["8"]), 8, false),
        case("int8_t", pri(&["8"]), 8, true),
        case("int16_t", pri(&["16"]), 16, true),
        case("int32_t", pri(&["32"]), 32, true),
        case("uint64_t", pri(&["64", "PTR", "MAX"]), 64, false),
        case("int64_t", pri(&["64", "PTR", "MAX"]), 64, true),
        case("hwaddr", own(), 64, false),
        case("ram_addr_t", own(), 64, false),
        case("vaddr", own(), 64, false),
        case("target_ulong", own(), 64, false),
        case("dma_addr_t", own(), 64, false),
    ]
}

fn float_cases() -> [Case; 2] {
    let mut conversions = Vec::new();
    for letter in ["f", "F", "e", "E", "g", "G", "lf"] {
        for flags in ["", "-", "+", " ", "#", "0", "+0", "#0", " #", "-+#", "+ 0", "-0"] {
            for width in ["", "3", "17"] {
                for precision in ["", ".", ".0", ".1", ".3", ".15", ".40"] {
                    conversions.push(format!("%{flags}{width}{precision}{letter}"));
                }
            }
        }
    }
    let values = [
        "0.0",
        "-0.0",
        "1.0",
        "-1.5",
        "0.5",
        "2.5",
        "0.25",
        "0.125",
        "9.5",
        "99.95",
        "9999995.0",
        "1e5",
        "1e6",
        "123456.0",
        "1234567.0",
        "0.0001",
        "0.00001",
        "0.000099999995",
        "1e-7",
        "3.141592653589793",
        "1e22",
        "-1e100",
        "1.7976931348623157e308",
        "5e-324",
        "100.0",
        "1e15",
        "1e16",
        "1e17",
        "0.1",
    ];
    let mut values: Vec<Value> =
        values.map(|v| Value { c: v.to_owned(), rust: format!("({v}f64)") }).to_vec();
    for (c, rust) in [
        ("__builtin_inf()", "f64::INFINITY"),
        ("-__builtin_inf()", "f64::NEG_INFINITY"),
        ("__builtin_nan(\"\")", "f64::NAN.copysign(1.0)"),
        ("-__builtin_nan(\"\")", "f64::NAN.copysign(-1.0)"),
    ] {
        values.push(Value { c: c.to_owned(), rust: rust.to_owned() });
    }
    // For these glibc 2.36 writes 1.e+06 with %#g, where C has 1.00000e+06.
    let rounded =
        ["999999.5", "-999999.9"].map(|v| Value { c: v.to_owned(), rust: format!("({v}f64)") });
    let plain =
        conversions.iter().filter(|conversion| !conversion.contains('#')).cloned().collect();
    [
        Case { ty: "double", conversions, values },
        Case { ty: "double", conversions: plain, values: rounded.to_vec() },
    ]
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
    let conversions = |letter| variants("-", &["", "1", "10"], &[""], letter);
    let texts = || variants("-", &["", "1", "10"], &["", ".", ".0", ".3", ".20"], "s");
    vec![
        Case { ty: "const char *", conversions: texts(), values: strings.clone() },
        Case { ty: "char *", conversions: texts(), values: strings },
        Case { ty: "int", conversions: conversions("c"), values: characters.clone() },
        Case { ty: "uint8_t", conversions: conversions("c"), values: characters.clone() },
        Case { ty: "char", conversions: conversions("c"), values: characters },
        Case {
            ty: "void *",
            conversions: variants("-", &["", "1", "10", "25"], &[""], "p"),
            values: addresses.clone(),
        },
        Case { ty: "const struct Foo *", conversions: conversions("p"), values: addresses },
    ]
}

/// Returns the file of events, and both programs that trace them.
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
    cases.extend(macro_cases());
    cases.extend(float_cases());
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
