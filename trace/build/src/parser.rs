//! The parser: reads declarations from the text of a `trace-events` file.

use crate::declaration::{Argument, EventDecl};
use crate::error::{Errors, Report, quoted};
use crate::format;
use crate::lexer::{Lexer, Placed, Token};
use crate::names::{self, MAX_ARGUMENTS};
use crate::printf;
use crate::types::{self, CType, Part};
use std::collections::HashMap;

/// File and line of the first declaration of each event name.
pub(crate) type Declared = HashMap<String, (String, usize)>;

/// Returns the events of a `trace-events` file, or all its errors.
///
/// `file_name` is only used in messages. No name may occur twice in the file.
pub fn parse(file_name: &str, text: &str) -> Result<Vec<EventDecl>, Errors> {
    let mut errors = Errors::default();
    let events = parse_into(file_name, text, &mut Declared::new(), &mut errors);
    errors.or(events)
}

/// Returns the events of one of several files. No name may occur twice in all of these files.
pub(crate) fn parse_into(
    file: &str,
    text: &str,
    declared: &mut Declared,
    errors: &mut Errors,
) -> Vec<EventDecl> {
    let mut events = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let chars: Vec<char> = line.chars().collect();
        let mut parser = LineParser {
            lexer: Lexer::new(&chars),
            report: Report { file, line: index + 1, errors: &mut *errors },
            declared: &mut *declared,
        };
        let before = parser.report.errors.total();
        let event = parser.line();
        if errors.total() == before {
            events.extend(event);
        }
    }
    events
}

struct LineParser<'a> {
    lexer: Lexer<'a>,
    report: Report<'a>,
    declared: &'a mut Declared,
}

/// The parts of an argument that the parser could understand.
struct Candidate {
    /// Name of the argument, or empty if there is none.
    name: String,
    column: usize,
    ty: Option<CType>,
}

/// The part of a line before the arguments.
struct Head {
    name: String,
    column: usize,
    disabled: bool,
    is_of_vcpu: bool,
}

/// Text that QEMU's reader puts before the format of an event with the property `vcpu`.
const VCPU_TEXT: &str = "cpu=%p ";

/// Returns the argument that QEMU's reader puts before the arguments of an event with the property `vcpu`.
fn vcpu() -> Option<Candidate> {
    let ty = CType::of(&[Part::Word("void".to_owned()), Part::Star])?;
    Some(Candidate { name: "__cpu".to_owned(), column: 1, ty: Some(ty) })
}

impl Candidate {
    fn argument(self) -> Option<Argument> {
        Some(Argument { name: self.name, ty: self.ty?, column: self.column })
    }
}

