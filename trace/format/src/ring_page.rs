//! Pages of a kernel's ring buffer, as `trace_pipe_raw` gives them.
//!
//! A page is: u64 time, u64 length of the data with flags, data. The data is a sequence of records. A record
//! begins with a u32: the lower 5 bits hold the record's type, and the upper 27 bits hold the ticks since the
//! previous record. The type determines the rest of the record:
//!
//! ```text
//! 1..=28  an event of 4 x type bytes
//! 0       u32 n, an event of n - 4 bytes
//! 29      padding: the rest of the page if the time is 0, else u32 n, n - 4 bytes
//! 30      u32 n: n x 2^27 more ticks since the record before
//! 31      u32 n: the time is n x 2^27 + the lower 27 bits
//! ```
//!
//! `events/header_page` and `events/header_event` of tracefs describe the same layout.

use std::ops::Range;

/// Size of a page's header, before the data, in bytes.
pub const HEADER: usize = 16;
/// Flag in the word that holds the page's length: events were overwritten before this page. The kernel adds
/// this flag as a negative `int`, and thereby also sets all bits above the flag.
pub const MISSED: u64 = 1 << 31;
const ABOVE: u64 = u64::MAX << 32;
/// Flag in the same word: a u64 after the data holds the count of the overwritten events.
pub const MISSED_STORED: u64 = 1 << 30;
/// Mask of the length without flags.
const LENGTH: u64 = (1 << 27) - 1;
/// Number of bits of a record's time.
const TIME_BITS: u32 = 27;
/// Number of bits of an absolute time. The higher bits of an absolute time are equal to the higher bits of
/// the previous time.
const ABSOLUTE_BITS: u32 = 59;

/// Returns a little-endian number of 4 or 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the word of a page's header that holds the length of the data and the flags. Returns `None` if the
/// page is too short.
pub fn length(page: &[u8]) -> Option<u64> {
    page.get(8..HEADER).map(number)
}

/// Returns the number of bytes that have a meaning in a page with this length.
fn bytes(length: u64) -> usize {
    let stored = if length & MISSED_STORED == 0 { 0 } else { 8 };
    HEADER + (length & LENGTH) as usize + stored
}

/// Returns the number of bytes of a page that have a meaning: the bytes of the header, of the data, and of a
/// number of lost events after the data.
pub fn used(page: &[u8]) -> usize {
    bytes(length(page).unwrap_or(0)).min(page.len())
}

/// Returns true if a page has exactly as many bytes as its length says.
pub fn is_whole(page: &[u8]) -> bool {
    length(page).is_some_and(|length| bytes(length) == page.len())
}

/// Returns the number of events in a page.
///
/// # Errors
/// If all bytes of the page are zero, as in a hole of a file, or if a length does not fit the page. The error
/// is 0 for a hole. Otherwise, the error is the offset in the page of the wrong record, or of the wrong
/// length.
pub fn count(bytes: &[u8]) -> Result<u64, usize> {
    let (mut page, _) = Page::open(bytes).map_err(|wrong| wrong.at)?;
    let mut events = 0;
    while page.next(bytes).map_err(|_| page.at)?.is_some() {
        events += 1;
    }
    Ok(events)
}

/// Place of a wrong value within a page.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Offset in the page in bytes.
    pub at: usize,
    /// Description of the expected value.
    pub expected: String,
    /// Description of the value that was found.
    pub found: String,
}

/// Position in a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    /// Time of the record that was read last, in ticks.
    pub time: u64,
    /// Offset of the next record.
    at: usize,
    /// Offset of the end of the data.
    end: usize,
}

impl Page {
    /// Reads the header. If events were overwritten before the page, also returns their number, or 0 if
    /// nobody knows the number.
    ///
    /// # Errors
    /// If the page is shorter than its length says, or if all bytes of the page are zero, as in a hole of a
    /// file.
    pub fn open(bytes: &[u8]) -> Result<(Page, Option<u64>), Wrong> {
        let (Some(time), Some(length)) = (bytes.get(..8), bytes.get(8..HEADER)) else {
            let expected = format!("the {HEADER} bytes of a page's header");
            return Err(Wrong { at: 0, expected, found: format!("{} bytes", bytes.len()) });
        };
        let (time, length) = (number(time), number(length));
        if (time, length) == (0, 0) {
            let expected = "a page with a time".into();
            return Err(Wrong { at: 0, expected, found: "zeros, which nobody wrote".into() });
        }
        let end = HEADER + (length & LENGTH) as usize;
        let is_extended = length & MISSED != 0 && length & ABOVE == ABOVE;
        let flags = if is_extended { length & !ABOVE } else { length };
        if end > bytes.len() || flags & !(LENGTH | MISSED | MISSED_STORED) != 0 {
            let expected = format!("at most {} bytes of records in a page", bytes.len() - HEADER);
            return Err(Wrong { at: 8, expected, found: format!("{length:#x}") });
        }
        let stored = bytes.get(end..end + 8).filter(|_| length & MISSED_STORED != 0);
        let missed = (length & MISSED != 0).then(|| stored.map_or(0, number));
        Ok((Page { time, at: HEADER, end }, missed))
    }

