//! The buffer in which the drain builds a packet of a stream file.

use hypertrace_format::packet::{HEADER_BYTES, PacketHeader};
use zerocopy::IntoBytes;

/// Size of a packet's header and context in words.
const HEADER_WORDS: usize = HEADER_BYTES / 8;

/// The buffer in which a drain loop builds all packets. The buffer has a fixed size, and is allocated once.
///
/// Only the buffer knows the end of the events. [`next`](Self::next) and [`add`](Self::add) move the end and
/// set the padding together. So no order of calls makes a packet that ends in the middle of an event.
///
/// Words 0 to 15 are room for the packet's header. After the room for the largest packet, the buffer has room
/// for the header of the next filler, so that one write takes both the packet's body and the filler's header.
#[derive(Debug)]
pub struct PacketBuffer {
    words: Box<[u64]>,
    used: usize,
    pad: usize,
}

/// Default maximum size of a packet in bytes.
pub const DEFAULT_PACKET_BYTES: usize = 64 * 1024;
/// Minimum size of the largest packet in bytes. A packet must have room for the largest record in the form of
/// an event `untyped`, and for a `time_fault` before this event.
pub const MIN_PACKET_BYTES: usize = 40 * 1024;

impl PacketBuffer {
    /// Returns a buffer for packets of at most `packet_bytes`, rounded up to the unit.
    pub fn new(packet_bytes: usize) -> Self {
        let bytes = packet_bytes.max(MIN_PACKET_BYTES).next_multiple_of(HEADER_BYTES);
        PacketBuffer {
            words: vec![0; bytes / 8 + HEADER_WORDS].into_boxed_slice(),
            used: HEADER_WORDS,
            pad: 0,
        }
    }

    /// Returns the maximum size of a packet in bytes.
    pub fn packet_bytes(&self) -> usize {
        (self.words.len() - HEADER_WORDS) * 8
    }

    /// Empties the buffer.
    #[inline]
    pub fn clear(&mut self) {
        self.used = HEADER_WORDS;
        self.pad = 0;
    }

    /// Returns true if the buffer holds no event.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == HEADER_WORDS
    }

    /// Appends an event of `words` words that ends without padding. Returns the words of the event, and the
    /// caller fills them. Returns `None` if there is no room for the event.
    #[inline(always)]
    pub fn next(&mut self, words: usize) -> Option<&mut [u64]> {
        let limit = self.words.len() - HEADER_WORDS;
        let event = self.words[..limit].get_mut(self.used..self.used + words)?;
        self.used += words;
        self.pad = 0;
        Some(event)
    }

    /// Returns the free words.
    #[inline(always)]
    pub fn free(&mut self) -> &mut [u64] {
        let end = self.words.len() - HEADER_WORDS;
        &mut self.words[self.used..end]
    }

    /// Adds the first `words` [free](Self::free) words to the packet. The last `pad` bytes of these words are
    /// a string's padding.
    ///
    /// If `words` exceeds the number of free words, only the free words are added.
    #[inline(always)]
    pub fn add(&mut self, words: usize, pad: usize) {
        debug_assert!(self.used + words <= self.words.len() - HEADER_WORDS && pad < 8);
        self.used = (self.used + words).min(self.words.len() - HEADER_WORDS);
        self.pad = pad;
    }

    /// Returns the events in the buffer.
    pub fn events(&self) -> &[u64] {
        &self.words[HEADER_WORDS..self.used]
    }

    /// Returns the size of the packet in bytes up to the end of the last event, without the padding.
    pub fn content_bytes(&self) -> usize {
        self.used * 8 - self.pad
    }

    /// Returns the size of the packet in bytes, padded to the unit.
    pub fn padded_bytes(&self) -> usize {
        (self.used * 8).next_multiple_of(HEADER_BYTES)
    }

    /// Fills the padding with zeros, and sets both headers. Returns the packet, followed by the filler's
    /// header.
    pub(crate) fn seal(&mut self, header: &PacketHeader, filler: &PacketHeader) -> &[u8] {
        let bytes = self.padded_bytes();
        self.words[self.used..bytes / 8].fill(0);
        let whole = self.words.as_mut_bytes();
        whole[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        whole[bytes..bytes + HEADER_BYTES].copy_from_slice(filler.as_bytes());
        &whole[..bytes + HEADER_BYTES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_format::packet::Domain;

    #[test]
    fn content_ends_with_the_last_byte_and_padding_is_zero() {
        let header = PacketHeader::new([7; 16], 1, Domain::Guest, 0, 0);
        let mut buffer = PacketBuffer::new(0);
        buffer.free().fill(u64::MAX);
        buffer.add(3, 5);
        assert_eq!(buffer.content_bytes(), 128 + 24 - 5);
        assert_eq!(buffer.padded_bytes(), 256);

        let sealed = buffer.seal(&header, &header.following(1, 4096)).to_vec();

        assert_eq!(sealed.len(), 384);
        assert!(sealed[152..256].iter().all(|b| *b == 0));
        assert_eq!(&sealed[..128], header.as_bytes());
    }

    #[test]
    fn a_buffer_holds_the_largest_record_twice_wrapped() {
        let words = hypertrace_abi::record::MAX_WORDS + 2 + 2 + 3;
        assert!(MIN_PACKET_BYTES / 8 - HEADER_WORDS >= words);
    }
}
