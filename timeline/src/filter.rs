// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Filters for events and for regions: expressions that compare fields and other properties, such as the
//! source or the process.
//!
//! ```text
//! EXPR     NAME OP VALUE | not EXPR | EXPR and EXPR | EXPR or EXPR | ( EXPR )
//! NAME     source, event, thread, pid, tid, client, cpu, or a field; fields.NAME is always a field
//!          of a region: name and duration (duration_ns), too, and no event
//! OP       == != < <= > >=
//! VALUE    a number (17, -3, 0x1f, 2.5), a time (5ms, 1.5us), a text ("disk.img"), true, false
//! ```
//!
//! `not` binds strongest, then `and`, then `or`. If an event lacks the compared field or property, or a
//! number is compared with a text, the comparison is false with any operator. A time counts as a number of
//! nanoseconds. For an event of the kernel, `pid` is the id of the thread. A region has the fields and
//! properties of its first event and of its last event. If both events have a field, the value in the last
//! event counts.
//!
//! An expression becomes a list of steps with jumps, not a tree. So an expression of any length and depth can
//! be parsed and evaluated without recursion.

use crate::event::{EventKind, EventRef};
use crate::value::ValueRef;
use hypertrace_format::number::time;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

/// A condition on events, or on regions.
#[derive(Clone, Debug)]
pub struct Filter {
    subject: &'static Subject,
    steps: Vec<Step>,
    /// Name of each field in the text, with the place at which the name stands.
    fields: Vec<(Arc<str>, Range<usize>)>,
    text: Arc<str>,
}

/// An error in the text of a [`Filter`]. The error prints the message, then the faulty line, and below this
/// line a mark at the error's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    why: String,
    /// The line that contains the error, without control characters.
    line: String,
    /// The range of the error within the line, in characters.
    place: Range<usize>,
}

/// A step of the evaluation. The only state between two steps is the last result.
#[derive(Clone, Debug)]
enum Step {
    Compare(Comparison),
    Not,
    /// If the last result equals the first value, the evaluation continues at the step with the index in the
    /// second value.
    JumpIf(bool, usize),
}

#[derive(Clone, Debug)]
struct Comparison {
    left: Operand,
    operator: Operator,
    right: Literal,
}

/// Property of an event or region that a comparison uses.
#[derive(Clone, Debug)]
enum Operand {
    Name,
    Duration,
    Source,
    Event,
    Thread,
    Pid,
    Tid,
    Client,
    Cpu,
    Field(Arc<str>),
}

/// The kind of thing that a filter checks.
#[derive(Debug)]
struct Subject {
    what: &'static str,
    /// Names in expressions that are not names of fields.
    names: &'static [(&'static str, Operand)],
}

static EVENT: Subject = Subject {
    what: "event",
    names: &[
        ("source", Operand::Source),
        ("event", Operand::Event),
        ("thread", Operand::Thread),
        ("pid", Operand::Pid),
        ("tid", Operand::Tid),
        ("client", Operand::Client),
        ("cpu", Operand::Cpu),
    ],
};

static REGION: Subject = Subject {
    what: "region",
    names: &[
        ("name", Operand::Name),
        ("duration", Operand::Duration),
        ("duration_ns", Operand::Duration),
        ("source", Operand::Source),
        ("thread", Operand::Thread),
        ("pid", Operand::Pid),
        ("tid", Operand::Tid),
        ("client", Operand::Client),
    ],
};

/// A region that a filter checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionRef<'a> {
    pub name: &'a str,
    /// Length of the region in nanoseconds, if the region has ended.
    pub duration_ns: Option<u64>,
    /// Results of the filter's comparisons for the event that begins the region, if there is such an event.
    pub begin: Option<&'a Answers>,
    /// The event that ends the region, if there is such an event.
    pub end: Option<EventRef<'a>>,
}

/// Result of each step of a filter for an event. `None` if the step is no comparison, or the event lacks the
/// compared field or property.
pub(crate) type Answers = Box<[Option<bool>]>;

/// Prefix for a field whose name would otherwise mean a property.
const FIELDS: &str = "fields.";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Operators. Longer operators stand first, so that `<=` is not read as `<`.
const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

#[derive(Clone, Debug)]
enum Literal {
    Number(i128),
    Float(f64),
    Text(Box<[u8]>),
    Bool(bool),
}

