// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Contents of a directory's descriptions, as uftrace 0.13 to 0.19 read them.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::symbols::Symbols;
use crate::symbols::text::COUNT;
use crate::task::Task;

/// Bits of uftrace's features: calls of libraries, sessions, relative symbols, a maximum of the depth,
/// automatic arguments.
const FEATURES: u64 = 1 << 0 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 9;

/// Bits of the groups of lines in `info`: the program, the command, the tasks. A group without its lines is
/// an error for readers.
const GROUPS: u64 = 1 << 0 | 1 << 3 | 1 << 7;

/// Maximum length of an event's text in bytes. uftrace's readers have a buffer of 1,024 bytes for this text.
const MAX_EVENT: usize = 900;

/// Line of a map that describes the stack. Readers derive the range of the kernel's addresses from the
/// stack's place, and expect such a line.
pub(super) const STACK_LINE: &str =
    "7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0          [stack]\n";

/// Returns the contents of `info`.
pub(super) fn info(program: &str, command: &str, tasks: &[Task]) -> Vec<u8> {
    let mut info = Vec::new();
    info.extend(b"Ftrace!\0");
    info.extend(4_u32.to_le_bytes());
    info.extend(40_u16.to_le_bytes());
    // Little endian, 64 bit
    info.extend([1, 2]);
    info.extend(FEATURES.to_le_bytes());
    info.extend(GROUPS.to_le_bytes());
    // Maximum number of depths
    info.extend(1024_u16.to_le_bytes());
    info.resize(40, 0);
    let tids: Vec<_> = tasks.iter().map(|task| task.tid.to_string()).collect();
    let lines = format!(
        "exename:{}\ncmdline:{}\ntaskinfo:lines=2\ntaskinfo:nr_tid={}\ntaskinfo:tids={}\n",
        short(program),
        short(command),
        tids.len(),
        tids.join(",")
    );
    info.extend(lines.into_bytes());
    info
}

/// Returns the contents of `task.txt`. A task's name is the name of its session's program.
pub(super) fn tasks(tasks: &[Task], session: &str) -> String {
    let mut text = String::new();
    for Task { tid, name } in tasks {
        let name = one_line(name).replace('"', "'");
        let time = "timestamp=0.000000000";
        let _ = writeln!(text, "SESS {time} pid={tid} sid={session} exename=\"{name}\"");
        let _ = writeln!(text, "TASK {time} tid={tid} pid={tid}");
    }
    text
}

/// A module that is written.
#[derive(Debug)]
pub(super) struct Module {
    /// The module's line of the map.
    pub line: String,
    /// Size of the module's `.sym` in bytes.
    pub bytes: usize,
    /// Number of functions whose names did not fit into the `.sym` file.
    pub left_out: usize,
}

/// Returns a module, and the contents of its `.sym`, which have at most `most` bytes. Returns `None` for a
/// module without functions.
pub(super) fn module(name: &str, symbols: &Symbols, most: usize) -> Option<(Module, String)> {
    const PAGE: u64 = 4096;
    // Maximum size in bytes of three lines together: a function's two lines, without the function's name, and
    // the line with the number of symbols.
    const LINES: usize = 64 + 32;
    let start = symbols.iter().next()?.address & !(PAGE - 1);
    let mut text = String::new();
    let mut end = start;
    let mut left_out = 0;
    let mark = |text: &mut String, end| {
        // A line with another type shows readers where the function before it ends.
        let _ = writeln!(text, "{:016x} ? __end", end - start);
    };
    for (index, symbol) in symbols.iter().enumerate() {
        if text.len() + symbol.name.len() + LINES > most {
            left_out = symbols.len() - index;
            break;
        }
        if end < symbol.address && end != start {
            mark(&mut text, end);
        }
        let name = reader_name(symbol.name);
        let _ = writeln!(text, "{:016x} T {}", symbol.address - start, one_line(&name));
        end = symbol.address.saturating_add(symbol.size);
    }
    mark(&mut text, end);
    // The number of lines shows readers whether the file was cut.
    let text = format!("{COUNT}{}\n{text}", text.lines().count());
    let end = end.div_ceil(PAGE).saturating_mul(PAGE);
    let line = format!("{start:x}-{end:x} r-xp 00000000 00:00 0          {name}\n");
    Some((Module { line, bytes: text.len(), left_out }, text))
}

/// Returns the name that a function has in `.sym`.
///
/// Some names make uftrace assume that the function changes the stack of the traced program. uftrace would
/// then show calls and times at wrong places. Functions with these names get a suffix: `longjmp@guest`.
#[must_use]
pub fn reader_name(name: &str) -> Cow<'_, str> {
    const SPECIAL: &[&str] = &[
        "setjmp",
        "_setjmp",
        "sigsetjmp",
        "__sigsetjmp",
        "longjmp",
        "siglongjmp",
        "__longjmp_chk",
        "fork",
        "vfork",
        "daemon",
        "posix.fork",
    ];
    let is_special = name.starts_with("exec") || SPECIAL.contains(&name);
    if is_special { Cow::Owned(format!("{name}@guest")) } else { Cow::Borrowed(name) }
}

