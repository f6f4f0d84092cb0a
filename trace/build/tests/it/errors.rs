//! Tests of the errors in `trace-events` files and their positions.

use hypertrace_trace_build::{MAX_ERRORS, parse};

/// Returns all errors of a text, without the name of the file.
fn errors(text: &str) -> Vec<String> {
    let errors = parse("f", text).expect_err(text);
    assert_eq!(errors.more(), 0);
    errors.errors().iter().map(|e| e.to_string()[2..].to_owned()).collect()
}

/// Returns the only error of a text.
fn error(text: &str) -> String {
    let errors = errors(text);
    assert_eq!(errors.len(), 1, "{text}: {errors:?}");
    errors[0].clone()
}

#[test]
fn the_shape_of_a_line() {
    for (text, expected) in [
        ("(void) \"\"", "1:1: expected the name of an event, 'disable' or a comment, found '('"),
        ("9a(void) \"\"", "1:1: expected the name of an event, 'disable' or a comment, found '9'"),
        ("ä(void) \"\"", "1:1: expected the name of an event, 'disable' or a comment, found 'ä'"),
        ("a", "1:2: expected '(' after the name of the event, found the end of the line"),
        ("a b(void) \"\"", "1:3: expected '(' after the name of the event, found 'b'"),
        ("disable \"x\"", "1:9: expected '(' after the name of the event, found '\"'"),
        ("\n  a(int x \"%d\"", "2:11: expected ')' or ',' after the argument, found '\"'"),
        ("a(int x", "1:8: expected ')' or ',' after the argument, found the end of the line"),
        ("a(int x[4]) \"\"", "1:8: expected ')' or ',' after the argument, found '['"),
        ("a(int (*f)(int)) \"\"", "1:7: expected ')' or ',' after the argument, found '('"),
        ("a() \"\"", "1:3: expected an argument, or 'void' if there is none, found ')'"),
        ("a(...) \"\"", "1:3: expected an argument, or 'void' if there is none, found '.'"),
        (
            "a(void) PRIx64",
            "1:9: expected the format, which begins with '\"', or the end of the line, found 'PRIx64'",
        ),
        ("a(void) \"x\" # y", "1:13: expected a string, a macro or the end of the line, found '#'"),
        ("a(void) \"ä", "1:11: expected '\"' at the end of the string, found the end of the line"),
        (
            "a(void) \"x\\",
            "1:12: expected '\"' at the end of the string, found the end of the line",
        ),
        (
            "a(void) \"x\";\u{0}",
            "1:12: expected a string, a macro or the end of the line, found ';'",
        ),
        (
            "\u{feff}a(void) \"\"",
            "1:1: expected the name of an event, 'disable' or a comment, found '\\u{feff}'",
        ),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}

#[test]
fn the_property_of_emulated_code_is_refused() {
    let expected = "1:1: expected no property but 'disable' and 'vcpu', as that of emulated code is not supported, found ";
    assert_eq!(error("tcg disable a(int x) \"%d\""), format!("{expected}'tcg'"));
    let two = errors("tcg a(int x) \"%d\", \"%d\"");
    let second = "1:18: expected the end of the line (two formats belong to tcg events, which are not supported), found ','";
    assert_eq!(two, [format!("{expected}'tcg'"), second.to_owned()]);
}

#[test]
fn arguments() {
    for (text, expected) in [
        ("a(int) \"\"", "1:6: expected the argument's name after 'int', found ')'"),
        (
            "a(unsigned int, int y) \"%d%d\"",
            "1:15: expected the argument's name after 'unsigned int', found ','",
        ),
        (
            "a(const uint8_t) \"%d\"",
            "1:16: expected the argument's name after 'const uint8_t', found ')'",
        ),
        ("a(void *) \"%p\"", "1:9: expected the argument's name after 'void *', found ')'"),
        ("a(x) \"%d\"", "1:3: expected a type and a name, found 'x'"),
        ("a(int x, int x) \"%d%d\"", "1:14: expected a name that no other argument has, found 'x'"),
        (
            "vcpu a(int __cpu) \"%d\"",
            "1:12: expected a name that no other argument has, found '__cpu'",
        ),
        ("crate(void) \"\"", "1:1: expected a name that Rust allows, found 'crate'"),
        (
            "u64(void) \"\"",
            "1:1: expected a name that the generated code does not need for itself, found 'u64'",
        ),
        ("a(int x,) \"%d\"", "1:9: expected an argument, or 'void' if there is none, found ')'"),
        ("a(,int x) \"%d%d\"", "1:3: expected an argument, or 'void' if there is none, found ','"),
    ] {
        let all = errors(text);
        assert_eq!(all[0], expected, "{text}");
    }
    let long = "x".repeat(65);
    let shown = format!("'{}...'", "x".repeat(60));
    assert_eq!(
        error(&format!("{long}(void) \"\"")),
        format!("1:1: expected a name of at most 64 bytes, found {shown}")
    );
    let many: Vec<_> = (0..11).map(|i| format!("int a{i:02}")).collect();
    let text = format!("a({}) \"{}\"", many.join(","), "%d".repeat(11));
    assert_eq!(error(&text), "1:83: expected at most 10 arguments, found 'int'");
}

#[test]
fn an_unknown_type_is_reported_with_the_known_ones() {
    for (text, column, found) in [
        ("a(foo_t x) \"%d\"", 3, "foo_t"),
        ("a(int y, float x) \"%d %d\"", 10, "float"),
        ("a(void x) \"%d\"", 3, "void"),
        ("a(struct Foo x) \"%d\"", 3, "struct Foo"),
        ("a(long long long x) \"%d\"", 3, "long long long"),
        ("a(long double x) \"%d\"", 3, "long double"),
        ("a(double x) \"%d\"", 3, "double"),
        ("a(unsigned signed x) \"%d\"", 3, "unsigned signed"),
        ("a(char int x) \"%d\"", 3, "char int"),
        ("a(foo bar *x) \"%p\"", 3, "foo bar *"),
        ("a(void * y *x) \"%p\"", 3, "void *y *"),
        ("a(*x) \"%p\"", 3, "*"),
        ("a(const x) \"%d\"", 3, "const"),
    ] {
        let error = error(text);
        assert!(
            error.starts_with(&format!("1:{column}: expected a type (bool, char, ")),
            "{error}"
        );
        assert!(error.contains("uint8_t") && error.contains("ssize_t"), "{error}");
        assert!(error.ends_with(&format!("or a pointer), found '{found}'")), "{error}");
    }
}

#[test]
fn names_of_events_are_unique() {
    let text = "a(void) \"\"\nb(void) \"\"\n disable a(int x) \"%d\"";
    assert_eq!(
        error(text),
        "3:10: expected a name that no other event has, found 'a', which is declared at f:1"
    );
}

#[test]
fn formats() {
    let hidden = "a visible character or an escape";
    let whole = "a whole conversion or '%%'";
    let smaller_unit = "an integer of a smaller unit and '%d' or '%u'";
    let length = "the length l, ll or z for 64 bits, or none";
    let precision = "a width with a zero, such as '%08x', instead of a precision";
    let star = "a number for the precision, as an argument can only be a width";
    let one_line =
        "a format that does not end with a line break, as each event has a line of its own";
    for (format, column, expected, found) in [
        (r#""a\n""#, 11, one_line, r"'\n'"),
        (
            r#""\x0ab""#,
            10,
            "an escape of a character other than NUL (\\x and octal ones end at 0x7f)",
            r"'\x0ab'",
        ),
        (r#""b\012" "" "#, 11, one_line, r"'\n'"),
        (
            r#""\0""#,
            10,
            "an escape of a character other than NUL (\\x and octal ones end at 0x7f)",
            r"'\0'",
        ),
        (
            r#""\xe4""#,
            10,
            "an escape of a character other than NUL (\\x and octal ones end at 0x7f)",
            r"'\xe4'",
        ),
        ("\"a\u{1b}\"", 11, hidden, r"'\u{1b}'"),
        ("\"ä\u{202e}\"", 11, hidden, r"'\u{202e}'"),
        ("\"100%\"", 13, whole, "'%'"),
        ("\"100%l\"", 13, whole, "'%l'"),
        ("\"%.*d\"", 10, star, "'%.*'"),
        ("\"%**d\"", 10, star, "'%**'"),
        ("\"%*.8x\"", 10, precision, "'%*.8x'"),
        ("\"%*p\"", 10, "'%c' and '%p' with nothing between", "'%*p'"),
        ("\"%-.*s\"", 10, star, "'%-.*'"),
        ("\"%1$d\"", 10, "conversions in the order of the arguments", "'%1$'"),
        ("\"%m\"", 10, "the error number as an argument of its own", "'%m'"),
        ("\"%5%\"", 10, "'%%' with nothing between", "'%5%'"),
        ("\"%n\"", 10, "a conversion (one of d i u o x X c s p)", "'%n'"),
        ("\"%ä\"", 10, "a conversion (one of d i u o x X c s p)", "'%ä'"),
        ("\"%.2f\"", 10, smaller_unit, "'%.2f'"),
        ("\"%lG\"", 10, smaller_unit, "'%lG'"),
        ("\"%lllx\"", 10, length, "'%lllx'"),
        ("\"%hhd\"", 10, length, "'%hhd'"),
        ("\"%hu\"", 10, length, "'%hu'"),
        ("\"%jd\"", 10, length, "'%jd'"),
        ("\"%tx\"", 10, length, "'%tx'"),
        ("\"%h\" PRIx8", 10, length, "'%h\" PRIx8'"),
        ("\"%#x\"", 10, "'0x%x' or '0%o' instead of the flag '#'", "'%#x'"),
        ("\"%#08o\"", 10, "'0x%x' or '0%o' instead of the flag '#'", "'%#08o'"),
        ("\"%-5d\"", 10, "no flag but '0'", "'%-5d'"),
        ("\"%+d\"", 10, "no flag but '0'", "'%+d'"),
        ("\"% d\"", 10, "no flag but '0'", "'% d'"),
        ("\"%-12s\"", 10, "no flag but '0'", "'%-12s'"),
        ("\"%ls\"", 10, "'%s' with at most a width", "'%ls'"),
        ("\"%08s\"", 10, "'%s' with at most a width", "'%08s'"),
        ("\"%.5s\"", 10, "'%s' without a precision, and a string that the caller cuts", "'%.5s'"),
        ("\"%20p\"", 10, "'%c' and '%p' with nothing between", "'%20p'"),
        ("\"%.3c\"", 10, "'%c' and '%p' with nothing between", "'%.3c'"),
        ("\"%.4d\"", 10, precision, "'%.4d'"),
        ("\"%.x\"", 10, precision, "'%.x'"),
        ("\"%8.4x\"", 10, precision, "'%8.4x'"),
        ("\"%1000d\"", 10, "a width of at most 999", "'%1000d'"),
        ("\"%.99999999999x\"", 10, "a width of at most 999", "'%.99999999999x'"),
    ] {
        let text = format!("a(void) {format}");
        let text = if format.contains('%') {
            format!("a(int) {format}").replace("int", "int x")
        } else {
            text
        };
        let column = if format.contains('%') { column + 1 } else { column };
        assert_eq!(
            error(&text),
            format!("1:{column}: expected {expected}, found {found}"),
            "{text}"
        );
    }
    for name in ["PRIQ64", "PRIxMAX", "HWADDR_PRIx", "TARGET_FMT_lx", "RAM_ADDR_FMT"] {
        let expected = "1:14: expected a string, the end of the line or a macro \
                        (PRI[diouxX](8|16|32|64|PTR), such as PRIx64), found ";
        assert_eq!(error(&format!("a(int x) \"%\" {name}")), format!("{expected}'{name}'"));
    }
    assert!(error("a(void) \"\\q\"").starts_with("1:10: expected one of the escapes \\\" \\\\"));
}

#[test]
fn conversions_fit_their_arguments() {
    for (text, expected) in [
        (
            "a(uint64_t lba) \"%d\"",
            "1:18: expected PRId64 for 'lba', which is a uint64_t, found '%d'",
        ),
        ("a(size_t n) \"n %5x\"", "1:16: expected PRIx64 for 'n', which is a size_t, found '%5x'"),
        ("a(int64_t c) \"%c\"", "1:15: expected PRId64 for 'c', which is an int64_t, found '%c'"),
        (
            "a(int x) \"%08\" PRIx64 \" \"",
            "1:11: expected '%x' for 'x', which is an int, found '%08\" PRIx64'",
        ),
        ("a(uint8_t x) \"%zu\"", "1:15: expected '%u' for 'x', which is a uint8_t, found '%zu'"),
        (
            "a(ram_addr_t x, int y) \"%\" PRIx64 \"%\" PRIx64",
            "1:36: expected '%x' for 'y', which is an int, found '%\" PRIx64'",
        ),
        (
            "a(const char *s) \"%d\"",
            "1:19: expected '%s' for 's', which is a const char *, found '%d'",
        ),
        (
            "a(const char *s) \"%p\"",
            "1:19: expected '%s' for 's', which is a const char *, found '%p'",
        ),
        ("a(void *p) \"%x\"", "1:13: expected '%p' for 'p', which is a void *, found '%x'"),
        ("a(void *p) \"%s\"", "1:13: expected '%p' for 'p', which is a void *, found '%s'"),
        ("a(int x) \"%s\"", "1:11: expected '%d' or '%x' for 'x', which is an int, found '%s'"),
        ("a(bool x) \"%s\"", "1:12: expected '%u' or '%x' for 'x', which is a bool, found '%s'"),
        (
            "a(uint64_t x) \"%p\"",
            "1:16: expected PRIu64 or PRIx64 for 'x', which is a uint64_t, found '%p'",
        ),
        (
            "a(uint64_t w, int x) \"%*d\"",
            "1:23: expected a number instead of '*', as 'w' is a uint64_t, found '%*d'",
        ),
        (
            "a(const char *w, int x) \"%0*x\"",
            "1:26: expected a number instead of '*', as 'w' is a const char *, found '%0*x'",
        ),
        (
            "a(int w) \"%*d\"",
            "1:11: expected at most 1 conversion, one for each argument, found '%*d'",
        ),
        ("a(int x) \"x\"", "1:13: expected a conversion for 'x', found the end of the format"),
        (
            "a(int x, int y) \"%d%%d\"",
            "1:24: expected a conversion for 'y', found the end of the format",
        ),
        (
            "a(int x) \"%d %5u\"",
            "1:14: expected at most 1 conversion, one for each argument, found '%5u'",
        ),
        (
            "a(void) \"%d\"",
            "1:10: expected at most 0 conversions, one for each argument, found '%d'",
        ),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}

#[test]
fn all_errors_of_a_file_are_reported() {
    let text = "a(foo x, int x, bar y) \"%s %d %d\"\n\
                ok(void) \"\"\n\
                b(int x \"%d\"\n\
                c(int x, uint64_t y) \"%s %d %q\"\n";
    let places: Vec<_> =
        errors(text).iter().map(|e| e.split(": ").next().unwrap().to_owned()).collect();
    assert_eq!(places, ["1:3", "1:14", "1:17", "3:9", "4:23", "4:26", "4:29"]);
}

#[test]
fn errors_are_bounded_and_counted() {
    let text = "x\n".repeat(MAX_ERRORS + 7);
    let errors = parse("trace-events", &text).unwrap_err();
    assert_eq!(
        (errors.errors().len(), errors.more(), errors.total()),
        (MAX_ERRORS, 7, MAX_ERRORS + 7)
    );
    let shown = errors.to_string();
    assert_eq!(shown.lines().count(), MAX_ERRORS + 1);
    let first =
        "trace-events:1:2: expected '(' after the name of the event, found the end of the line";
    assert_eq!(shown.lines().next(), Some(first));
    assert!(shown.ends_with("\nand 7 more"), "{shown}");
}
