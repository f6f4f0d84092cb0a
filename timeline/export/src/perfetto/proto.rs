// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A writer of protobuf's wire format, which only appends and makes no copy of a message.

/// A message that is being written.
#[derive(Debug, Default)]
pub(super) struct Proto(Vec<u8>);

/// Wire types.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;

impl Proto {
    /// Returns the bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Forgets all bytes, and keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Appends a number without a sign, or a bool.
    #[inline]
    pub fn number(&mut self, field: u32, value: u64) {
        self.tag(field, VARINT);
        self.varint(value);
    }

    /// Appends an `int32` or `int64`.
    #[inline]
    pub fn signed(&mut self, field: u32, value: i64) {
        self.number(field, value as u64);
    }

    /// Appends a `fixed64`.
    pub fn fixed(&mut self, field: u32, value: u64) {
        self.tag(field, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a `double`.
    pub fn double(&mut self, field: u32, value: f64) {
        self.fixed(field, value.to_bits());
    }

    /// Appends bytes, or a text.
    pub fn put(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, BYTES);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Appends a message. `write` appends the message's fields. One byte is reserved for the length. If the
    /// length needs more bytes, the message is moved to make room.
    #[inline]
    pub fn message<T>(&mut self, field: u32, write: impl FnOnce(&mut Proto) -> T) -> T {
        self.tag(field, BYTES);
        let at = self.0.len();
        self.0.push(0);
        let result = write(self);
        let len = self.0.len() - at - 1;
        match u8::try_from(len) {
            Ok(short @ ..0x80) => self.0[at] = short,
            _ => self.insert_length(at, len),
        }
        result
    }

    /// Overwrites the byte at `at` with a length of several bytes.
    #[cold]
    fn insert_length(&mut self, at: usize, len: usize) {
        let (mut bytes, mut count, mut left) = ([0; 10], 0, len as u64);
        // The loop runs ten times at most, because each turn takes 7 of 64 bits.
        while left >= 0x80 {
            bytes[count] = left as u8 | 0x80;
            count += 1;
            left >>= 7;
        }
        bytes[count] = left as u8;
        self.0.splice(at..=at, bytes[..=count].iter().copied());
    }

    /// Appends numbers as one field.
    pub fn packed(&mut self, field: u32, values: impl Iterator<Item = u64>) {
        self.message(field, |proto| values.for_each(|value| proto.varint(value)));
    }

    #[inline]
    fn tag(&mut self, field: u32, wire: u32) {
        self.varint((field << 3 | wire).into());
    }

    #[inline]
    fn varint(&mut self, mut value: u64) {
        // The loop runs ten times at most, because each turn takes 7 of 64 bits.
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_as_protobuf_says() {
        let mut proto = Proto::default();
        proto.number(1, 150);
        proto.signed(98, -1);
        proto.put(2, b"testing");
        proto.double(5, 1.0);
        proto.packed(4, [3, 270].into_iter());

        let expected: &[&[u8]] = &[
            &[0x08, 0x96, 0x01],
            &[0x90, 0x06, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x12, 0x07, b't', b'e', b's', b't', b'i', b'n', b'g'],
            &[0x29, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f],
            &[0x22, 0x03, 0x03, 0x8e, 0x02],
        ];
        assert_eq!(proto.bytes(), expected.concat());
    }

    #[test]
    fn a_message_has_its_length_however_long_it_is() {
        for len in [0, 1, 127, 128, 300, 20_000] {
            let mut proto = Proto::default();
            proto.number(1, 7);
            proto.message(3, |inner| {
                inner.put(1, &vec![b'x'; len]);
                inner.message(2, |inmost| inmost.number(1, 5));
            });
            proto.number(2, 9);

            let mut inner = Proto::default();
            inner.put(1, &vec![b'x'; len]);
            inner.put(2, &[0x08, 5]);
            let mut expected = Proto::default();
            expected.number(1, 7);
            expected.put(3, inner.bytes());
            expected.number(2, 9);
            assert_eq!(proto.bytes(), expected.bytes(), "{len}");
        }
    }
}
