// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Functions of ELF files: kernels, modules, programs, libraries.

use std::path::Path;

use object::{
    Object, ObjectKind, ObjectSection, ObjectSegment, ObjectSymbol, SectionKind, SymbolKind,
};

use super::{MAX_FILE, STUBS, Source, Symbols};
use crate::{Error, Result, file};

impl Source {
    /// Returns the symbols of an ELF program whose code begins at an address: a position-independent one is moved.
    ///
    /// # Errors
    /// If the file cannot be read, or is not one.
    pub fn of_program(path: &Path, start: u64) -> Result<Source> {
        let bytes = file::contents(path, MAX_FILE, "give a smaller program")?;
        let begin = code(&bytes, path)?;
        Ok(Source { path: path.to_owned(), offset: start.wrapping_sub(begin) })
    }

    /// Returns the symbols of an ELF file whose first byte is mapped to an address.
    ///
    /// # Errors
    /// If the file cannot be read, or is not one.
    pub fn of_mapped(path: &Path, start: u64) -> Result<Source> {
        let bytes = file::contents(path, MAX_FILE, "give a smaller library")?;
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

/// Adds the functions of the symbol table, or of the dynamic one if there is no other.
pub(super) fn read(bytes: &[u8], source: &Source, found: &mut Symbols) -> Result<()> {
    let path = &source.path;
    let file = parse(bytes, path)?;
    // The addresses of an object file are relative to sections, of which one has an address in the guest.
    let only = if file.kind() == ObjectKind::Relocatable {
        let Some(text) = file.section_by_name(".text") else { return Ok(()) };
        Some(text.index())
    } else {
        None
    };
    // Functions of unknown size do not extend into the next section, which may be one of stubs.
    if only.is_none() {
        for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
            let start = section.address().wrapping_add(source.offset);
            for end in [start, start.wrapping_add(section.size())] {
                found.push(end, 0, "");
            }
            // .plt, .plt.sec, .plt.got
            if section.name().is_ok_and(|name| name.starts_with(STUBS)) {
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
            // Entry points in assembly.
            SymbolKind::Unknown => symbol.is_global() && is_code(section),
            _ => false,
        };
        let name = symbol.name_bytes().unwrap_or_default();
        if !is_function || name.is_empty() || only.is_some_and(|only| only != section) {
            return Ok(());
        }
        let address = symbol.address().wrapping_add(source.offset);
        let has_room = found.push(address, symbol.size(), &String::from_utf8_lossy(name));
        // Names may overlap in the file: a small one could have large names.
        if !has_room || found.name_bytes() > 4 * bytes.len() {
            return Err(Error::unsuitable(path, "more symbols than a file of this size can have"));
        }
        Ok(())
    };
    if file.symbols().next().is_some() {
        file.symbols().try_for_each(&mut add)
    } else {
        file.dynamic_symbols().try_for_each(&mut add)
    }
}
