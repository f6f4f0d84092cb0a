// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Names of values in the `print fmt` of an event's format.
//!
//! A `print fmt` has the arguments of a `printf` in C: a format string, and arguments such as `REC->len` or
//! `(REC->isa == 1) ? __print_symbolic(REC->reason & 0xffff, { 0, "NMI" }, ..) : ..`. An argument with
//! `__print_symbolic` or `__print_flags` gives names to the values of a field. This field is the first field
//! in the first argument of `__print_symbolic` or `__print_flags`. The reader evaluates such an argument for
//! each event. If an argument has an unknown part, the argument gives no names, and the field is shown as a
//! number. Unknown parts are functions, sizes of types, and constants that the kernel did not replace by a
//! number.
//!
//! A name may determine the whole number of its field or only some bits: `__print_symbolic(REC->data >> 8 &
//! 7, ..)` determines three bits. [`Named::tells`] holds the bits that can be computed from the names.

use crate::value::Part;
use std::collections::HashSet;

/// Maximum depth of nested parentheses and operators. In Linux 6.18, the depth is at most 14.
const MAX_DEPTH: u32 = 64;
/// Maximum number of nodes of an argument. The number of nodes bounds the recursion during the evaluation.
const MAX_NODES: u32 = 256;
/// Maximum number of nodes and flags of all arguments with names. The computation of an event's names takes
/// at most this number of steps.
const MAX_STEPS: u32 = 2048;
/// Maximum number of flags of a list. The maximum exceeds 64, because the kernel also names some combinations
/// of bits. The reader shows further flags as a number.
const MAX_FLAGS: usize = 256;
/// Maximum number of arguments with names for one field. Usually, one argument names a part that is a number,
/// and another argument names flags.
const MAX_NAMES: usize = 2;
/// Maximum number of combinations of conditions that are examined to compute [`Named::tells`]. If there are
/// more combinations, [`Named::tells`] is 0.
const MAX_PATHS: u32 = 64;

/// The contents of a `print fmt` that the reader uses. Fields are given by index.
#[derive(Debug, Default)]
pub(super) struct Print {
    /// Names of the fields' values.
    pub names: Vec<Named>,
    /// Fields that are printed in hexadecimal.
    pub hex: Vec<usize>,
}

/// The names of a field's values.
#[derive(Debug)]
pub(super) struct Named {
    pub field: usize,
    /// Expressions that each give a part of the name.
    pub exprs: Vec<Expr>,
    /// Bits of the field that the name determines for all values of the event. All bits are set if no value
    /// has a name.
    pub tells: u64,
}

