//! Names: what the wire allows, and what Rust and the generated code make of
//! them.

/// Longest name of an event or an argument, bytes: what a schema text holds.
pub const MAX_NAME: usize = 64;
/// Most arguments of an event: QEMU's readers refuse a file that has one with
/// more, and that file is all events of a program.
pub const MAX_ARGUMENTS: usize = 10;

/// Keywords of all editions; as raw identifiers they are names.
const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

/// What cannot even be a raw identifier.
const IMPOSSIBLE: &[&str] = &["_", "self", "Self", "super", "crate"];

/// Names that stand in the same scope as the events' modules: types of
/// parameters, and the module of the generated code itself.
const TAKEN: &[&str] =
    &["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool", "f64", "AsRef", "c_printf"];

/// Constants in scope, which a parameter must not be named after.
const CONSTANTS: &[&str] = &["EVENT", "FIRE", "Names", "None", "Some", "Ok", "Err"];

/// Why a word cannot name an event: what is expected instead.
pub(crate) fn refuse_event(name: &str) -> Option<&'static str> {
    if TAKEN.contains(&name) {
        return Some("a name that the generated code does not need for itself");
    }
    refuse(name)
}

/// Why a word cannot name an argument or an event.
pub(crate) fn refuse(name: &str) -> Option<&'static str> {
    if name.len() > MAX_NAME {
        return Some("a name of at most 64 bytes");
    }
    IMPOSSIBLE.contains(&name).then_some("a name that Rust allows")
}

/// The name as a Rust identifier.
pub(crate) fn identifier(name: &str) -> String {
    if KEYWORDS.contains(&name) { format!("r#{name}") } else { name.to_owned() }
}

/// The names of the parameters of a generated function.
pub(crate) fn parameters<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let parameter = |name: &'a str| {
        if CONSTANTS.contains(&name) { unused(name, names.clone()) } else { identifier(name) }
    };
    names.clone().map(parameter).collect()
}

/// The name, with underscores added until no argument has it.
pub(crate) fn unused<'a>(name: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    let mut name = name.to_owned();
    while names.clone().any(|other| other == name) {
        name.push('_');
    }
    name
}
