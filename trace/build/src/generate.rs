//! Generation of Rust source from declarations.

use crate::declaration::{Argument, EventDecl};
use crate::names::{identifier, parameters, unused};
use crate::printf::Segment;
use crate::rust_format::statement;
use crate::types::Kind;

/// Lints that make no sense for generated code.
const ALLOWED: &str = "dead_code, non_snake_case, unreachable_pub, unused_qualifications, \
    missing_debug_implementations, clippy::all, clippy::pedantic";

/// Returns the Rust source of the events of one file: for each event a function, and a module of the same
/// name with the event's items. Include the source in a separate module of a crate that depends on
/// `hypertrace-trace`.
pub fn generate(file_name: &str, events: &[EventDecl]) -> String {
    generate_all(&[(file_name, events)])
}

/// Returns the Rust source of the events of several files.
pub(crate) fn generate_all(files: &[(&str, &[EventDecl])]) -> String {
    let mut source = Source::default();
    for (file, events) in files {
        source.line(format!("// The events of {}.", escaped(file, &[])));
        for event in *events {
            source.line("");
            if event.is_disabled() {
                disabled(&mut source, file, event)
            } else {
                enabled(&mut source, file, event)
            }
        }
    }
    source.0
}

#[derive(Default)]
struct Source(String);

impl Source {
    fn line(&mut self, line: impl AsRef<str>) {
        self.0.push_str(line.as_ref());
        self.0.push('\n');
    }
}

/// Returns the arguments with the names of their parameters.
fn placed(event: &EventDecl) -> Vec<(&Argument, String)> {
    let names = parameters(event.arguments().iter().map(Argument::name));
    event.arguments().iter().zip(names).collect()
}

fn disabled(source: &mut Source, file: &str, event: &EventDecl) {
    documentation(source, file, event, ", where it is disabled: a call does nothing.");
    let list = listed(event.arguments(), |a| format!("_{}: {}", a.name(), a.ty().kind().rust()));
    let name = identifier(event.name());
    let shown = event.name();
    source.line(format!(
        "#[allow({ALLOWED})]
#[inline(always)]
pub fn {name}({list}) {{}}
/// Items of [`{shown}()`](fn@{shown}).
#[allow({ALLOWED})]
pub mod {name} {{
    /// The event, which is always off.
    pub static EVENT: ::hypertrace_trace::generated::DisabledEvent = ::hypertrace_trace::generated::DisabledEvent;
}}"
    ));
}

