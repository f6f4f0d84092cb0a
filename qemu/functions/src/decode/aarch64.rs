// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Decodes instructions of AArch64, as section C4.1 of the Arm Architecture Reference Manual encodes them.

use super::{Instruction, InstructionKind};

/// Masks of the fixed bits, values of these bits, and kinds of the instructions.
const PATTERNS: &[(u32, u32, InstructionKind)] = &[
    // br, braaz and brabz, braa and brab
    (0xffff_fc1f, 0xd61f_0000, InstructionKind::JumpIndirect),
    (0xffff_f81f, 0xd61f_081f, InstructionKind::JumpIndirect),
    (0xffff_f800, 0xd71f_0800, InstructionKind::JumpIndirect),
    // blr, blraaz and blrabz, blraa and blrab
    (0xffff_fc1f, 0xd63f_0000, InstructionKind::CallIndirect),
    (0xffff_f81f, 0xd63f_081f, InstructionKind::CallIndirect),
    (0xffff_f800, 0xd73f_0800, InstructionKind::CallIndirect),
    // ret; retaa, retab and their forms with a register; their forms with a distance
    (0xffff_fc1f, 0xd65f_0000, InstructionKind::Return),
    (0xffff_fbe0, 0xd65f_0be0, InstructionKind::Return),
    (0xffc0_001f, 0x5500_001f, InstructionKind::Return),
    // eret, eretaa, eretab
    (0xffff_ffff, 0xd69f_03e0, InstructionKind::ReturnFromException),
    (0xffff_fbff, 0xd69f_0bff, InstructionKind::ReturnFromException),
    // svc, hvc, smc
    (0xffe0_001f, 0xd400_0001, InstructionKind::SystemCall),
    (0xffe0_001f, 0xd400_0002, InstructionKind::SystemCall),
    (0xffe0_001f, 0xd400_0003, InstructionKind::SystemCall),
    // mov sp, xN: an add of 0
    (0xffff_fc1f, 0x9100_001f, InstructionKind::StackPointerSet),
];

pub(super) fn decode(bytes: &[u8], address: u64) -> Option<Instruction> {
    let word = u32::from_le_bytes(*bytes.first_chunk()?);
    let direct = match word >> 26 {
        0b00_0101 => Some(InstructionKind::Jump),
        0b10_0101 => Some(InstructionKind::Call),
        _ => None,
    };
    if let Some(kind) = direct {
        // The distance has 26 bits, sign-extended, in words from the instruction's beginning.
        let distance = i64::from((word << 6).cast_signed() >> 4);
        return Some(Instruction::direct(kind, 4, address, distance - 4));
    }
    let pattern = PATTERNS.iter().find(|(mask, value, _)| word & mask == *value);
    let kind = pattern.map(|(.., kind)| *kind).or_else(|| link(word))?;
    Some(Instruction::new(kind, 4))
}

/// Returns whether code is `adrp x16, PAGE` and `ldr x17, [x16, #DISTANCE]`, perhaps after `bti c`.
pub(super) fn is_stub(bytes: &[u8]) -> bool {
    let mut words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).peekable();
    let _ = words.next_if_eq(&0xd503_245f);
    let masked = |word: Option<u32>, mask| word.map(|word| word & mask);
    masked(words.next(), 0x9f00_001f) == Some(0x9000_0010)
        && masked(words.next(), 0xffc0_03ff) == Some(0xf940_0211)
}

/// Register number of the link register.
const LINK: u32 = 30;
/// Register number of the stack pointer as the base of an address.
const STACK: u32 = 31;

/// Returns the kind of a load or store of the link register that the stack pointer addresses.
fn link(word: u32) -> Option<InstructionKind> {
    if word >> 5 & 31 != STACK {
        return None;
    }
    let (first, second) = (word & 31, word >> 10 & 31);
    // Pairs of 64-bit registers. The instruction changes the base before the access, after the access, or not
    // at all. The distance of a pair is in units of 8 bytes.
    let is_pair = matches!(word >> 23, 0b1_0101_0001..=0b1_0101_0011);
    if is_pair {
        // The first word of a pair is the slot of the return address. QEMU 7.2 reports each word of a pair,
        // and the plugin rounds both addresses down to a multiple of 16. Therefore a pair that is not aligned
        // to 16 bytes is left out: its two words would get different slots.
        let is_aligned = word >> 15 & 1 == 0;
        let is_load = word >> 22 & 1 == 1;
        return (is_aligned && (first == LINK || second == LINK)).then(|| kind(is_load));
    }
    // Single 64-bit registers. In the first form, the distance is signed, and the instruction changes the
    // base before the access, after the access, or not at all. In the second form, the distance is unsigned,
    // and the base does not change.
    let is_single = match word >> 21 {
        0b111_1100_0000 | 0b111_1100_0010 => word >> 10 & 3 != 2,
        top => matches!(top >> 1, 0b11_1110_0100 | 0b11_1110_0101),
    };
    let is_load = word >> 22 & 1 == 1;
    (is_single && first == LINK).then(|| kind(is_load))
}

fn kind(is_load: bool) -> InstructionKind {
    if is_load { InstructionKind::LinkLoad } else { InstructionKind::LinkStore }
}

#[cfg(test)]
mod tests {
    use super::super::{Architecture, STUB, decode};
    use super::*;