/// An operator that waits for its right side, or a parenthesis that is not closed yet.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    /// A parenthesis, and its place in the text in bytes.
    Open(usize),
    /// Index of the step that jumps over the right side.
    Or(usize),
    And(usize),
    Not,
}

impl Filter {
    /// Parses a filter of regions, which have a `name` and a `duration_ns`.
    ///
    /// # Errors
    /// If the text is not an expression.
    pub fn of_regions(text: &str) -> Result<Filter, FilterError> {
        Parser::new(text, &REGION).filter()
    }

    /// Returns whether an event fits the filter.
    pub fn fits(&self, event: &EventRef<'_>) -> bool {
        self.is_true(|_, comparison| comparison.answer(event) == Some(true))
    }

    /// Returns the results of the filter's comparisons for the event that begins a region.
    /// [`Filter::fits_region`] uses the results.
    pub(crate) fn answers(&self, begin: &EventRef<'_>) -> Answers {
        let of_step = |step: &Step| match step {
            Step::Compare(comparison) => comparison.answer(begin),
            _ => None,
        };
        self.steps.iter().map(of_step).collect()
    }

    /// Returns whether a region fits the filter.
    pub(crate) fn fits_region(&self, region: &RegionRef<'_>) -> bool {
        self.is_true(|step, comparison| match comparison.left {
            Operand::Name => comparison.holds(ValueRef::Str(region.name.as_bytes())),
            Operand::Duration => {
                region.duration_ns.is_some_and(|ns| comparison.holds(ValueRef::Unsigned(ns)))
            }
            _ => {
                let of_end = region.end.as_ref().and_then(|end| comparison.answer(end));
                let of_begin = || *region.begin?.get(step)?;
                of_end.or_else(of_begin) == Some(true)
            }
        })
    }

    /// Evaluates the filter. `is_true` returns the result of the comparison at a step.
    fn is_true(&self, is_true: impl Fn(usize, &Comparison) -> bool) -> bool {
        let (mut fits, mut at) = (true, 0);
        // Jumps lead forward only.
        while let Some(step) = self.steps.get(at) {
            at += 1;
            match step {
                Step::Compare(comparison) => fits = is_true(at - 1, comparison),
                Step::Not => fits = !fits,
                Step::JumpIf(result, to) if fits == *result => at = *to,
                Step::JumpIf(..) => {}
            }
        }
        fits
    }

    /// Checks that each field is known.
    ///
    /// # Errors
    /// If a field is not known. The message suggests the most similar known name.
    pub fn check(&self, known: &HashSet<&str>) -> Result<(), FilterError> {
        let unknown = self.fields.iter().find(|(field, _)| !known.contains(&**field));
        let Some((field, place)) = unknown else { return Ok(()) };
        let Subject { what, names } = self.subject;
        let others = names.iter().map(|(name, _)| *name);
        let why = match nearest(field, known.iter().copied().chain(others)) {
            Some(near) => format!("no {what} has a field {field}; there is {near}"),
            None => format!("no {what} has a field {field}"),
        };
        Err(FilterError::new(&self.text, place.clone(), why))
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter, FilterError> {
        Parser::new(text, &EVENT).filter()
    }
}

/// Returns the known name that is most similar to a wrong name, if any known name is similar.
pub fn nearest<'k>(wrong: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let known = known.into_iter().map(|name| (strsim::jaro(wrong, name), name));
    // clap uses the same threshold for options.
    let near = known.filter(|(near, _)| *near > 0.7);
    near.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, name)| name)
}

