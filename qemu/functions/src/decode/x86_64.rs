// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Decodes instructions of x86-64 with the opcode maps of AMD's manual, volume 3, appendix A.

use super::{Instruction, InstructionKind};

/// Maximum length of an instruction in bytes, according to section 1.1 of the same manual.
const MAX_LENGTH: usize = 15;

pub(super) fn decode(bytes: &[u8], address: u64) -> Option<Instruction> {
    let bytes = &bytes[..bytes.len().min(MAX_LENGTH)];
    let is_prefix = |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 | 0x40..=0x4f);
    let opcode = bytes.iter().position(|byte| !is_prefix(byte))?;
    let operands = bytes.get(opcode + 1..)?;
    // Checks that the operands are there, and returns the whole length.
    let length = |operand_bytes: usize| {
        operands.get(..operand_bytes)?;
        u8::try_from(opcode + 1 + operand_bytes).ok()
    };
    let plain = |kind, operand_bytes| Some(Instruction::new(kind, length(operand_bytes)?));
    let near = |kind| {
        // In 64-bit mode, a prefix does not change the operand's size, as on Intel's processors.
        let distance = i32::from_le_bytes(*operands.first_chunk()?);
        Some(Instruction::direct(kind, length(4)?, address, distance.into()))
    };
    match bytes[opcode] {
        0xe8 => near(InstructionKind::Call),
        0xe9 => near(InstructionKind::Jump),
        0xeb => {
            let distance = i8::from_le_bytes(*operands.first_chunk()?);
            Some(Instruction::direct(InstructionKind::Jump, length(1)?, address, distance.into()))
        }
        0xc3 => plain(InstructionKind::Return, 0),
        0xc2 => plain(InstructionKind::Return, 2),
        0xcb => plain(InstructionKind::ReturnFar, 0),
        0xca => plain(InstructionKind::ReturnFar, 2),
        0xcf => plain(InstructionKind::ReturnFromException, 0),
        0xff => {
            let modrm = *operands.first()?;
            let is_register = modrm >> 6 == 3;
            let kind = match modrm >> 3 & 7 {
                2 => InstructionKind::CallIndirect,
                3 if !is_register => InstructionKind::CallFar,
                4 | 5 if modrm >> 3 & 7 == 4 || !is_register => InstructionKind::JumpIndirect,
                _ => return None,
            };
            plain(kind, memory_operand(operands)?)
        }
        0x0f => match operands.first()? {
            0x05 | 0x34 => plain(InstructionKind::SystemCall, 1),
            0x07 | 0x35 => plain(InstructionKind::SystemReturn, 1),
            _ => None,
        },
        _ => None,
    }
}

/// Returns whether code is `jmp *DISTANCE(%rip)`, perhaps after `endbr64` and with the prefix `bnd`.
pub(super) fn is_stub(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(bytes);
    let bytes = bytes.strip_prefix(&[0xf2]).unwrap_or(bytes);
    bytes.starts_with(&[0xff, 0x25])
}

