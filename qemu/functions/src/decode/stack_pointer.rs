// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Decodes how instructions of AArch64 change the stack pointer. The encodings are in the Arm Architecture
//! Reference Manual, section C4.1.

/// Change of the stack pointer that an instruction makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackPointerChange {
    /// The instruction adds this number.
    Add(i64),
    /// The instruction sets the stack pointer to a value that the instruction does not contain.
    Set,
}

use StackPointerChange::{Add, Set};

/// Register number of the stack pointer in instructions that can have it as an operand.
const STACK: u32 = 31;

/// Masks and values of the fixed bits of instructions whose destination (bits 0 to 4) can be the stack
/// pointer.
const DESTINATIONS: &[(u32, u32)] = &[
    // addg, subg; add and sub with an extended register; addpt, subpt; irg
    (0x1f80_0000, 0x1180_0000),
    (0x3fe0_0000, 0x0b20_0000),
    (0xbfe0_e000, 0x9a00_2000),
    (0xffe0_fc00, 0x9ac0_1000),
    // addvl, addpl, addsvl, addspl
    (0xffa0_f000, 0x0420_5000),
];

/// Masks and values of the fixed bits of instructions that change their base (bits 5 to 9).
const BASES: &[(u32, u32)] = &[
    // ldraa, ldrab; stg, ldg and other instructions for memory tags; loads and stores of vector structures;
    // ldiapp, stilp, ldapr, stlr
    (0xff20_0c00, 0xf820_0c00),
    (0xff20_0400, 0xd920_0400),
    (0xbe80_0000, 0x0c80_0000),
    (0xbf20_0c00, 0x9900_0800),
];

/// Masks and values of the fixed bits of instructions that select another stack pointer: msr spsel, #N; msr
/// spsel, xN.
const SELECTIONS: &[(u32, u32)] = &[(0xffff_f0ff, 0xd500_40bf), (0xffff_ffe0, 0xd518_4200)];

/// Returns the change of the stack pointer that an instruction of AArch64 makes; `None` if there is no
/// change. Some instructions that do not exist, or do not change the stack pointer, are taken for
/// [`StackPointerChange::Set`].
#[must_use]
pub fn stack_pointer_change(bytes: &[u8]) -> Option<StackPointerChange> {
    let word = u32::from_le_bytes(*bytes.first_chunk()?);
    let is_one = |patterns: &[(u32, u32)]| patterns.iter().any(|(mask, bits)| word & mask == *bits);
    let (destination, base) = (word & 31, word >> 5 & 31);
    if destination == STACK {
        // add, sub
        if word & 0x3f80_0000 == 0x1100_0000 {
            return Some(if word >> 31 == 1 && base == STACK { Add(immediate(word)) } else { Set });
        }
        // and, orr, eor
        let is_logical = word & 0x1f80_0000 == 0x1200_0000 && word >> 29 & 3 != 3;
        if is_logical || is_one(DESTINATIONS) {
            return Some(Set);
        }
    }
    if base == STACK {
        // Loads and stores of pairs that change the base after or before the access.
        if word & 0x3a80_0000 == 0x2880_0000 {
            return Some(pair(word).map_or(Set, Add));
        }
        // Loads and stores of single registers.
        if word & 0x3b20_0400 == 0x3800_0400 {
            return Some(Add(signed(word >> 12, 9)));
        }
        if is_one(BASES) {
            return Some(Set);
        }
    }
    is_one(SELECTIONS).then_some(Set)
}

/// Returns the number that an `add` or `sub` adds.
fn immediate(word: u32) -> i64 {
    let number = i64::from(word >> 10 & 0xfff) << (12 * (word >> 22 & 1));
    if word >> 30 & 1 == 1 { -number } else { number }
}

/// Returns the number that a load or store of a pair adds to its base.
fn pair(word: u32) -> Option<i64> {
    let (class, is_vector, is_load) = (word >> 30, word >> 26 & 1 == 1, word >> 22 & 1 == 1);
    let scale = match (class, is_vector) {
        (0, _) => 4,
        (1, true) => 8,
        // ldpsw, stgp
        (1, false) => {
            if is_load {
                4
            } else {
                16
            }
        }
        (2, true) => 16,
        (2, false) => 8,
        _ => return None,
    };
    Some(signed(word >> 15, 7) * scale)
}

