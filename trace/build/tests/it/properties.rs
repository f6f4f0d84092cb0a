//! Tests with generated files: the parser never panics, each error has a place, and the parser reads valid
//! text as the events that the text declares.

use hypertrace_trace_build::{EventDecl, MAX_ERRORS, generate, parse};
use proptest::prelude::*;
use proptest::sample::select;

/// Pieces that a file could consist of, some of them wrong.
const PIECES: &[&str] = &[
    "a",
    "b",
    "x1",
    "_",
    "disable",
    "vcpu",
    "int",
    "uint64_t",
    "const",
    "char",
    "*",
    "void",
    "struct",
    "type",
    "self",
    "(",
    ")",
    ",",
    "\"",
    "\"%d\"",
    "%",
    "%s",
    "%08x",
    "%*",
    "%0*x",
    "vcpu c(int w, int x) \"%*d\\n%c\"",
    "%.3",
    "PRIx64",
    "PRIuPTR",
    "\\",
    "\\n",
    "\\x",
    "\\u12",
    "#",
    "\n",
    "\n",
    " ",
    " ",
    "\t",
    "\r",
    "ä",
    "\u{202e}",
    "\u{feff}",
    "0",
    "999",
    "L",
    "a(int x) \"%d\"",
    "b(void) \"\"",
    "(int a, void *p)",
    "\"x %d %p\"",
];

/// A type, and a conversion for it.
const TYPES: &[(&str, &[&str])] = &[
    ("int", &["%d", "%x", "%03d", "%c", "%u"]),
    ("const uint8_t", &["0x%02x", "%\" PRIu8 \""]),
    ("unsigned long long int", &["%llu", "%\" PRIx64 \"", "%020zX", "%8.8lx", "%lo"]),
    ("hwaddr", &["0x%\" PRIx64 \"", "%016\" PRIXPTR \""]),
    ("bool", &["%d"]),
    ("const char *", &["%s", "%10s"]),
    ("char const *const", &["%s"]),
    ("const struct Foo *", &["%p"]),
];

const TEXTS: &[&str] = &[
    "",
    " ",
    "a",
    "100%%",
    "%%m\\\\n,",
    "{}",
    "\\\"",
    "\\\\ \\t",
    "é",
    "\\x41\" \"",
    "\\1",
    "0",
    "`*_[x](y)<b>",
];

/// An event as a file declares it, and how it should be read.
#[derive(Clone, Debug)]
struct Meant {
    name: String,
    arguments: Vec<(String, String)>,
    line: String,
    disabled: bool,
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        "[A-Za-z_][A-Za-z0-9_]{1,63}".prop_filter("not a type or impossible", |name| {
            parse("", &format!("{name}(int {name}) \"%d\"")).is_ok()
        }),
        select(
            &["on", "out", "type", "match", "EVENT", "None", "vaddr", "Names", "disable", "g"][..]
        )
        .prop_map(str::to_owned),
    ]
}

fn meant() -> impl Strategy<Value = Meant> {
    let argument = (names(), select(TYPES), any::<prop::sample::Index>(), select(TEXTS));
    let space = select(&["", " ", "\t "][..]);
    (names(), prop::collection::vec(argument, 0..=10), any::<bool>(), select(TEXTS), space)
        .prop_map(|(name, arguments, disabled, last, space)| {
            let mut list = Vec::new();
            let mut format = String::new();
            let mut kept = Vec::new();
            for (argument, (ty, conversions), index, text) in arguments {
                if kept.iter().any(|(name, _)| *name == argument) {
                    continue;
                }
                list.push(format!("{space}{ty} {argument}{space}"));
                format.push_str(text);
                format.push_str(index.get::<&str>(conversions));
                kept.push((argument, ty.to_owned()));
            }
            let list = if list.is_empty() { "void".to_owned() } else { list.join(",") };
            let before = if disabled { "disable " } else { "" };
            let line =
                format!("{space}{before}{name}{space}({list}){space}\"{format}{last}\"{space}");
            Meant { name, arguments: kept, line, disabled }
        })
}

