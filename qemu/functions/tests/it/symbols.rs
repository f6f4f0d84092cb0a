//! Symbols of text and ELF files.

use hypertrace_format::error::BadInput;
use hypertrace_test_support::capability;
use std::path::Path;
use std::process::Command;

use hypertrace_functions::symbols::{MAX_UNSIZED, Source, Symbols, is_thunk};
use rustix::fs::{CWD, FileType, Mode, mknodat};

const KALLSYMS: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000100 t early_setup
ffffffff81000180 D data_page
ffffffff81200000 T __x86_indirect_thunk_rax
ffffffffc0000000 t init_module\t[virtio]
ffffffff81200020 W weak_one
";

fn symbols(text: &str, offset: u64) -> hypertrace_functions::Result<Symbols> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kallsyms");
    std::fs::write(&path, text).unwrap();
    Symbols::read(&Source { path, offset })
}

fn name(symbols: &Symbols, address: u64) -> Option<&str> {
    symbols.lookup(address).map(|symbol| symbol.name)
}

#[test]
fn functions_are_found_by_each_of_their_addresses() {
    let symbols = symbols(KALLSYMS, 0).unwrap();

    assert_eq!(name(&symbols, 0xffff_ffff_8100_0000), Some("_stext"));
    assert_eq!(name(&symbols, 0xffff_ffff_8100_00ff), Some("_stext"));
    assert_eq!(name(&symbols, 0xffff_ffff_8100_0100), Some("early_setup"));
    assert_eq!(name(&symbols, 0xffff_ffff_8120_0021), Some("weak_one"));
    assert_eq!(name(&symbols, 0xffff_ffff_c000_0001), Some("init_module"));
    // The symbol is found with the low 48 bits of the symbol's address, because records hold only these bits.
    assert_eq!(name(&symbols, 0xffff_8100_0100), Some("early_setup"));
}

#[test]
fn data_and_gaps_have_no_function() {
    let symbols = symbols(KALLSYMS, 0).unwrap();

    assert_eq!(name(&symbols, 0xffff_ffff_8100_0180), None);
    assert_eq!(name(&symbols, 0xffff_ffff_8120_0020 + MAX_UNSIZED), None);
    assert_eq!(name(&symbols, 0x1000), None);
}

#[test]
fn an_offset_moves_all_addresses() {
    let symbols = symbols(KALLSYMS, 0x1c00_0000).unwrap();

    assert_eq!(name(&symbols, 0xffff_ffff_9d00_0100), Some("early_setup"));
    assert_eq!(name(&symbols, 0xffff_ffff_8100_0100), None);
}

#[test]
fn a_jump_to_a_thunk_is_no_tail_call() {
    let symbols = symbols(KALLSYMS, 0).unwrap();

    assert!(symbols.is_function(0xffff_ffff_8100_0100));
    assert!(!symbols.is_function(0xffff_ffff_8100_0101));
    assert!(!symbols.is_function(0xffff_ffff_8120_0000));
    assert!(is_thunk("srso_return_thunk"));
}

#[test]
fn hidden_addresses_and_stubs_are_errors_that_say_what_to_do() {
    let error = |text| symbols(text, 0).unwrap_err().to_string();

    let hidden = error("0000000000000000 T a\n0000000000000000 t b\n");
    assert!(hidden.contains("kptr_restrict"), "{hidden}");
    let stub = error("ffffffffffffffff B The real System.map is in the linux-image-dbg package\n");
    assert!(stub.contains("/proc/kallsyms"), "{stub}");
    let line = error("ffffffff81000000 T a\nnonsense\n");
    assert!(line.contains("damaged at byte 21"), "{line}");
    let kernel = error("MZ\u{7}\0\n");
    assert!(kernel.contains("neither an ELF file nor a text"), "{kernel}");
}

#[test]
fn a_program_has_the_functions_of_its_symbol_table() {
    // The file of this test itself has a symbol table.
    let path = std::env::current_exe().unwrap();

    let symbols = Symbols::read(&Source { path, offset: 0x5555_0000_0000 }).unwrap();

    let main = symbols.iter().find(|symbol| symbol.name == "main").expect("no function main");
    assert!(main.address > 0x5555_0000_0000 && main.size > 0);
    assert_eq!(symbols.lookup(main.address + main.size - 1), Some(main));
    assert!(symbols.is_function(main.address));
}

