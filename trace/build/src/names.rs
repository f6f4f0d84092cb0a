//! Names: the limits of the recorded format, and the identifiers in the generated Rust code.

/// Maximum size of a name of an event or an argument in bytes: the limit of schema texts.
pub const MAX_NAME: usize = 64;
/// Maximum number of arguments of an event. If any event has more arguments, QEMU's readers refuse the whole
/// file with all events of the program.
pub const MAX_ARGUMENTS: usize = 10;

/// Keywords of all editions that can be raw identifiers.
const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

/// Words that cannot even be raw identifiers. A parameter gets an underscore after such a word.
const IMPOSSIBLE: &[&str] = &["_", "self", "Self", "super", "crate"];

/// Names in the same scope as the events' modules: types of parameters, and the module of the generated code.
const TAKEN: &[&str] = &["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool", "AsRef"];

/// Constants in the same scope, whose names a parameter must not have.
const CONSTANTS: &[&str] = &["EVENT", "FIRE", "Names", "None", "Some", "Ok", "Err"];

/// Returns the expected text if a word cannot name an event.
pub(crate) fn refuse_event(name: &str) -> Option<&'static str> {
    if TAKEN.contains(&name) {
        return Some("a name that the generated code does not need for itself");
    }
    if IMPOSSIBLE.contains(&name) {
        return Some("a name that Rust allows");
    }
    refuse(name)
}

/// Returns the expected text if a word cannot name an argument or an event.
pub(crate) fn refuse(name: &str) -> Option<&'static str> {
    (name.len() > MAX_NAME).then_some("a name of at most 64 bytes")
}

/// Returns the name as a Rust identifier.
pub(crate) fn identifier(name: &str) -> String {
    if KEYWORDS.contains(&name) { format!("r#{name}") } else { name.to_owned() }
}

/// Returns the names of the parameters of a generated function.
pub(crate) fn parameters<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let parameter = |name: &'a str| {
        let is_taken = CONSTANTS.contains(&name) || IMPOSSIBLE.contains(&name);
        if is_taken { unused(name, names.clone()) } else { identifier(name) }
    };
    names.clone().map(parameter).collect()
}

/// Returns the name, with underscores appended until the name differs from every argument's name.
pub(crate) fn unused<'a>(name: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    let mut name = name.to_owned();
    while names.clone().any(|other| other == name) {
        name.push('_');
    }
    name
}
