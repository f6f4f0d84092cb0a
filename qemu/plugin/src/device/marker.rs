//! Which instructions are marked stores.

use hypertrace_abi::layout::mark;

/// Size of an AArch64 instruction in bytes.
pub const WORD: usize = 4;

/// `movz xzr, #IMMEDIATE`: Arm ARM C6.2, MOVZ, 64-bit, hw 0, Rd 31.
const AARCH64_MARK: u32 = 0xd280_0000 | (mark::IMMEDIATE as u32) << 5 | 31;

/// Returns true if these bytes are a 64-bit `mov [reg + DISPLACEMENT], reg`: REX.W, opcode 89, ModRM with mod
/// 10, and a SIB byte if rm is 100 (Intel SDM 2.1.5).
pub fn is_x86_64_store(code: &[u8]) -> bool {
    let [rex, 0x89, modrm, rest @ ..] = code else {
        return false;
    };
    let sib = usize::from(modrm & 7 == 4);
    rex & 0xf8 == 0x48
        && modrm >> 6 == 0b10
        && rest.get(sib..) == Some(&mark::DISPLACEMENT.to_le_bytes())
}

/// Returns true if these bytes are the instruction that marks the next instruction as a store to a register.
pub fn is_aarch64_mark(code: &[u8]) -> bool {
    word(code) == Some(AARCH64_MARK)
}

/// Returns true if these bytes are a 64-bit `str`, in any of its addressing modes (Arm ARM C4.1, loads and
/// stores: size 11, V 0, opc 00).
pub fn is_aarch64_store(code: &[u8]) -> bool {
    let Some(word) = word(code) else {
        return false;
    };
    // Unsigned offset; unscaled, pre- and post-indexed; register offset.
    word & 0xffc0_0000 == 0xf900_0000
        || word & 0xffe0_0000 == 0xf800_0000
        || word & 0xffe0_0c00 == 0xf820_0800
}

fn word(code: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(code.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    // The bytes of these instructions are from GNU as.
    #[test]
    fn x86_64_stores() {
        let is = is_x86_64_store;
        // mov %rsi,0x68547270(%rdi)
        assert!(is(&[0x48, 0x89, 0xb7, 0x70, 0x72, 0x54, 0x68]));
        // mov %r9,0x68547270(%r8)
        assert!(is(&[0x4d, 0x89, 0x88, 0x70, 0x72, 0x54, 0x68]));
        // mov %rax,0x68547270(%rsp), (%r12): with a SIB byte
        assert!(is(&[0x48, 0x89, 0x84, 0x24, 0x70, 0x72, 0x54, 0x68]));
        assert!(is(&[0x49, 0x89, 0x84, 0x24, 0x70, 0x72, 0x54, 0x68]));
        // mov %rax,0x68547270(%rbp), (%r13)
        assert!(is(&[0x48, 0x89, 0x85, 0x70, 0x72, 0x54, 0x68]));
        assert!(is(&[0x49, 0x89, 0x85, 0x70, 0x72, 0x54, 0x68]));
    }

    #[test]
    fn other_instructions_than_marked_x86_64_stores() {
        let is = is_x86_64_store;
        // 32 bits: no REX, and REX without W
        assert!(!is(&[0x89, 0xb7, 0x70, 0x72, 0x54, 0x68]));
        assert!(!is(&[0x44, 0x89, 0x87, 0x70, 0x72, 0x54, 0x68]));
        // A load
        assert!(!is(&[0x48, 0x8b, 0xb7, 0x70, 0x72, 0x54, 0x68]));
        // lea
        assert!(!is(&[0x48, 0x8d, 0xb7, 0x70, 0x72, 0x54, 0x68]));
        // Another displacement; a displacement that is relative to the instruction; no displacement; a
        // displacement that is cut off; no bytes
        assert!(!is(&[0x48, 0x89, 0xb7, 0x71, 0x72, 0x54, 0x68]));
        assert!(!is(&[0x48, 0x89, 0x35, 0x70, 0x72, 0x54, 0x68]));
        assert!(!is(&[0x48, 0x89, 0x37]));
        assert!(!is(&[0x48, 0x89, 0xb7, 0x70, 0x72, 0x54]));
        assert!(!is(&[]));
    }

    #[test]
    fn aarch64_marks_and_stores() {
        // movz xzr, #0x6874
        assert!(is_aarch64_mark(&0xd28d_0e9fu32.to_le_bytes()));
        // mov x0, #0x6874
        assert!(!is_aarch64_mark(&0xd28d_0e80u32.to_le_bytes()));
        let is = |word: u32| is_aarch64_store(&word.to_le_bytes());
        // str x1, [x0]; [x0, #8]; stur [x0, #-8]; [x0, #8]!; [x0], #8; [x0, x2]
        for store in [0xf900_0001, 0xf900_0401, 0xf81f_8001, 0xf800_8c01, 0xf800_8401, 0xf822_6801]
        {
            assert!(is(store), "{store:#x}");
        }
        // ldr x1, [x0]; str w1, [x0]; str d1, [x0]; ldadd x2, x1, [x0]; stp
        for other in [0xf940_0001, 0xb900_0001, 0xfd00_0001, 0xf822_0001, 0xa900_0801] {
            assert!(!is(other), "{other:#x}");
        }
    }
}