/// An expression that computes a number or a text from the numbers of an event.
#[derive(Debug, PartialEq)]
pub(super) enum Expr {
    Number(i64),
    /// Index of a field, and whether its number has a sign.
    Field(usize, bool),
    Text(Box<str>),
    Unary(u8, Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    If(Box<[Expr; 3]>),
    /// The name of a number. The names are sorted by number.
    Symbol(Box<Expr>, Names),
    /// The names of a number's flags, with a delimiter.
    Flags(Box<Expr>, Box<str>, Names),
}

/// Names of numbers.
#[derive(Debug, PartialEq)]
pub(super) struct Names {
    list: Box<[(u64, Box<str>)]>,
    /// Whether each name belongs to only one number.
    are_distinct: bool,
}

impl Names {
    fn new(list: Vec<(u64, Box<str>)>) -> Names {
        let distinct: HashSet<&str> = list.iter().map(|(_, name)| &**name).collect();
        Names { are_distinct: distinct.len() == list.len(), list: list.into() }
    }
}

/// The result of an expression.
#[derive(Debug)]
pub(super) enum Found<'a> {
    Number(i64),
    Text(&'a str),
    Part(Part<'a>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Times,
    Over,
    Rest,
    Plus,
    Minus,
    Left,
    Right,
    /// Right shift of an unsigned number.
    RightUnsigned,
    Less,
    NotMore,
    More,
    NotLess,
    Equal,
    Different,
    And,
    Xor,
    Or,
    Both,
    Either,
}

/// Operators with their precedence. Longer operators stand first, so that `<=` is not read as `<`.
const OPERATORS: [(&str, Operator, u8); 18] = [
    ("||", Operator::Either, 1),
    ("&&", Operator::Both, 2),
    ("==", Operator::Equal, 6),
    ("!=", Operator::Different, 6),
    ("<<", Operator::Left, 8),
    (">>", Operator::Right, 8),
    ("<=", Operator::NotMore, 7),
    (">=", Operator::NotLess, 7),
    ("<", Operator::Less, 7),
    (">", Operator::More, 7),
    ("|", Operator::Or, 3),
    ("^", Operator::Xor, 4),
    ("&", Operator::And, 5),
    ("+", Operator::Plus, 9),
    ("-", Operator::Minus, 9),
    ("*", Operator::Times, 10),
    ("/", Operator::Over, 10),
    ("%", Operator::Rest, 10),
];

impl Operator {
    fn apply(self, a: i64, b: i64) -> Option<i64> {
        Some(match self {
            Operator::Times => a.wrapping_mul(b),
            Operator::Over => a.checked_div(b)?,
            Operator::Rest => a.checked_rem(b)?,
            Operator::Plus => a.wrapping_add(b),
            Operator::Minus => a.wrapping_sub(b),
            Operator::Left => a.checked_shl(b.try_into().ok()?)?,
            Operator::Right => a.checked_shr(b.try_into().ok()?)?,
            Operator::RightUnsigned => (a as u64).checked_shr(b.try_into().ok()?)? as i64,
            Operator::Less => (a < b).into(),
            Operator::NotMore => (a <= b).into(),
            Operator::More => (a > b).into(),
            Operator::NotLess => (a >= b).into(),
            Operator::Equal => (a == b).into(),
            Operator::Different => (a != b).into(),
            Operator::And => a & b,
            Operator::Xor => a ^ b,
            Operator::Or => a | b,
            Operator::Both => (a != 0 && b != 0).into(),
            Operator::Either => (a != 0 || b != 0).into(),
        })
    }
}

/// A cast to a number of 64 bits without a sign.
const UNSIGNED: u8 = b'u';

fn unary(operator: u8, a: i64) -> i64 {
    match operator {
        b'-' => a.wrapping_neg(),
        b'~' => !a,
        UNSIGNED => a,
        _ => (a == 0).into(),
    }
}

impl Expr {
    /// Evaluates the expression with the numbers of an event's fields.
    pub fn value<'a>(&'a self, field: &impl Fn(usize) -> Option<i64>) -> Option<Found<'a>> {
        let number = match self {
            Expr::Number(n) => *n,
            Expr::Field(index, _) => field(*index)?,
            Expr::Text(text) => return Some(Found::Text(text)),
            Expr::Unary(operator, a) => unary(*operator, a.number(field)?),
            Expr::Binary(operator, a, b) => operator.apply(a.number(field)?, b.number(field)?)?,
            Expr::If(parts) => {
                let [condition, yes, no] = &**parts;
                return if condition.number(field)? != 0 { yes } else { no }.value(field);
            }
            Expr::Symbol(of, names) => {
                let number = of.number(field)?;
                let found = names.list.binary_search_by_key(&(number as u64), |(n, _)| *n);
                return found.ok().map(|at| Found::Text(&names.list[at].1));
            }
            Expr::Flags(of, delimiter, names) => {
                let number = of.number(field)? as u64;
                let zero = names.list.iter().find(|(flag, _)| number == 0 && *flag == 0);
                return Some(match zero {
                    Some((_, name)) => Found::Text(name),
                    None => Found::Part(Part::Flags(number, delimiter, &names.list)),
                });
            }
        };
        Some(Found::Number(number))
    }

    fn number(&self, field: &impl Fn(usize) -> Option<i64>) -> Option<i64> {
        match self.value(field)? {
            Found::Number(n) => Some(n),
            _ => None,
        }
    }

