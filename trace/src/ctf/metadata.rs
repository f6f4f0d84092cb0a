//! The trace's TSDL text (CTF 1.8), which tells any CTF reader the layout of the other files.
//!
//! The text has one clock and one stream class for each [`ClockEntry`]. An event class is repeated in each
//! stream class that has events of this class. The text consists of blocks: a block is either a clock with
//! its stream class, or an event class. The writer appends each block to the file before the first packet
//! that needs the block. A block never crosses a page of the file: otherwise, a kill could leave a part of
//! the block, and the whole trace would be unreadable. Names come from guests: [`Schema::parse`] leaves only
//! ASCII identifiers. As in LTTng, each name in the text begins with an additional underscore, so that a
//! field may be called `struct` or `event`. Readers remove this underscore.

use hypertrace_abi::schema::{FieldType, Schema};
use hypertrace_abi::trace_parent::TraceParent;
use hypertrace_format::origin::Origin;
use hypertrace_format::tsdl::{self, free_name};
use hypertrace_format::uuid;
use std::collections::BTreeSet;
use std::fmt::{self, Write};

/// A clock as TSDL describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockEntry {
    /// Id of the clock and of its stream class.
    pub id: u32,
    /// Name, a TSDL identifier.
    pub name: String,
    /// UUID. Different clocks must have different UUIDs.
    pub uuid: [u8; 16],
    /// Frequency in ticks per second.
    pub frequency: u64,
    /// Unix time at tick 0, in nanoseconds.
    pub offset_ns: i128,
}

/// An event class in a stream class.
#[derive(Clone, Copy, Debug)]
pub struct ClassEntry<'a> {
    /// Id of the stream class.
    pub stream_id: u32,
    /// Dense id of the event class.
    pub id: u32,
    /// Name and fields of the event class, from [`class_body`].
    pub body: &'a str,
}

/// Names of the fields that stand before the schema's own fields in a reference point.
pub const REFERENCE_FIELDS: [&str; 4] = ["client", "cpu", "seq", "guest_time"];

/// Size of a page of the file in bytes. The kernel writes a page whole or not at all.
const PAGE: u64 = 4096;

/// Returns the whole text of the metadata.
pub fn tsdl<'a>(
    uuid: &[u8; 16],
    origin: Option<&Origin>,
    trace_parent: Option<&TraceParent>,
    clocks: &[ClockEntry],
    classes: impl Iterator<Item = ClassEntry<'a>>,
) -> String {
    let mut out = String::with_capacity(4096);
    // Writing to a String does not fail.
    let _ = write_head(&mut out, uuid, origin, trace_parent);
    let at = out.len() as u64;
    out + &blocks(at, clocks, classes)
}

/// Returns the blocks of clocks and event classes. The caller appends these blocks at offset `at` of the
/// file.
pub fn blocks<'a>(
    at: u64,
    clocks: &[ClockEntry],
    classes: impl Iterator<Item = ClassEntry<'a>>,
) -> String {
    let mut out = Blocks { text: String::new(), at };
    clocks.iter().for_each(|clock| out.add(|text| write_clock(text, clock)));
    for ClassEntry { stream_id, id, body } in classes {
        out.add(|text| {
            write!(text, "\nevent {{\n\tid = {id};\n\tstream_id = {stream_id};\n{body}}};\n")
        });
    }
    out.text
}

struct Blocks {
    text: String,
    /// Offset of the text in the file.
    at: u64,
}

impl Blocks {
    /// Adds a block. If the block would cross a page, it begins at the next page.
    fn add(&mut self, write: impl FnOnce(&mut String) -> fmt::Result) {
        let begin = self.text.len();
        // Writing to a String does not fail.
        let _ = write(&mut self.text);
        let bytes = (self.text.len() - begin) as u64;
        let left = PAGE - (self.at + begin as u64) % PAGE;
        debug_assert!(bytes <= PAGE, "a block of {bytes} bytes");
        if bytes > left {
            self.text.insert_str(begin, &"\n".repeat(left as usize));
        }
    }
}

fn write_head(
    out: &mut String,
    uuid: &[u8; 16],
    origin: Option<&Origin>,
    trace_parent: Option<&TraceParent>,
) -> fmt::Result {
    write!(
        out,
        r#"/* CTF 1.8 */

typealias integer {{ size = 8; align = 8; signed = false; }} := byte;
typealias integer {{ size = 8; align = 8; signed = false; encoding = UTF8; }} := utf8;
typealias integer {{ size = 16; align = 16; signed = false; }} := half;
typealias integer {{ size = 32; align = 32; signed = false; }} := word;
typealias integer {{ size = 32; align = 64; signed = false; }} := length;
typealias integer {{ size = 64; align = 64; signed = false; }} := u64;
typealias integer {{ size = 64; align = 64; signed = false; base = 16; }} := x64;
typealias integer {{ size = 64; align = 64; signed = true; }} := i64;
typealias floating_point {{ exp_dig = 11; mant_dig = 53; align = 64; }} := f64;

trace {{
	major = 1;
	minor = 8;
	uuid = "{}";
	byte_order = le;
	packet.header := struct {{
		word magic;
		byte uuid[16];
		word stream_id;
	}};
}};
"#,
        uuid::text(u128::from_be_bytes(*uuid))
    )?;
    let parent = trace_parent.map(TraceParent::to_string);
    tsdl::write_environment(out, origin, parent.as_deref())
}

