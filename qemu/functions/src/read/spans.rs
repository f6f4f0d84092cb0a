// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Parts of a trace's time, to which sums are limited.

/// Parts of a trace's time that do not overlap, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// Makes the union of these parts. Each part is given by its first and its last nanosecond.
    pub fn new(parts: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut spans: Vec<_> = parts.into_iter().filter(|(start, end)| start <= end).collect();
        spans.sort_unstable();
        spans.dedup_by(|next, last| {
            let joins = next.0 <= last.1;
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
        Spans(spans)
    }

    /// Returns the sum of all parts, in nanoseconds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum: u64, (start, end)| sum.saturating_add(end - start))
    }

    /// Returns whether there is no part.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Position in time. The position only moves forward, so that the cursor passes each part once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'s> {
    spans: &'s [(u64, u64)],
    /// Number of parts that the cursor has passed
    index: usize,
    /// Sum of the passed parts in nanoseconds
    passed: u64,
}

/// Position of a time in relation to the parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpanPosition {
    /// Nanoseconds in the parts up to the time
    pub elapsed: u64,
    /// Whether the time is in a part
    pub is_inside: bool,
    /// Number of parts that began up to the time
    pub begun: usize,
}

impl<'s> Cursor<'s> {
    pub fn new(spans: &'s Spans) -> Self {
        Cursor { spans: &spans.0, index: 0, passed: 0 }
    }

    /// Moves the cursor to a time. The times of successive calls must not decrease.
    pub fn to(&mut self, time: u64) -> SpanPosition {
        let mut current = None;
        while let Some(&(start, end)) = self.spans.get(self.index) {
            if time <= end {
                current = Some(start).filter(|start| *start <= time);
                break;
            }
            self.passed = self.passed.saturating_add(end - start);
            self.index += 1;
        }
        SpanPosition {
            elapsed: self.passed.saturating_add(current.map_or(0, |start| time - start)),
            is_inside: current.is_some(),
            begun: self.index + usize::from(current.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_overlap_or_touch_are_one() {
        let spans = Spans::new([(30, 40), (0, 10), (5, 20), (20, 25), (9, 8)]);

        assert_eq!(spans, Spans(vec![(0, 25), (30, 40)]));
        assert_eq!(spans.total(), 35);
    }

    #[test]
    fn a_time_has_the_sum_of_the_parts_up_to_it() {
        let spans = Spans::new([(10, 20), (30, 40)]);
        let mut cursor = Cursor::new(&spans);

        let places = [5, 10, 15, 20, 25, 35, 50].map(|time| {
            let SpanPosition { elapsed, is_inside, begun } = cursor.to(time);
            (elapsed, is_inside, begun)
        });

        let expected = [
            (0, false, 0),
            (0, true, 1),
            (5, true, 1),
            (10, true, 1),
            (10, false, 1),
            (15, true, 2),
            (20, false, 2),
        ];
        assert_eq!(places, expected);
    }
}
