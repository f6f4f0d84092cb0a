// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Names of functions by address, from ELF files, `kallsyms` and `System.map`.

mod demangle;
mod elf;
mod source;
pub(crate) mod text;

pub use source::Source;

use crate::record::ADDRESS_MASK;
use crate::{Error, Result, file};

/// Maximum size of a file of symbols in bytes. The file of a kernel with debug information is less than half
/// as large.
pub const MAX_FILE: u64 = 1 << 30;

/// Maximum number of symbols of one file. A kernel with all modules has about 200,000 symbols.
pub const MAX_SYMBOLS: usize = 16 << 20;

/// Maximum length of a name in bytes. Longer names are cut to this length. Names of C++ and Rust rarely have
/// more than 1,000 bytes.
pub const MAX_NAME: usize = 4096;

/// Maximum size in bytes of a function whose size is unknown. If an address is farther than this size behind
/// the start of such a function, then the address belongs to no function.
pub const MAX_UNSIZED: u64 = 1 << 20;

/// A function's name and range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'s> {
    /// Address of the first byte, with 48 bits.
    pub address: u64,
    /// Size in bytes, at least 1.
    pub size: u64,
    /// Name as in the file; see [`demangled`](Self::demangled).
    pub name: &'s str,
}

/// Functions of a guest, sorted by address. Addresses have 48 bits, as in records.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    /// Address, size, and place of the name in `names`
    entries: Vec<(u64, u64, Name)>,
    names: String,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    start: usize,
    end: usize,
}

impl Symbols {
    /// Reads the functions of a file: ELF, or lines as in `/proc/kallsyms` and `System.map`.
    ///
    /// # Errors
    /// If the file cannot be read, has no functions, or is damaged. The message says what to do.
    pub fn read(source: &Source) -> Result<Self> {
        let mut symbols = Symbols::default();
        symbols.add(source)?;
        Ok(symbols)
    }

    /// Adds the functions of another file, as [`read`](Self::read) does.
    ///
    /// # Errors
    /// As for [`read`](Self::read). If there is an error, then nothing is added.
    pub fn add(&mut self, source: &Source) -> Result<()> {
        let path = source.path.as_path();
        let advice =
            "give an ELF file without debug information (strip -g), or a copy of /proc/kallsyms";
        let bytes = file::given(path, MAX_FILE, advice)?;
        let mut found = Symbols::default();
        if bytes.starts_with(b"\x7fELF") {
            elf::read(&bytes, source, &mut found)?;
        } else if bytes.iter().take(64).any(|byte| *byte == 0) {
            let why = "neither an ELF file nor a text; for a compressed kernel, copy /proc/kallsyms as root in the guest";
            return Err(Error::unsuitable(path, why));
        } else {
            text::read(&bytes, path, source.offset, &mut found)?;
        }
        found.finish();
        if found.is_empty() {
            let why = "no functions in it: a stub, or stripped; for a kernel, copy /proc/kallsyms \
                       as root in the guest";
            return Err(Error::unsuitable(path, why));
        }
        for symbol in found.iter() {
            self.push(symbol.address, symbol.size, symbol.name);
        }
        self.finish();
        Ok(())
    }

    /// Finds the function that contains an address. The search ignores the upper 16 bits of the address. A
    /// function whose size is unknown extends to the next symbol, and at most [`MAX_UNSIZED`] bytes.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<Symbol<'_>> {
        let address = address & ADDRESS_MASK;
        let after = self.entries.partition_point(|(start, ..)| *start <= address);
        let symbol = self.get(after.checked_sub(1)?)?;
        (address - symbol.address < symbol.size).then_some(symbol)
    }

    /// Returns whether a function begins at an address, so that a jump to the address is a tail call. Thunks,
    /// stubs, and the parts of functions that compilers move away (`NAME.cold`) are no functions.
    #[must_use]
    pub fn is_function(&self, address: u64) -> bool {
        self.lookup(address).is_some_and(|found| {
            let is_start = found.address == address & ADDRESS_MASK;
            is_start && !is_thunk(found.name) && !is_part(found.name) && found.name != STUBS
        })
    }

    /// Returns the same functions at other addresses.
    #[must_use]
    pub fn moved(mut self, offset: u64) -> Self {
        for (address, ..) in &mut self.entries {
            *address = address.wrapping_add(offset) & ADDRESS_MASK;
        }
        // The addresses are sorted again, because they may wrap around to 0.
        self.entries.sort_by_key(|(address, ..)| *address);
        self
    }

    /// Iterates over the functions in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        (0..self.entries.len()).filter_map(|index| self.get(index))
    }

    /// Returns the number of functions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no functions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn get(&self, index: usize) -> Option<Symbol<'_>> {
        let &(address, size, Name { start, end }) = self.entries.get(index)?;
        Some(Symbol { address, size, name: self.names.get(start..end)? })
    }

    /// Adds a function. If the name is empty, then the symbol is no function, and only limits the size of the
    /// function before it. Returns false if there are too many symbols. The caller has to call
    /// [`finish`](Self::finish) after the last symbol.
    pub(crate) fn push(&mut self, address: u64, size: u64, name: &str) -> bool {
        if self.entries.len() >= MAX_SYMBOLS {
            return false;
        }
        let start = self.names.len();
        self.names.push_str(&name[..character_boundary(name, MAX_NAME)]);
        self.entries.push((address & ADDRESS_MASK, size, Name { start, end: self.names.len() }));
        true
    }

    /// Sorts the functions by address and completes the functions' sizes. If an address has several names,
    /// the first name is used.
    pub(crate) fn finish(&mut self) {
        let is_end = |name: &Name| name.start == name.end;
        self.entries.sort_by_key(|(address, _, name)| (*address, is_end(name)));
        self.entries.dedup_by_key(|(address, ..)| *address);
        let mut next = None;
        for (address, size, _) in self.entries.iter_mut().rev() {
            if *size == 0 {
                *size = next.map_or(MAX_UNSIZED, |next: u64| MAX_UNSIZED.min(next - *address));
            }
            next = Some(*address);
        }
        self.entries.retain(|(.., name)| !is_end(name));
    }
}

/// Returns the last boundary between two characters within the first `most` bytes.
fn character_boundary(text: &str, most: usize) -> usize {
    // There are at most four rounds, because a character has up to four bytes.
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}

/// Name of the stubs through which a program or library calls functions of other files. A stub jumps to an
/// address that it reads from a table.
pub const STUBS: &str = ".plt";

/// Returns whether a name belongs to a part of a function that the compiler has moved away. The function
/// jumps to this part, and the part jumps back.
fn is_part(name: &str) -> bool {
    name.ends_with(".cold") || name.contains(".cold.")
}

/// Returns whether a name belongs to a thunk of the kernel or of a compiler. Other functions use thunks for
/// jumps and returns.
#[must_use]
pub fn is_thunk(name: &str) -> bool {
    let prefixes = [
        "__x86_indirect_",
        "__x86_return_",
        "__indirect_thunk_",
        "__llvm_retpoline_",
        "__llvm_lvi_thunk_",
        "retbleed_",
        "srso_",
    ];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}
