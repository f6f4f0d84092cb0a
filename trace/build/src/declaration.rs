//! A declared event, as it stands in a `trace-events` file.

use crate::format::{Format, Speller};
use crate::printf::Segment;
use crate::types::{CType, Kind};

/// An event of a `trace-events` file. Only [`parse`](crate::parse) makes one,
/// so its names are valid and its format fits its arguments.
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
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its arguments, in order; at most [`MAX_ARGUMENTS`](crate::MAX_ARGUMENTS).
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Its format.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// Whether it is `disable`d: its calls are compiled to nothing.
    pub fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// The line where it is declared, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The column where its name begins, from 1, in characters.
    pub fn column(&self) -> usize {
        self.column
    }

    /// Name and arguments as they stand in the file: `name(int a, hwaddr b)`.
    pub fn signature(&self) -> String {
        self.signed(|argument| argument.ty().text())
    }

    /// The declaration on one line, spelled in the one way that readers of
    /// `trace-events-all` get: `name(int32_t a, void *p) "a %d p %p"`. Without
    /// `disable`.
    ///
    /// QEMU's reader refuses a whole file for one type that it does not know,
    /// so types are those that it has for what is [recorded](Kind::c). Macros
    /// are C's own, and a double's bits are shown in hexadecimal.
    pub fn declaration(&self) -> String {
        let mut format = Speller::default();
        let mut arguments = self.arguments.iter();
        for segment in &self.segments {
            match segment {
                // Its percent signs are only themselves.
                Segment::Text(text) => format.text(&text.replace('%', "%%")),
                Segment::Conversion(conversion) => {
                    let kind = arguments.next().map(|argument| argument.ty().kind());
                    conversion.spell(kind == Some(Kind::F64), &mut format);
                }
            }
        }
        format!("{} {}", self.signed(|argument| argument.ty().kind().c()), format.finish())
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
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its type.
    pub fn ty(&self) -> &CType {
        &self.ty
    }

    /// The column where its name begins, from 1, in characters.
    pub fn column(&self) -> usize {
        self.column
    }
}
