//! The only program of a guest that boots. The program reports the boot on the console, and restarts the
//! machine.

/// Address of the program in memory.
const BASE: u64 = 0x40_0000;
/// Number of bytes before the code: the header of the file, and the header of its only segment.
const HEADERS: u64 = 64 + 56;
const TEXT: &[u8] = b"booted\n";

/// Returns the program for x86-64.
pub fn x86_64() -> Vec<u8> {
    #[rustfmt::skip]
    let code = [
        0xb8, 1, 0, 0, 0,                               // mov eax, 1 (write)
        0xbf, 1, 0, 0, 0,                               // mov edi, 1
        0x48, 0x8d, 0x35, 0x1f, 0, 0, 0,                // lea rsi, [TEXT]
        0xba, TEXT.len() as u8, 0, 0, 0,                // mov edx, length
        0x0f, 0x05,                                     // syscall
        0xb8, 169, 0, 0, 0,                             // mov eax, 169 (reboot)
        0xbf, 0xad, 0xde, 0xe1, 0xfe,                   // mov edi, 0xfee1dead
        0xbe, 0x69, 0x19, 0x12, 0x28,                   // mov esi, 0x28121969
        0xba, 0x67, 0x45, 0x23, 0x01,                   // mov edx, 0x01234567 (restart)
        0x0f, 0x05,                                     // syscall
        0xeb, 0xfe,                                     // jmp self
    ];
    program(62, &code)
}

/// Returns the program for AArch64.
pub fn aarch64() -> Vec<u8> {
    let code = [
        0xd280_0808_u32,                        // mov x8, 64 (write)
        0xd280_0020,                            // mov x0, 1
        0x1000_0181,                            // adr x1, TEXT
        0xd280_0002 | (TEXT.len() as u32) << 5, // mov x2, length
        0xd400_0001,                            // svc 0
        0xd280_11c8,                            // mov x8, 142 (reboot)
        0xd29b_d5a0,                            // mov x0, 0xdead
        0xf2bf_dc20,                            // movk x0, 0xfee1, lsl 16
        0xd283_2d21,                            // mov x1, 0x1969
        0xf2a5_0241,                            // movk x1, 0x2812, lsl 16
        0xd288_ace2,                            // mov x2, 0x4567
        0xf2a0_2462,                            // movk x2, 0x0123, lsl 16 (restart)
        0xd400_0001,                            // svc 0
        0x1400_0000,                            // b self
    ];
    let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    program(183, &code)
}

/// Returns an ELF file for a machine. The file contains this code, and [`TEXT`] after the code.
fn program(machine: u16, code: &[u8]) -> Vec<u8> {
    let size = HEADERS + (code.len() + TEXT.len()) as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let halves = |file: &mut Vec<u8>, all: &[u16]| {
        all.iter().for_each(|half| file.extend_from_slice(&half.to_le_bytes()));
    };
    let words = |file: &mut Vec<u8>, all: &[u32]| {
        all.iter().for_each(|word| file.extend_from_slice(&word.to_le_bytes()));
    };
    let longs = |file: &mut Vec<u8>, all: &[u64]| {
        all.iter().for_each(|long| file.extend_from_slice(&long.to_le_bytes()));
    };
    // The file is executable. The next fields are the entry address and the offset of the segment's header.
    halves(&mut file, &[2, machine]);
    words(&mut file, &[1]);
    longs(&mut file, &[BASE + HEADERS, 64, 0]);
    words(&mut file, &[0]);
    halves(&mut file, &[64, 56, 1, 64, 0, 0]);
    // The segment is the whole file, to be read and executed.
    words(&mut file, &[1, 5]);
    longs(&mut file, &[0, BASE, BASE, size, size, 0x1000]);
    file.extend_from_slice(code);
    file.extend_from_slice(TEXT);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn the_text_follows_the_code_and_the_file_is_as_long_as_it_says() {
        for file in [x86_64(), aarch64()] {
            let size = u64::from_le_bytes(file[64 + 32..][..8].try_into().unwrap());
            assert_eq!(size, file.len() as u64);
            assert!(file.ends_with(TEXT));
        }
        assert_eq!(aarch64().len() as u64, HEADERS + 14 * 4 + TEXT.len() as u64);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_program_writes_its_text() {
        // In the test, exit(0) replaces the call of reboot, because a test that runs as root would restart
        // the machine.
        let mut program = x86_64();
        let reboot = program.windows(5).position(|bytes| bytes == [0xb8, 169, 0, 0, 0]).unwrap();
        program[reboot..reboot + 10].copy_from_slice(&[0xb8, 60, 0, 0, 0, 0xbf, 0, 0, 0, 0]);
        let folder = tempfile::tempdir().unwrap();
        let [written, path] = ["written", "init"].map(|name| folder.path().join(name));
        fs::write(&written, program).unwrap();
        fs::set_permissions(&written, Permissions::from_mode(0o755)).unwrap();
        // The test runs a copy, because a child of another test may have the written file open, and the
        // system refuses to execute a file that is open for writing.
        assert!(Command::new("cp").args([&written, &path]).status().unwrap().success());

        let ran = Command::new(path).output().unwrap();

        assert_eq!((ran.status.code(), &*ran.stdout), (Some(0), TEXT));
    }
}