fn write_clock(out: &mut String, clock: &ClockEntry) -> fmt::Result {
    let ClockEntry { id, name, uuid, frequency, offset_ns } = clock;
    let uuid = uuid::text(u128::from_be_bytes(*uuid));
    tsdl::write_clock(out, name, Some(uuid), *frequency, *offset_ns)?;
    write!(
        out,
        r#"typealias integer {{ size = 64; align = 64; signed = false; map = clock.{name}.value; }} := {name}_t;

stream {{
	id = {id};
	packet.context := struct {{
		{name}_t timestamp_begin;
		{name}_t timestamp_end;
		u64 content_size;
		u64 packet_size;
		u64 events_discarded;
		u64 ring_begin;
		u64 ring_end;
		x64 lease_token;
		word client;
		word epoch;
		u64 events_filtered;
		u64 faults;
		u64 sequence;
		word reserved;
		word domain;
	}};
	event.header := struct {{
		{name}_t timestamp;
		word id;
	}};
	event.context := struct {{
		half words;
		half flags;
	}};
}};
"#
    )
}

/// Returns the name and the fields of an event class. All clocks share the returned text. If
/// `reference_point` is true, client, cpu, seq and guest time precede the schema's own fields.
pub fn class_body(schema: &Schema<'_>, reference_point: bool) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = write_body(&mut out, schema, reference_point);
    out
}

fn write_body(out: &mut String, schema: &Schema<'_>, reference_point: bool) -> fmt::Result {
    write!(out, "\tname = \"{}\";\n\tfields := struct {{\n", schema.name())?;
    // The guest's own fields get their names first. If a reference field has the same name, the reference
    // field gets another name.
    let mut taken = BTreeSet::new();
    let fields =
        schema.fields().map(|f| (free_name::<()>(format!("_{}", f.name), &mut taken, &[]), f.ty));
    let fields: Vec<(String, FieldType)> = fields.collect();
    if reference_point {
        for name in REFERENCE_FIELDS {
            writeln!(out, "\t\tu64 {};", free_name(format!("_{name}"), &mut taken, &fields))?;
        }
    }
    for (at, (name, ty)) in fields.iter().enumerate() {
        let (prefix, suffix) = match ty {
            FieldType::Str => ("length", "utf8"),
            FieldType::Words => ("u64", "u64"),
            scalar => {
                writeln!(out, "\t\t{} {name};", scalar_alias(*scalar))?;
                continue;
            }
        };
        let len = free_name(format!("_{name}_len"), &mut taken, &fields[at..]);
        writeln!(out, "\t\t{prefix} {len};\n\t\t{suffix} {name}[{len}];")?;
    }
    out.push_str("\t};\n");
    Ok(())
}

fn scalar_alias(ty: FieldType) -> &'static str {
    match ty {
        FieldType::I8 | FieldType::I16 | FieldType::I32 | FieldType::I64 => "i64",
        FieldType::F64 => "f64",
        FieldType::X64 => "x64",
        _ => "u64",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(offset_ns: i128) -> ClockEntry {
        ClockEntry {
            id: 0,
            name: "host".into(),
            uuid: [0; 16],
            frequency: 2_000_000_000,
            offset_ns,
        }
    }

    fn class(schema: &str, reference_point: bool) -> String {
        class_body(&Schema::parse(schema).unwrap(), reference_point)
    }

    #[test]
    fn names_that_clash_with_ours_keep_their_own() {
        let text = class("e(cpu:u8,s:str,_s_len:u8)", true);
        assert!(text.contains("u64 _cpu_;"), "{text}");
        assert!(text.contains("length __s_len_;\n\t\tutf8 _s[__s_len_];"), "{text}");
        assert!(text.contains("u64 __s_len;"), "{text}");
    }

    #[test]
    fn no_block_crosses_a_page_and_the_largest_fits_one() {
        use hypertrace_abi::schema::{MAX_FIELDS, MAX_NAME};
        // The test uses strings, because the text of a string's type is longer than the text of any other
        // type.
        let field = |n: usize| format!("{}{n:x}:str", "a".repeat(MAX_NAME - 1));
        let fields: Vec<String> = (0..MAX_FIELDS).map(field).collect();
        let largest = class(&format!("{}({})", "n".repeat(MAX_NAME), fields.join(",")), true);
        // If names clash, the text gets longer, because free names are longer.
        let field = |n: usize| format!("{}:str", "_".repeat(MAX_NAME - n));
        let fields: Vec<String> = (0..MAX_FIELDS).map(field).collect();
        let clashing = class(&format!("{}({})", "n".repeat(MAX_NAME), fields.join(",")), true);
        let bodies = [largest, class("small(n:u64)", false), clashing];
        let classes = (0..100usize).map(|n| {
            let body = &bodies[n % 3];
            ClassEntry { stream_id: u32::MAX, id: u32::MAX, body }
        });
        for at in [0, 1, 4095, 4096, 5000] {
            let text = blocks(at, &[clock(i64::MAX.into())], classes.clone());

            assert_eq!(text.matches("event {").count(), 100);
            let file = "\n".repeat(at as usize) + &text;
            for page in file.as_bytes().chunks(PAGE as usize) {
                let count = |brace| page.iter().filter(|byte| **byte == brace).count();
                assert_eq!(count(b'{'), count(b'}'));
                assert!(page.ends_with(b"\n"));
            }
        }
    }
}