    /// Returns the place of the next event's data, or `None` at the page's end.
    ///
    /// # Errors
    /// If a record does not fit the page. The position then stays before the wrong record.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Option<Range<usize>>, Wrong> {
        // Each iteration moves on by at least 4 bytes.
        while self.at < self.end {
            let word =
                |at: usize| Some(number(bytes.get(at..at + 4).filter(|_| at + 4 <= self.end)?));
            let wrong = |at, expected: &str, found: String| {
                Err(Wrong { at, expected: expected.into(), found })
            };
            let (at, array) = (self.at, word(self.at + 4));
            let Some(head) = word(at) else {
                return wrong(at, "a record of 4 bytes", format!("{} bytes", self.end - at));
            };
            let (kind, delta) = (head & 31, head >> 5);
            let (begin, len) = match kind {
                29 if delta == 0 => {
                    self.at = self.end;
                    return Ok(None);
                }
                1..=28 => (at + 4, kind as usize * 4),
                30 | 31 => (at + 4, 4),
                _ => match array {
                    // The length includes the 4 bytes of the length itself.
                    Some(n) if n >= 4 => (at + 8, (n as usize - 4).next_multiple_of(4)),
                    found => {
                        let found = found.map_or("the end of the page".into(), |n| n.to_string());
                        return wrong(at + 4, "a record's length of at least 4", found);
                    }
                },
            };
            let end = begin.saturating_add(len);
            if end > self.end {
                let expected = "a record within the page's data";
                return wrong(at, expected, format!("{} bytes too many", end - self.end));
            }
            self.at = end;
            match kind {
                30 => {
                    let more = array.unwrap_or(0) << TIME_BITS;
                    self.time = self.time.wrapping_add(more + delta);
                }
                31 => self.time = absolute(self.time, array.unwrap_or(0) << TIME_BITS | delta),
                29 => self.time = self.time.wrapping_add(delta),
                _ => {
                    self.time = self.time.wrapping_add(delta);
                    return Ok(Some(begin..end));
                }
            }
        }
        Ok(None)
    }
}