struct Parser<'t> {
    subject: &'static Subject,
    text: &'t str,
    at: usize,
    steps: Vec<Step>,
    fields: Vec<(Arc<str>, Range<usize>)>,
    waiting: Vec<Waiting>,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str, subject: &'static Subject) -> Parser<'t> {
        let (steps, fields, waiting) = (Vec::new(), Vec::new(), Vec::new());
        Parser { subject, text, at: 0, steps, fields, waiting }
    }

    fn filter(mut self) -> Result<Filter, FilterError> {
        loop {
            // The parser expects an operand here.
            loop {
                self.skip_blanks();
                if self.take("(") {
                    self.waiting.push(Waiting::Open(self.at - 1));
                } else if self.take_word("not") {
                    self.waiting.push(Waiting::Not);
                } else {
                    break;
                }
            }
            let comparison = self.comparison()?;
            self.steps.push(Step::Compare(comparison));
            // The parser has read an operand.
            loop {
                self.skip_blanks();
                let begin = self.at;
                if self.take(")") {
                    self.apply(Waiting::Or(0));
                    if !matches!(self.waiting.pop(), Some(Waiting::Open(_))) {
                        return Err(self.error(begin..self.at, "no parenthesis is open here"));
                    }
                } else if self.take_word("and") {
                    self.apply(Waiting::And(0));
                    self.waiting.push(Waiting::And(self.steps.len()));
                    self.steps.push(Step::JumpIf(false, 0));
                    break;
                } else if self.take_word("or") {
                    self.apply(Waiting::Or(0));
                    self.waiting.push(Waiting::Or(self.steps.len()));
                    self.steps.push(Step::JumpIf(true, 0));
                    break;
                } else if begin == self.text.len() {
                    self.apply(Waiting::Or(0));
                    if let Some(Waiting::Open(at)) = self.waiting.pop() {
                        return Err(self.error(at..at + 1, "this parenthesis is not closed"));
                    }
                    let Parser { subject, text, steps, fields, .. } = self;
                    return Ok(Filter { subject, steps, fields, text: text.into() });
                } else {
                    let word = self.word_at(begin);
                    return Err(self.error(word, "expected `and`, `or` or the end here"));
                }
            }
        }
    }

    /// Ends the waiting operators that bind at least as strongly as `least`, because their right sides are
    /// complete.
    fn apply(&mut self, least: Waiting) {
        let binds = |waiting: &mut Waiting| match least {
            Waiting::And(_) => matches!(waiting, Waiting::And(_) | Waiting::Not),
            _ => !matches!(waiting, Waiting::Open(_)),
        };
        while let Some(waiting) = self.waiting.pop_if(binds) {
            let end = self.steps.len();
            match waiting {
                Waiting::Not => self.steps.push(Step::Not),
                Waiting::And(jump) | Waiting::Or(jump) => {
                    if let Step::JumpIf(_, to) = &mut self.steps[jump] {
                        *to = end;
                    }
                }
                Waiting::Open(_) => {}
            }
        }
    }

    fn comparison(&mut self) -> Result<Comparison, FilterError> {
        let place = self.word_at(self.at);
        let name = &self.text[place.clone()];
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !is_name || ["and", "or"].contains(&name) {
            let names = Vec::from_iter(self.subject.names.iter().map(|(name, _)| *name));
            let (last, others) = names.split_last().unwrap_or((&"", &[]));
            let what = format!("expected a field, {} or {last} here", others.join(", "));
            return Err(self.error(place, &what));
        }
        self.at = place.end;
        let left = match self.subject.names.iter().find(|(known, _)| *known == name) {
            Some((_, operand)) => operand.clone(),
            None => {
                let field = Arc::from(name.strip_prefix(FIELDS).unwrap_or(name));
                self.fields.push((Arc::clone(&field), place));
                Operand::Field(field)
            }
        };
        self.skip_blanks();
        let operator = OPERATORS.iter().find(|(text, _)| self.text[self.at..].starts_with(text));
        let Some((text, operator)) = operator else {
            let place = self.word_at(self.at);
            return Err(self.error(place, "expected ==, !=, <, <=, > or >= here"));
        };
        self.at += text.len();
        self.skip_blanks();
        Ok(Comparison { left, operator: *operator, right: self.literal()? })
    }

    fn literal(&mut self) -> Result<Literal, FilterError> {
        let begin = self.at;
        if let Some(quote @ ('"' | '\'')) = self.text[begin..].chars().next() {
            return self.quoted(begin, quote);
        }
        let place = self.word_at(begin);
        self.at = place.end;
        let word = &self.text[place.clone()];
        let (sign, digits) = word.strip_prefix('-').map_or((1, word), |digits| (-1, digits));
        // A number that does not parse as an integer may be a float or a time.
        let is_plain = digits.starts_with(|c: char| c.is_ascii_digit());
        let number = match digits.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => digits.parse::<u64>().ok(),
        };
        match word {
            "true" => Ok(Literal::Bool(true)),
            "false" => Ok(Literal::Bool(false)),
            _ if number.is_some() => Ok(Literal::Number(sign * i128::from(number.unwrap_or(0)))),
            _ => match word.parse().ok().map(Literal::Float).or_else(|| nanoseconds(word)) {
                Some(literal) if is_plain => Ok(literal),
                _ => {
                    let what = "expected a number, a time, true, false or a text in quotes here";
                    Err(self.error(place, what))
                }
            },
        }
    }

    /// Parses a text in quotes. The character after a backslash is taken literally.
    fn quoted(&mut self, begin: usize, quote: char) -> Result<Literal, FilterError> {
        let mut text = String::new();
        let mut chars = self.text[begin + 1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => text.extend(chars.next().map(|(_, c)| c)),
                c if c == quote => {
                    self.at = begin + 1 + at + 1;
                    return Ok(Literal::Text(text.into_bytes().into()));
                }
                c => text.push(c),
            }
        }
        Err(self.error(begin..begin + 1, "this text has no end"))
    }

    fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn take(&mut self, text: &str) -> bool {
        let is_there = self.text[self.at..].starts_with(text);
        self.at += if is_there { text.len() } else { 0 };
        is_there
    }

    fn take_word(&mut self, word: &str) -> bool {
        let place = self.word_at(self.at);
        let is_there = self.text[place.clone()] == *word;
        self.at = if is_there { place.end } else { self.at };
        is_there
    }

    /// Returns the place of the word that begins at the byte `begin`: a name, a number, or one character.
    fn word_at(&self, begin: usize) -> Range<usize> {
        let rest = &self.text[begin..];
        let is_inside = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '+');
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let word = rest.find(|c| !is_inside(c)).unwrap_or(rest.len());
        begin..begin + word.max(first)
    }

    fn error(&self, place: Range<usize>, why: &str) -> FilterError {
        FilterError::new(self.text, place, why.to_owned())
    }
}

