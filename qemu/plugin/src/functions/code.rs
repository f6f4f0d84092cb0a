//! The guest's code: names of its functions, and which functions are recorded.

use super::options::Part;
use crate::api;
use hypertrace_functions::symbols::{MAX_FILE, STUBS, Source, Symbols, is_thunk};
use hypertrace_functions::{Error, record::ADDRESS_MASK};
use std::ops::Range;
use std::path::PathBuf;

/// Maximum number of libraries of a program that are named. Together these libraries have at most
/// [`MAX_FILE`] bytes.
const MAX_LIBRARIES: usize = 1024;

/// If the program and its libraries have more functions than this number, then no further library is named.
const MAX_FUNCTIONS: usize = 1 << 20;

/// An option names a function that does not exist.
#[derive(Debug, thiserror::Error)]
#[error(
    "symbol={0}: the symbols have no such function; symbols=FILE[:0xOFFSET] gives those of a kernel or a library"
)]
pub struct NoSuchFunction(String);

/// The guest's code.
#[derive(Debug, Default)]
pub struct Code {
    symbols: Symbols,
    /// Ranges of the recorded functions, sorted; `None`: all functions are recorded.
    recorded: Option<Vec<(u64, u64)>>,
    /// First address of the program's code.
    program: Option<u64>,
}

/// The class of a place to which code jumps or calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JumpTarget {
    /// First byte of a function.
    Function,
    /// First byte of a thunk. Other functions use a thunk for a call, a jump or a return.
    Thunk,
    /// A stub through which a program calls a function of a library.
    Stub,
    /// Any other place, such as an address without a symbol.
    Other,
}

impl Code {
    /// Reads the symbols. All functions are recorded until [`Code::keep`] is called.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(sources: &[Source]) -> Result<Code, Error> {
        let mut symbols = Symbols::default();
        sources.iter().try_for_each(|source| symbols.add(source))?;
        Ok(Code { symbols, ..Code::default() })
    }

    /// Adds the symbols of the program that QEMU emulates, if there are any.
    pub fn add_program(&mut self) {
        let Some((path, start)) = api::program() else { return };
        self.program = Some(start);
        if let Ok(source) = Source::of_program(&path, start) {
            let _ = self.symbols.add(&source);
        }
    }

    /// Returns the symbols of the program and of the program's libraries. `files` has the libraries and their
    /// addresses. A library's symbols are included on three conditions: the file has symbols, the sorted
    /// addresses in `observed` contain an instruction of the library, and the limits leave room for the
    /// library.
    pub fn with_libraries(&self, files: Vec<(PathBuf, Range<u64>)>, observed: &[u64]) -> Symbols {
        let mut symbols = self.symbols.clone();
        // A program may map the same large file many times.
        let (mut bytes, mut left) = (MAX_FILE, MAX_LIBRARIES);
        for (path, range) in files {
            let first = observed.partition_point(|at| *at < range.start);
            let is_observed = observed.get(first).is_some_and(|at| *at < range.end);
            if self.program.is_some_and(|start| range.contains(&start)) || !is_observed {
                continue;
            }
            if left == 0 || symbols.len() > MAX_FUNCTIONS {
                break;
            }
            let Ok(file) = path.metadata() else { continue };
            let Some(rest) = bytes.checked_sub(file.len()) else { continue };
            (bytes, left) = (rest, left - 1);
            if let Ok(source) = Source::of_mapped(&path, range.start) {
                let _ = symbols.add(&source);
            }
        }
        symbols
    }

    /// Limits the trace to these functions.
    ///
    /// # Errors
    /// If no function has one of the given names.
    pub fn keep(&mut self, parts: &[Part]) -> Result<(), NoSuchFunction> {
        if parts.is_empty() {
            return Ok(());
        }
        let mut ranges = Vec::new();
        for part in parts {
            let before = ranges.len();
            match part {
                Part::Range(start, end) => ranges.push((start & ADDRESS_MASK, end & ADDRESS_MASK)),
                Part::Name(name) => ranges.extend(
                    self.symbols
                        .iter()
                        .filter(|symbol| matches(name, symbol.name))
                        .map(|symbol| (symbol.address, symbol.address + symbol.size)),
                ),
            }
            if ranges.len() == before {
                return Err(NoSuchFunction(part.to_string()));
            }
        }
        ranges.sort_unstable();
        ranges.dedup_by(|(start, end), (_, last)| {
            let joins = *start <= *last;
            if joins {
                *last = (*last).max(*end);
            }
            joins
        });
        self.recorded = Some(ranges);
        Ok(())
    }

    /// Returns whether only some functions are recorded.
    pub fn is_partial(&self) -> bool {
        self.recorded.is_some()
    }

    /// Returns whether the function that contains an address is recorded.
    pub fn is_recorded(&self, address: u64) -> bool {
        let Some(ranges) = &self.recorded else { return true };
        let address = address & ADDRESS_MASK;
        let after = ranges.partition_point(|(start, _)| *start <= address);
        after.checked_sub(1).and_then(|at| ranges.get(at)).is_some_and(|(_, end)| address < *end)
    }

    /// Returns the class of the place at an address.
    pub fn place(&self, address: u64) -> JumpTarget {
        if self.symbols.is_function(address) {
            return JumpTarget::Function;
        }
        let symbol = self.symbols.lookup(address);
        match symbol {
            Some(symbol) if is_thunk(symbol.name) => JumpTarget::Thunk,
            Some(symbol) if symbol.name == STUBS => JumpTarget::Stub,
            _ => JumpTarget::Other,
        }
    }

    /// Returns whether a function may begin at an address: the address has no symbol, or is a function's
    /// first byte.
    pub fn can_begin(&self, address: u64) -> bool {
        self.symbols.lookup(address).is_none_or(|symbol| symbol.address == address & ADDRESS_MASK)
    }

    /// Returns the first address of the function that contains an address.
    pub fn function(&self, address: u64) -> Option<u64> {
        self.symbols.lookup(address).map(|symbol| symbol.address)
    }

    /// Returns whether both addresses are in the same function.
    pub fn is_same(&self, one: u64, other: u64) -> bool {
        let function = self.function(one);
        function.is_some() && function == self.function(other)
    }

    /// Returns the names of all functions.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }
}

