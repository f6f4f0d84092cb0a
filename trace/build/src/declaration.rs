//! A declared event, as it stands in a `trace-events` file.

use crate::format::Format;
use crate::printf::Segment;
use crate::types::CType;

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

    /// Name and arguments as C declares them: `name(int a, void *p)`.
    pub fn signature(&self) -> String {
        let arguments: Vec<String> = self.arguments.iter().map(Argument::declaration).collect();
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
        format!("{}({arguments})", self.name)
    }

    /// The declaration on one line, spelled in the one way that readers of
    /// `trace-events-all` get: `name(int a, void *p) "a %d p %p"`. Without
    /// `disable`.
    pub fn declaration(&self) -> String {
        format!("{} {}", self.signature(), self.format.text())
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

    fn declaration(&self) -> String {
        let text = self.ty.text();
        let space = if text.ends_with('*') { "" } else { " " };
        format!("{text}{space}{}", self.name)
    }
}
