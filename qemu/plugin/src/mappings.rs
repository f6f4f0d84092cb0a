//! The kernel's list of this process's mappings.

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// First address of the mapping.
    pub start: u64,
    /// Length of the mapping in bytes.
    pub len: u64,
    /// Offset of the mapping in the file, in bytes.
    pub offset: u64,
    /// Device and inode of the file.
    pub file: [&'a str; 2],
    /// Path of the file, or another name such as `[stack]`, or nothing.
    pub path: &'a [u8],
}

/// Iterates over the text of `/proc/self/maps`.
pub fn parse(maps: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    maps.split(|&byte| byte == b'\n').filter_map(line)
}

/// Parses `start-end perms offset dev inode path`. A path may contain any bytes except for a line feed.
fn line(line: &[u8]) -> Option<Mapping<'_>> {
    let mut rest = line;
    let mut word = || {
        let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after.trim_ascii_start();
        std::str::from_utf8(word).ok().filter(|word| !word.is_empty())
    };
    let (start, end) = word()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let start = hex(start)?;
    let len = hex(end)?.checked_sub(start)?;
    word()?;
    let offset = hex(word()?)?;
    let file = [word()?, word()?];
    Some(Mapping { start, len, offset, file, path: rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_with_its_path() {
        let maps = b"00400000-00401000 r-xp 00002000 fe:00 1042                  /a b/\xff (x)\n\
            7f0000030000-7f0000031000 rw-p 00000000 00:00 0 \nnonsense\n-\n1-0 \n1-0 r 0 0 0\n";
        let parsed: Vec<Mapping<'_>> = parse(maps).collect();
        let [named, unnamed] = parsed[..] else { panic!("{parsed:?}") };
        assert_eq!((named.start, named.len, named.offset), (0x40_0000, 0x1000, 0x2000));
        assert_eq!((named.file, named.path), (["fe:00", "1042"], &b"/a b/\xff (x)"[..]));
        assert_eq!((unnamed.start, unnamed.path), (0x7f00_0003_0000, &b""[..]));
    }
}
