// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The text that describes the stream: TSDL.
//!
//! Every field of an event gets an underscore in front, as in LTTng, because the field's name may be a word
//! of the language such as `struct` or `event`. Readers remove the underscore.

use super::class::{CONTEXT, Class, Classes, Type};
use hypertrace_format::tsdl::{free_name, quoted, write_clock, write_environment};
use hypertrace_timeline::SessionJson;
use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::Arc;

/// Maximum number of characters of a field's name. Readers take minutes to parse a name of a million
/// characters.
const MAX_NAME: usize = 256;

const HEAD: &str = "\
/* CTF 1.8 */

typealias integer { size = 8; align = 8; signed = false; } := byte;
typealias integer { size = 32; align = 8; signed = false; } := word;
typealias integer { size = 64; align = 8; signed = false; } := u64;
typealias integer { size = 64; align = 8; signed = false; base = 16; } := x64;
typealias integer { size = 64; align = 8; signed = true; } := i64;
typealias floating_point { exp_dig = 11; mant_dig = 53; align = 8; } := f64;

trace {
	major = 1;
	minor = 8;
	byte_order = le;
	packet.header := struct {
		word magic;
		word stream_id;
	};
};
";

const STREAM: &str = "
typealias integer { size = 64; align = 8; signed = false; map = clock.host.value; } := time;

stream {
	id = 0;
	packet.context := struct {
		time timestamp_begin;
		time timestamp_end;
		u64 content_size;
		u64 packet_size;
		u64 events_discarded;
	};
	event.header := struct {
		time timestamp;
		word id;
	};
	event.context := struct {
		string source;
	};
};
";

/// Returns the text that describes a trace. `session` is the session from which the trace was made, if there
/// is a session. `base`: Unix time at the clock's 0, in nanoseconds.
pub(super) fn text(session: Option<&SessionJson>, base: i64, classes: &Classes) -> String {
    let mut out = HEAD.to_owned();
    // Writing to a String does not fail.
    let _ = write(&mut out, session, base, classes.iter());
    out
}

fn write<'a>(
    out: &mut String,
    session: Option<&SessionJson>,
    base: i64,
    classes: impl Iterator<Item = &'a Class>,
) -> fmt::Result {
    let origin = session.and_then(|session| session.origin.as_ref());
    write_environment(out, origin, session.and_then(|session| session.trace_parent.as_deref()))?;
    write_clock(out, "host", None::<&str>, 1_000_000_000, base.into())?;
    out.push_str(STREAM);
    classes.enumerate().try_for_each(|(number, class)| write_class(out, number, class))
}

fn write_class(out: &mut String, number: usize, class: &Class) -> fmt::Result {
    let name = quoted(&class.name);
    write!(out, "\nevent {{\n\tname = {name};\n\tid = {number};\n\tstream_id = 0;\n")?;
    if class.context != 0 {
        out.push_str("\tcontext := struct {\n");
        for (bit, (name, is_wide)) in CONTEXT.iter().enumerate() {
            if class.context >> bit & 1 == 1 {
                writeln!(out, "\t\t{} {name};", if *is_wide { "u64" } else { "word" })?;
            }
        }
        out.push_str("\t};\n");
    }
    out.push_str("\tfields := struct {\n");
    // The event's fields get their names before the members that this program adds. So an added member is
    // renamed if a field has the same name.
    let mut taken = BTreeSet::new();
    let named =
        |(name, of): &(Arc<str>, Type)| (free_name::<()>(identifier(name), &mut taken, &[]), *of);
    let names: Vec<(String, Type)> = class.fields.iter().map(named).collect();
    for (at, (name, of)) in names.iter().enumerate() {
        let of = match of {
            Type::Unsigned => "u64",
            Type::Signed => "i64",
            Type::Hex => "x64",
            Type::Float => "f64",
            Type::Bool => "byte",
            Type::Text => "string",
            Type::Words | Type::SignedWords => {
                let element = if *of == Type::Words { "u64" } else { "i64" };
                let len = free_name(format!("_{name}_len"), &mut taken, &names[at..]);
                writeln!(out, "\t\tword {len};\n\t\t{element} {name}[{len}];")?;
                continue;
            }
        };
        writeln!(out, "\t\t{of} {name};")?;
    }
    out.push_str("\t};\n};\n");
    Ok(())
}

/// Returns a name as an identifier. Names of kernels' fields may have dots and hyphens.
fn identifier(name: &str) -> String {
    let known = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    std::iter::once('_').chain(name.chars().take(MAX_NAME).map(known)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, fields: &[(&str, Type)]) -> String {
        let fields = fields.iter().map(|(name, of)| (Arc::from(*name), *of)).collect();
        let mut out = String::new();
        write_class(&mut out, 7, &Class { name: name.into(), context: 0b10001, fields }).unwrap();
        out
    }

    #[test]
    fn a_class_has_its_context_and_its_fields() {
        let text = class("disk_read", &[("lba", Type::Hex), ("parts", Type::SignedWords)]);
        let expected = "
event {
	name = \"disk_read\";
	id = 7;
	stream_id = 0;
	context := struct {
		word client;
		u64 bound_ns;
	};
	fields := struct {
		x64 _lba;
		word __parts_len;
		i64 _parts[__parts_len];
	};
};
";
        assert_eq!(text, expected);
    }

    #[test]
    fn no_name_ends_the_text_or_is_anothers() {
        let fields = [
            ("a-b", Type::Bool),
            ("a.b", Type::Bool),
            ("a_b", Type::Bool),
            ("*/ };", Type::Text),
            ("", Type::Text),
            ("w", Type::Words),
            ("_w_len", Type::Float),
        ];
        let text = class("*/ \"};\nevent", &fields);
        let names = text.lines().filter_map(|line| line.strip_prefix("\t\t")?.split(' ').nth(1));
        let expected = [
            "client;",
            "bound_ns;",
            "_a_b;",
            "_a_b_;",
            "_a_b_2;",
            "______;",
            "_;",
            "__w_len_;",
            "_w[__w_len_];",
            "__w_len;",
        ];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert!(text.contains("name = \"*/ \\\"};?event\";"), "{text}");
    }

    #[test]
    fn names_are_short() {
        let long = "n".repeat(10 << 20);
        assert!(class(&long, &[(&long, Type::Bool)]).len() < 2_000);
    }
}
