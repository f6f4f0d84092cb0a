// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! uftrace's record: 16 bytes for an entry or an exit of a function.
//!
//! A record is two 64-bit words, little endian. The first word is the time in nanoseconds. The second word
//! has five parts: the type (2 bits), a flag that more data follows (1 bit), the number 5 (3 bits), the depth
//! (10 bits) and the address (48 bits).

/// Size of a record in bytes.
pub const SIZE: usize = 16;

/// Maximum depth of a record. A record has 10 bits for the depth.
pub const MAX_DEPTH: u16 = (1 << 10) - 1;

/// Mask of the address bits that a record stores.
pub const ADDRESS_MASK: u64 = (1 << 48) - 1;

const MAGIC: u64 = 5;

/// Type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordType {
    /// Entry into a function.
    Entry,
    /// Exit of a function.
    Exit,
    /// Records are missing here. The address is the number of missing records.
    Lost,
    /// Event of uftrace. The record's address field holds the id of the event.
    Event,
}

/// Entry or exit of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time in nanoseconds. This time is 0 at the same moment for all records of a directory.
    pub time: u64,
    /// Type of the record.
    pub kind: RecordType,
    /// Number of functions around the record's function, at most [`MAX_DEPTH`].
    pub depth: u16,
    /// Address of the function. Only 48 bits of the address are stored.
    pub address: u64,
}

/// Reason why 16 bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// All bytes are zero, as in memory that was mapped and never written.
    #[error("nothing was written here")]
    Unwritten,
    /// The second word does not contain the number 5, which marks a record.
    #[error("no record: the mark is {0}, not 5")]
    Mark(u8),
    /// Fewer than 16 bytes are left in the file.
    #[error("the file ends within a record")]
    Cut,
    /// The record's bit for more data is set: arguments follow the record.
    #[error("a record with arguments")]
    Arguments,
}

impl Record {
    /// Returns the record's bytes. The depth is cut to 10 bits, and the address to 48 bits.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; SIZE] {
        let word = self.kind as u64
            | MAGIC << 3
            | u64::from(self.depth & MAX_DEPTH) << 6
            | (self.address & ADDRESS_MASK) << 16;
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&self.time.to_le_bytes());
        bytes[8..].copy_from_slice(&word.to_le_bytes());
        bytes
    }

    /// Reads a record. The record's address has 48 bits: [`sign_extended`] restores a kernel's address on
    /// x86-64.
    ///
    /// # Errors
    /// If the bytes are no record, or a record with arguments.
    pub fn from_bytes(bytes: [u8; SIZE]) -> Result<Self, Malformed> {
        match Record::with_arguments(bytes)? {
            (record, false) => Ok(record),
            (_, true) => Err(Malformed::Arguments),
        }
    }

    /// Reads a record. The function also returns whether arguments or a returned value follow the record. The
    /// record does not contain the size of the arguments.
    ///
    /// # Errors
    /// If the bytes are no record.
    pub fn with_arguments(bytes: [u8; SIZE]) -> Result<(Self, bool), Malformed> {
        let all = u128::from_le_bytes(bytes);
        let (time, word) = (all as u64, (all >> 64) as u64);
        if all == 0 {
            return Err(Malformed::Unwritten);
        }
        let mark = word >> 3 & 7;
        if mark != MAGIC {
            return Err(Malformed::Mark(mark as u8));
        }
        let kind = match word & 3 {
            0 => RecordType::Entry,
            1 => RecordType::Exit,
            2 => RecordType::Lost,
            _ => RecordType::Event,
        };
        let depth = (word >> 6) as u16 & MAX_DEPTH;
        let has_arguments = word & 1 << 2 != 0;
        Ok((Record { time, kind, depth, address: word >> 16 }, has_arguments))
    }
}

/// Returns a 64-bit address for a record's 48-bit address. The upper 16 bits of the result are copies of bit
/// 47.
///
/// On x86-64 with 4-level page tables, all addresses have this form. On AArch64, bit 47 may also be set in a
/// user's address, so the record does not say whether an address is a user's or a kernel's.
#[must_use]
pub fn sign_extended(address: u64) -> u64 {
    ((address << 16).cast_signed() >> 16).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_those_that_uftrace_reads() {
        let record = Record { time: 0x0102, kind: RecordType::Exit, depth: 3, address: 0x40_1000 };
        let word = 1_u64 | 5 << 3 | 3 << 6 | 0x40_1000 << 16;

        let bytes = record.to_bytes();

        assert_eq!(bytes[..8], 0x0102_u64.to_le_bytes());
        assert_eq!(bytes[8..], word.to_le_bytes());
    }

    #[test]
    fn an_address_of_a_kernel_keeps_its_sign() {
        let address = 0xffff_ffff_8100_0000;
        let record = Record { time: 1, kind: RecordType::Entry, depth: 0, address };

        let read = Record::from_bytes(record.to_bytes()).unwrap();

        assert_eq!(read.address, 0xffff_8100_0000);
        assert_eq!(sign_extended(read.address), address);
        assert_eq!(sign_extended(0x7fff_ffff_f000), 0x7fff_ffff_f000);
    }

    #[test]
    fn bytes_that_are_no_record_are_named() {
        assert_eq!(Record::from_bytes([0; 16]), Err(Malformed::Unwritten));
        assert_eq!(Record::from_bytes([0xff; 16]), Err(Malformed::Mark(7)));
        let mut more = Record { time: 1, kind: RecordType::Entry, depth: 0, address: 1 }.to_bytes();
        more[8] |= 4;
        assert_eq!(Record::from_bytes(more), Err(Malformed::Arguments));
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_written(
            time in 1_u64..,
            depth in 0..=MAX_DEPTH,
            address in 0..=ADDRESS_MASK,
            kind in 0_usize..4,
        ) {
            let kind = [RecordType::Entry, RecordType::Exit, RecordType::Lost, RecordType::Event][kind];
            let record = Record { time, kind, depth, address };
            prop_assert_eq!(Record::from_bytes(record.to_bytes()), Ok(record));
        }

        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes: [u8; 16]) {
            if let Ok(record) = Record::from_bytes(bytes) {
                prop_assert_eq!(record.to_bytes(), bytes);
            }
        }
    }
}
