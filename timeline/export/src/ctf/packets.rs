// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writes the file of the stream, which consists of packets of records.

use hypertrace_format::limits::MAX_LOST;
use hypertrace_format::packet::MAGIC;
use std::io::{self, Write};

/// Size of a packet's header and context in bytes. [`Packets::end`] writes the header's numbers, and the
/// metadata describe these numbers.
const HEADER: usize = 48;

/// Size in bytes from which a packet takes no further record. The packet's last record may extend past this
/// size.
const ENOUGH: usize = 1 << 16;

/// Writer of packets.
pub(super) struct Packets<'o> {
    out: &'o mut dyn Write,
    /// Bytes of the packet: room for the header, and the records so far.
    bytes: Vec<u8>,
    /// Time of the packet's first record.
    begin: u64,
    /// Time of the last record.
    last: u64,
    /// Number of events that were lost until the packet's end.
    discarded: u64,
}

impl<'o> Packets<'o> {
    /// Writes an empty packet first, because readers do not see how many events the first packet counts as
    /// lost.
    pub fn new(out: &'o mut dyn Write) -> io::Result<Packets<'o>> {
        let mut packets = Packets { out, bytes: vec![0; HEADER], begin: 0, last: 0, discarded: 0 };
        packets.end()?;
        Ok(packets)
    }

    /// Returns the time of the last record.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Begins a record at the time `at`, and returns the buffer to which the caller appends the record's
    /// contents. `at` must not be before the time of the last record.
    pub fn record(&mut self, at: u64) -> io::Result<&mut Vec<u8>> {
        if self.bytes.len() >= ENOUGH {
            self.end()?;
        }
        if self.bytes.len() == HEADER {
            self.begin = at;
        }
        self.last = at;
        Ok(&mut self.bytes)
    }

    /// Ends the packet, and counts events that were lost after this packet.
    pub fn lost(&mut self, events: u64) -> io::Result<()> {
        self.flush()?;
        self.discarded = self.discarded.saturating_add(events).min(MAX_LOST);
        Ok(())
    }

    /// Ends the packet if the packet has records.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.bytes.len() > HEADER { self.end() } else { Ok(()) }
    }

    fn end(&mut self) -> io::Result<()> {
        let bits = 8 * self.bytes.len() as u64;
        // The stream's number is 0.
        let header = [MAGIC.into(), self.begin, self.last, bits, bits, self.discarded];
        for (place, number) in self.bytes.chunks_exact_mut(8).zip(header) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        self.out.write_all(&self.bytes)?;
        self.bytes.truncate(HEADER);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the six numbers in the header of each packet.
    fn headers(mut bytes: &[u8]) -> Vec<[u64; 6]> {
        let mut headers = Vec::new();
        while !bytes.is_empty() {
            let numbers = bytes[..HEADER].chunks_exact(8);
            let header = numbers.map(|number| u64::from_le_bytes(number.try_into().unwrap()));
            let header: [u64; 6] = Vec::from_iter(header).try_into().unwrap();
            bytes = &bytes[header[4] as usize / 8..];
            headers.push(header);
        }
        headers
    }

    #[test]
    fn packets_are_bounded_and_losses_are_between_them() {
        let mut out = Vec::new();
        let mut packets = Packets::new(&mut out).unwrap();
        for at in 1..=3 {
            packets.record(at).unwrap().extend([0; ENOUGH - 1]);
        }
        packets.lost(5).unwrap();
        packets.record(4).unwrap().push(0);
        packets.lost(u64::MAX).unwrap();
        packets.record(9).unwrap().extend([0; 2 * ENOUGH]);
        packets.flush().unwrap();

        let (magic, large) = (u64::from(MAGIC), (HEADER + ENOUGH - 1) as u64 * 8);
        let last = (HEADER + 2 * ENOUGH) as u64 * 8;
        assert_eq!(
            headers(&out),
            [
                [magic, 0, 0, 384, 384, 0],
                [magic, 1, 1, large, large, 0],
                [magic, 2, 2, large, large, 0],
                [magic, 3, 3, large, large, 0],
                [magic, 4, 4, 392, 392, 5],
                [magic, 9, 9, last, last, MAX_LOST],
            ]
        );
    }
}
