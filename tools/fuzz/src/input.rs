//! Decoding of bytes. Any bytes are an input. After the end of the bytes, an input yields zeros.

use hypertrace_abi::clock::ticks;

/// Unusual numbers, which are likely to reveal errors.
const ODD: [u64; 16] = [
    0,
    1,
    2,
    15,
    16,
    255,
    256,
    4096,
    0xffff,
    1 << 32,
    (1 << 32) - 1,
    1 << 48,
    1 << 63,
    (1 << 63) - 1,
    u64::MAX - 1,
    u64::MAX,
];

/// Bytes that have not been consumed.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Makes an input of all these bytes.
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    /// Returns whether all bytes have been consumed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let (taken, rest) = self.0.split_at(self.0.len().min(N));
        array[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        array
    }

    /// Takes one byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Takes two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Takes four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Takes eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Returns a number below `n`, which is at most 256.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.u8()) % n
    }

    /// Returns one of these values.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Returns true in one of `n` cases.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// Returns a number of one of four kinds: a small number, an unusual number, any number, or a time near
    /// the present.
    pub fn value(&mut self) -> u64 {
        match self.below(6) {
            0 | 1 => self.u8().into(),
            2 => self.pick(&ODD),
            3 => self.u16().into(),
            4 => self.u64(),
            _ => ticks().wrapping_add(self.u8().into()),
        }
    }

    /// Takes up to `most` bytes.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.u8()).collect()
    }

    /// Returns up to `most` numbers.
    pub fn values(&mut self, most: usize) -> Vec<u64> {
        (0..self.below(most + 1)).map(|_| self.value()).collect()
    }
}
