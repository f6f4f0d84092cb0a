// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Event formats of Linux, which describe the fields of events and the names of the fields' values.
//!
//! The kernel describes each event in a text, `events/SYSTEM/EVENT/format` of tracefs. For each field, the
//! text has a line with the field's place in a record. The text also has the code of a `printf` (`print
//! fmt`), from which [`print`] takes the names of values.

mod print;

use crate::value::{Array, MAX_NAME, Name, Part, ValueRef, number, signed_number};
use hypertrace_abi::event::cut;
use print::{Expr, Found, Named, Print};
use std::sync::Arc;

/// Maximum number of fields of an event. A system call has 8 fields, and the largest event of Linux 6.18 has
/// 54 fields.
const MAX_FIELDS: usize = 256;
/// Maximum size in bytes of all names of values that are shown for one event. All names of an event's fields
/// have the same maximum size. In Linux 6.18, the names of an event's fields have up to 266 bytes.
const MAX_NAMES: usize = 4096;
/// Maximum number of bytes of a faulty name, and of characters of a field's faulty line, that an error shows.
const MAX_SHOWN: usize = 80;
/// Maximum offset or size of a field in bytes. Records are smaller than a page.
const MAX_BYTES: usize = 1 << 16;

/// Size of the fields that all events have, in bytes: u16 id, u8 flags, u8 depth, i32 thread.
pub(crate) const COMMON: usize = 8;

/// The format of an event.
#[derive(Debug)]
pub(crate) struct Format {
    /// Index of the format among the formats of the file.
    pub number: u32,
    /// Full name of the event: `SYSTEM:EVENT`.
    pub name: Arc<str>,
    /// Fields of the event. The common fields, which all events have, come first.
    fields: Vec<Field>,
    /// Number of fields that all events have.
    common: usize,
    /// Least size of a record that has all fields, in bytes.
    pub least: usize,
    /// Number of fields whose lines cannot be read, and the first of these lines.
    pub unread: Option<(usize, String)>,
    /// Fields of an event of `trace_printk`.
    pub printk: Option<Printk>,
}

/// Indices of the fields of an event of `trace_printk`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printk {
    /// Field with the address of a text.
    pub address: usize,
    /// Field with the arguments, if the text at `address` is a format string.
    pub arguments: Option<usize>,
}

