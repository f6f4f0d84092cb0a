//! Symbols of text and ELF files.

#[path = "../../tests/src/capability.rs"]
mod capability;

use std::path::Path;
use std::process::Command;

use hypertrace_functions::symbols::{MAX_UNSIZED, Source, Symbols, is_thunk};

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
    // By 48 bits, as in records.
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
    // This very program, which is not stripped.
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

    // It has a section of its own, which the stubs of both functions of the library follow.
    let init = symbols.iter().find(|symbol| symbol.name == "_init").expect("no function _init");
    assert!(init.size < 32, "{init:?}");
    capability::used("gcc");
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
    assert!(directory.unwrap_err().to_string().contains("not a file"));
}
