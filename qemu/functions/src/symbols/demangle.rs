// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Names of C++ and Rust functions as the names stand in the source.

use std::borrow::Cow;
use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions};

use super::{MAX_NAME, Symbol, character_boundary};

/// Maximum recursion of the parser of C++ names. The parser tries several readings at each depth, so a
/// hostile name of 60 bytes takes minutes with the default of 96. Of 20,000 names of LLVM and libstdc++, 25
/// need more than this maximum.
const MAX_RECURSION: u32 = 48;

/// Codes of the operators `new`, `new[]`, `delete` and `delete[]` in C++ names. The parser reads such an
/// operator twice, together with the operator's operands.
const READ_TWICE: [&str; 4] = ["nw", "na", "dl", "da"];

/// Maximum number of these operators' codes in a C++ name. Of 150,000 names of LLVM and libstdc++, two names
/// have 11 of these codes.
const MAX_READ_TWICE: usize = 12;

impl<'s> Symbol<'s> {
    /// Returns the function's name for people: the name of a C++ or Rust function as the name stands in the
    /// source, without the hash that Rust adds. Other names are unchanged. Damaged names and names that are
    /// too deeply nested are unchanged, too. Names are cut to [`MAX_NAME`] bytes.
    #[must_use]
    pub fn demangled(&self) -> Cow<'s, str> {
        demangled(self.name).map_or(Cow::Borrowed(self.name), Cow::Owned)
    }
}

fn demangled(symbol: &str) -> Option<String> {
    if !symbol.starts_with("_Z") && !symbol.starts_with("_R") {
        return None;
    }
    // A symbol may have a version: `_ZN1A3getEv@VERSION`.
    let (mangled, version) = symbol.split_at(symbol.find('@').unwrap_or(symbol.len()));
    let mut name = Beginning::default();
    // If a name is too long, then `name` keeps the first bytes, and returns an error to the demangler. The
    // code ignores this error.
    let result = match rustc_demangle::try_demangle(mangled) {
        Ok(found) => write!(name, "{found:#}"),
        Err(_) => {
            let read_twice = READ_TWICE.map(|letters| mangled.matches(letters).count());
            if read_twice.iter().sum::<usize>() > MAX_READ_TWICE {
                return None;
            }
            let options = ParseOptions::default().recursion_limit(MAX_RECURSION);
            let found = cpp_demangle::Symbol::new_with_options(mangled, &options).ok()?;
            found.structured_demangle(&mut name, &DemangleOptions::new())
        }
    };
    if result.is_err() && !name.is_full || name.text.is_empty() {
        return None;
    }
    let _ = name.write_str(version);
    Some(name.text)
}

/// The first [`MAX_NAME`] bytes of a text. A short symbol can stand for a text of any length. Therefore the
/// writer gets an error at the end of these bytes, and stops.
#[derive(Default)]
struct Beginning {
    text: String,
    is_full: bool,
}

impl Write for Beginning {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.is_full {
            return Err(fmt::Error);
        }
        let end = character_boundary(more, MAX_NAME - self.text.len());
        self.text.push_str(&more[..end]);
        self.is_full = end < more.len();
        if self.is_full { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(symbol: &str) -> String {
        Symbol { address: 0, size: 1, name: symbol }.demangled().into_owned()
    }

    #[test]
    fn names_are_as_in_the_source_without_rusts_hash() {
        for (symbol, expected) in [
            ("_ZN5space3fooEibc", "space::foo(int, bool, char)"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backEOi",
                "std::vector<int, std::allocator<int> >::push_back(int&&)",
            ),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_ZN4core3fmt5write17h0123456789abcdefE.cold", "core::fmt::write.cold"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_ZN1A3getEv@VERSION_3.4", "A::get()@VERSION_3.4"),
        ] {
            assert_eq!(name(symbol), expected);
        }
    }

    #[test]
    fn other_names_and_damaged_ones_are_as_in_the_file() {
        for symbol in
            ["main", "_Zebra", "_Z", "_R", "_ZN", "_ZN4core", "_Read", "_ZN5space3fooEibc!", "_ZNé"]
        {
            assert_eq!(name(symbol), symbol);
        }
    }

    #[test]
    fn a_short_symbol_for_a_very_long_name_is_cut() {
        // Each type contains the previous type twice. The text would have 2^30 names, and would take minutes.
        let mut symbol = "_Z1fSt4pairIiiE".to_owned();
        for type_ in 0..30 {
            let digit = char::from_digit(type_, 36).unwrap().to_ascii_uppercase();
            write!(symbol, "S_IS{digit}_S{digit}_E").unwrap();
        }

        let name = name(&symbol);

        assert_eq!(name.len(), 4096);
        assert!(name.starts_with("f(std::pair<"), "{name}");
    }

    #[test]
    fn a_name_with_very_many_readings_takes_little_time() {
        let begin = std::time::Instant::now();
        for (head, part, tail) in [
            ("1fDT", "nw", ""),
            ("1fIX", "nwil", "E"),
            ("1fIX", "dl", ""),
            ("1fIX", "da", ""),
            ("", "StIL", "wst"),
        ] {
            for parts in 1..60 {
                let symbol = format!("_Z{head}{}{tail}", part.repeat(parts));
                assert_eq!(name(&symbol), symbol);
            }
        }
        // If the parser had no limits, then the first symbol alone would take minutes.
        assert!(begin.elapsed().as_secs() < 60);
    }

    #[test]
    fn a_deeply_nested_symbol_is_as_in_the_file() {
        for symbol in [format!("_Z1f{}i", "P".repeat(4_000)), format!("_ZN{}", "N".repeat(4_000))] {
            assert_eq!(name(&symbol), symbol);
        }
    }
}
