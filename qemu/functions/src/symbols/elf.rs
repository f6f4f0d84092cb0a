// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Functions of ELF files: kernels, modules, programs, libraries.

use std::path::Path;

use object::{
    Object, ObjectKind, ObjectSection, ObjectSegment, ObjectSymbol, SectionKind, SymbolKind,
};

use super::{MAX_FILE, MAX_NAME, STUBS, Source, Symbols};
use crate::{Error, Result, file};

impl Source {
    /// Returns a source of symbols for an ELF program whose code begins at this address in the guest. The
    /// address is needed, because a position-independent program may have been loaded anywhere.
    ///
    /// # Errors
    /// If the file cannot be read, or is not an ELF file.
    pub fn of_program(path: &Path, start: u64) -> Result<Source> {
        let bytes = file::given(path, MAX_FILE, "give a smaller program")?;
        let begin = code(&bytes, path)?;
        Ok(Source { path: path.to_owned(), offset: start.wrapping_sub(begin) })
    }

    /// Returns the source with the symbols of an ELF file whose first byte is mapped to this address.
    ///
    /// # Errors
    /// If the file cannot be read, or is not an ELF file.
    pub fn of_mapped(path: &Path, start: u64) -> Result<Source> {
        let bytes = file::given(path, MAX_FILE, "give a smaller library")?;
        let file = parse(&bytes, path)?;
        let mut segments = file.segments().filter(|segment| segment.file_range().0 == 0);
        let first = segments.next().map(|segment| segment.address());
        let first = first.ok_or_else(|| Error::unsuitable(path, "no code in it"))?;
        Ok(Source { path: path.to_owned(), offset: start.wrapping_sub(first) })
    }
}

/// Returns the first address of the code.
fn code(bytes: &[u8], path: &Path) -> Result<u64> {
    let file = parse(bytes, path)?;
    let segments = file.segments().filter(|segment| segment.permissions().executable());
    let start = segments.map(|segment| segment.address()).min();
    start.ok_or_else(|| Error::unsuitable(path, "no code in it"))
}

fn parse<'b>(bytes: &'b [u8], path: &Path) -> Result<object::File<'b>> {
    object::File::parse(bytes)
        .map_err(|error| Error::unsuitable(path, format!("no valid ELF file: {error}")))
}

/// Limit of the work for a file's names. Names may overlap, so a small file could have many large names, and
/// the reader has to search each name for its end.
struct Names {
    /// Number of bytes that further names may have.
    left: usize,
    /// If a name has no end, the reader may have searched many bytes for the end. This number of bytes is
    /// then subtracted from `left`.
    without_end: usize,
}

impl Names {
    /// Returns the next name, or an empty name if the name has no end. Returns `None` if the names have too
    /// many bytes.
    fn next<'b>(&mut self, name: object::Result<&'b [u8]>) -> Option<&'b [u8]> {
        let searched = name.map_or(self.without_end, <[u8]>::len);
        self.left = self.left.checked_sub(searched)?;
        Some(name.unwrap_or_default())
    }
}

/// Adds the functions of the symbol table or, if there is none, of the dynamic symbol table.
pub(super) fn read(bytes: &[u8], source: &Source, found: &mut Symbols) -> Result<()> {
    let path = &source.path;
    let file = parse(bytes, path)?;
    let mut names = Names { left: 4 * bytes.len(), without_end: bytes.len() / 16 };
    let too_many = || Error::unsuitable(path, "more symbols than a file of this size can have");
    // In an object file, only the symbols of `.text` are used: each address is relative to a section, and the
    // guest's address is known for `.text` alone.
    let only = if file.kind() == ObjectKind::Relocatable {
        let mut only = None;
        for section in file.sections() {
            if names.next(section.name_bytes()).ok_or_else(too_many)? == b".text" {
                only = Some(section.index());
                break;
            }
        }
        let Some(text) = only else { return Ok(()) };
        Some(text)
    } else {
        None
    };
    // The ends of sections are added as symbols, so that a function of unknown size does not extend into the
    // next section. The next section may contain stubs.
    if only.is_none() {
        for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
            let start = section.address().wrapping_add(source.offset);
            for end in [start, start.wrapping_add(section.size())] {
                found.push(end, 0, "");
            }
            // The sections of stubs are .plt, .plt.sec and .plt.got.
            let name = names.next(section.name_bytes()).ok_or_else(too_many)?;
            if name.starts_with(STUBS.as_bytes()) {
                found.push(start, section.size(), STUBS);
            }
        }
    }
    let is_code = |index| {
        file.section_by_index(index).is_ok_and(|section| section.kind() == SectionKind::Text)
    };
    let mut add = |symbol: object::Symbol<'_, '_>| {
        let Some(section) = symbol.section_index() else { return Ok(()) };
        let is_function = match symbol.kind() {
            SymbolKind::Text => true,
            // Entry points in assembly often have no type.
            SymbolKind::Unknown => symbol.is_global() && is_code(section),
            _ => false,
        };
        if !is_function || only.is_some_and(|only| only != section) {
            return Ok(());
        }
        let name = names.next(symbol.name_bytes()).ok_or_else(too_many)?;
        if name.is_empty() {
            return Ok(());
        }
        let address = symbol.address().wrapping_add(source.offset);
        // Bytes beyond MAX_NAME need not be converted, because `push` cuts the name to MAX_NAME bytes.
        let name = String::from_utf8_lossy(name.get(..MAX_NAME + 1).unwrap_or(name));
        if found.push(address, symbol.size(), &name) { Ok(()) } else { Err(too_many()) }
    };
    if file.symbols().next().is_some() {
        file.symbols().try_for_each(&mut add)
    } else {
        file.dynamic_symbols().try_for_each(&mut add)
    }
}
