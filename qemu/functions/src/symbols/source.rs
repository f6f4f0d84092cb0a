// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! `FILE:0xOFFSET`: a file with symbols, and the number to add to the symbols' addresses to get the guest's
//! addresses.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// File with symbols, and the file's place in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Path of the file.
    pub path: PathBuf,
    /// Number to add to all addresses of the file, such as a kernel's random offset or a program's base. For
    /// an object file, such as a kernel's module, the number is the guest's address of the section `.text`.
    pub offset: u64,
}

impl FromStr for Source {
    type Err = String;

    /// Parses `FILE` or `FILE:0xOFFSET`. If the file's name itself contains `:0x`, the text has to end with
    /// `:0x0` or another offset.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (path, offset) = match text.rsplit_once(":0x") {
            Some((path, digits)) => (path, u64::from_str_radix(digits, 16).ok()),
            None => (text, Some(0)),
        };
        let offset = offset.ok_or_else(|| {
            format!("{text}: the offset after the colon is not a hexadecimal number of 64 bits")
        })?;
        if path.is_empty() {
            return Err(format!("{text:?}: no file; write FILE or FILE:0xOFFSET"));
        }
        Ok(Source { path: path.into(), offset })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.path.display(), self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_optional() {
        let source = |path: &str, offset| Ok(Source { path: path.into(), offset });
        assert_eq!("vmlinux".parse(), source("vmlinux", 0));
        assert_eq!("vmlinux:0x1c000000".parse(), source("vmlinux", 0x1c00_0000));
        assert_eq!("a:b".parse(), source("a:b", 0));
        assert_eq!("a:0x1:0x0".parse(), source("a:0x1", 0));
        assert_eq!("m.ko:0xffffffffc0000000".parse(), source("m.ko", 0xffff_ffff_c000_0000));
    }

    #[test]
    fn a_bad_offset_is_refused() {
        for text in ["a:0x", "a:0xg", "a:0x10000000000000000", "", ":0x1"] {
            assert!(text.parse::<Source>().is_err(), "{text}");
        }
    }
}