#[test]
fn a_function_of_unknown_size_ends_with_its_section() {
    let Some(gcc) = capability::program("gcc") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, path) = (folder.path().join("program.c"), folder.path().join("program"));
    let text = "#include <stdio.h>\nint main(void) { puts(\"x\"); return getchar(); }\n";
    std::fs::write(&source, text).unwrap();
    let status = Command::new(gcc).arg(&source).arg("-o").arg(&path).status().unwrap();
    assert!(status.success());

    let symbols = Symbols::read(&Source { path, offset: 0 }).unwrap();

    // `_init` has its own section, and so has a known end. The stubs of the library's two functions follow
    // this section.
    let init = symbols.iter().find(|symbol| symbol.name == "_init").expect("no function _init");
    assert!(init.size < 32, "{init:?}");
    capability::used("gcc");
}

/// Returns an ELF file with many symbols. The names of all symbols begin in the same long text, so that the
/// names overlap.
fn file_of_long_names(symbols: usize, kind: u8, has_end: bool) -> Vec<u8> {
    const TEXT: usize = 4_000_000;
    let words = |words: &[u64]| Vec::from_iter(words.iter().flat_map(|word| word.to_le_bytes()));
    let table = 24 * symbols as u64;
    let (start, end) = (64 + table, 64 + table + TEXT as u64);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // The header describes a program of x86-64, with four sections of 64 bytes.
    file.extend(words(&[
        1 << 32 | 62 << 16 | 2,
        0,
        0,
        end,
        64 << 32,
        3 << 48 | 4 << 32 | 64 << 16,
    ]));
    assert_eq!(file.len(), 64);
    for symbol in 0..symbols as u64 {
        // The symbol is in section 1, and its name begins at one of the bytes 1 to 256.
        file.extend(words(&[1 << 48 | u64::from(kind) << 32 | (1 + symbol % 256), symbol, 1]));
    }
    file.push(0);
    file.resize(end as usize - 1, b'A');
    file.push(if has_end { 0 } else { b'A' });
    let mut section = |kind: u64, flags, place, size, link: u64, entry| {
        file.extend(words(&[kind << 32, flags, 0, place, size, link, 8, entry]));
    };
    section(0, 0, 0, 0, 0, 0);
    section(1, 6, 0, 64, 0, 0);
    section(2, 0, 64, table, 3, 24);
    section(3, 0, start, TEXT as u64, 0, 0);
    file
}

#[test]
fn long_names_that_overlap_take_little_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let begin = std::time::Instant::now();
    // Kind 2 is a function, and kind 1 is data.
    for (kind, has_end) in [(2, true), (2, false), (1, true), (1, false)] {
        std::fs::write(&path, file_of_long_names(200_000, kind, has_end)).unwrap();
        let result = Symbols::read(&Source { path: path.clone(), offset: 0 });
        assert!(result.unwrap_err().is_bad_input());
    }
    // Without a limit, 200,000 searches of 4 MB each would take a minute.
    assert!(begin.elapsed().as_secs() < 10);
}

#[test]
fn a_pipe_that_takes_the_place_of_a_file_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let [file, pipe, path, aside] =
        ["file", "pipe", "path", "aside"].map(|n| folder.path().join(n));
    std::fs::write(&file, "1000 T main\n").unwrap();
    std::fs::copy(&file, &path).unwrap();
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let (done, all) = std::sync::mpsc::channel();
    let source = Source { path: path.clone(), offset: 0 };
    std::thread::spawn(move || {
        let read = (0..20_000).filter(|_| Symbols::read(&source).is_ok()).count();
        done.send(read).unwrap();
    });

    let begin = std::time::Instant::now();
    let read = loop {
        for other in [&pipe, &file] {
            std::fs::hard_link(other, &aside).unwrap();
            std::fs::rename(&aside, &path).unwrap();
        }
        if let Ok(read) = all.try_recv() {
            break read;
        }
        assert!(begin.elapsed().as_secs() < 60, "a reader waits");
    };

    assert!((1..20_000).contains(&read), "{read}");
}

#[test]
fn a_stripped_or_damaged_program_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for bytes in [&whole[..4], &whole[..64], &whole[..whole.len() / 2]] {
        std::fs::write(&path, bytes).unwrap();
        let result = Symbols::read(&Source { path: path.clone(), offset: 0 });
        assert!(result.unwrap_err().is_bad_input(), "{} bytes", bytes.len());
    }
    let directory = Symbols::read(&Source { path: Path::new("/").into(), offset: 0 });
    assert!(directory.unwrap_err().to_string().contains("it is a directory, not a regular file"));
}