/// Returns an event's line in `extern.dat`.
#[must_use]
pub fn event_line(time: u64, text: &str) -> String {
    let text = one_line(text);
    let mut end = text.len().min(MAX_EVENT);
    // The loop has at most four rounds: a character has up to four bytes.
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}.{:09} {}\n", time / 1_000_000_000, time % 1_000_000_000, &text[..end])
}

/// Returns a name that fits a file and is a single word in a map: without spaces, and not in brackets.
pub(super) fn file_name(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    let plain = name.chars().map(|c| if is_plain(c) { c } else { '_' });
    let plain: String = plain.take(200).collect();
    let plain = plain.trim_start_matches('.');
    if plain.is_empty() { "module".into() } else { plain.into() }
}

/// Returns the beginning of a text as one line, because uftrace reads at most 4,096 bytes of a line.
fn short(text: &str) -> String {
    one_line(&text.chars().take(1_000).collect::<String>())
}

/// Replaces characters that would end a line or a name.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_the_one_that_uftrace_reads() {
        let task = |tid| Task { tid, name: String::new() };

        let info = info("kernel", "qemu\n-smp 2", &[task(100), task(103)]);

        let (header, lines) = info.split_at(40);
        assert_eq!(&header[..16], b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02");
        assert_eq!(header[16..24], 0x263_u64.to_le_bytes());
        assert_eq!(header[24..32], 0x89_u64.to_le_bytes());
        let expected = "exename:kernel\ncmdline:qemu -smp 2\ntaskinfo:lines=2\n\
                        taskinfo:nr_tid=2\ntaskinfo:tids=100,103\n";
        assert_eq!(String::from_utf8_lossy(lines), expected);
    }

    #[test]
    fn a_long_command_is_cut() {
        let info = info("kernel", &"x".repeat(5_000), &[]);
        assert!(info[40..].split(|byte| *byte == b'\n').all(|line| line.len() < 2_000));
    }

    #[test]
    fn functions_end_where_the_next_one_begins_or_a_mark_is() {
        let mut symbols = Symbols::default();
        symbols.push(0xffff_ffff_8100_0010, 0x10, "first");
        symbols.push(0xffff_ffff_8100_0020, 0x10, "longjmp");
        symbols.push(0xffff_ffff_8100_2000, 0x20, "third");
        symbols.finish();

        let (Module { line, .. }, sym) = module("kernel", &symbols, 1 << 20).unwrap();

        assert_eq!(line, "ffff81000000-ffff81003000 r-xp 00000000 00:00 0          kernel\n");
        let expected = "# symbols: 5\n0000000000000010 T first\n0000000000000020 T longjmp@guest\n\
                        0000000000000030 ? __end\n0000000000002000 T third\n\
                        0000000000002020 ? __end\n";
        assert_eq!(sym, expected);
    }

    #[test]
    fn names_end_where_there_is_no_room() {
        let mut symbols = Symbols::default();
        (0..100).for_each(|number| _ = symbols.push(0x1000 + number, 1, "name"));
        symbols.finish();

        let (Module { left_out, .. }, contents) = module("program", &symbols, 1_000).unwrap();

        let names = contents.lines().filter(|line| line.ends_with("T name")).count();
        assert!(names > 30 && contents.len() <= 1_000, "{names}: {}", contents.len());
        assert_eq!(names + left_out, 100);
        assert!(contents.ends_with("? __end\n"));
    }

    #[test]
    fn names_that_readers_take_for_another_function_get_a_suffix() {
        for name in ["setjmp", "_setjmp", "execve", "exec_binprm", "vfork", "daemon"] {
            assert_eq!(reader_name(name), format!("{name}@guest"));
        }
        for name in ["__execute", "do_fork", "my_longjmp", "daemonize"] {
            assert_eq!(reader_name(name), name);
        }
    }

    #[test]
    fn an_event_is_one_line_of_bounded_length() {
        assert_eq!(event_line(1_000_000_002, "a\nb"), "1.000000002 a b\n");
        assert!(event_line(0, &"ä".repeat(2000)).len() < 1000);
    }

    #[test]
    fn a_modules_name_is_a_files_name() {
        assert_eq!(file_name("/usr/lib/libc.so.6"), "_usr_lib_libc.so.6");
        assert_eq!(file_name("[vdso]"), "_vdso_");
        assert_eq!(file_name("../x"), "_x");
        assert_eq!(file_name(""), "module");
    }
}