/// Returns the nanoseconds of a time with a unit, such as `5ms`.
fn nanoseconds(word: &str) -> Option<Literal> {
    let ns = word.ends_with('s').then(|| time(word).ok())??;
    Some(Literal::Number(ns.into()))
}

/// Returns the value of a field or property of an event, if the event has the field or property.
fn event_value<'e>(event: &EventRef<'e>, operand: &Operand) -> Option<ValueRef<'e>> {
    let thread = event.thread;
    let number = |number: Option<u32>| number.map(|number| ValueRef::Unsigned(number.into()));
    match operand {
        Operand::Source => Some(ValueRef::Str(event.source.text.as_bytes())),
        Operand::Event => Some(ValueRef::Str(event.name.as_bytes())),
        Operand::Thread => event.source.name.as_ref().map(|name| ValueRef::Str(name.as_bytes())),
        // A kernel's event has no process number, so the thread's number is compared.
        Operand::Pid if event.kind == EventKind::Kernel => number(thread.map(|thread| thread.tid)),
        Operand::Pid => number(thread.and_then(|thread| thread.pid)),
        Operand::Tid => number(thread.map(|thread| thread.tid)),
        Operand::Cpu => number(thread.and_then(|thread| thread.cpu)),
        Operand::Client => number(event.source.client),
        Operand::Field(field) => {
            event.fields.iter().find(|(name, _)| *name == field).map(|(_, value)| value)
        }
        Operand::Name | Operand::Duration => None,
    }
}

impl Comparison {
    /// Returns the result of the comparison, or `None` if the event lacks the compared field or property.
    fn answer(&self, event: &EventRef<'_>) -> Option<bool> {
        event_value(event, &self.left).map(|value| self.holds(value))
    }

    fn holds(&self, value: ValueRef<'_>) -> bool {
        self.right.compared(&value).is_some_and(|order| match self.operator {
            Operator::Equal => order.is_eq(),
            Operator::NotEqual => order.is_ne(),
            Operator::Less => order.is_lt(),
            Operator::LessOrEqual => order.is_le(),
            Operator::Greater => order.is_gt(),
            Operator::GreaterOrEqual => order.is_ge(),
        })
    }
}

impl Literal {
    /// Returns the order of a value relative to this literal, or `None` if both cannot be compared.
    fn compared(&self, value: &ValueRef<'_>) -> Option<Ordering> {
        let number = match value {
            ValueRef::Unsigned(v) | ValueRef::Hex(v) => Some(i128::from(*v)),
            ValueRef::Signed(v) => Some(i128::from(*v)),
            _ => None,
        };
        match (self, value, number) {
            (Literal::Number(own), _, Some(number)) => Some(number.cmp(own)),
            (Literal::Float(own), _, Some(number)) => exact(number, *own),
            (Literal::Number(own), ValueRef::Float(v), _) => exact(*own, *v).map(Ordering::reverse),
            (Literal::Float(own), ValueRef::Float(v), _) => v.partial_cmp(own),
            (Literal::Bool(own), ValueRef::Bool(v), _) => Some(v.cmp(own)),
            (Literal::Text(own), ValueRef::Str(v), _) => Some((*v).cmp(&**own)),
            (Literal::Text(own), ValueRef::Name(v), _) => {
                Some(v.to_string().as_bytes().cmp(&**own))
            }
            _ => None,
        }
    }
}