impl Printk {
    fn of(fields: &[Field], name: &str) -> Option<Printk> {
        let index = |name: &str| fields.iter().position(|field| &*field.name == name);
        match name {
            "bprint" => Some(Printk { address: index("fmt")?, arguments: Some(index("buf")?) }),
            "bputs" => Some(Printk { address: index("str")?, arguments: None }),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Field {
    name: Arc<str>,
    at: usize,
    size: usize,
    shape: Shape,
    /// Expressions for the names of the field's values.
    names: Vec<Expr>,
    /// Name of an extra field that follows this field and shows the name of the value. `None` if the name
    /// determines the whole number.
    label: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    Unsigned,
    Signed,
    Hex,
    Bool,
    /// A text that ends at its first NUL, or at the end of the field.
    Text,
    Array(Element),
    /// The place of an array within the record: u16 offset, u16 size in bytes. If `relative`, the offset
    /// counts from the end of this field.
    Located {
        relative: bool,
        element: Element,
    },
    /// An array that extends to the end of the record.
    Rest(Element),
    /// An array of 8-byte words. The field with this index holds the number of words.
    Counted(usize),
}

#[derive(Clone, Copy, Debug)]
enum Element {
    Character,
    Number { width: usize, signed: bool },
}

impl Element {
    fn value(self, bytes: &[u8]) -> ValueRef<'_> {
        match self {
            Element::Character => ValueRef::Str(text(bytes)),
            Element::Number { width, signed } => {
                ValueRef::Array(Array::of_bytes(bytes, width, signed))
            }
        }
    }
}

/// Returns the id in a format's text.
pub(crate) fn id(text: &str) -> Option<u16> {
    // The id is normally in the second line. A search in a few more lines costs little.
    text.lines().take(8).find_map(|line| line.strip_prefix("ID:"))?.trim().parse().ok()
}

/// Returns the name of the extra field that shows the names of a field's values. `tells` holds the bits of
/// the value that follow from the names. If all bits follow from the names, the function returns `None`.
fn label(fields: &[Field], field: usize, tells: u64) -> Option<Arc<str>> {
    let Field { name, size, .. } = &fields[field];
    let all = u64::MAX >> (64 - 8 * size.clamp(&1, &8));
    (all & !tells != 0).then(|| {
        let mut label = format!("{name}_name");
        while fields.iter().any(|field| *field.name == *label) {
            label.push('_');
        }
        label.into()
    })
}

/// Returns the event's name in a format's text.
fn name(text: &str) -> &str {
    text.lines().find_map(|line| line.strip_prefix("name:")).unwrap_or("").trim()
}

/// Returns the full name of the event that a format's text describes, if the name can be shown.
pub(crate) fn full_name(system: &str, text: &str) -> Option<String> {
    let name = name(text);
    (is_identifier(system) && is_identifier(name)).then(|| format!("{system}:{name}"))
}

/// Corrects the shapes of fields in ftrace's own events, because the formats of these events do not state the
/// lengths of the fields.
fn fix_shapes(fields: &mut [Field], event: &str) {
    let size = fields.iter().position(|field| &*field.name == "size");
    let end = fields.iter().map(|field| field.at + field.size).max();
    let Some((last, _)) = fields.split_last_mut() else { return };
    let is_at_end = last.size == 0 && Some(last.at) >= end;
    match (event, &*last.name, size) {
        // The 8 in `caller[8]` is not the length: the field `size` has the number of callers.
        ("kernel_stack", "caller", Some(size)) => {
            (last.size, last.shape) = (0, Shape::Counted(size))
        }
        // The field holds any bytes, not a text that ends at a NUL.
        ("raw_data", "buf", _) if is_at_end => {
            last.shape = Shape::Rest(Element::Number { width: 1, signed: false });
        }
        // Old kernels write `char buf` for `char buf[]`.
        ("print", "buf", _) if is_at_end => last.shape = Shape::Rest(Element::Character),
        ("bprint", "buf", _) if is_at_end => {
            last.shape = Shape::Rest(Element::Number { width: 4, signed: false });
        }
        _ => {}
    }
}

/// Returns whether a name can be shown without escapes.
fn is_identifier(name: &str) -> bool {
    let known = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-' | b'.');
    !name.is_empty() && name.len() <= 128 && name.bytes().all(known)
}

impl Format {
    /// Parses a format's text. `number`: [`Format::number`].
    ///
    /// # Errors
    /// The fault of the text.
    pub fn parse(number: u32, system: &str, text: &str) -> Result<Format, String> {
        let name = name(text);
        if !is_identifier(name) || !is_identifier(system) {
            let (system, name) = (cut(system, MAX_SHOWN), cut(name, MAX_SHOWN));
            return Err(format!("expected a name of an event, found {system:?}:{name:?}"));
        }
        let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("field:"));
        let (mut fields, mut unread, mut room) = (Vec::new(), None, MAX_NAMES);
        for line in lines {
            let field = Field::parse(line).filter(|_| fields.len() < MAX_FIELDS);
            match field.filter(|field| take(&mut room, field.name.len())) {
                Some(field) => fields.push(field),
                None => {
                    let first = || (0, line.chars().take(MAX_SHOWN).collect());
                    unread.get_or_insert_with(first).0 += 1;
                }
            }
        }
        if system == "ftrace" {
            fix_shapes(&mut fields, name);
        }
        let common = fields.iter().take_while(|f: &&Field| f.name.starts_with("common_")).count();
        // The id and the thread must be at their usual places, because the reader takes both from fixed
        // places of each record.
        for (field, place) in [("common_type", (0, 2)), ("common_pid", (4, 4))] {
            let is = |f: &&Field| &*f.name == field && (f.at, f.size) == place;
            if !fields.iter().any(|f| is(&f)) {
                let (at, size) = place;
                return Err(format!("{name}: expected {field} at {at} with {size} bytes"));
            }
        }
        // The code is everything after `print fmt:` and not only one line, because a format string can
        // contain newlines.
        if let Some((_, code)) = text.split_once("\nprint fmt:") {
            let index = |name: &str| {
                let index = fields.iter().position(|f| &*f.name == name)?;
                Some((index, matches!(fields[index].shape, Shape::Signed)))
            };
            let Print { names, hex } = print::parse(code, &index);
            for field in hex {
                fields[field].show_hex();
            }
            for Named { field, exprs, tells } in names {
                let label = label(&fields, field, tells);
                fields[field].set_names(exprs, label);
            }
        }
        let least = fields.iter().map(|f| f.at + f.size).max().unwrap_or(0);
        let printk = if system == "ftrace" { Printk::of(&fields, name) } else { None };
        let name = format!("{system}:{name}").into();
        Ok(Format { number, name, fields, common, least, unread, printk })
    }

    /// Iterates over the names of the event's own fields, including the extra fields that show names of
    /// values.
    pub fn own_fields(&self) -> impl Iterator<Item = &Arc<str>> {
        let own = self.fields[self.common..].iter();
        own.flat_map(|field| std::iter::once(&field.name).chain(&field.label))
    }

    /// Makes the format for events whose own format is missing. This format shows the id and the bytes of an
    /// event.
    pub fn unknown() -> Format {
        let bytes = Element::Number { width: 1, signed: false };
        let field = |name: &str, at, size, shape| Field {
            name: name.into(),
            at,
            size,
            shape,
            names: Vec::new(),
            label: None,
        };
        let fields =
            vec![field("id", 0, 2, Shape::Unsigned), field("bytes", COMMON, 0, Shape::Rest(bytes))];
        let (unread, printk) = (None, None);
        Format {
            number: 0,
            name: "unknown".into(),
            fields,
            common: 0,
            least: COMMON,
            unread,
            printk,
        }
    }
}

impl Format {
    /// Returns the index of a field.
    pub fn field(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| &*field.name == name)
    }
}

