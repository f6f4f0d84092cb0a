//! Tests of the syntax of `trace-events` files.

use hypertrace_test_support::capability;
use hypertrace_trace_build::{EventDecl, Kind, Piece, parse};

fn events(text: &str) -> Vec<EventDecl> {
    parse("trace-events", text).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Returns the only event of a text.
fn event(text: &str) -> EventDecl {
    let mut events = events(text);
    assert_eq!(events.len(), 1, "{text}");
    events.remove(0)
}

/// Returns the kind and the spelling of an argument's type.
fn ty(text: &str) -> (Kind, String) {
    let conversions = ["%d", "%\" PRId64", "%s", "%p"]
        .map(|c| format!("e({text}) \"{c}{}", if c.contains('"') { "" } else { "\"" }));
    let parsed = conversions.iter().find_map(|text| parse("trace-events", text).ok());
    let event = parsed.unwrap_or_else(|| panic!("no conversion fits {text}"))[0].clone();
    let ty = event.arguments()[0].ty();
    (ty.kind(), ty.text().to_owned())
}

#[test]
fn empty_lines_and_comments_are_nothing() {
    assert_eq!(events(""), []);
    assert_eq!(events("\n# a comment \"\n   # another\n\t\n"), []);
}

#[test]
fn an_event_has_its_line_and_columns() {
    let events = events("# one\n\n  a(void) \"a\"\r\ndisable b(int x) \"%d\"");
    let places: Vec<_> = events.iter().map(|e| (e.name(), e.line(), e.column())).collect();
    assert_eq!(places, [("a", 3, 3), ("b", 4, 9)]);
    assert_eq!(events[1].arguments()[0].column(), 15);
    assert_eq!([events[0].is_disabled(), events[1].is_disabled()], [false, true]);
}

#[test]
fn a_property_can_be_a_name() {
    assert_eq!(event("disable(void) \"\"").name(), "disable");
    assert!(event("disable disable(void) \"\"").is_disabled());
    assert_eq!(event("vcpu(int tcg) \"%d\"").name(), "vcpu");
}

#[test]
fn an_event_needs_no_format() {
    let events = events("device_reset(void)\ndevice_name(const char *s)  \r\ndisable a(int x)");

    let declarations: Vec<String> = events.iter().map(EventDecl::declaration).collect();

    assert_eq!(declarations, ["device_reset(void)", "device_name(const char *s)", "a(int32_t x)"]);
    assert!(events.iter().all(|event| event.format().pieces().is_empty()));
}

#[test]
fn an_event_of_a_vcpu_has_qemus_argument_and_text_before_its_own() {
    let spelled = [
        ("vcpu cpu_stops(int x) \"x %d\"", r#"cpu_stops(void *__cpu, int32_t x) "cpu=%p x %d""#),
        ("disable vcpu cpu_runs(void) \"\"", r#"cpu_runs(void *__cpu) "cpu=%p ""#),
        ("vcpu cpu_reset(int x)", "cpu_reset(void *__cpu, int32_t x)"),
    ];
    for (text, declaration) in spelled {
        assert_eq!(event(text).declaration(), declaration);
        assert_eq!(event(declaration).declaration(), declaration);
    }
    assert!(event("vcpu disable a(void) \"\"").is_disabled());
}

#[test]
fn an_argument_can_be_the_width_of_the_next() {
    let declaration = r#"a(int8_t w, uint64_t x, uint32_t y, const char *s) "0x%0*" PRIx64 " %*s""#;
    let event = event(declaration);
    assert_eq!((event.declaration(), event.arguments().len()), (declaration.to_owned(), 4));
}

#[test]
fn a_format_can_have_two_lines() {
    let event = event(r#"a(int x, int y) "x %d\n" "y %d""#);

    assert_eq!(event.format().pieces(), [Piece::Text("x %d\ny %d".to_owned())]);
    // QEMU's current parser of declarations refuses `\n`.
    assert_eq!(event.declaration(), r#"a(int32_t x, int32_t y) "x %d\012y %d""#);
}

#[test]
fn an_argument_can_have_a_name_that_rust_refuses() {
    let event = event("a(void *self, int _, int self_, int crate) \"%p %d %d %d\"");

    let names: Vec<_> = event.arguments().iter().map(|argument| argument.name()).collect();
    assert_eq!(names, ["self", "_", "self_", "crate"]);
}

#[test]
fn a_declaration_has_one_spelling() {
    let spelled = [
        ("a( void )\"x\"", r#"a(void) "x""#),
        ("a (int   x ,void*p)   \"%d\" \" %p\"", r#"a(int32_t x, void *p) "%d %p""#),
        (r#"a(uint64_t x) "0x%"PRIx64" y""#, r#"a(uint64_t x) "0x%" PRIx64 " y""#),
        (r#"a(uint64_t x) "%" PRIx64 """#, r#"a(uint64_t x) "%" PRIx64"#),
        (r#"a(void) "\x41\102\u00e4 \"\\ \t\e1 \'\?""#, r#"a(void) "ABä \"\\ \t\0331 '?""#),
    ];
    for (text, declaration) in spelled {
        assert_eq!(event(text).declaration(), declaration);
        assert_eq!(event(declaration).declaration(), declaration);
    }
    let first = event(r#"a(ram_addr_t x) "%" PRIX64"#);
    assert_eq!(first.format().text(), r#""%" PRIX64"#);
    assert_eq!(event("disable a(int x) \"%d\"").signature(), "a(int x)");
}

#[test]
fn a_declaration_has_the_types_that_qemus_reader_takes() {
    let spelled = [
        (
            "a(hwaddr x, off_t y) \"%\" PRIxPTR \" %ld\"",
            r#"a(uint64_t x, int64_t y) "%" PRIx64 " %" PRId64"#,
        ),
        (
            "a(size_t x, char y) \"%020zx|%\" PRId8",
            r#"a(uint64_t x, int8_t y) "%020" PRIx64 "|%d""#,
        ),
        ("a(const struct S *x, Foo **y) \"%p %p\"", r#"a(void *x, void *y) "%p %p""#),
        ("a(char const *const x, _Bool y) \"%5s%u\"", r#"a(const char *x, bool y) "%5s%u""#),
        ("a(unsigned x, short y) \"%8.8x%% %.2x\"", r#"a(uint32_t x, int16_t y) "%08x%% %02x""#),
        // QEMU's reader finds these words anywhere in the text, also after other letters.
        (r#"a(void) "100%%mark C:\\new""#, r#"a(void) "100%%\155ark C:\134new""#),
    ];
    for (text, declaration) in spelled {
        assert_eq!(event(text).declaration(), declaration);
        assert_eq!(event(declaration).declaration(), declaration);
    }
}

#[test]
fn a_format_is_strings_and_macros() {
    let text = |text: &str| Piece::Text(text.to_owned());
    let pieces = [text("a %d 0x%"), Piece::Macro("PRIx64".to_owned()), text(" b")];
    let event = event(r#"a(int x, uint64_t y) "a %" "d 0x%" PRIx64 " b""#);
    assert_eq!(event.format().pieces(), pieces);
}

#[test]
fn integers_have_many_names() {
    use Kind::{I8, I16, I32, I64, U8, U16, U32, U64};
    for (kind, names) in [
        (I8, "char|signed char|char signed|int8_t"),
        (U8, "unsigned char|char unsigned|uint8_t|const uint8_t"),
        (I16, "short|short int|signed short|int short signed|int16_t"),
        (U16, "unsigned short|short unsigned int|uint16_t"),
        (I32, "int|signed|signed int|int32_t|const int|int const"),
        (U32, "unsigned|unsigned int|int unsigned|uint32_t"),
        (
            I64,
            "long|long int|long long|long long int|long signed int long|int64_t|ssize_t|off_t|ptrdiff_t|intptr_t",
        ),
        (I64, "intmax_t|const volatile int64_t"),
        (
            U64,
            "unsigned long|unsigned long long int|long unsigned int|uint64_t|size_t|uintptr_t|uintmax_t",
        ),
        (U64, "hwaddr|ram_addr_t|vaddr|target_ulong|dma_addr_t"),
    ] {
        for name in names.split('|') {
            assert_eq!(ty(&format!("{name} x")), (kind, name.to_owned()));
        }
    }
    assert_eq!(ty("int64_t \t x"), (I64, "int64_t".to_owned()));
}

#[test]
fn other_types() {
    for (kind, names) in [
        (Kind::Bool, "bool|_Bool|const bool"),
        (Kind::Str, "char *|const char *|char const *|char *const|const char *const"),
        (
            Kind::Address,
            "void *|const void *|struct Foo *|const struct Foo *|union U *|enum E *|Foo *|Foo **|char **",
        ),
        (
            Kind::Address,
            "unsigned char *|signed char *|uint8_t *|const char **|const char *const *|unsigned long *",
        ),
    ] {
        for name in names.split('|') {
            let space = if name.ends_with('*') { "" } else { " " };
            assert_eq!(ty(&format!("{name}{space}x")), (kind, name.to_owned()));
        }
    }
    for spelled in ["void *x", "void* x", "void*x", "void  *  x"] {
        assert_eq!(ty(spelled), (Kind::Address, "void *".to_owned()));
    }
}

#[test]
fn types_can_be_names_after_a_type() {
    assert_eq!(event("a(uint64_t vaddr) \"%\" PRIx64").arguments()[0].name(), "vaddr");
    assert_eq!(event("a(vaddr vaddr) \"%\" PRIx64").arguments()[0].name(), "vaddr");
    assert_eq!(event("a(void *size_t) \"%p\"").arguments()[0].name(), "size_t");
}

#[test]
fn a_conversion_may_show_less_or_another_sign() {
    for text in [
        "a(int x) \"%u\"",
        "a(uint32_t x) \"%i\"",
        "a(int x) \"%x\"",
        "a(unsigned x) \"%d\"",
        "a(uint8_t x) \"%d\"",
        "a(bool x) \"%d\"",
        "a(int64_t x) \"%zu\"",
        "a(size_t x) \"%lx\"",
        "a(hwaddr x) \"%\" PRIdPTR",
        "a(uint8_t x) \"%\" PRIx32",
    ] {
        event(text);
    }
}

#[test]
fn limits_are_reached() {
    let name = "n".repeat(64);
    let arguments: Vec<_> = (0..10).map(|i| format!("int a{i}")).collect();
    let text = format!("{name}({}) \"{}\"", arguments.join(","), "%999d".repeat(10));
    assert_eq!(event(&text).arguments().len(), 10);
}

/// Reads all events of a QEMU release, as its package has them.
#[test]
fn all_events_of_qemus_releases_are_read() {
    for name in ["qemu-system-x86_64", "qemu-backports-system-x86_64"] {
        let Some(program) = capability::program(name) else { continue };
        // A fetched program is `bin/NAME`, next to the folder with the files of its package.
        let folder = program.ancestors().nth(2).expect("a path in a folder");
        let path = ["root/usr/share", "share"]
            .map(|share| folder.join(share).join("qemu/trace-events-all"))
            .into_iter()
            .find(|path| path.exists());
        let path = path.unwrap_or_else(|| panic!("no trace-events-all beside {program:?}"));
        let text = std::fs::read_to_string(&path).unwrap();

        let events = parse("trace-events-all", &text).unwrap_or_else(|errors| panic!("{errors}"));

        // Each line that is neither empty nor a comment declares an event.
        let is_event = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with('#');
        assert_eq!(events.len(), text.lines().filter(is_event).count());
        assert!(events.len() > 2_000, "{}", events.len());
        capability::used(name);
    }
}