/// Compares an integer of up to 64 bits with a float, without rounding the integer.
fn exact(integer: i128, float: f64) -> Option<Ordering> {
    // A float that is too large for `i128` becomes the largest `i128`, which is still larger than each
    // integer of 64 bits.
    let whole = float.floor();
    let of_whole = (!float.is_nan()).then(|| integer.cmp(&(whole as i128)))?;
    Some(if of_whole.is_eq() && float > whole { Ordering::Less } else { of_whole })
}

impl FilterError {
    /// Maximum number of characters of the line that are shown before the error, and after the error.
    const AROUND: usize = 30;

    fn new(text: &str, place: Range<usize>, why: String) -> FilterError {
        let before: Vec<char> = text[..place.start].chars().rev().take(Self::AROUND).collect();
        let inside: Vec<char> = text[place.clone()].chars().take(Self::AROUND).collect();
        let after = text[place.end..].chars().take(Self::AROUND);
        let (begin, length) = (before.len(), inside.len().max(1));
        let line = before.into_iter().rev().chain(inside).chain(after);
        let line = line.map(|c| if c.is_control() { '?' } else { c }).collect();
        FilterError { why, line, place: begin..begin + length }
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FilterError { why, line, place } = self;
        write!(
            f,
            "{why}\n  {line}\n  {:begin$}{:^<length$}",
            "",
            "",
            begin = place.start,
            length = place.len()
        )
    }
}

