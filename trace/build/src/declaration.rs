//! Declared events of a `trace-events` file.

use crate::format::Format;
use crate::printf::Segment;
use crate::types::CType;

/// An event of a `trace-events` file. Only [`parse`](crate::parse) makes events, so the names of an event are
/// valid and its format fits its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventDecl {
    pub(crate) name: String,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) format: Format,
    pub(crate) segments: Vec<Segment>,
    pub(crate) disabled: bool,
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// An argument of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    pub(crate) name: String,
    pub(crate) ty: CType,
    pub(crate) column: usize,
}

impl EventDecl {
    /// Returns the event's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the arguments, in order; at most [`MAX_ARGUMENTS`](crate::MAX_ARGUMENTS).
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Returns the event's format.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// Returns true if the event is `disable`d, so that its calls are compiled to nothing.
    pub fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// Returns the line number of the declaration. The first line has number 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the column of the name's first character, in characters. The first column has number 1.
    pub fn column(&self) -> usize {
        self.column
    }

    /// Returns the name and the arguments, with the types as in the file: `name(int a, hwaddr b)`.
    pub fn signature(&self) -> String {
        self.signed(|argument| argument.ty().text())
    }

    /// Returns the declaration on one line, in the normalized form of `trace-events-all`: `name(int32_t a,
    /// void *p) "a %d p %p"`. The form has no `disable`.
    ///
    /// If a file has a single unknown type, QEMU's reader refuses the whole file. Therefore each type in the
    /// returned form is QEMU's type for the [recorded value](crate::Kind::c).
    pub fn declaration(&self) -> String {
        let mut format = Format::new();
        for segment in &self.segments {
            match segment {
                // A format doubles each percent sign of a text.
                Segment::Text(text) => format.push_text(&text.replace('%', "%%")),
                Segment::Conversion(conversion) => conversion.spell(&mut format),
            }
        }
        let signed = self.signed(|argument| argument.ty().kind().c());
        match self.format.pieces() {
            [] => signed,
            _ => format!("{signed} {}", format.text()),
        }
    }

    fn signed<'e>(&'e self, ty: impl Fn(&'e Argument) -> &'e str) -> String {
        let declared = |argument: &'e Argument| {
            let text = ty(argument);
            let space = if text.ends_with('*') { "" } else { " " };
            format!("{text}{space}{}", argument.name)
        };
        let arguments: Vec<String> = self.arguments.iter().map(declared).collect();
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
        format!("{}({arguments})", self.name)
    }
}

impl Argument {
    /// Returns the argument's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the argument's type.
    pub fn ty(&self) -> &CType {
        &self.ty
    }

    /// Returns the column of the name's first character, in characters. The first column has number 1.
    pub fn column(&self) -> usize {
        self.column
    }
}