impl Field {
    /// Parses `unsigned short common_type; offset:0; size:2; signed:0;`.
    fn parse(line: &str) -> Option<Field> {
        let mut parts = line.split(';').map(str::trim);
        let declaration = parts.next()?;
        let (mut at, mut size, mut signed) = (None, None, false);
        for part in parts {
            match part.split_once(':') {
                Some(("offset", n)) => at = n.parse().ok(),
                Some(("size", n)) => size = n.parse().ok(),
                Some(("signed", n)) => signed = n == "1",
                _ => {}
            }
        }
        let (at, size): (usize, usize) = (at?, size?);
        if at > MAX_BYTES || size > MAX_BYTES {
            return None;
        }
        let (name, shape) = shape(declaration, size, signed)?;
        let field = || Field { name: name.into(), at, size, shape, names: Vec::new(), label: None };
        is_identifier(name).then(field)
    }

    fn set_names(&mut self, names: Vec<Expr>, label: Option<Arc<str>>) {
        // If the names determine only a part of the number, most of these names are names of bits. So the
        // number is shown in hexadecimal.
        if label.is_some() && matches!(self.shape, Shape::Unsigned) {
            self.shape = Shape::Hex;
        }
        (self.names, self.label) = (names, label);
    }

    fn show_hex(&mut self) {
        if matches!(self.shape, Shape::Unsigned | Shape::Signed) {
            self.shape = Shape::Hex;
        }
    }

    /// Returns the field's number, if the field is a number.
    fn number(&self, bytes: &[u8]) -> Option<i64> {
        let number = number(bytes.get(self.at..self.at + self.size)?);
        match self.shape {
            Shape::Signed => Some(signed_number(number, self.size)),
            Shape::Unsigned | Shape::Hex | Shape::Bool => Some(number as i64),
            _ => None,
        }
    }