    /// Returns the field, if the expression is a field's whole number.
    fn plain(&self) -> Option<usize> {
        match self {
            Expr::Field(index, _) => Some(*index),
            Expr::Unary(UNSIGNED, a) => a.plain(),
            _ => None,
        }
    }

    /// Returns the first field in an expression.
    fn subject(&self) -> Option<usize> {
        match self {
            Expr::Field(index, _) => Some(*index),
            Expr::Unary(_, a) => a.subject(),
            Expr::Binary(_, a, b) => a.subject().or_else(|| b.subject()),
            _ => None,
        }
    }

    /// Returns whether the expression's number can be below 0 in C. A constant counts as signed, so that an
    /// operation with a constant takes its sign from the other operand.
    fn is_signed(&self) -> bool {
        match self {
            Expr::Field(_, is_signed) => *is_signed,
            Expr::Unary(operator, a) => *operator != UNSIGNED && a.is_signed(),
            Expr::Binary(Operator::Left | Operator::Right | Operator::RightUnsigned, a, _) => {
                a.is_signed()
            }
            Expr::Binary(_, a, b) => a.is_signed() && b.is_signed(),
            Expr::If(parts) => parts[1].is_signed() && parts[2].is_signed(),
            _ => true,
        }
    }

    /// If the expression's number consists of bits of a field, returns these bits and the distance by which
    /// they are shifted to the right.
    fn bits(&self, field: usize) -> Option<(u64, i32)> {
        let (operator, a, n) = match self {
            Expr::Field(index, _) => return (*index == field).then_some((u64::MAX, 0)),
            Expr::Unary(UNSIGNED, a) => return a.bits(field),
            Expr::Binary(operator, a, b) => match (operator, &**a, &**b) {
                (Operator::And, Expr::Number(n), a) | (_, a, Expr::Number(n)) => (*operator, a, *n),
                _ => return None,
            },
            _ => return None,
        };
        let (bits, shift) = a.bits(field)?;
        let (of_number, by) = match (operator, u32::try_from(n)) {
            (Operator::And, _) => (n as u64, 0),
            (Operator::Left, Ok(n)) => (u64::MAX.checked_shr(n)?, -(n as i32)),
            (Operator::Right | Operator::RightUnsigned, Ok(n)) => {
                (u64::MAX.checked_shl(n)?, n as i32)
            }
            _ => return None,
        };
        let of_field = match u32::try_from(shift) {
            Ok(shift) => of_number.checked_shl(shift),
            Err(_) => of_number.checked_shr(shift.unsigned_abs()),
        };
        Some((bits & of_field?, shift + by))
    }

    /// Returns the bits of a field that are known if this condition has the value `is_true`.
    fn known(&self, field: usize, is_true: bool) -> u64 {
        let of = match self {
            Expr::Unary(b'!', a) => return a.known(field, !is_true),
            Expr::Binary(Operator::Equal, a, b) if is_true => [a, b],
            Expr::Binary(Operator::Different, a, b) if !is_true => [a, b],
            _ if !is_true => return self.bits(field).map_or(0, |(bits, _)| bits),
            _ => return 0,
        };
        match of.map(|expr| &**expr) {
            [a, Expr::Number(_)] => a.bits(field).map_or(0, |(bits, _)| bits),
            _ => 0,
        }
    }

    /// Removes the texts that depend only on other fields. Such a text is no name of the number, but would be
    /// shown instead of the number.
    fn remove_others(&mut self, field: usize, known: u64) {
        match self {
            Expr::If(parts) => {
                let [condition, yes, no] = &mut **parts;
                yes.remove_others(field, known | condition.known(field, true));
                no.remove_others(field, known | condition.known(field, false));
            }
            Expr::Text(text) if known == 0 => *text = "".into(),
            _ => {}
        }
    }

    /// Returns the bits of a field that this name determines. `known` has the bits that the conditions of the
    /// name determine.
    fn tells(&self, field: usize, known: u64) -> u64 {
        match self {
            Expr::Symbol(of, names) | Expr::Flags(of, _, names) if names.are_distinct => {
                of.bits(field).map_or(0, |(bits, _)| bits)
            }
            Expr::Text(_) => known,
            _ => 0,
        }
    }