/// Checks the properties that must hold for any text.
fn check(text: &str) {
    match parse("f", text) {
        Ok(events) => {
            let source = generate("f", &events);
            assert_eq!(source.matches("EVENT: g::TraceEvent").count(), enabled(&events));
            for event in events {
                reads_back(&event);
            }
        }
        Err(errors) => {
            assert!((1..=MAX_ERRORS).contains(&errors.errors().len()), "{errors}");
            let lines: Vec<&str> = text.lines().collect();
            for error in errors.errors() {
                let line =
                    lines.get(error.line - 1).unwrap_or_else(|| panic!("no such line: {error}"));
                assert!((1..=line.chars().count() + 1).contains(&error.column), "{error}");
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
            }
            let places: Vec<_> = errors.errors().iter().map(|e| e.line).collect();
            assert!(places.is_sorted(), "{places:?}");
        }
    }
}

fn enabled(events: &[EventDecl]) -> usize {
    events.iter().filter(|event| !event.is_disabled()).count()
}

/// Checks that the normalized declaration has the same meaning as the event, and that normalizing it again
/// does not change it.
fn reads_back(event: &EventDecl) {
    let declaration = event.declaration();
    let again = parse("f", &declaration).unwrap_or_else(|errors| panic!("{errors}: {declaration}"));
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].declaration(), declaration);
    let recorded =
        |event: &EventDecl| event.arguments().iter().map(|a| a.ty().kind().c()).collect::<Vec<_>>();
    assert_eq!(recorded(&again[0]), recorded(event));
    qemu_takes(&declaration);
}

/// Checks the rules of QEMU's own reader. If one line breaks a rule, QEMU's reader refuses the whole file.
fn qemu_takes(declaration: &str) {
    // QEMU's reader also accepts an event without a format.
    let whole = declaration.strip_suffix(')').map(|signature| (signature, "\"\""));
    let (signature, format) = declaration.split_once(") ").or(whole).unwrap();
    let (_, arguments) = signature.split_once('(').unwrap();
    let mut count = 0;
    for argument in arguments.split(',').filter(|argument| *argument != "void") {
        let end = argument.rfind(['*', ' ']).unwrap();
        let ty = argument[..end].replace(['*', ' '], "").replace("const", "");
        let fixed = ty.replace("uint", "int");
        let known = ["int8_t", "int16_t", "int32_t", "int64_t", "bool", "char", "void"];
        assert!(known.contains(&&*fixed), "{declaration}");
        count += 1;
    }
    assert!(count <= 10 && format.starts_with('"'), "{declaration}");
    for refused in ["%m", r"\n", "\n", ",\""] {
        assert!(!format.trim_end_matches(",\"").contains(refused), "{declaration}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        check(&text);
    }

    #[test]
    fn any_pieces_are_read_or_refused(pieces in prop::collection::vec(select(PIECES), 0..60)) {
        check(&pieces.concat());
    }

    #[test]
    fn any_format_is_read_or_refused(format in "[%a-zA-Z0-9 .#+*{}\"\\\\-]{0,20}", ty in select(TYPES)) {
        check(&format!("a({} x) \"{format}\"", ty.0));
    }

    #[test]
    fn generated_declarations_are_read_back(meant in prop::collection::vec(meant(), 0..10)) {
        let mut unique: Vec<Meant> = Vec::new();
        for event in meant {
            if unique.iter().all(|other| other.name != event.name) {
                unique.push(event);
            }
        }
        let text: String = unique.iter().map(|event| format!("# comment\n{}\n\n", event.line)).collect();
        let events = parse("f", &text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        prop_assert_eq!(events.len(), unique.len());
        for (i, (event, meant)) in events.iter().zip(&unique).enumerate() {
            let arguments = event.arguments().iter().map(|a| (a.name().to_owned(), a.ty().text().to_owned()));
            prop_assert_eq!(arguments.collect::<Vec<_>>(), meant.arguments.clone());
            prop_assert_eq!(event.name(), &meant.name);
            prop_assert_eq!((event.is_disabled(), event.line()), (meant.disabled, 3 * i + 2));
        }
        check(&text);
    }
}
