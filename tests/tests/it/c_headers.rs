//! The C headers by other standards and options than those of the programs in `tests/c`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hypertrace_tests::build::{root, succeed};
use hypertrace_tests::c::{COMPILERS, Language, WARNINGS, source};
use hypertrace_tests::capability;

/// Returns the compilers of a language that this machine has.
fn compilers(language: Language) -> impl Iterator<Item = PathBuf> {
    let of = COMPILERS.into_iter().filter(move |(_, of)| *of == language);
    of.filter_map(|(name, _)| capability::program(name))
}

/// Compiles a source to an object, with no warning. Returns the object's code.
#[track_caller]
fn object(compiler: &Path, options: &[&str], source: &Path) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("object");
    let mut command = Command::new(compiler);
    command.args(WARNINGS).args(options).arg("-I").arg(root().join("guest-lib/include"));
    succeed(command.args(["-c", "-o"]).arg(&made).arg(source));
    // The assembler comes with this.
    let code = folder.path().join("code");
    let mut copy = Command::new("objcopy");
    succeed(copy.args(["-O", "binary", "--only-section=.text"]).args([&made, &code]));
    fs::read(code).unwrap()
}

#[test]
fn the_header_for_firmware_compiles_as_cxx20_without_a_warning() {
    for compiler in compilers(Language::Cxx17) {
        for standard in ["-std=c++17", "-std=c++20"] {
            object(&compiler, &[standard, "-O2", "-xc++"], &source("tests/c/bare_guest.c"));
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_header_for_firmware_makes_the_same_code_in_intels_dialect() {
    for compiler in compilers(Language::C11) {
        let of = |dialect| {
            let options = ["-std=c11", "-O2", "-ffreestanding", dialect];
            object(&compiler, &options, &source("tests/c/bare_guest.c"))
        };
        let code = of("-masm=att");
        assert!(!code.is_empty() && of("-masm=intel") == code, "{}", compiler.display());
    }
}

#[test]
fn the_header_for_firmware_refuses_other_code_by_name() {
    for compiler in compilers(Language::C11) {
        // As compilers define them for x32 and for big-endian AArch64.
        for option in ["-D__ILP32__", "-D__AARCH64EB__"] {
            let mut command = Command::new(&compiler);
            command.args(["-fsyntax-only", option, "-I"]).arg(root().join("guest-lib/include"));

            let refused = command.arg(source("tests/c/bare_guest.c")).output().unwrap();

            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success() && said.contains("little-endian code"), "{said}");
        }
    }
}

#[test]
fn the_header_of_2016_compiles_as_c89_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program.c");
    fs::write(&program, "#include <qemu-hypertrace.h>\nint nothing;\n").unwrap();
    for compiler in compilers(Language::C11) {
        object(&compiler, &["-std=c89"], &program);
    }
}

#[test]
fn a_source_may_include_a_header_twice() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program.c");
    for header in ["hypertrace.h", "hypertrace-bare.h", "qemu-hypertrace.h"] {
        let include = format!("#include <{header}>\n");
        fs::write(&program, format!("{include}{include}int nothing;\n")).unwrap();
        for options in [&["-std=c11"][..], &["-std=c11", "-O2", "-DHYPERTRACE_FUNCTIONS"]] {
            compilers(Language::C11)
                .for_each(|compiler| drop(object(&compiler, options, &program)));
        }
        let options = ["-std=c++17", "-xc++", "-DHYPERTRACE_FUNCTIONS"];
        compilers(Language::Cxx17).for_each(|compiler| drop(object(&compiler, &options, &program)));
    }
}

#[test]
fn a_bit_field_with_a_cast_is_a_field() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program.c");
    let text = "#include <hypertrace.h>
        struct flags { unsigned bit : 3; int sign : 5; };
        void emit(struct flags flags);
        void emit(struct flags flags) {
            HYPERTRACE_EVENT(\"flags\", (bit, (unsigned)flags.bit), (sign, (int)flags.sign));
        }\n";
    fs::write(&program, text).unwrap();
    for compiler in compilers(Language::C11) {
        object(&compiler, &["-std=c11"], &program);
    }
}

#[test]
fn a_dropped_event_of_firmware_wakes_the_host_once_a_pause() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program.c");
    // A device whose registers are memory, and whose host takes nothing.
    let text = "#include <hypertrace-bare.h>
        #include <stdio.h>
        static uint64_t registers[1024], rings[512 + 1024 + 64 + 1024];
        int main(void) {
            const struct hypertrace_bare_device device = {
                .control = (unsigned char *)registers, .rings = rings,
                .features = HYPERTRACE_ABI_FEATURE_KICK | HYPERTRACE_ABI_FEATURE_TRAPS, .clients = 1, .registers = 4096,
                .schema_words = 64, .ring_words = 1024, .block_words = 64, .reserve_words = 64,
                .pause = 100000};
            const struct hypertrace_bare_event event = hypertrace_bare_event_of(\"event()\");
            struct hypertrace_bare client;
            hypertrace_bare_lease(&client, &device, 0, 0, 1, \"test\");
            const uint64_t begin = client.last;
            uint64_t kicks = 0, dropped = 0, elapsed = 0;
            while (elapsed < 100 * device.pause || dropped < 1000) {
                registers[0] = 1;
                dropped += !hypertrace_bare_emit(&client, &event, NULL, 0);
                kicks += registers[0] == 0;
                elapsed = hypertrace_bare_ticks_() - begin;
            }
            /* And once for each block from a quarter of the ring on. */
            const uint64_t most = elapsed / device.pause + 12;
            fprintf(stderr, \"%llu dropped, %llu kicks, %llu at most\", (unsigned long long)dropped,
                    (unsigned long long)kicks, (unsigned long long)most);
            return dropped != client.lost_full || kicks == 0 || kicks > most;
        }\n";
    fs::write(&program, text).unwrap();
    for compiler in compilers(Language::C11) {
        let built = folder.path().join("program");
        let mut command = Command::new(compiler);
        command
            .args(WARNINGS)
            .args(["-std=c11", "-O2", "-I"])
            .arg(root().join("guest-lib/include"));
        succeed(command.arg("-o").args([&built, &program]));
        succeed(&mut Command::new(&built));
    }
}
