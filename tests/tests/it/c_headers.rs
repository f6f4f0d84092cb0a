//! The C headers, compiled with standards and options that the programs in `tests/c` do not use.

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
    // A machine that has the assembler has objcopy, too.
    let code = folder.path().join("code");
    let mut copy = Command::new("objcopy");
    succeed(copy.args(["-O", "binary", "--only-section=.text"]).args([&made, &code]));
    fs::read(code).unwrap()
}

#[test]
fn the_header_for_firmware_compiles_as_cxx20_without_a_warning() {
    for compiler in compilers(Language::Cxx17) {
        for standard in ["-std=c++17", "-std=c++20"] {
            object(&compiler, &[standard, "-O2", "-xc++"], &source("examples/bare-guest/guest.c"));
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_header_for_firmware_makes_the_same_code_in_intels_dialect() {
    for compiler in compilers(Language::C11) {
        let of = |dialect| {
            let options = ["-std=c11", "-O2", "-ffreestanding", dialect];
            object(&compiler, &options, &source("examples/bare-guest/guest.c"))
        };
        let code = of("-masm=att");
        assert!(!code.is_empty() && of("-masm=intel") == code, "{}", compiler.display());
    }
}

#[test]
fn the_header_for_firmware_refuses_other_code_and_impossible_numbers() {
    for compiler in compilers(Language::C11) {
        // Compilers define these macros for x32 and for big-endian AArch64.
        let refusals = [
            ("-D__ILP32__", "little-endian code"),
            ("-D__AARCH64EB__", "little-endian code"),
            ("-DHYPERTRACE_BARE_EVENTS=100", "a power of two"),
        ];
        for (option, why) in refusals {
            let mut command = Command::new(&compiler);
            command.args(["-fsyntax-only", option, "-I"]).arg(root().join("guest-lib/include"));

            let refused = command.arg(source("examples/bare-guest/guest.c")).output().unwrap();

            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success() && said.contains(why), "{said}");
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

/// C code of a device for firmware. Arrays in memory stand for the device's registers, and the host receives
/// only texts.
const DEVICE: &str = "
    static uint64_t registers[1024], rings[512 + 1024 + 64 + 1024];
    static struct hypertrace_bare_device device = {
        .control = (unsigned char *)registers, .rings = rings,
        .features = HYPERTRACE_ABI_FEATURE_KICK | HYPERTRACE_ABI_FEATURE_TRAPS, .clients = 1, .registers = 4096,
        .schema_words = 64, .ring_words = 1024, .block_words = 64, .reserve_words = 64,
        .pause = 100000};
    static struct hypertrace_bare client;
    #define GUEST (rings + 512)
    #define HOST (rings + 1024)
    #define RING (rings + 1600)\n";

/// Runs a program with the header for firmware. The program must end with 0.
#[track_caller]
fn run_bare(before: &str, after: &str) {
    let folder = tempfile::tempdir().unwrap();
    let [program, built] = ["program.c", "program"].map(|name| folder.path().join(name));
    let includes = "#include <hypertrace-bare.h>\n#include <stdio.h>\n#include <string.h>\n";
    fs::write(&program, format!("{before}{includes}{after}")).unwrap();
    for compiler in compilers(Language::C11) {
        let mut command = Command::new(compiler);
        command
            .args(WARNINGS)
            .args(["-std=c11", "-O2", "-I"])
            .arg(root().join("guest-lib/include"));
        succeed(command.arg("-o").args([&built, &program]));
        succeed(&mut Command::new(&built));
    }
}

#[test]
fn a_dropped_event_of_firmware_wakes_the_host_once_a_pause() {
    let text = "int main(void) {
            const struct hypertrace_bare_event event = hypertrace_bare_event_of(\"event()\");
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
    run_bare("", &format!("{DEVICE}{text}"));
}

#[test]
fn firmware_describes_each_event_once_up_to_those_that_the_host_knows() {
    let text = "int main(void) {
            char text[1100][24];
            hypertrace_bare_lease(&client, &device, 0, 0, 1, \"test\");
            for (int round = 0; round < 2; round++) {
                for (int i = 0; i < 1100; i++) {
                    (void)snprintf(text[i], sizeof text[i], \"event%d()\", i);
                    const struct hypertrace_bare_event event = hypertrace_bare_event_of(text[i]);
                    hypertrace_bare_emit(&client, &event, NULL, 0);
                    HOST[HYPERTRACE_ABI_H_SCHEMA_SEEN] = GUEST[HYPERTRACE_ABI_G_SCHEMA_LEN];
                    HOST[HYPERTRACE_ABI_H_TAIL] = GUEST[HYPERTRACE_ABI_G_HEAD];
                }
            }
            /* `event0()` to `event9()` have two words, the others three; 1,024 of them. */
            const uint64_t words = GUEST[HYPERTRACE_ABI_G_SCHEMA_LEN];
            fprintf(stderr, \"%llu words\", (unsigned long long)words);
            return words != 10 * 2 + 1014 * 3;
        }\n";
    run_bare("", &format!("{DEVICE}{text}"));
}

#[test]
fn firmware_with_room_for_few_events_describes_the_first_ones() {
    let text = "int main(void) {
            static const char *const texts[] = {\"a()\", \"b()\", \"c()\", \"d()\", \"e()\", \"f()\"};
            hypertrace_bare_lease(&client, &device, 0, 0, 1, \"test\");
            for (int i = 0; i < 12; i++) {
                const struct hypertrace_bare_event event = hypertrace_bare_event_of(texts[i % 6]);
                hypertrace_bare_emit(&client, &event, NULL, 0);
            }
            /* Two words each. */
            return GUEST[HYPERTRACE_ABI_G_SCHEMA_LEN] != 4 * 2 || client.sequence != 1 + 12;
        }\n";
    run_bare("#define HYPERTRACE_BARE_EVENTS 4\n", &format!("{DEVICE}{text}"));
}

#[test]
fn firmware_in_a_ring_that_overwrites_drops_nothing_and_its_next_holder_continues_the_numbers() {
    let text = "int main(void) {
            const struct hypertrace_bare_event event = hypertrace_bare_event_of(\"event(n:u64)\");
            device.overwrites = 1;
            uint64_t records = 0;
            for (uint64_t n = 0; n < 7000; n++) {
                if (n % 1000 == 0) {
                    hypertrace_bare_lease(&client, &device, 0, 0, n + 1, \"test\");
                    records++;
                }
                records += hypertrace_bare_emit(&client, &event, &n, 1);
                if (RING[(client.head - 1) % 1024] != n) {
                    return 1;
                }
            }
            /* Of the last block. */
            uint64_t at = (client.head - 1) / 64 * 64, number = RING[at % 1024];
            const uint64_t token = RING[at % 1024 + 1];
            for (at += 2; at < client.head; number++) {
                at += 2 + (RING[at % 1024 + 1] >> 32 & 0xffff);
            }
            return records != 7007 || client.sequence != 7007 || number != 7007 || token != 6001;
        }\n";
    run_bare("", &format!("{DEVICE}{text}"));
}

#[test]
fn firmware_may_have_types_a_clock_and_a_fence_of_its_own() {
    let before = "typedef unsigned long uint64_t;
        typedef unsigned int uint32_t;
        typedef unsigned long uintptr_t;
        #define bool _Bool
        enum { false, true };
        #define NULL ((void *)0)
        #define HYPERTRACE_BARE_HAS_TYPES
        static uint64_t instant = 1000, fences;
        #define HYPERTRACE_BARE_NOW(device) ((device)->clock == HYPERTRACE_ABI_CLOCK_MONOTONIC_RAW ? instant : 0)
        #define HYPERTRACE_BARE_FENCE() fences++\n";
    let text = "int main(void) {
            const struct hypertrace_bare_event event = hypertrace_bare_event_of(\"event()\");
            device.clock = HYPERTRACE_ABI_CLOCK_MONOTONIC_RAW;
            device.is_fenced = 1;
            hypertrace_bare_lease(&client, &device, 0, 0, 1, \"test\");
            hypertrace_bare_emit(&client, &event, NULL, 0);
            /* Set back: no record is earlier than the last one. */
            instant = 500;
            hypertrace_bare_emit(&client, &event, NULL, 0);
            instant = 1500;
            hypertrace_bare_emit(&client, &event, NULL, 0);
            /* After the block's header, the lease record has the kind of its clock. */
            const uint64_t *record = RING + 2 + 2 + 5;
            return RING[2] != 1000 || RING[2 + 2 + 3] != HYPERTRACE_ABI_CLOCK_MONOTONIC_RAW ||
                   record[0] != 1000 || record[2] != 1000 || record[4] != 1500 || fences == 0;
        }\n";
    run_bare(before, &format!("{DEVICE}{text}"));
}

#[test]
fn firmware_publishes_all_totals_which_its_next_holder_continues() {
    let text = "int main(void) {
            GUEST[HYPERTRACE_ABI_G_LOST_UNATTACHED] = 5;
            hypertrace_bare_lease(&client, &device, 0, 0, 1, \"test\");
            client.lost_unattached++;
            /* As in an interrupt. */
            const struct hypertrace_bare_event event = hypertrace_bare_event_of(\"event()\");
            client.is_busy = 1;
            const bool is_recorded = hypertrace_bare_emit(&client, &event, NULL, 0);
            hypertrace_bare_publish_losses(&client);
            const uint64_t early = GUEST[HYPERTRACE_ABI_G_LOST_UNATTACHED];
            client.is_busy = 0;
            hypertrace_bare_publish_losses(&client);
            return is_recorded || early != 5 || GUEST[HYPERTRACE_ABI_G_LOST_UNATTACHED] != 6 ||
                   GUEST[HYPERTRACE_ABI_G_LOST_BUSY] != 1 || GUEST[HYPERTRACE_ABI_G_LOST_FULL] != 0;
        }\n";
    run_bare("", &format!("{DEVICE}{text}"));
}

#[test]
fn firmware_stores_strings_and_payloads_of_any_size_that_fits() {
    let text = "int main(void) {
            const struct hypertrace_bare_event event = hypertrace_bare_event_of(\"event(text:str)\");
            static const char letters[] = \"abcdefghijklm\";
            hypertrace_bare_lease(&client, &device, 0, 0, 1, \"test\");
            for (uint32_t length = 0; length <= 13; length++) {
                uint64_t words[3] = {~0ULL, ~0ULL, ~0ULL};
                unsigned char expected[24] = {(unsigned char)length};
                memcpy(expected + 4, letters, length);
                const uint32_t count = hypertrace_bare_put_string(words, letters, length);
                if (count != hypertrace_bare_string_words(length) || memcmp(words, expected, 8 * count) != 0) {
                    return 1;
                }
                volatile uint64_t *payload = hypertrace_bare_begin(&client, &event, count, 0);
                for (uint32_t i = 0; i < count; i++) {
                    payload[i] = words[i];
                }
                hypertrace_bare_end(&client, count);
                if (GUEST[HYPERTRACE_ABI_G_HEAD] != client.head ||
                    memcmp(RING + client.head - count, words, 8 * count) != 0) {
                    return 2;
                }
            }
            /* A block has 64 words, two of them its own, and two are the record's. */
            static const uint64_t large[61];
            return !hypertrace_bare_emit(&client, &event, large, 60) || client.lost_full != 0 ||
                   hypertrace_bare_emit(&client, &event, large, 61) || client.lost_full != 1;
        }\n";
    run_bare("", &format!("{DEVICE}{text}"));
}

#[test]
fn firmware_refuses_a_config_page_out_of_the_bounds_of_the_interface() {
    let text = "static uint64_t page[512];
        static bool is_taken_with(uint32_t word, uint64_t value) {
            struct hypertrace_bare_device device;
            const uint64_t right = page[word];
            page[word] = value;
            const bool is_taken = hypertrace_bare_at_bars(&device, page, NULL, NULL, NULL);
            page[word] = right;
            return is_taken;
        }
        int main(void) {
            page[HYPERTRACE_ABI_CONFIG_MAGIC] = HYPERTRACE_ABI_MAGIC;
            page[HYPERTRACE_ABI_CONFIG_VERSION] = HYPERTRACE_ABI_VERSION;
            page[HYPERTRACE_ABI_CONFIG_CLIENTS] = 1024;
            page[HYPERTRACE_ABI_CONFIG_ARGS] = 16;
            page[HYPERTRACE_ABI_CONFIG_SCHEMA_SIZE] = 4096;
            page[HYPERTRACE_ABI_CONFIG_RING_SIZE] = 1 << 20;
            page[HYPERTRACE_ABI_CONFIG_BLOCK_SIZE] = 4096;
            static const struct {
                uint32_t word;
                uint64_t value;
            } wrong[] = {
                {HYPERTRACE_ABI_CONFIG_MAGIC, 1}, {HYPERTRACE_ABI_CONFIG_VERSION, HYPERTRACE_ABI_VERSION + 1},
                {HYPERTRACE_ABI_CONFIG_VERSION, HYPERTRACE_ABI_VERSION | (uint64_t)2 << 32},
                {HYPERTRACE_ABI_CONFIG_CLIENTS, 0}, {HYPERTRACE_ABI_CONFIG_CLIENTS, 1025},
                {HYPERTRACE_ABI_CONFIG_ARGS, 0}, {HYPERTRACE_ABI_CONFIG_ARGS, 17},
                {HYPERTRACE_ABI_CONFIG_SCHEMA_SIZE, 0}, {HYPERTRACE_ABI_CONFIG_SCHEMA_SIZE, 2048},
                {HYPERTRACE_ABI_CONFIG_SCHEMA_SIZE, 4097}, {HYPERTRACE_ABI_CONFIG_SCHEMA_SIZE, 1 << 25},
                {HYPERTRACE_ABI_CONFIG_RING_SIZE, 32768}, {HYPERTRACE_ABI_CONFIG_RING_SIZE, (uint64_t)1 << 33},
                /* 1,024 of them are larger than 1 TiB. */
                {HYPERTRACE_ABI_CONFIG_RING_SIZE, (uint64_t)1 << 32},
                {HYPERTRACE_ABI_CONFIG_BLOCK_SIZE, 128}, {HYPERTRACE_ABI_CONFIG_BLOCK_SIZE, 1 << 17},
            };
            int taken = !is_taken_with(HYPERTRACE_ABI_CONFIG_CLIENTS, 1);
            for (unsigned int i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
                if (is_taken_with(wrong[i].word, wrong[i].value)) {
                    fprintf(stderr, \"word %u: %llu\\n\", wrong[i].word, (unsigned long long)wrong[i].value);
                    taken++;
                }
            }
            return taken;
        }\n";
    run_bare("", text);
}