impl std::error::Error for FilterError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Bound, Encoded, Fields, Record, Thread};
    use crate::source::Source;
    use hypertrace_abi::schema::Schema;
    use proptest::prelude::*;

    /// Calls `give` with an event of a guest's client.
    fn with_event<R>(give: impl FnOnce(&EventRef<'_>) -> R) -> R {
        let text = "disk_read(lba:u64,delta:i64,ratio:f64,name:str,pid:u64,ok:bool)";
        let schema = Schema::parse(text).unwrap();
        let names = Vec::from_iter(schema.fields().map(|field| Arc::from(field.name)));
        // The encoded text begins with the text's length in bytes.
        let disk = [*b"\x08\0\0\0disk", *b" \"a\"\0\0\0\0"].map(u64::from_le_bytes);
        let payload = [7, -3i64 as u64, 2.5f64.to_bits(), disk[0], disk[1], 99, 1];
        let source = Source {
            client: Some(2),
            name: Some("worker".into()),
            text: "guest/2 worker".into(),
            ..Source::default()
        };
        let record = Record { class: 0, names: &names, shape: &schema.shape(), payload: &payload };
        give(&EventRef {
            ts_ns: 0,
            ticks: None,
            source: &source.into(),
            name: &"disk_read".into(),
            fields: Fields(Encoded::Record(record)),
            flags: 0,
            kind: EventKind::Event,
            reference: None,
            thread: Some(Thread { pid: Some(40), tid: 41, cpu: None }),
            function: None,
            reading: None,
            bound: Bound::Known(None),
            trace: 0,
        })
    }

    fn fits(text: &str) -> bool {
        let filter = text.parse::<Filter>().unwrap_or_else(|why| panic!("{why}"));
        with_event(|event| {
            let fits = filter.fits(event);
            let region = RegionRef { name: "disk", duration_ns: None, begin: None, end: None };
            let answers = filter.answers(event);
            assert_eq!(fits, filter.fits_region(&RegionRef { begin: Some(&answers), ..region }));
            assert_eq!(fits, filter.fits_region(&RegionRef { end: Some(*event), ..region }));
            fits
        })
    }

    #[test]
    fn comparisons_have_the_meaning_of_their_types() {
        for text in [
            "lba == 7",
            "lba==7",
            "lba != 8",
            "lba < 8",
            "lba <= 7",
            "lba > 6.5",
            "lba >= 0x7",
            "delta == -3",
            "delta < 0",
            "ratio == 2.5",
            "ratio > 2",
            "lba < 1us",
            "lba == 7ns",
            "ratio < 0.5s",
            "lba == 0.007us",
            "delta == -0.003us",
            "ok == true",
            r#"name == "disk \"a\"""#,
            r#"name != 'disk'"#,
            r#"source == "guest/2 worker""#,
            r#"event == "disk_read""#,
            r#"thread == "worker""#,
            "client == 2",
            "pid == 40",
            "fields.pid == 99",
            "tid == 41",
            "lba == 7 and not lba == 8",
            "lba == 8 or lba == 7 and client == 2",
            "not (lba == 8 or lba == 9)",
            "not not lba == 7",
            "(lba == 8 and lba == 9) or lba == 7",
        ] {
            assert!(fits(text), "{text}");
        }
        for text in [
            "lba == 8",
            "none == 7",
            "none != 7",
            "lba == \"7\"",
            "lba != \"7\"",
            "name == 7",
            "cpu == 0",
            "lba == 7 and lba == 8",
            "not lba == 7",
            "(lba == 7 or lba == 8) and lba == 9",
            "ok == false",
            "lba == 7 and lba == 8 and lba == 7",
            "not lba == 7 or lba == 8",
        ] {
            assert!(!fits(text), "{text}");
        }
    }

    #[test]
    fn an_error_shows_its_place() {
        for (text, shown) in [
            ("", "expected a field, source, event, thread, pid, tid, client or cpu here\n  \n  ^"),
            ("lba = 7", "expected ==, !=, <, <=, > or >= here\n  lba = 7\n      ^"),
            (
                "lba == seven",
                "expected a number, a time, true, false or a text in quotes here\n  lba == seven\n         ^^^^^",
            ),
            (
                "lba == 7 lba",
                "expected `and`, `or` or the end here\n  lba == 7 lba\n           ^^^",
            ),
            ("(lba == 7", "this parenthesis is not closed\n  (lba == 7\n  ^"),
            ("lba == 7)", "no parenthesis is open here\n  lba == 7)\n          ^"),
            ("name == \"x", "this text has no end\n  name == \"x\n          ^"),
        ] {
            assert_eq!(text.parse::<Filter>().unwrap_err().to_string(), shown);
        }
        let long = format!("{} and", vec!["\u{e4}\u{1b}lba == 7"; 1_000].join(" and "));
        assert!(long.parse::<Filter>().unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn an_unknown_field_has_the_nearest_name() {
        let filter: Filter = "lba == 7 and reson == 6".parse().unwrap();
        let why = filter.check(&HashSet::from(["lba", "reason", "len"])).unwrap_err().to_string();
        assert_eq!(
            why,
            "no event has a field reson; there is reason\n  lba == 7 and reson == 6\n               ^^^^^"
        );
        assert_eq!(filter.check(&HashSet::from(["lba", "reson"])), Ok(()));
    }

    #[test]
    fn a_hundred_thousand_terms_need_no_stack() {
        let many = 100_000;
        assert!(fits(&vec!["lba == 7"; many].join(" and ")));
        assert!(!fits(&vec!["lba == 8"; many].join(" or ")));
        assert!(fits(&format!("{}lba == 7{}", "(".repeat(many), ")".repeat(many))));
        assert!(fits(&format!("{}lba == 7", "not ".repeat(many))));
        assert!(fits(&format!("{}lba == 7{}", "lba == 8 or (".repeat(many), ")".repeat(many))));
    }

    /// An expression and its value.
    fn expressions() -> impl Strategy<Value = (String, bool)> {
        let leaf = any::<bool>()
            .prop_map(|fits| (if fits { "lba == 7" } else { "lba != 7" }.to_owned(), fits));
        leaf.prop_recursive(8, 64, 3, |inner| {
            prop_oneof![
                inner.clone().prop_map(|(text, fits)| (format!("not ({text})"), !fits)),
                (inner.clone(), inner.clone())
                    .prop_map(|((a, x), (b, y))| (format!("({a}) and ({b})"), x && y)),
                (inner.clone(), inner.clone(), inner).prop_map(|((a, x), (b, y), (c, z))| {
                    (format!("({a}) or ({b}) and not ({c})"), x || y && !z)
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn expressions_have_the_value_of_their_parts((text, value) in expressions()) {
            prop_assert_eq!(fits(&text), value, "{}", text);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[a-z0-9 ()=!<>\"'\\\\.\u{e4}-]{0,40}") {
            if let Err(why) = text.parse::<Filter>() {
                let _ = why.to_string();
            }
        }
    }
}