/// Returns whether a name matches a pattern. A pattern that ends with `*` matches each name that begins with
/// the text before the `*`. Any other pattern matches only a name that is equal to the pattern.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(lines: &str) -> Code {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        Code::read(&[Source { path: file.path().into(), offset: 0 }]).unwrap()
    }

    fn kernel() -> Code {
        code(
            "ffffffff81000000 T vfs_read\nffffffff81000100 T vfs_write\nffffffff81000200 T __x86_return_thunk\n\
             ffffffff81000300 t vfs_read.cold\nffffffff81000400 T ksys_read\nffffffff81000500 T end\n",
        )
    }

    #[test]
    fn functions_are_recorded_by_name_and_by_range() {
        let mut code = kernel();
        assert!(!code.is_partial() && code.is_recorded(7));
        let name = Part::Name("vfs_*".into());
        code.keep(&[name, Part::Range(0xffff_ffff_8100_0410, 0xffff_ffff_8100_0420)]).unwrap();

        let recorded = |address: u64| code.is_recorded(0xffff_ffff_8100_0000 + address);
        assert!([0, 0x1ff, 0x300, 0x410, 0x41f].into_iter().all(recorded));
        assert!(![0x200, 0x2ff, 0x400, 0x420].into_iter().any(recorded));
    }

    #[test]
    fn libraries_that_are_too_large_together_are_not_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::copy(std::env::current_exe().unwrap(), file.path()).unwrap();
        file.as_file().set_len(MAX_FILE / 2 + 1).unwrap();
        let [first, second] = [1 << 40, 2 << 40];
        let files = [first, second].map(|start| (file.path().into(), start..start + 0x1000));

        let symbols = Code::default().with_libraries(files.into(), &[first, second]);

        let named = |start| symbols.iter().any(|symbol| symbol.address >= start);
        assert!(named(first) && !named(second));
    }

    #[test]
    fn an_unknown_name_is_an_error() {
        let error = kernel().keep(&[Part::Name("vfs_rread".into())]).unwrap_err();
        assert!(error.to_string().contains("symbol=vfs_rread"), "{error}");
    }

    #[test]
    fn places_are_functions_thunks_or_others() {
        let code = kernel();
        let place = |address: u64| code.place(0xffff_ffff_8100_0000 + address);
        assert_eq!(place(0), JumpTarget::Function);
        assert_eq!(place(4), JumpTarget::Other);
        assert_eq!(place(0x200), JumpTarget::Thunk);
        assert_eq!(place(0x300), JumpTarget::Other);
        assert!(code.is_same(0xffff_ffff_8100_0000, 0xffff_ffff_8100_00ff));
        assert!(!code.is_same(1, 1));
    }
}
