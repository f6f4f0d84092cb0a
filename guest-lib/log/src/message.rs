//! A message in a buffer on the stack, and the mark of a thread that formats a message.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Size of a message, in bytes.
pub const MESSAGE_BYTES: usize = 512;

/// A text that is cut at the end of its buffer.
#[derive(Debug)]
pub struct Message {
    bytes: [u8; MESSAGE_BYTES],
    len: usize,
    cut: u32,
}

impl Message {
    /// Returns the text of a value.
    pub fn of(value: impl fmt::Display) -> Message {
        let mut message = Message { bytes: [0; MESSAGE_BYTES], len: 0, cut: 0 };
        // If a value cannot be formatted to its end, the message has the text so far.
        let _ = fmt::write(&mut message, format_args!("{value}"));
        message
    }

    /// Returns the text, as far as it fits.
    pub fn text(&self) -> &str {
        // The text is valid UTF-8, because it is cut between characters.
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }

    /// Returns the number of bytes that did not fit.
    pub fn cut(&self) -> u32 {
        self.cut
    }
}

impl fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // After a cut, no part is added, because a later part would not follow the text so far.
        let room = if self.cut == 0 { MESSAGE_BYTES - self.len } else { 0 };
        let mut len = text.len().min(room);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        self.bytes[self.len..self.len + len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        let rest = u32::try_from(text.len() - len).unwrap_or(u32::MAX);
        self.cut = self.cut.saturating_add(rest);
        Ok(())
    }
}

thread_local! {
    static IS_FORMATTING: Cell<bool> = const { Cell::new(false) };
}

static NESTED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of records and events that this process dropped because the thread was formatting
/// another record or event.
pub fn nested() -> u64 {
    NESTED.load(Relaxed)
}

/// The mark of a thread that formats the program's values. The code that formats a value may itself log.
#[derive(Debug)]
pub struct Formatting(());

impl Formatting {
    /// Marks the thread. If the thread is marked already, counts the attempt and returns `None`.
    #[inline]
    pub fn begin() -> Option<Formatting> {
        if IS_FORMATTING.replace(true) {
            NESTED.fetch_add(1, Relaxed);
            return None;
        }
        Some(Formatting(()))
    }
}

impl Drop for Formatting {
    fn drop(&mut self) {
        IS_FORMATTING.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_at_a_character_and_says_how_much() {
        // Each character has 3 bytes.
        let message = Message::of("\u{20ac}".repeat(200));
        assert_eq!(message.text(), "\u{20ac}".repeat(170));
        assert_eq!(message.cut(), 90);
    }

    #[test]
    fn nothing_follows_a_cut() {
        let message = Message::of(format_args!("{}{}", "\u{20ac}".repeat(200), "a"));
        assert!(message.text().ends_with('\u{20ac}'));
        assert_eq!(message.cut(), 91);
    }

    #[test]
    fn a_whole_message_has_no_cut() {
        let message = Message::of(format_args!("{}", "x".repeat(MESSAGE_BYTES)));
        assert_eq!((message.text().len(), message.cut()), (MESSAGE_BYTES, 0));
    }
}
