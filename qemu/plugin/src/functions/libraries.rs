//! Libraries of a program under QEMU's user mode: the files that QEMU has mapped for the program.

use crate::mappings::{self, Mapping};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Returns the files of `/proc/self/maps` whose first byte is mapped. Each file comes with a range of the
/// program's addresses. The range begins at the file's first byte, and ends with the file's last mapping
/// before the next mapping of a file's first byte. `base` is QEMU's address of a byte of the program minus
/// the program's own address of this byte.
pub fn files(maps: &[u8], base: u64) -> Vec<(PathBuf, Range<u64>)> {
    let mut found: Vec<(&[u8], Range<u64>)> = Vec::new();
    for Mapping { start, len, offset, path, .. } in mappings::parse(maps) {
        let start = start.wrapping_sub(base);
        let end = start.wrapping_add(len);
        match found
            .last_mut()
            .filter(|(known, range)| *known == path && offset > 0 && start >= range.end)
        {
            Some((_, range)) => range.end = end,
            None if offset == 0 && path.starts_with(b"/") => found.push((path, start..end)),
            None => {}
        }
    }
    found.into_iter().map(|(path, range)| (OsStr::from_bytes(path).into(), range)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_from_its_first_byte_to_its_last_mapping() {
        let maps = b"\
1000-2000 r--p 00001000 fe:00 7 /lib/later
11000-12000 r--p 00000000 fe:00 8 /lib/a b
12000-14000 r--p 00001000 fe:00 8 /lib/a b
14000-15000 rw-p 00000000 00:00 0
15000-16000 rw-p 00003000 fe:00 8 /lib/a b
17000-18000 rw-p 00000000 00:00 0 [stack]
21000-22000 r--p 00000000 fe:00 8 /lib/a b
";
        let [first, again] = [0x1_0000..0x1_5000, 0x2_0000..0x2_1000];
        assert_eq!(files(maps, 0x1000), [("/lib/a b".into(), first), ("/lib/a b".into(), again)]);
    }
}