/// Returns the number of bytes of a ModRM operand, with its SIB byte and displacement.
fn memory_operand(operands: &[u8]) -> Option<usize> {
    let modrm = *operands.first()?;
    let (mode, register) = (modrm >> 6, modrm & 7);
    if mode == 3 {
        return Some(1);
    }
    let sib = if register == 4 { Some(*operands.get(1)?) } else { None };
    let base = sib.map_or(register, |sib| sib & 7);
    let displacement = match mode {
        0 if base == 5 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    Some(1 + usize::from(sib.is_some()) + displacement)
}

#[cfg(test)]
mod tests {
    use super::super::{Architecture, STUB, decode};
    use super::*;

    fn kind(bytes: &[u8]) -> Option<(InstructionKind, u8)> {
        let found = decode(Architecture::X86_64, bytes, 0x1000)?;
        Some((found.kind, found.length))
    }

    #[test]
    fn direct_calls_and_jumps_have_a_target() {
        let target = |bytes: &[u8]| decode(Architecture::X86_64, bytes, 0x1000).unwrap().target;
        assert_eq!(target(&[0xe8, 0x00, 0x01, 0, 0]), Some(0x1105));
        assert_eq!(target(&[0xe8, 0xfb, 0xff, 0xff, 0xff]), Some(0x1000));
        assert_eq!(target(&[0xe9, 0x00, 0x10, 0, 0]), Some(0x2005));
        assert_eq!(target(&[0xeb, 0xfe]), Some(0x1000));
        assert_eq!(kind(&[0xe8, 0x00, 0x01, 0, 0]), Some((InstructionKind::Call, 5)));
        assert_eq!(kind(&[0xe9, 0x00, 0x01, 0, 0]), Some((InstructionKind::Jump, 5)));
    }

    #[test]
    fn stubs_jump_by_a_pointer_that_they_address() {
        let is_stub = |bytes: [u8; STUB]| crate::decode::is_stub(Architecture::X86_64, &bytes);
        // jmp *0x2fe2(%rip); push $0
        assert!(is_stub([0xff, 0x25, 0xe2, 0x2f, 0, 0, 0x68, 0, 0, 0, 0, 0xe9]));
        // endbr64; bnd jmp *0x2fad(%rip)
        assert!(is_stub([0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0xad, 0x2f, 0, 0, 0x0f]));
        // jmp *%rax; endbr64; jmp .
        assert!(!is_stub([0xff, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert!(!is_stub([0xf3, 0x0f, 0x1e, 0xfa, 0xeb, 0xfe, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn a_call_of_the_next_bytes_is_no_function_call() {
        assert_eq!(kind(&[0xe8, 0, 0, 0, 0]), Some((InstructionKind::CallAhead, 5)));
        assert_eq!(kind(&[0xe8, 32, 0, 0, 0]), Some((InstructionKind::CallAhead, 5)));
        assert_eq!(kind(&[0xe8, 33, 0, 0, 0]), Some((InstructionKind::Call, 5)));
    }

    #[test]
    fn prefixes_belong_to_the_instruction() {
        // bnd ret, notrack jmp *%rax, the padded call of __tls_get_addr
        assert_eq!(kind(&[0xf2, 0xc3]), Some((InstructionKind::Return, 2)));
        assert_eq!(kind(&[0x3e, 0xff, 0xe0]), Some((InstructionKind::JumpIndirect, 3)));
        assert_eq!(kind(&[0x66, 0x66, 0x48, 0xe8, 0, 1, 0, 0]), Some((InstructionKind::Call, 8)));
    }

    #[test]
    fn indirect_operands_have_their_lengths() {
        // *%rax, *%r11, *8(%rax), *0x100(%rip), *(%rsp), *table(,%rax,8), *0x100(%r12)
        assert_eq!(kind(&[0xff, 0xd0]), Some((InstructionKind::CallIndirect, 2)));
        assert_eq!(kind(&[0x41, 0xff, 0xd3]), Some((InstructionKind::CallIndirect, 3)));
        assert_eq!(kind(&[0xff, 0x50, 8]), Some((InstructionKind::CallIndirect, 3)));
        assert_eq!(kind(&[0xff, 0x15, 0, 1, 0, 0]), Some((InstructionKind::CallIndirect, 6)));
        assert_eq!(kind(&[0xff, 0x14, 0x24]), Some((InstructionKind::CallIndirect, 3)));
        assert_eq!(kind(&[0xff, 0x24, 0xc5, 0, 0, 0, 0]), Some((InstructionKind::JumpIndirect, 7)));
        assert_eq!(
            kind(&[0x41, 0xff, 0x94, 0x24, 0, 1, 0, 0]),
            Some((InstructionKind::CallIndirect, 8))
        );
        assert_eq!(kind(&[0xff, 0x18]), Some((InstructionKind::CallFar, 2)));
        assert_eq!(kind(&[0xff, 0x28]), Some((InstructionKind::JumpIndirect, 2)));
    }

    #[test]
    fn returns_and_changes_of_level_are_distinguished() {
        assert_eq!(kind(&[0xc3]), Some((InstructionKind::Return, 1)));
        assert_eq!(kind(&[0xc2, 8, 0]), Some((InstructionKind::Return, 3)));
        assert_eq!(kind(&[0x48, 0xcb]), Some((InstructionKind::ReturnFar, 2)));
        assert_eq!(kind(&[0x48, 0xcf]), Some((InstructionKind::ReturnFromException, 2)));
        assert_eq!(kind(&[0x0f, 0x05]), Some((InstructionKind::SystemCall, 2)));
        assert_eq!(kind(&[0x0f, 0x34]), Some((InstructionKind::SystemCall, 2)));
        assert_eq!(kind(&[0x48, 0x0f, 0x07]), Some((InstructionKind::SystemReturn, 3)));
    }

    #[test]
    fn other_and_incomplete_instructions_have_no_kind() {
        // push %rbp, nopw, jne, push *%rax, lcall *%rax (invalid), cut instructions
        for bytes in [
            &[0x55][..],
            &[0x66, 0x0f, 0x1f, 0x44, 0, 0],
            &[0x75, 2],
            &[0xff, 0xf0],
            &[0xff, 0xd8],
            &[0xe8, 0, 1, 0],
            &[0xff],
            &[0xff, 0x14],
            &[0xff, 0x15, 0],
            &[0x66],
            &[],
        ] {
            assert_eq!(kind(bytes), None, "{bytes:x?}");
        }
        assert_eq!(kind(&[0x66; 20]), None);
    }
}
