// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Pages of a kernel's ring buffer.
//!
//! A page is: u64 time, u64 length of the data with flags, data. The data is a sequence
//! of records: u32 with the type in the lower 5 bits and the time since the record
//! before in the upper 27, then as the type says:
//!
//! ```text
//! 1..=28  an event of 4 x type bytes
//! 0       u32 n, an event of n - 4 bytes
//! 29      padding: the rest of the page if the time is 0, else u32 n, n - 4 bytes
//! 30      u32 n: n x 2^27 more ticks since the record before
//! 31      u32 n: the time is n x 2^27 + the lower 27 bits
//! ```
//!
//! `events/header_page` and `events/header_event` of tracefs say the same.

use crate::value::number;
use std::ops::Range;

/// Bytes before the data.
pub(crate) const HEADER: usize = 16;
/// Flag of the length: events were overwritten before this page. The kernel adds it as a negative
/// `int`, so that all bits above it are set, too.
const MISSED: u64 = 1 << 31;
const ABOVE: u64 = u64::MAX << 32;
/// Flag of the length: after the data is a u64, the number of those events.
const STORED: u64 = 1 << 30;
/// Bits of the length.
const LENGTH: u64 = (1 << 27) - 1;
/// Bits of a record's time.
const TIME_BITS: u32 = 27;
/// Absolute times have 59 bits; those above are the ones of the time before.
const ABSOLUTE_BITS: u32 = 59;

/// Returns how many bytes of a page are used: the header, the data and a number of lost events after it.
pub(crate) fn content(bytes: &[u8]) -> usize {
    let length = bytes.get(8..HEADER).map_or(0, number);
    (HEADER + (length & LENGTH) as usize + 8).min(bytes.len())
}

/// Place of a wrong value within a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub at: usize,
    pub expected: String,
    pub found: String,
}

/// Position in a page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page {
    /// Time of the record that was read last, in ticks.
    pub time: u64,
    /// Place of the next record.
    at: usize,
    /// End of the data.
    end: usize,
}

impl Page {
    /// Reads the header. Returns the number of the events that were overwritten before the
    /// page too, 0 if it is not known, or `None` if there are none.
    pub fn open(bytes: &[u8]) -> Result<(Page, Option<u64>), Wrong> {
        let (Some(time), Some(length)) = (bytes.get(..8), bytes.get(8..HEADER)) else {
            let expected = format!("the {HEADER} bytes of a page's header");
            return Err(Wrong { at: 0, expected, found: format!("{} bytes", bytes.len()) });
        };
        let length = number(length);
        let end = HEADER + (length & LENGTH) as usize;
        let is_extended = length & MISSED != 0 && length & ABOVE == ABOVE;
        let flags = if is_extended { length & !ABOVE } else { length };
        if end > bytes.len() || flags & !(LENGTH | MISSED | STORED) != 0 {
            let expected = format!("at most {} bytes of records in a page", bytes.len() - HEADER);
            return Err(Wrong { at: 8, expected, found: format!("{length:#x}") });
        }
        let stored = bytes.get(end..end + 8).filter(|_| length & STORED != 0);
        let missed = (length & MISSED != 0).then(|| stored.map_or(0, number));
        Ok((Page { time: number(time), at: HEADER, end }, missed))
    }

    /// Returns the place of the next event's data; `None` at the page's end.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Option<Range<usize>>, Wrong> {
        // Each turn takes 4 bytes at least.
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
                    // The number counts itself.
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

/// Completes an absolute time with the upper bits of the time before it.
fn absolute(before: u64, time: u64) -> u64 {
    let upper = before >> ABSOLUTE_BITS << ABSOLUTE_BITS;
    let time = time & ((1 << ABSOLUTE_BITS) - 1) | upper;
    if upper != 0 && time < before { time.wrapping_add(1 << ABSOLUTE_BITS) } else { time }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a page of these words at time 1,000, with flags in its length.
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
        let mut bytes = page(&[29], MISSED | STORED);
        bytes.extend(77u64.to_le_bytes());
        assert_eq!(Page::open(&bytes).unwrap().1, Some(77));
        assert_eq!(Page::open(&page(&[29], MISSED)).unwrap().1, Some(0));
        let as_the_kernel_adds_it = u64::MAX << 31;
        assert_eq!(Page::open(&page(&[29], as_the_kernel_adds_it)).unwrap().1, Some(0));
        assert_eq!(Page::open(&page(&[29], 0)).unwrap().1, None);
        for wrong in [ABOVE, ABOVE | STORED, 1 << 32 | MISSED] {
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
}
