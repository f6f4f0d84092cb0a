//! Offsets of host addresses in the segment's file, from the kernel's list of mappings.

use crate::mappings::{self, Mapping};

/// A mapping of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First address of the mapping.
    pub start: u64,
    /// Length of the mapping in bytes; 0 if there is no mapping.
    pub len: u64,
    /// Offset of the mapping in the file, in bytes.
    pub offset: u64,
}

impl Range {
    /// Returns this address's offset in the file.
    #[inline(always)]
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let at = address.wrapping_sub(self.start);
        (at < self.len).then(|| self.offset.wrapping_add(at))
    }

    /// Returns the address of `len` bytes from this offset of the file, if all these bytes are in this
    /// mapping.
    pub fn address_of(&self, offset: u64, len: u64) -> Option<u64> {
        let at = offset.checked_sub(self.offset)?;
        (at.checked_add(len)? <= self.len).then(|| self.start.wrapping_add(at))
    }
}

/// Looks an address up in the text of `/proc/self/maps`. Returns the mapping that contains the address, if
/// this mapping is of the same file as the mapping at `ours`. Compares the devices and inodes in this text,
/// because on some file systems stat(2) returns another device or inode for the same file.
pub fn look_up(maps: &[u8], ours: u64, address: u64) -> Option<Range> {
    let file_at = |address| {
        mappings::parse(maps).find_map(|Mapping { start, len, offset, file, .. }| {
            let range = Range { start, len, offset };
            range.offset_of(address).is_some().then_some((range, file))
        })
    };
    let (_, our_file) = file_at(ours)?;
    let (range, file) = file_at(address)?;
    (file == our_file).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
00400000-00401000 r-xp 00000000 fe:00 1042                               /bin/\xff
7f0000000000-7f0000004000 rw-s 00000000 00:01 2063                       /memfd:segment (deleted)
7f0000010000-7f0000020000 rw-s 00002000 00:01 2063                       /memfd:segment (deleted)
7f0000020000-7f0000021000 rw-s 00000000 00:01 2064                       /memfd:segment (deleted)
7f0000030000-7f0000031000 rw-p 00000000 00:00 0 
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn an_address_in_another_mapping_of_our_file_is_found() {
        let range = look_up(MAPS, 0x7f00_0000_0010, 0x7f00_0001_0108).unwrap();
        assert_eq!(range, Range { start: 0x7f00_0001_0000, len: 0x10000, offset: 0x2000 });
        assert_eq!(range.offset_of(0x7f00_0001_0108), Some(0x2108));
        assert_eq!(range.offset_of(0x7f00_0002_0000), None);
        assert_eq!(range.offset_of(0), None);
        assert_eq!(range.address_of(0x2108, 0xfef8), Some(0x7f00_0001_0108));
        assert_eq!(range.address_of(0x2108, 0xfef9), None);
        assert_eq!(range.address_of(0x1ff8, 8), None);
        assert_eq!(range.address_of(8, u64::MAX), None);
    }

    #[test]
    fn other_files_and_holes_are_not() {
        let find = |address| look_up(MAPS, 0x7f00_0000_0000, address);
        assert_eq!(find(0x7f00_0002_0000), None);
        assert_eq!(find(0x7f00_0003_0000), None);
        assert_eq!(find(0x7f00_0000_4000), None);
        assert_eq!(find(0x400000), None);
        assert_eq!(look_up(b"", 0, 0), None);
        assert_eq!(look_up(b"nonsense\n-\n1-0 \n", 0, 0), None);
    }
}