    fn decoded(word: u32) -> Option<Instruction> {
        decode(Architecture::Aarch64, &word.to_le_bytes(), 0x10000)
    }

    #[test]
    fn branches_have_their_targets() {
        // bl .+0x100, b .-4, bl .-0x8000000, bl .+4
        let target = |word| decoded(word).map(|found| (found.kind, found.target.unwrap()));
        assert_eq!(target(0x9400_0040), Some((InstructionKind::Call, 0x10100)));
        assert_eq!(target(0x17ff_ffff), Some((InstructionKind::Jump, 0xfffc)));
        let farthest = 0x10000_u64.wrapping_sub(0x800_0000);
        assert_eq!(target(0x9600_0000), Some((InstructionKind::Call, farthest)));
        assert_eq!(target(0x9400_0001), Some((InstructionKind::CallAhead, 0x10004)));
    }

    #[test]
    fn registers_and_pointer_authentication_do_not_matter() {
        let kind = |word| decoded(word).map(|found| found.kind);
        // br x16, braaz x1, brab x2, x3
        for word in [0xd61f_0200, 0xd61f_083f, 0xd71f_0c43] {
            assert_eq!(kind(word), Some(InstructionKind::JumpIndirect), "{word:x}");
        }
        // blr x8, blrabz x1, blraa x8, x9
        for word in [0xd63f_0100, 0xd63f_0c3f, 0xd73f_0909] {
            assert_eq!(kind(word), Some(InstructionKind::CallIndirect), "{word:x}");
        }
        // ret, ret x17, retaa, retab, retaasppc
        for word in [0xd65f_03c0, 0xd65f_0220, 0xd65f_0bff, 0xd65f_0fff, 0x5500_009f] {
            assert_eq!(kind(word), Some(InstructionKind::Return), "{word:x}");
        }
        // eret, eretaa
        for word in [0xd69f_03e0, 0xd69f_0bff] {
            assert_eq!(kind(word), Some(InstructionKind::ReturnFromException), "{word:x}");
        }
        assert_eq!(kind(0xd400_0001), Some(InstructionKind::SystemCall));
        assert_eq!(kind(0x9100_03bf), Some(InstructionKind::StackPointerSet));
    }

    #[test]
    fn stubs_jump_by_a_pointer_that_they_address() {
        let is_stub = |words: [u32; STUB / 4]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            crate::decode::is_stub(Architecture::Aarch64, bytes.first_chunk().unwrap())
        };
        // adrp x16, PAGE; ldr x17, [x16, #8]; add x16, x16, #8. Then the same instructions after bti c
        assert!(is_stub([0xb000_0090, 0xf940_0611, 0x9100_2210]));
        assert!(is_stub([0xd503_245f, 0xb000_0090, 0xf940_0611]));
        // ldr x0
        assert!(!is_stub([0xb000_0090, 0xf940_0600, 0x9100_2210]));
    }

    #[test]
    fn the_link_registers_stores_and_loads_are_distinguished() {
        let kind = |word| decoded(word).map(|found| found.kind);
        // stp x29, x30, [sp, #-16]!; stp x29, x30, [sp, #32]; stp x30, x19, [sp, #-32]!;
        // str x30, [sp, #-16]!; str x30, [sp, #24]; stur x30, [sp, #-8]; stp x16, x30, [sp, #-16]!
        for word in [
            0xa9bf_7bfd,
            0xa902_7bfd,
            0xa9be_4ffe,
            0xf81f_0ffe,
            0xf900_0ffe,
            0xf81f_83fe,
            0xa9bf_7bf0,
        ] {
            assert_eq!(kind(word), Some(InstructionKind::LinkStore), "{word:x}");
        }
        // ldp x29, x30, [sp], #16; ldp x29, x30, [sp, #32]; ldp x30, x19, [sp], #32; ldr x30, [sp], #16;
        // ldr x30, [sp, #24]
        for word in [0xa8c1_7bfd, 0xa942_7bfd, 0xa8c2_4ffe, 0xf841_07fe, 0xf940_0ffe] {
            assert_eq!(kind(word), Some(InstructionKind::LinkLoad), "{word:x}");
        }
        // stp x29, x30, [x0, #80]; str x30, [x8]; stp x19, x20, [sp, #16]; stp x29, x30, [sp, #8];
        // str x19, [sp, #16]; str w30, [sp, #24]; stp w29, w30, [sp]; stp d29, d30, [sp]; str d30, [sp, #24]
        for word in [
            0xa905_781d,
            0xf900_011e,
            0xa901_53f3,
            0xa900_fbfd,
            0xf900_0bf3,
            0xb900_1bfe,
            0x2900_7bfd,
            0x6d00_7bfd,
            0xfd00_0ffe,
        ] {
            assert_eq!(kind(word), None, "{word:x}");
        }
    }

    #[test]
    fn other_instructions_have_no_kind() {
        // nop, mov x29, sp, b.eq, cbz, brk
        for word in [0xd503_201f, 0x9100_03fd, 0x5400_0040, 0xb400_0040, 0xd420_0000] {
            assert_eq!(decoded(word), None, "{word:x}");
        }
        assert_eq!(decode(Architecture::Aarch64, &[0xc0, 0x03, 0x5f], 0), None);
    }
}