/// Returns the lowest `bits` bits as a signed number.
fn signed(word: u32, bits: u32) -> i64 {
    i64::from((word << (32 - bits)).cast_signed() >> (32 - bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(word: u32) -> Option<StackPointerChange> {
        stack_pointer_change(&word.to_le_bytes())
    }

    // The words of these instructions are from GNU as.
    #[test]
    fn numbers_that_are_added_are_known() {
        for (word, number) in [
            // sub sp, sp, #0x150
            (0xd105_43ff, -336),
            // add sp, sp, #0x10
            (0x9100_43ff, 16),
            // sub sp, sp, #0x1, lsl #12
            (0xd140_07ff, -4096),
            // stp x29, x30, [sp, #-16]!
            (0xa9bf_7bfd, -16),
            // ldp x29, x30, [sp], #32
            (0xa8c2_7bfd, 32),
            // stp w1, w2, [sp, #-8]!
            (0x29bf_0be1, -8),
            // ldp s0, s1, [sp], #8
            (0x2cc1_07e0, 8),
            // stp d8, d9, [sp, #-64]!
            (0x6dbc_27e8, -64),
            // ldp q0, q1, [sp], #64
            (0xacc2_07e0, 64),
            // ldpsw x0, x1, [sp], #8
            (0x68c1_07e0, 8),
            // str x30, [sp, #-16]!
            (0xf81f_0ffe, -16),
            // ldr x30, [sp], #16
            (0xf841_07fe, 16),
            // ldr w0, [sp], #4
            (0xb840_47e0, 4),
            // strb w0, [sp, #-1]!
            (0x381f_ffe0, -1),
            // str q0, [sp, #-32]!
            (0x3c9e_0fe0, -32),
            // ldrsw x1, [sp], #4
            (0xb880_47e1, 4),
            // stgp x0, x1, [sp], #-32
            (0x68bf_07e0, -32),
        ] {
            assert_eq!(change(word), Some(Add(number)), "{word:x}");
        }
    }

    #[test]
    fn other_changes_are_found() {
        for word in [
            // mov sp, x29
            0x9100_03bf,
            // mov sp, x9
            0x9100_013f,
            // add sp, x29, #0x10
            0x9100_43bf,
            // sub sp, x0, #0x10
            0xd100_401f,
            // add sp, sp, x0
            0x8b20_63ff,
            // sub sp, sp, x0
            0xcb20_63ff,
            // sub sp, sp, w1, uxtw #2
            0xcb21_4bff,
            // and sp, x9, #0xfffffffffffffff0
            0x927c_ed3f,
            // orr sp, x1, #0x1
            0xb240_003f,
            // add wsp, wsp, #0x4
            0x1100_13ff,
            // addvl sp, sp, #-1
            0x043f_57ff,
            // addpl sp, sp, #1
            0x047f_503f,
            // irg sp, x0
            0x9adf_101f,
            // addg sp, sp, #0x10, #0x1
            0x9181_07ff,
            // ld1 {v0.16b}, [sp], #16
            0x4cdf_73e0,
            // st1 {v0.16b, v1.16b}, [sp], x2
            0x4c82_a3e0,
            // ld1 {v0.s}[1], [sp], #4
            0x0ddf_93e0,
            // ldraa x0, [sp, #8]!
            0xf820_1fe0,
            // stg x0, [sp], #16
            0xd920_17e0,
            // st2g sp, [sp, #-32]!
            0xd9bf_efff,
            // msr spsel, #0x0
            0xd500_40bf,
            // msr spsel, x3
            0xd518_4203,
        ] {
            assert_eq!(change(word), Some(Set), "{word:x}");
        }
    }

    #[test]
    fn other_instructions_change_nothing() {
        for word in [
            // stp x29, x30, [sp, #16]
            0xa901_7bfd,
            // ldr x0, [sp, #8]
            0xf940_07e0,
            // stur x0, [sp, #-8]
            0xf81f_83e0,
            // add x0, sp, #0x10
            0x9100_43e0,
            // mov x29, sp
            0x9100_03fd,
            // cmp sp, x0
            0xeb20_63ff,
            // cmn sp, #0x8
            0xb100_23ff,
            // tst x0, #0xf
            0xf240_0c1f,
            // cmn x0, #0x1
            0xb100_041f,
            // ldr x0, [x1], #8
            0xf840_8420,
            // stp x0, x1, [x2, #-16]!
            0xa9bf_0440,
            // ldr x0, [sp, x1]
            0xf861_6be0,
            // ldadd x0, x1, [sp]
            0xf820_03e1,
            // ldxr x0, [sp]
            0xc85f_7fe0,
            // stlr x0, [sp]
            0xc89f_ffe0,
            // ld1 {v0.16b}, [sp]
            0x4c40_73e0,
            // bl dc <.text+0xdc>
            0x9400_0000,
            // ret
            0xd65f_03c0,
            // msr sp_el0, x1
            0xd518_4101,
            // mov x0, xzr
            0xaa1f_03e0,
            // and xzr, x1, x2
            0x8a02_003f,
            // eor xzr, x1, x2
            0xca02_003f,
            // stnp x0, x1, [sp, #16]
            0xa801_07e0,
            // ldar x0, [sp]
            0xc8df_ffe0,
            // sub xzr, x0, x1
            0xcb01_001f,
            // mul xzr, x0, x1
            0x9b01_7c1f,
        ] {
            assert_eq!(change(word), None, "{word:x}");
        }
    }
}