    /// Returns the field whose values the expression names.
    fn named(&self) -> Option<usize> {
        match self {
            Expr::Symbol(of, _) | Expr::Flags(of, ..) => of.subject(),
            Expr::If(parts) => parts[1].named().or_else(|| parts[2].named()),
            _ => None,
        }
    }
}

/// Returns the bits of a field that these names determine together, for all values of their conditions.
fn told(names: &[&Expr], field: usize, known: u64, paths: &mut u32) -> u64 {
    if *paths == 0 {
        return 0;
    }
    let condition = names.iter().find_map(|expr| match expr {
        Expr::If(parts) => Some(&parts[0]),
        _ => None,
    });
    let Some(condition) = condition else {
        *paths -= 1;
        let has_text = |expr: &&&Expr| !matches!(expr, Expr::Text(text) if text.is_empty());
        let names = names.iter().filter(has_text).map(|expr| expr.tells(field, known));
        return names.reduce(|a, b| a | b).unwrap_or(u64::MAX);
    };
    let mut where_it_is = |is_true: bool| {
        let chosen = names.iter().map(|expr| match expr {
            Expr::If(parts) if parts[0] == *condition => &parts[if is_true { 1 } else { 2 }],
            other => other,
        });
        let known = known | condition.known(field, is_true);
        told(&chosen.collect::<Vec<_>>(), field, known, paths)
    };
    where_it_is(true) & where_it_is(false)
}

/// Parses the code after `print fmt:`. The function `field` takes the name of a field, and returns the
/// field's index and whether the field's number has a sign.
pub(super) fn parse(code: &str, field: &dyn Fn(&str) -> Option<(usize, bool)>) -> Print {
    let mut print = Print::default();
    let mut arguments = split(code.as_bytes()).into_iter();
    let parser = |code| Parser { code, at: 0, nodes: 0, flags: 0, field };
    let mut steps = 0;
    let Some(format) = arguments.next().and_then(|code| parser(code).text()) else {
        return print;
    };
    // If there are more arguments than conversions, or fewer, the extra arguments or conversions are ignored.
    for (code, conversion) in arguments.zip(conversions(&format)) {
        let mut parser = parser(code);
        let parsed = parser.expression(0).filter(|_| parser.next() == 0);
        let Some(mut expr) = parsed else { continue };
        if matches!(conversion, b'x' | b'X' | b'p') {
            print.hex.extend(expr.plain());
        }
        let Some(field) = expr.named() else { continue };
        expr.remove_others(field, 0);
        let at = print.names.iter().position(|named| named.field == field);
        let at = at.unwrap_or_else(|| {
            print.names.push(Named { field, exprs: Vec::new(), tells: 0 });
            print.names.len() - 1
        });
        let exprs = &mut print.names[at].exprs;
        let own = parser.nodes + parser.flags;
        // An expression that occurs twice is kept once: XFS prints the same type before each of two numbers.
        let is_new = exprs.len() < MAX_NAMES && !exprs.contains(&expr);
        if is_new && steps + own <= MAX_STEPS {
            steps += own;
            exprs.push(expr);
        }
    }
    for named in &mut print.names {
        let exprs: Vec<&Expr> = named.exprs.iter().collect();
        named.tells = told(&exprs, named.field, 0, &mut { MAX_PATHS });
    }
    print
}