    /// Returns the field's value in a record. `fields` are all fields of the event.
    fn value<'a>(&'a self, fields: &[Field], bytes: &'a [u8]) -> Option<ValueRef<'a>> {
        let own = bytes.get(self.at..self.at + self.size)?;
        Some(match self.shape {
            Shape::Unsigned => ValueRef::Unsigned(number(own)),
            Shape::Signed => ValueRef::Signed(signed_number(number(own), self.size)),
            Shape::Hex => ValueRef::Hex(number(own)),
            Shape::Bool => ValueRef::Bool(number(own) != 0),
            Shape::Text => ValueRef::Str(text(own)),
            Shape::Array(element) => element.value(own),
            Shape::Rest(element) => element.value(bytes.get(self.at..)?),
            Shape::Counted(by) => {
                let words = usize::try_from(fields.get(by)?.number(bytes)?).ok()?;
                let end = words.checked_mul(8)?.checked_add(self.at)?;
                Element::Number { width: 8, signed: false }.value(bytes.get(self.at..end)?)
            }
            Shape::Located { relative, element } => {
                let place = number(own);
                let from =
                    (place & 0xffff) as usize + if relative { self.at + self.size } else { 0 };
                element.value(bytes.get(from..from + (place >> 16 & 0xffff) as usize)?)
            }
        })
    }
}

impl Format {
    /// Returns whether a record is long enough for all fields and for the arrays whose places the fields
    /// give.
    pub fn fits(&self, bytes: &[u8]) -> bool {
        let is_there = |field: &Field| match field.shape {
            Shape::Located { .. } | Shape::Counted(_) => field.value(&self.fields, bytes).is_some(),
            _ => true,
        };
        bytes.len() >= self.least && self.fields.iter().all(is_there)
    }

    /// Returns the name of the first field for which a record is too short.
    pub fn missing(&self, bytes: &[u8]) -> &str {
        let missing = self.fields.iter().find(|field| field.value(&self.fields, bytes).is_none());
        missing.map_or("", |field| &field.name)
    }
}

/// Returns the part before the first NUL.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns the name and the shape of a declaration in C.
fn shape(declaration: &str, size: usize, signed: bool) -> Option<(&str, Shape)> {
    let located = ["__data_loc ", "__rel_loc "].iter().find(|word| declaration.starts_with(**word));
    if let Some(word) = located {
        // `__data_loc char[] name`
        let (kind, name) = declaration[word.len()..].trim().rsplit_once(char::is_whitespace)?;
        let element = element(kind.trim_end().strip_suffix("[]").unwrap_or(kind), signed, None);
        let relative = *word == "__rel_loc ";
        return (size == 4).then_some((name, Shape::Located { relative, element }));
    }
    if let Some((before, count)) = declaration.strip_suffix(']').and_then(|d| d.rsplit_once('[')) {
        // `char comm[16]`, `char buf[]`
        let (kind, name) = before.trim_end().rsplit_once(char::is_whitespace)?;
        let count: Option<usize> = count.trim().parse().ok().filter(|n| *n > 0);
        let element = element(kind, signed, count.map(|count| size / count));
        let shape = match element {
            _ if size == 0 => Shape::Rest(element),
            Element::Character => Shape::Text,
            _ => Shape::Array(element),
        };
        return Some((name.trim_start_matches('*'), shape));
    }
    let (kind, name) = declaration.trim_end().rsplit_once(char::is_whitespace)?;
    let shape = match size {
        1 | 2 | 4 | 8 if kind.contains('*') || name.starts_with('*') => Shape::Hex,
        1 if matches!(kind.trim(), "bool" | "_Bool") => Shape::Bool,
        1 | 2 | 4 | 8 if signed => Shape::Signed,
        1 | 2 | 4 | 8 => Shape::Unsigned,
        _ => Shape::Array(Element::Number { width: 1, signed: false }),
    };
    Some((name.trim_start_matches('*'), shape))
}

/// Returns the kind of an array's elements. `width` is the size of an element in bytes, if the size is known.
fn element(kind: &str, signed: bool, width: Option<usize>) -> Element {
    let kind = kind.trim().trim_start_matches("const ").trim();
    if kind == "char" {
        return Element::Character;
    }
    let by_name = match kind {
        "short" | "unsigned short" | "u16" | "s16" | "__u16" | "__s16" | "__le16" | "__be16" => 2,
        "int" | "unsigned int" | "unsigned" | "u32" | "s32" | "__u32" | "__s32" | "__le32"
        | "__be32" | "pid_t" | "gid_t" | "uid_t" => 4,
        "long" | "unsigned long" | "long long" | "unsigned long long" | "u64" | "s64" | "__u64"
        | "__s64" | "__le64" | "__be64" | "size_t" | "dma_addr_t" => 8,
        _ if kind.ends_with('*') => 8,
        _ => 1,
    };
    let width = width.filter(|w| (1..=8).contains(w)).unwrap_or(by_name);
    Element::Number { width, signed }
}

