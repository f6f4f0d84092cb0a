//! Numbers out of bytes.

use hypertrace_abi::clock::ticks;

/// What is left of an input. Where nothing is left, everything is zero.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    /// All of it.
    pub fn new(rest: &'a [u8]) -> Self {
        Bytes { rest }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.rest.split_first() else {
            return 0;
        };
        self.rest = rest;
        byte
    }

    /// The next byte, below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// The next two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// A number of any size, most often a small one or one at an edge; one
    /// that is near the present time, too.
    pub fn number(&mut self) -> u64 {
        const EDGES: [u64; 16] = [
            0,
            1,
            1 << 8,
            0x0fff,
            0x1000,
            0xffff,
            1 << 16,
            u32::MAX as u64,
            1 << 32,
            1 << 47,
            i64::MAX as u64 - 1,
            i64::MAX as u64,
            1 << 63,
            u64::MAX - 7,
            u64::MAX - 1,
            u64::MAX,
        ];
        let kind = self.byte();
        let low = u64::from(kind & 0x0f);
        match kind >> 4 {
            0..=7 => kind.into(),
            8 => EDGES[low as usize],
            9 => self.short().into(),
            0xa => u32::from_le_bytes(self.array()).into(),
            0xb => u64::from_le_bytes(self.array()),
            0xc | 0xd => ticks() - (u64::from(kind & 0x1f) << 10),
            0xe => ticks(),
            _ => ticks().wrapping_add(1 << (low * 4)),
        }
    }

    /// A number near a place that is of interest.
    pub fn near(&mut self, places: &[u64]) -> u64 {
        let place = places[self.below(places.len())];
        place.wrapping_add_signed(i64::from(self.byte() as i8))
    }
}
