// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lines with an address, a type and a name: `/proc/kallsyms`, `System.map`, and uftrace's `.sym`.

use std::path::Path;

use hypertrace_format::number::counted;

use super::Symbols;
use crate::record::ADDRESS_MASK;
use crate::{Error, Result};

/// Adds the functions of a text. Symbols of other types end the function before them. Lines that are no
/// symbols are left out; a single error says where the first such line is, and how many such lines there are.
pub(crate) fn read(bytes: &[u8], path: &Path, offset: u64, found: &mut Symbols) -> Result<()> {
    let (mut at, mut hidden) = (0, 0);
    let (mut first_wrong, mut wrong) = (None, 0);
    for line in bytes.split(|byte| *byte == b'\n') {
        let from = at;
        at += line.len() as u64 + 1;
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let Some((address, size, kind, name)) = parse(line) else {
            first_wrong.get_or_insert(from);
            wrong += 1;
            continue;
        };
        // uftrace gives the type P to a library's function whose address is in the procedure linkage table.
        let is_function = matches!(kind, b'T' | b't' | b'W' | b'w' | b'P');
        if is_function && address == 0 {
            hidden += 1;
        }
        let name = if is_function { String::from_utf8_lossy(name) } else { "".into() };
        if !found.push(address.wrapping_add(offset), size, &name) {
            return Err(Error::damaged(path, from, "too many symbols"));
        }
    }
    if let Some(first) = first_wrong {
        let lines = counted(wrong, "line");
        let why = format!(
            "expected lines as in /proc/kallsyms: an address, a type and a name ({lines} left out)"
        );
        return Err(Error::damaged(path, first, why));
    }
    // One function at address 0 is no reason to refuse the file, because a program's own symbols may contain
    // such a function.
    if hidden > 1 && found.entries.iter().all(|(address, ..)| *address == offset & ADDRESS_MASK) {
        let why = "all addresses are 0: copy /proc/kallsyms as root, with kernel.kptr_restrict=0";
        return Err(Error::unsuitable(path, why));
    }
    Ok(())
}

/// Text before the number of symbols in a `.sym`.
pub(crate) const COUNT: &str = "# symbols: ";

/// Names of uftrace's marks in a `.sym` file. The marks are no symbols.
const MARKS: [&[u8]; 3] = [b"__sym_end", b"__dynsym_end", b"__func_end"];

/// Checks that a `.sym` file has symbols, because recorders make no file without symbols. If the file states
/// its number of symbols, then the file must have this number of symbols.
pub(crate) fn check_count(bytes: &[u8], path: &Path) -> Result<()> {
    let stated =
        bytes.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(COUNT.as_bytes()));
    let stated = stated.and_then(|number| str::from_utf8(number).ok()?.trim().parse::<u64>().ok());
    let mut lines = bytes.split(|byte| *byte == b'\n').filter_map(parse);
    // The stated number may include the marks, because some recorders count the marks, too. Whether or not
    // the number includes the marks, a cut file has too few lines, because the marks are the last lines.
    let there = lines.clone().count() as u64;
    match stated {
        _ if lines.all(|(.., name)| MARKS.contains(&name)) => {
            Err(Error::damaged(path, 0, "no symbol is there: copy the whole directory"))
        }
        Some(stated) if there < stated => {
            let why =
                format!("only {there} of {stated} symbols are there: copy the whole directory");
            Err(Error::damaged(path, bytes.len() as u64, why))
        }
        _ => Ok(()),
    }
}

/// Splits `ADDRESS [SIZE] TYPE NAME`, without a module's name after a tab.
fn parse(line: &[u8]) -> Option<(u64, u64, u8, &[u8])> {
    let (address, rest) = word(line)?;
    let address = hexadecimal(address)?;
    let (first, rest) = word(rest)?;
    let (size, kind, name) = match first {
        [kind] => (0, *kind, rest),
        size => {
            let (kind, name) = word(rest)?;
            let [kind] = kind else { return None };
            (hexadecimal(size)?, *kind, name)
        }
    };
    let name = name.split(|byte| *byte == b'\t').next()?.trim_ascii();
    let is_type = kind.is_ascii_alphabetic() || kind == b'?' || kind == b'-';
    (is_type && !name.is_empty()).then_some((address, size, kind, name))
}

fn word(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    Some((&line[..end], &line[end + 1..]))
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    let text = str::from_utf8(digits).ok()?;
    // The digits are checked first, because `from_str_radix` would accept a sign.
    text.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u64::from_str_radix(text, 16).ok())?
}
