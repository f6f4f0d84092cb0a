//! Parts of TSDL, the text that describes a trace in Common Trace Format (CTF 1.8).

use crate::origin::Origin;
use std::collections::BTreeSet;
use std::fmt::{self, Display, Write};

const NS: i128 = 1_000_000_000;

/// Maximum number of characters in a quoted text.
const MAX_TEXT: usize = 512;

/// Quotes a text for TSDL. Characters other than printable ASCII become question marks.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars().take(MAX_TEXT) {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => out.push('?'),
        }
    }
    out + "\""
}

/// Returns the name. If the name is not free, a final underscore, or a final underscore and a number, makes
/// the name unique. Readers remove one underscore from the front of each name, and refuse a name that then
/// equals an earlier name. `ahead` has the names of the fields that follow.
pub fn free_name<T>(name: String, taken: &mut BTreeSet<String>, ahead: &[(String, T)]) -> String {
    let shown = |name: &str| name.strip_prefix('_').unwrap_or(name).to_owned();
    let is_free =
        |name: &str| !taken.contains(name) && ahead.iter().all(|(next, _)| *next != shown(name));
    let (mut free, mut number) = (name.clone(), 1);
    while !is_free(&free) {
        // Without numbers, each further equal name would need one more underscore.
        free = if number == 1 { format!("{name}_") } else { format!("{name}_{number}") };
        number += 1;
    }
    taken.extend([shown(&free), free.clone()]);
    free
}

/// Writes the origin of the trace, and the span during which the trace was recorded.
///
/// # Errors
/// If the output cannot be written.
pub fn write_environment(
    out: &mut impl Write,
    origin: Option<&Origin>,
    trace_parent: Option<&str>,
) -> fmt::Result {
    writeln!(out, "\nenv {{\n\ttracer_name = \"hypertrace\";\n\ttracer_major = 2;")?;
    if let Some(Origin { command, host, kernel, machine, .. }) = origin {
        // LTTng uses the same names.
        let fields = [("hostname", host), ("kernel_release", kernel), ("architecture", machine)];
        for (name, text) in fields.into_iter().chain([("command", command)]) {
            writeln!(out, "\t{name} = {};", quoted(text))?;
        }
    }
    if let Some(parent) = trace_parent {
        writeln!(out, "\ttraceparent = {};", quoted(parent))?;
    }
    writeln!(out, "}};")
}

/// Writes a clock whose tick 0 is at the Unix time `offset_ns`, in nanoseconds. Different clocks must have
/// different UUIDs.
///
/// # Errors
/// If the output cannot be written.
pub fn write_clock(
    out: &mut impl Write,
    name: &str,
    uuid: Option<impl Display>,
    frequency: u64,
    offset_ns: i128,
) -> fmt::Result {
    // Only `offset_s` may be negative, because readers refuse a negative `offset`.
    let seconds = offset_ns.div_euclid(NS);
    let ticks = offset_ns.rem_euclid(NS) * i128::from(frequency) / NS;
    writeln!(out, "\nclock {{\n\tname = \"{name}\";")?;
    if let Some(uuid) = uuid {
        writeln!(out, "\tuuid = \"{uuid}\";")?;
    }
    writeln!(out, "\tfreq = {frequency};\n\toffset_s = {seconds};\n\toffset = {ticks};")?;
    writeln!(out, "\tabsolute = true;\n}};")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_offset_is_negative_in_its_seconds_only() {
        let mut text = String::new();
        write_clock(&mut text, "host", None::<&str>, 2_000_000_000, -1_500_000_000).unwrap();
        assert!(text.contains("offset_s = -2;\n\toffset = 1000000000;"), "{text}");
    }

    #[test]
    fn no_name_is_an_earlier_one_without_its_underscore() {
        let free = |names: &[&str]| {
            let mut taken = BTreeSet::new();
            let free = names.iter().map(|name| free_name::<()>((*name).into(), &mut taken, &[]));
            free.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(free(&["_x", "__x", "__z"]), "_x __x __z");
        assert_eq!(free(&["__x", "_x", "_x"]), "__x _x_ _x_2");
        assert_eq!(free(&["___", "__"]), "___ ___2");
        let ahead = [("_x_len".to_owned(), ())];
        assert_eq!(free_name("__x_len".into(), &mut BTreeSet::new(), &ahead), "__x_len_");
    }

    #[test]
    fn a_text_ends_at_no_quote_and_no_comment() {
        assert_eq!(quoted("a\"b\\ */\n\u{e4}"), "\"a\\\"b\\\\ */??\"");
        assert_eq!(quoted(&"x".repeat(1 << 20)).len(), MAX_TEXT + 2);
    }
}