impl LineParser<'_> {
    /// Parses the line's event. Returns None if the line has no event, or after an error that ends the line's
    /// parsing.
    fn line(&mut self) -> Option<EventDecl> {
        if matches!(self.lexer.peek().token, Token::End | Token::Char('#')) {
            return None;
        }
        let Head { name, column, disabled, is_of_vcpu } = self.head()?;
        let implied = if is_of_vcpu { vec![vcpu()?] } else { Vec::new() };
        let candidates = self.arguments(implied)?;
        let before = self.report.errors.total();
        let text = if is_of_vcpu { VCPU_TEXT } else { "" };
        let (format, units) = format::parse(text, &mut self.lexer, &mut self.report)?;
        let mut segments = Vec::new();
        // A reader shows no argument of an event without a format.
        if !format.pieces().is_empty() && self.report.errors.total() == before {
            let shown: Vec<_> =
                candidates.iter().map(|c| (c.name.as_str(), c.ty.as_ref())).collect();
            let end = self.lexer.next().column;
            segments = printf::parse(&units, &shown, end, &mut self.report);
        }
        let arguments: Option<_> = candidates.into_iter().map(Candidate::argument).collect();
        let line = self.report.line;
        Some(EventDecl { name, arguments: arguments?, format, segments, disabled, line, column })
    }

    fn wrong<T>(&mut self, expected: &str, found: &Placed) -> Option<T> {
        self.report.add(found.column, expected, found.token.shown());
        None
    }

    /// Parses properties and name, and the parenthesis after them.
    fn head(&mut self) -> Option<Head> {
        let (mut disabled, mut is_of_vcpu) = (false, false);
        loop {
            let placed = self.lexer.next();
            let Token::Word(word) = &placed.token else {
                return self.wrong("the name of an event, 'disable' or a comment", &placed);
            };
            let next = self.lexer.peek();
            match (word.as_str(), &next.token) {
                (_, Token::Char('(')) => {
                    self.lexer.next();
                    self.event_name(word, placed.column);
                    let (name, column) = (word.clone(), placed.column);
                    return Some(Head { name, column, disabled, is_of_vcpu });
                }
                ("disable", Token::Word(_)) => disabled = true,
                ("vcpu", Token::Word(_)) => is_of_vcpu = true,
                ("tcg", Token::Word(_)) => self.report.add(
                    placed.column,
                    "no property but 'disable' and 'vcpu', as that of emulated code is not supported",
                    quoted(word),
                ),
                _ => return self.wrong("'(' after the name of the event", &next),
            }
        }
    }

    /// Checks the name of an event, and registers it as declared.
    fn event_name(&mut self, name: &str, column: usize) {
        if let Some(expected) = names::refuse_event(name) {
            self.report.add(column, expected, quoted(name));
        }
        if let Some((file, line)) = self.declared.get(name) {
            let found = format!("{}, which is declared at {file}:{line}", quoted(name));
            self.report.add(column, "a name that no other event has", found);
            return;
        }
        let place = (self.report.file.to_owned(), self.report.line);
        self.declared.insert(name.to_owned(), place);
    }

    /// Parses the arguments, and the parenthesis after them. Returns `arguments` followed by the parsed
    /// arguments.
    fn arguments(&mut self, mut arguments: Vec<Candidate>) -> Option<Vec<Candidate>> {
        let implied = arguments.len();
        loop {
            let first = self.lexer.peek();
            let parts = self.parts();
            let stop = self.lexer.next();
            if !matches!(stop.token, Token::Char(',' | ')')) {
                let expected = match parts.is_empty() {
                    true => "an argument, or 'void' if there is none",
                    false => "')' or ',' after the argument",
                };
                return self.wrong(expected, &stop);
            }
            let last = stop.token == Token::Char(')');
            let is_void = matches!(&*parts, [(Part::Word(word), _)] if word == "void");
            if last && arguments.len() == implied && is_void {
                return Some(arguments);
            }
            if arguments.len() == MAX_ARGUMENTS {
                self.wrong::<()>(&format!("at most {MAX_ARGUMENTS} arguments"), &first);
            }
            let argument = self.argument(parts, &stop);
            let known = !argument.name.is_empty();
            if known && arguments.iter().any(|other| other.name == argument.name) {
                let expected = "a name that no other argument has";
                self.report.add(argument.column, expected, quoted(&argument.name));
            }
            arguments.push(argument);
            if last {
                return Some(arguments);
            }
        }
    }

    /// Reads the words and stars of an argument, and returns each word or star with its column.
    fn parts(&mut self) -> Vec<(Part, usize)> {
        let mut parts = Vec::new();
        loop {
            let Placed { token, column } = self.lexer.peek();
            parts.push(match token {
                Token::Word(word) => (Part::Word(word), column),
                Token::Char('*') => (Part::Star, column),
                _ => return parts,
            });
            self.lexer.next();
        }
    }

    /// Returns the argument that consists of these parts. `stop` is the token after the argument.
    fn argument(&mut self, parts: Vec<(Part, usize)>, stop: &Placed) -> Candidate {
        let first = parts.first().map(|(_, column)| *column);
        let last = parts.last().map(|(_, column)| *column);
        let mut parts: Vec<Part> = parts.into_iter().map(|(part, _)| part).collect();
        let name = match parts.pop() {
            Some(Part::Word(word)) if types::is_name(&word, &parts) => Some(word),
            other => {
                parts.extend(other);
                None
            }
        };
        let Some((name, column)) = name.zip(last) else {
            let expected = match parts.is_empty() {
                true => "an argument, or 'void' if there is none".to_owned(),
                false => format!("the argument's name after {}", quoted(&types::spell(&parts))),
            };
            self.wrong::<()>(&expected, stop);
            return Candidate { name: String::new(), column: stop.column, ty: None };
        };
        if parts.is_empty() {
            self.report.add(column, "a type and a name", quoted(&name));
            return Candidate { name, column, ty: None };
        }
        if let Some(expected) = names::refuse(&name) {
            self.report.add(column, expected, quoted(&name));
        }
        let ty = CType::of(&parts);
        if ty.is_none() {
            let spelled = quoted(&types::spell(&parts));
            self.report.add(first.unwrap_or(column), types::KNOWN, spelled);
        }
        Candidate { name, column, ty }
    }
}
