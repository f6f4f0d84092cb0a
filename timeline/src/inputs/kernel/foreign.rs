// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Recognizes the kind of a file that is no trace.dat. The first bytes of the file tell the kind.

/// First bytes of files that users may take for a trace.dat.
const KINDS: [(&[u8], &str); 10] = [
    (b"\x1f\x8b", "a file compressed with gzip: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a file compressed with zstd: unpack it first"),
    (b"\xfd7zXZ\0", "a file compressed with xz: unpack it first"),
    (b"BZh", "a file compressed with bzip2: unpack it first"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"PERFILE2", "a perf.data of perf"),
    (b"2ELIFREP", "a perf.data of perf"),
    (b"\x7fELF", "a program or library"),
    (b"Ftrace!", "a part of an uftrace directory: give the directory"),
    (b"\xc1\x1f\xfc\xc1", "a stream of a CTF trace: give the directory of a session"),
];

/// Returns the probable kind of a file that does not begin like a trace.dat.
pub(crate) fn seems(begin: &[u8]) -> &'static str {
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace() || *byte > 127;
    match KINDS.iter().find(|(magic, _)| begin.starts_with(magic)) {
        Some((_, kind)) => kind,
        None if begin.is_empty() => "an empty file",
        None if begin.iter().all(is_text) => "a text",
        None => "data of another kind",
    }
}