/// Completes an absolute time with the upper bits of the previous time.
fn absolute(before: u64, time: u64) -> u64 {
    let upper = before >> ABSOLUTE_BITS << ABSOLUTE_BITS;
    let time = time & ((1 << ABSOLUTE_BITS) - 1) | upper;
    if upper != 0 && time < before { time.wrapping_add(1 << ABSOLUTE_BITS) } else { time }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a page at time 1,000 with these words as data, and with flags in the page's length.
    fn page(words: &[u32], flags: u64) -> Vec<u8> {
        let mut bytes = 1_000u64.to_le_bytes().to_vec();
        bytes.extend(((words.len() as u64 * 4) | flags).to_le_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    fn events(words: &[u32]) -> Result<Vec<(u64, Vec<u8>)>, Wrong> {
        let bytes = page(words, 0);
        let (mut page, _) = Page::open(&bytes)?;
        let mut events = Vec::new();
        while let Some(place) = page.next(&bytes)? {
            events.push((page.time, bytes[place].to_vec()));
        }
        Ok(events)
    }

    #[test]
    fn times_add_up_over_all_kinds_of_records() {
        let words = [
            1 | 5 << 5, // 4 bytes after 5 ticks
            0xaaaa_aaaa,
            30 | 7 << 5, // 2 x 2^27 + 7 ticks more
            2,
            29 | 3 << 5, // 8 bytes of padding after 3 ticks
            8,
            0,
            2 | 1 << 5, // 8 bytes after a tick
            1,
            2,
            31 | 9 << 5, // at 4 x 2^27 + 9
            4,
            11 << 5, // 4 bytes after 11 ticks, by a length of its own
            8,
            0xbbbb_bbbb,
            29, // the rest is padding
            0xffff_ffff,
        ];

        let events = events(&words).unwrap();

        let long = 2 << 27;
        let times: Vec<u64> = events.iter().map(|(time, _)| *time).collect();
        assert_eq!(times, [1_005, 1_005 + long + 7 + 3 + 1, (4 << 27) + 9 + 11]);
        assert_eq!(events[0].1, [0xaa; 4]);
        assert_eq!(events[1].1, [1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(events[2].1, [0xbb; 4]);
    }

    #[test]
    fn an_absolute_time_keeps_the_upper_bits_of_the_time_before() {
        assert_eq!(absolute(5, 9), 9);
        assert_eq!(absolute(5 << 59 | 7, 9), 5 << 59 | 9);
        assert_eq!(absolute(5 << 59 | 7, 3), 6 << 59 | 3);
    }

    #[test]
    fn missed_events_are_counted_where_the_page_has_room_for_the_number() {
        let mut bytes = page(&[29], MISSED | MISSED_STORED);
        bytes.extend(77u64.to_le_bytes());
        assert_eq!(Page::open(&bytes).unwrap().1, Some(77));
        assert_eq!(Page::open(&page(&[29], MISSED)).unwrap().1, Some(0));
        let as_the_kernel_adds_it = u64::MAX << 31;
        assert_eq!(Page::open(&page(&[29], as_the_kernel_adds_it)).unwrap().1, Some(0));
        assert_eq!(Page::open(&page(&[29], 0)).unwrap().1, None);
        for wrong in [ABOVE, ABOVE | MISSED_STORED, 1 << 32 | MISSED] {
            assert_eq!(Page::open(&page(&[29], wrong)).unwrap_err().at, 8, "{wrong:#x}");
        }
    }

    #[test]
    fn records_stay_within_their_page() {
        assert_eq!(events(&[3, 0, 0]).unwrap_err().at, HEADER);
        assert_eq!(events(&[0, 3]).unwrap_err().at, HEADER + 4);
        assert_eq!(events(&[0]).unwrap_err().at, HEADER + 4);
        assert_eq!(events(&[0, u32::MAX]).unwrap_err().at, HEADER);
        assert_eq!(events(&[30 | 1 << 5]).unwrap_err().at, HEADER);
        assert_eq!(Page::open(&[0; 15]).unwrap_err().at, 0);
        let longer = page(&[1, 0], 4);
        assert_eq!(Page::open(&longer).unwrap_err().at, 8);
    }

    /// Makes a page of 4,096 bytes, as a file has: zeros fill the rest of the page after the data.
    fn raw(words: &[u32]) -> Vec<u8> {
        let mut bytes = page(words, MISSED);
        bytes.resize(4096, 0);
        bytes
    }

    #[test]
    fn events_are_counted_and_nothing_else() {
        let extend = 30 | (7 << 5);
        let discarded = 29 | (1 << 5);
        let words = [2 | (1 << 5), 1, 2, extend, 0, 0, 8, 9, discarded, 4, 1 | (3 << 5), 5, 29, 0];
        assert_eq!(count(&raw(&words)), Ok(3));
        assert_eq!(count(&raw(&[])), Ok(0));
    }

    #[test]
    fn the_number_of_missing_events_is_a_part_of_the_page() {
        let mut lossy = raw(&[2, 1, 1]);
        assert_eq!(used(&lossy), 28);
        let word = 12 | MISSED | MISSED_STORED;
        lossy[8..16].copy_from_slice(&word.to_ne_bytes());
        assert_eq!(used(&lossy), 36);
        assert!(is_whole(&lossy[..36]) && !is_whole(&lossy[..28]));
        // If the page has no room for the number of lost events, the kernel stores no number.
        assert_eq!(used(&lossy[..30]), 30);
    }

    #[test]
    fn a_length_beyond_the_page_is_an_error() {
        assert_eq!(count(&raw(&[2, 1])), Err(16), "an event that is longer than the data");
        assert_eq!(count(&raw(&[0, u32::MAX])), Err(16));
        assert_eq!(count(&raw(&[1, 1, 0, 0])), Err(24), "a length that has no room for itself");
        let mut long = raw(&[]);
        long[8..16].copy_from_slice(&4096u64.to_ne_bytes());
        assert_eq!(count(&long), Err(8));
        assert_eq!(count(&[0; 7]), Err(0), "no header");
        assert_eq!(count(&[0; 4096]), Err(0), "a hole");
    }
}