fn enabled(source: &mut Source, file: &str, event: &EventDecl) {
    let arguments = placed(event);
    let name = identifier(event.name());
    let on = unused("on", event.arguments().iter().map(Argument::name));
    let list_of = |f: fn(&str, Kind) -> String| listed(&arguments, |(a, p)| f(p, a.ty().kind()));

    let list = list_of(|p, kind| format!("{p}: {}", kind.rust()));
    let passed = list_of(|p, kind| match kind {
        Kind::Str => format!("{p}.as_ref()"),
        _ => p.to_owned(),
    });
    documentation(source, file, event, "");
    let call = joined(&on, &passed);
    source.line(format!(
        "#[allow({ALLOWED})]
#[inline(always)]
pub fn {name}({list}) {{
    let {on} = {name}::EVENT.on();
    if {on} != 0 {{
        {name}::fire({call});
    }}
}}"
    ));

    let fields = listed(&arguments, |(a, _)| format!("{:?}", a.name()));
    let has_string = arguments.iter().any(|(a, _)| a.ty().kind() == Kind::Str);
    let (values, of_static) =
        if has_string { ("Values<'a>", "Values<'static>") } else { ("Values", "Values") };
    let types =
        tuple(arguments.iter().zip(is_hex(event)).map(|((a, _), hex)| match a.ty().kind() {
            Kind::Str => "g::Bytes<'a>".to_owned(),
            _ if hex => "g::Hex".to_owned(),
            kind => kind.rust().to_owned(),
        }));
    let declaration = raw_string(&event.declaration());
    let (shown, line) = (event.name(), event.line());
    source.line(format!(
        "/// Items of [`{shown}()`](fn@{shown}).
#[allow(unsafe_code, {ALLOWED})]
pub mod {name} {{
    use ::hypertrace_trace::generated as g;
    #[doc(hidden)]
    #[derive(Clone, Copy)]
    pub struct Names;
    impl g::Site for Names {{
        const NAME: &'static str = {shown:?};
        const FIELDS: &'static [&'static str] = &[{fields}];
    }}
    type {values} = {types};
    /// The event: its state and its declaration.
    #[g::linkme::distributed_slice(g::EVENTS)]
    #[linkme(crate = ::hypertrace_trace::generated::linkme)]
    pub static EVENT: g::TraceEvent = g::TraceEvent::new::\
         <Names, {of_static}>({declaration}, ::core::module_path!(), {file:?}, {line});"
    ));
    fire(source, event, &arguments, &on);
    source.line("}");
}

/// Generates the function that the branch calls: values, text and probe.
fn fire(source: &mut Source, event: &EventDecl, arguments: &[(&Argument, String)], on: &str) {
    let out = unused("out", event.arguments().iter().map(Argument::name));
    let list = listed(arguments, |(a, p)| match a.ty().kind() {
        Kind::Str => format!("{p}: &[u8]"),
        kind => format!("{p}: {}", kind.rust()),
    });
    let values =
        tuple(arguments.iter().zip(is_hex(event)).map(|((a, p), hex)| match a.ty().kind() {
            Kind::Str => format!("g::Bytes({p})"),
            Kind::U64 | Kind::Address if hex => format!("g::Hex({p})"),
            _ if hex => format!("g::Hex(u64::from({p}))"),
            _ => p.clone(),
        }));
    // SystemTap's format has room for twelve arguments, and an event has at most ten.
    let probe = listed(arguments, |(a, p)| match a.ty().kind() {
        Kind::Str => format!("g::c_string({p}).as_ptr()"),
        Kind::Bool => format!("u8::from({p})"),
        _ => p.clone(),
    });
    let types = listed(arguments, |(a, _)| match a.ty().kind() {
        Kind::Str => "&[u8]".to_owned(),
        kind => kind.rust().to_owned(),
    });
    let text = text(event, arguments, &out);
    let statements: Vec<_> = text.iter().map(|line| format!("                {line}\n")).collect();
    // A linker may drop a function that nobody calls, but would keep the note of the function's probe. So
    // `FIRE` refers to the function. The macro of the probe takes the name as text, so readers of the probe
    // would see the `r#` of a raw identifier.
    source.line(format!(
        "    #[used]
    static FIRE: fn({types}) = fire;
    #[inline(never)]
    pub(super) fn fire({list}) {{
        g::fire(
            &EVENT,
            {on},
            Names,
            {values},
            |{out}: &mut g::Line| {{
{statements}            }},
            || {{ g::probe::probe_lazy!({probe}); }},
        );
    }}",
        types = joined("u32", &types),
        list = joined(&format!("{on}: u32"), &list),
        statements = statements.concat(),
        probe = joined(&format!("hypertrace, {}", event.name()), &probe),
    ));
}

/// Returns for each argument true if the recorded value is a hexadecimal number. Such arguments are
/// addresses, and unsigned integers that the format shows in hexadecimal.
fn is_hex(event: &EventDecl) -> Vec<bool> {
    let letters = event.segments.iter().flat_map(|segment| match segment {
        Segment::Conversion(conversion) => {
            let width = conversion.has_star.then_some('*');
            width.into_iter().chain([conversion.letter]).collect()
        }
        Segment::Text(_) => Vec::new(),
    });
    // An event without a format shows no argument.
    let letters = letters.chain(std::iter::repeat(' '));
    let shown = event.arguments().iter().map(|a| a.ty().kind()).zip(letters);
    shown
        .map(|(kind, letter)| match kind {
            Kind::Address => true,
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => matches!(letter, 'x' | 'X'),
            _ => false,
        })
        .collect()
}

/// Generates the statements that write the text.
fn text(event: &EventDecl, arguments: &[(&Argument, String)], out: &str) -> Vec<String> {
    let mut statements = Vec::new();
    let mut next = arguments.iter();
    for segment in &event.segments {
        match segment {
            Segment::Text(text) => {
                // A line break is escaped, as in a string, so that the event stays on one line.
                let text = text.replace('\n', "\\n");
                statements.push(format!("{out}.push({text:?}.as_bytes());"));
            }
            // The parser has checked the number of conversions.
            Segment::Conversion(conversion) => {
                let width = conversion.has_star.then(|| next.next()).flatten();
                let width = width.map(|(_, parameter)| parameter.as_str());
                statements.extend(next.next().map(|(argument, parameter)| {
                    statement(conversion, argument.ty().kind(), parameter, width, out)
                }))
            }
        }
    }
    if statements.is_empty() {
        statements.push(format!("let _ = {out};"));
    }
    statements
}

fn documentation(source: &mut Source, file: &str, event: &EventDecl, more: &str) {
    source.line(format!("/// `{}`", event.signature()));
    source.line("///");
    let format = escaped(&event.format().text(), MARKDOWN);
    let space = if format.is_empty() { "" } else { " " };
    let (file, line) = (escaped(file, MARKDOWN), event.line());
    source.line(format!("/// {format}{space}({file}:{line}){more}"));
}

/// Characters that have a meaning in Markdown or rustdoc.
const MARKDOWN: &[char] =
    &['\\', '`', '*', '_', '{', '}', '[', ']', '<', '>', '#', '|', '~', '&', '$', '!'];

/// Escapes text for a comment: on one line, with a backslash before the `special` characters.
fn escaped(text: &str, special: &[char]) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if special.contains(&c) {
            escaped.push('\\');
        }
        if c.is_ascii() && !c.is_ascii_control() {
            escaped.push(c);
        } else {
            escaped.extend(c.escape_debug());
        }
    }
    escaped
}

/// Returns a raw string with as many hashes as its text needs.
fn raw_string(text: &str) -> String {
    let mut hashes = "#".to_owned();
    while text.contains(&format!("\"{hashes}")) {
        hashes.push('#');
    }
    format!("r{hashes}\"{text}\"{hashes}")
}

fn listed<T>(items: &[T], shown: impl Fn(&T) -> String) -> String {
    items.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// Returns a list with `first` before the items of `rest`.
fn joined(first: &str, rest: &str) -> String {
    if rest.is_empty() { first.to_owned() } else { format!("{first}, {rest}") }
}

fn tuple(items: impl Iterator<Item = String>) -> String {
    let items: String = items.map(|item| item + ", ").collect();
    match items.matches(", ").count() {
        0 => "()".to_owned(),
        1 => format!("({})", items.trim_end()),
        _ => format!("({})", items.trim_end_matches(", ")),
    }
}