/// Splits at the commas that are outside of parentheses, braces and strings.
fn split(code: &[u8]) -> Vec<&[u8]> {
    let (mut parts, mut begin, mut depth, mut at) = (Vec::new(), 0, 0i32, 0);
    while let Some(byte) = code.get(at) {
        match byte {
            b'"' | b'\'' => at = end_of_quote(code, at),
            b'(' | b'{' | b'[' => depth += 1,
            b')' | b'}' | b']' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&code[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    parts.push(&code[begin..]);
    parts
}

/// Returns the place of the quote that closes the quote at `at`, or the end of the code if no quote closes
/// it.
fn end_of_quote(code: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while let Some(byte) = code.get(end) {
        match byte {
            b'\\' => end += 1,
            byte if *byte == code[at] => return end,
            _ => {}
        }
        end += 1;
    }
    code.len()
}

/// Returns the letter of each conversion of a format string, one for each argument.
fn conversions(format: &str) -> impl Iterator<Item = u8> + '_ {
    let (mut rest, mut inside) = (format.as_bytes(), false);
    std::iter::from_fn(move || {
        // The loop ends, because each turn takes at least one byte.
        loop {
            if !inside {
                let at = rest.iter().position(|byte| *byte == b'%')?;
                rest = &rest[at + 1..];
            }
            let end = rest.iter().position(|byte| !b"0123456789.-+ #hlLzjt".contains(byte))?;
            let letter = rest[end];
            rest = &rest[end + 1..];
            // A `*` takes a width from an argument of its own, so the conversion continues with a second
            // argument.
            inside = letter == b'*';
            if letter != b'%' {
                return Some(letter);
            }
        }
    })
}

/// Type of a number.
#[derive(Clone, Copy)]
struct Cast {
    /// Size in bits. `None` if the size of the type is unknown.
    bits: Option<u32>,
    is_unsigned: bool,
}

impl Cast {
    /// Adds a word of the type's name.
    fn add(&mut self, word: &str) {
        let (bits, is_unsigned) = match word.trim_start_matches("__").trim_end_matches("_t") {
            "u8" | "uint8" => (8, true),
            "s8" | "int8" | "char" => (8, false),
            "u16" | "uint16" => (16, true),
            "s16" | "int16" | "short" => (16, false),
            "u32" | "uint32" => (32, true),
            "s32" | "int32" => (32, false),
            "u64" | "uint64" | "size" => (64, true),
            "s64" | "int64" | "ssize" | "long" => (64, false),
            // In `long int` and `short unsigned`, the words `long` and `short` determine the size.
            "int" => (self.bits.unwrap_or(32), false),
            "unsigned" => (self.bits.unwrap_or(32), true),
            _ => return,
        };
        self.bits = Some(bits);
        self.is_unsigned |= is_unsigned;
    }
}

struct Parser<'a> {
    code: &'a [u8],
    at: usize,
    nodes: u32,
    /// Number of flags with names.
    flags: u32,
    field: &'a dyn Fn(&str) -> Option<(usize, bool)>,
}

impl<'a> Parser<'a> {
    /// Returns the next byte that is not blank, or 0 at the end.
    fn next(&mut self) -> u8 {
        while self.code.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.code.get(self.at).copied().unwrap_or(0)
    }

    fn accept(&mut self, text: &str) -> bool {
        self.next();
        let found = self.code[self.at..].starts_with(text.as_bytes());
        self.at += if found { text.len() } else { 0 };
        found
    }

    /// Counts a node of the expression. Returns `None` if there are too many nodes.
    fn node(&mut self, expr: Expr) -> Option<Expr> {
        self.nodes += 1;
        (self.nodes <= MAX_NODES).then_some(expr)
    }

    fn expression(&mut self, depth: u32) -> Option<Expr> {
        let condition = self.binary(0, depth)?;
        if !self.accept("?") {
            return Some(condition);
        }
        let yes = self.expression(depth + 1)?;
        let no = self.accept(":").then(|| self.expression(depth + 1))??;
        self.node(Expr::If(Box::new([condition, yes, no])))
    }

    /// Parses operators of a higher precedence than `above`.
    fn binary(&mut self, above: u8, depth: u32) -> Option<Expr> {
        let mut a = self.primary(depth)?;
        loop {
            // This check saves the search in `OPERATORS`, because most numbers are not followed by an
            // operator.
            if !b"|&=!<>^+-*/%".contains(&self.next()) {
                return Some(a);
            }
            let rest = &self.code[self.at..];
            let found = OPERATORS.iter().find(|(text, ..)| rest.starts_with(text.as_bytes()));
            let Some(&(text, mut operator, precedence)) = found.filter(|(.., p)| *p > above) else {
                return Some(a);
            };
            if operator == Operator::Right && !a.is_signed() {
                operator = Operator::RightUnsigned;
            }
            self.at += text.len();
            let b = self.binary(precedence, depth + 1)?;
            a = match (a, b) {
                (Expr::Number(a), Expr::Number(b)) => Expr::Number(operator.apply(a, b)?),
                (a, b) => self.node(Expr::Binary(operator, Box::new(a), Box::new(b)))?,
            };
        }
    }

    fn primary(&mut self, depth: u32) -> Option<Expr> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.next() {
            operator @ (b'-' | b'~' | b'!') => {
                self.at += 1;
                match self.primary(depth + 1)? {
                    Expr::Number(a) => Some(Expr::Number(unary(operator, a))),
                    a => self.node(Expr::Unary(operator, Box::new(a))),
                }
            }
            b'(' => {
                if let Some(field) = self.record() {
                    return self.node(field);
                }
                self.at += 1;
                if let Some(kind) = self.cast() {
                    let of = self.primary(depth + 1)?;
                    return self.converted(of, kind);
                }
                let inner = self.expression(depth + 1)?;
                self.accept(")").then_some(inner)
            }
            b'"' => {
                let text = self.text()?;
                self.node(Expr::Text(text.into()))
            }
            b'0'..=b'9' => self.constant().map(Expr::Number),
            _ if self.code[self.at..].starts_with(b"REC") => {
                let field = self.record()?;
                self.node(field)
            }
            _ => match self.word() {
                "__print_symbolic" | "__print_symbolic64" => {
                    let of = self.accept("(").then(|| self.expression(depth + 1))??;
                    let mut names = self.names(depth + 1)?;
                    // If a number has several names, the first name is valid. The sort is stable, so the
                    // first name stays first.
                    names.sort_by_key(|(number, _)| *number);
                    names.dedup_by_key(|(number, _)| *number);
                    self.node(Expr::Symbol(Box::new(of), Names::new(names)))
                }
                "__print_flags" | "__print_flags_u64" | "__print_flags64" => {
                    let of = self.accept("(").then(|| self.expression(depth + 1))??;
                    let delimiter = self.accept(",").then(|| self.text())??;
                    let mut names = self.names(depth + 1)?;
                    names.truncate(MAX_FLAGS);
                    self.flags += names.len() as u32;
                    self.node(Expr::Flags(Box::new(of), delimiter.into(), Names::new(names)))
                }
                _ => None,
            },
        }
    }

    /// Parses `REC->x`, or the form `(REC)->x` from the kernel's macros. Returns `None` if the code is
    /// something else.
    fn record(&mut self) -> Option<Expr> {
        let begin = self.at;
        let mut open = 0;
        while self.accept("(") {
            open += 1;
        }
        let is_record =
            self.word() == "REC" && (0..open).all(|_| self.accept(")")) && self.accept("->");
        let name = if is_record { self.word() } else { "" };
        let field = (self.field)(name).filter(|_| !name.is_empty());
        self.at = if field.is_some() { self.at } else { begin };
        field.map(|(index, is_signed)| Expr::Field(index, is_signed))
    }

    /// Skips the rest of a cast after its parenthesis: `void *)`. Returns the type, or `None` if the code is
    /// no cast.
    fn cast(&mut self) -> Option<Cast> {
        let begin = self.at;
        let (mut words, mut cast) = (0, Cast { bits: None, is_unsigned: false });
        // The loop ends, because each turn takes a word or returns.
        loop {
            match self.word() {
                "" => break,
                "REC" => words = -1000,
                word => {
                    words += 1;
                    cast.add(word);
                }
            }
        }
        while self.accept("*") {
            cast = Cast { bits: Some(64), is_unsigned: true };
        }
        if words > 0 && self.accept(")") {
            return Some(cast);
        }
        self.at = begin;
        None
    }

    /// Converts a number as C does.
    fn converted(&mut self, of: Expr, to: Cast) -> Option<Expr> {
        let unused = i64::from(64 - to.bits.unwrap_or(64));
        let mut apply = |operator: Operator, a: Expr, n: i64| match a {
            Expr::Number(a) => operator.apply(a, n).map(Expr::Number),
            a => self.node(Expr::Binary(operator, Box::new(a), Box::new(Expr::Number(n)))),
        };
        match of {
            _ if unused > 0 && to.is_unsigned => {
                apply(Operator::And, of, (u64::MAX >> unused) as i64)
            }
            _ if unused > 0 => {
                let shifted = apply(Operator::Left, of, unused)?;
                apply(Operator::Right, shifted, unused)
            }
            Expr::Number(_) => Some(of),
            _ if to.is_unsigned && to.bits == Some(64) => {
                self.node(Expr::Unary(UNSIGNED, Box::new(of)))
            }
            _ => Some(of),
        }
    }

    /// Parses `, { number, "name" }, ..)`. Leaves out entries without a name, because some lists end with
    /// such an entry. Leaves out entries whose number is a constant that the kernel did not replace. Returns
    /// `None` if no entry is left.
    fn names(&mut self, depth: u32) -> Option<Vec<(u64, Box<str>)>> {
        let mut names = Vec::new();
        while self.accept(",") {
            self.accept("{").then_some(())?;
            let begin = self.at;
            match self.entry(depth) {
                Some(entry) => names.push(entry),
                None => {
                    self.at = begin;
                    self.skip_entry()?;
                }
            }
        }
        (self.accept(")") && !names.is_empty()).then_some(names)
    }

    /// Parses `number, "name" }`.
    fn entry(&mut self, depth: u32) -> Option<(u64, Box<str>)> {
        let Expr::Number(number) = self.expression(depth + 1)? else { return None };
        let name = self.accept(",").then(|| self.text())??;
        self.accept("}").then_some((number as u64, name.into()))
    }

    /// Skips an entry up to its brace.
    fn skip_entry(&mut self) -> Option<()> {
        loop {
            match self.next() {
                0 => return None,
                b'"' => self.at = end_of_quote(self.code, self.at),
                b'}' => {
                    self.at += 1;
                    return Some(());
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    fn word(&mut self) -> &'a str {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        if !self.next().is_ascii_alphabetic() && self.next() != b'_' {
            return "";
        }
        let rest = &self.code[self.at..];
        let len = rest.iter().position(|byte| !is_word(byte)).unwrap_or(rest.len());
        self.at += len;
        std::str::from_utf8(&rest[..len]).unwrap_or("")
    }

    /// Parses a number: decimal, hexadecimal or octal, with a suffix.
    fn constant(&mut self) -> Option<i64> {
        let rest = &self.code[self.at..];
        let len = rest.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let text = std::str::from_utf8(&rest[..len]).ok()?;
        self.at += len;
        let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
        let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16),
            None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8),
            None => digits.parse(),
        };
        parsed.ok().map(|n| n as i64)
    }

    /// Parses strings that follow each other. The strings have to be printable.
    fn text(&mut self) -> Option<String> {
        let mut text = String::new();
        if self.next() != b'"' {
            return None;
        }
        while self.next() == b'"' {
            let end = end_of_quote(self.code, self.at);
            let mut inside = self.code.get(self.at + 1..end)?.iter();
            self.at = (end + 1).min(self.code.len());
            while let Some(byte) = inside.next() {
                match byte {
                    b'\\' => match inside.next()? {
                        b'n' | b't' => text.push(' '),
                        b'"' => text.push('\''),
                        _ => return None,
                    },
                    b' '..=b'~' => text.push(char::from(*byte)),
                    // Some kernels write the newline or the tab itself instead of its escape.
                    b'\n' | b'\t' => text.push(' '),
                    _ => return None,
                }
            }
        }
        Some(text)
    }
}
