//! A page of the kernel's ring buffer, as `trace_pipe_raw` gives it.
//!
//! It begins with the time of its first event (u64) and the number of bytes of events (a long, whose
//! upper bits say that events are missing before). An event begins with a 32-bit word: a type of 5
//! bits, which is a length in words up to 28, and 27 bits of ticks since the event before. The
//! kernel's `events/header_page` and `events/header_event` describe both.

/// Bytes before the first event, with 64-bit longs.
pub(crate) const HEADER: usize = 16;

/// Largest type that is an event's length in 32-bit words; 0: the length is in the next word.
pub(crate) const MAX_TYPE_LEN: u32 = 28;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// Bits of the word that counts bytes: flags are above.
const COMMIT: u64 = 0xfffff;

/// Flag of that word: events are missing before the page.
pub(crate) const MISSED: u64 = 1 << 31;

/// Flag of that word: the number of missing events, a long, follows the events.
pub(crate) const MISSED_STORED: u64 = 1 << 30;

/// Returns the word that counts the bytes of a page's events, with its flags.
pub(crate) fn commit(page: &[u8]) -> Option<u64> {
    page.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes)
}

/// Returns the number of bytes that a page with this word has with a meaning: its header, its events, and the number of
/// events that are missing before them.
fn bytes(commit: u64) -> usize {
    let stored = if commit & MISSED_STORED == 0 { 0 } else { 8 };
    HEADER + (commit & COMMIT) as usize + stored
}

/// Returns the number of bytes of a page that have a meaning.
pub(crate) fn used(page: &[u8]) -> usize {
    bytes(commit(page).unwrap_or(0)).min(page.len())
}

/// Returns whether a page says that it has as many bytes as there are.
pub(crate) fn is_whole(page: &[u8]) -> bool {
    commit(page).is_some_and(|commit| bytes(commit) == page.len())
}

/// Returns the number of events of a page.
///
/// # Errors
/// If it is a hole in a file, without a time and events, or a length does not fit the page: the offset
/// in the page.
pub(crate) fn count(page: &[u8]) -> Result<u64, usize> {
    let word = |at: usize| {
        let bytes = page.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let end = HEADER + (commit(page).ok_or(8usize)? & COMMIT) as usize;
    if page[..HEADER].iter().all(|byte| *byte == 0) {
        return Err(0);
    }
    if end > page.len() {
        return Err(8);
    }
    let (mut at, mut events) = (HEADER, 0);
    // Each turn moves `at` by 4 bytes or more.
    while at < end {
        let head = word(at).ok_or(at)?;
        let (kind, delta) = (head & 31, head >> 5);
        let length = || word(at + 4).map(|bytes| bytes as usize);
        let bytes = match kind {
            // Fills the rest of the page.
            PADDING if delta == 0 => break,
            PADDING => 4 + length().ok_or(at)?,
            TIME_EXTEND | TIME_STAMP => 8,
            0 => {
                events += 1;
                4 + length().filter(|bytes| *bytes >= 4).ok_or(at)?
            }
            words => {
                debug_assert!(words <= MAX_TYPE_LEN);
                events += 1;
                4 + words as usize * 4
            }
        };
        // Lengths are multiples of 4 in memory.
        let next = at.saturating_add(bytes.next_multiple_of(4));
        if next > end {
            return Err(at);
        }
        at = next;
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(words: &[u32]) -> Vec<u8> {
        let mut page = vec![0; 4096];
        page[0] = 1;
        page[8..16].copy_from_slice(&((words.len() as u64 * 4) | (1 << 31)).to_ne_bytes());
        for (word, at) in words.iter().zip((16..).step_by(4)) {
            page[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        page
    }

    #[test]
    fn events_are_counted_and_nothing_else() {
        let extend = 30 | (7 << 5);
        let discarded = 29 | (1 << 5);
        let words = [2 | (1 << 5), 1, 2, extend, 0, 0, 8, 9, discarded, 4, 1 | (3 << 5), 5, 29, 0];
        assert_eq!(count(&page(&words)), Ok(3));
        assert_eq!(count(&page(&[])), Ok(0));
    }

    #[test]
    fn the_number_of_missing_events_is_a_part_of_the_page() {
        let mut lossy = page(&[2, 1, 1]);
        assert_eq!(used(&lossy), 28);
        let word = 12 | MISSED | MISSED_STORED;
        lossy[8..16].copy_from_slice(&word.to_ne_bytes());
        assert_eq!(used(&lossy), 36);
        assert!(is_whole(&lossy[..36]) && !is_whole(&lossy[..28]));
        // The kernel stores none where it has no room.
        assert_eq!(used(&lossy[..30]), 30);
    }

    #[test]
    fn a_length_beyond_the_page_is_an_error() {
        assert_eq!(count(&page(&[2, 1])), Err(16), "an event that is longer than the data");
        assert_eq!(count(&page(&[0, u32::MAX])), Err(16));
        assert_eq!(count(&page(&[1, 1, 0, 0])), Err(24), "a length that has no room for itself");
        let mut long = page(&[]);
        long[8..16].copy_from_slice(&4096u64.to_ne_bytes());
        assert_eq!(count(&long), Err(8));
        assert_eq!(count(&[0; 7]), Err(8));
        assert_eq!(count(&[0; 4096]), Err(0), "a hole");
    }
}