/// Subtracts `part` from the room that is left. Returns whether there was enough room.
fn take(room: &mut usize, part: usize) -> bool {
    let left = room.checked_sub(part);
    *room = left.unwrap_or(*room);
    left.is_some()
}

/// The fields of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    pub format: &'a Format,
    pub bytes: &'a [u8],
    /// The text of an event of `trace_printk`.
    pub printed: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    /// Returns the number in a field of the event's format, see [`Format::field`].
    pub fn number(self, field: usize) -> Option<i64> {
        self.format.fields.get(field)?.number(self.bytes)
    }

    /// Returns the text in a field, see [`Format::field`].
    pub fn text(self, field: usize) -> Option<&'a [u8]> {
        match self.format.fields.get(field)?.value(&self.format.fields, self.bytes)? {
            ValueRef::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the name of the number in a field, or the number.
    pub fn shown(self, field: usize) -> Option<String> {
        let field = self.format.fields.get(field)?;
        match self.name(field, &mut { MAX_NAMES }) {
            Some(name) => Some(name.to_string()),
            None => Some(field.number(self.bytes)?.to_string()),
        }
    }

    /// Returns the bytes of the record from a field on, see [`Format::field`].
    pub fn rest(self, field: usize) -> Option<&'a [u8]> {
        self.bytes.get(self.format.fields.get(field)?.at..)
    }

    pub fn is_empty(&self) -> bool {
        self.format.fields.len() == self.format.common
    }

    /// Iterates over the event's own fields. Leaves out fields that are not in the record. If a name
    /// determines the whole number, the name is shown instead of the number. If the name determines only a
    /// part of the number, the name follows in an extra field.
    pub fn iter(self) -> impl Iterator<Item = (&'a Arc<str>, ValueRef<'a>)> + use<'a> {
        let Fields { format, bytes, printed } = self;
        let printed_at = format.printk.map(|printk| printk.arguments.unwrap_or(printk.address));
        // The total size of all arrays is limited, because a hostile record can place the arrays of several
        // fields in the same bytes.
        let (mut arrays, mut names) = (bytes.len(), MAX_NAMES);
        let own = format.fields.iter().enumerate().skip(format.common);
        own.flat_map(move |(index, field)| {
            let printed = printed.filter(|_| printed_at == Some(index)).map(ValueRef::Str);
            let is_printed = printed.is_some();
            let name = if field.names.is_empty() { None } else { self.name(field, &mut names) };
            let value = || printed.or_else(|| field.value(&format.fields, bytes));
            let (value, label) = match (name.map(ValueRef::Name), &field.label) {
                (Some(name), Some(label)) => (value(), Some((label, name))),
                (Some(name), None) => (Some(name), None),
                (None, _) => (value(), None),
            };
            let value = value.map(|value| {
                // The text of an event of `trace_printk` does not count, because the text is not a part of
                // the record.
                let is_whole = is_printed || take(&mut arrays, value.array_len());
                (&field.name, if is_whole { value } else { ValueRef::Name(Name::CUT) })
            });
            value.into_iter().chain(label)
        })
    }

    /// Returns the names of a field's value, if all names are known and fit in `room`.
    fn name(self, field: &'a Field, room: &mut usize) -> Option<Name<'a>> {
        let get = |index: usize| self.format.fields.get(index)?.number(self.bytes);
        let (mut first, mut second) = (None, None);
        for expr in &field.names {
            let part = match expr.value(&get)? {
                Found::Text("") | Found::Number(_) | Found::Part(Part::Flags(0, ..)) => continue,
                Found::Text(text) => Part::Text(text),
                Found::Part(part) => part,
            };
            *if first.is_none() { &mut first } else { &mut second } = Some(part);
        }
        let name = Name { first: first?, second };
        let len = name.len();
        (len <= MAX_NAME && take(room, len)).then_some(name)
    }
}
