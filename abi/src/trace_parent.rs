// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The caller's span, as defined by the W3C Trace Context:
//! <https://www.w3.org/TR/trace-context/#traceparent-header>.

use core::fmt;
use core::str::FromStr;

/// Environment variable in which a program receives its caller's span.
pub const ENVIRONMENT: &str = "TRACEPARENT";

/// The caller's span. A session is recorded during this span. The contents are those of a `traceparent`
/// header of version 00.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

impl TraceParent {
    /// Length of the span's text in bytes.
    pub const TEXT_BYTES: usize = 55;
    /// Number of words that the span takes in a config page.
    pub const WORDS: usize = 4;

    /// Returns the trace's id, which is nonzero.
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// Returns the span's id, which is nonzero.
    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Returns the flags: bit 0 says that the caller records the trace.
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Returns the words that represent a span in a config page.
    pub fn words(parent: Option<&TraceParent>) -> [u64; TraceParent::WORDS] {
        parent.map_or([0; TraceParent::WORDS], |TraceParent { trace_id, span_id, flags }| {
            let [high, low] = zerocopy::transmute!(*trace_id);
            [high, low, u64::from_le_bytes(*span_id), u64::from(*flags)]
        })
    }

    /// Returns the span that these words of a config page represent, or `None` if an id is zero.
    pub fn from_words(words: [u64; TraceParent::WORDS]) -> Option<TraceParent> {
        let [high, low, span, flags] = words;
        let has_ids = high | low != 0 && span != 0;
        has_ids.then(|| TraceParent {
            trace_id: zerocopy::transmute!([high, low]),
            span_id: span.to_le_bytes(),
            flags: flags as u8,
        })
    }
}

/// Why a text is not a `traceparent` of version 00.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceParentError {
    /// The text has this wrong length in bytes.
    Length(usize),
    /// The version is not 00.
    Version,
    /// The byte at this index is not a dash.
    Dash(usize),
    /// The byte at this index is not a lower-case hexadecimal digit.
    Digit(usize),
    /// The trace's id is zero.
    TraceId,
    /// The span's id is zero.
    SpanId,
}

impl fmt::Display for TraceParentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected 00-TRACE-SPAN-FLAGS of 32, 16 and 2 hexadecimal digits: ")?;
        match self {
            TraceParentError::Length(found) => {
                write!(f, "it has {found} bytes, not {}", TraceParent::TEXT_BYTES)
            }
            TraceParentError::Version => f.write_str("its version is not 00"),
            TraceParentError::Dash(at) => write!(f, "there is no dash at byte {at}"),
            TraceParentError::Digit(at) => {
                write!(f, "there is no digit of 0-9 or a-f at byte {at}")
            }
            TraceParentError::TraceId => f.write_str("the trace's number is zero"),
            TraceParentError::SpanId => f.write_str("the span's number is zero"),
        }
    }
}

impl core::error::Error for TraceParentError {}

impl FromStr for TraceParent {
    type Err = TraceParentError;

    fn from_str(text: &str) -> Result<TraceParent, TraceParentError> {
        let bytes: &[u8; TraceParent::TEXT_BYTES] =
            text.as_bytes().try_into().map_err(|_| TraceParentError::Length(text.len()))?;
        if bytes[..2] != *b"00" {
            return Err(TraceParentError::Version);
        }
        if let Some(at) = [2, 35, 52].into_iter().find(|at| bytes[*at] != b'-') {
            return Err(TraceParentError::Dash(at));
        }
        let (trace_id, span_id) = (number(bytes, 3)?, number(bytes, 36)?);
        let [flags] = number(bytes, 53)?;
        if trace_id == [0; 16] {
            return Err(TraceParentError::TraceId);
        }
        if span_id == [0; 8] {
            return Err(TraceParentError::SpanId);
        }
        Ok(TraceParent { trace_id, span_id, flags })
    }
}

/// Reads `N` bytes from the digits that begin at index `at`.
fn number<const N: usize>(text: &[u8], at: usize) -> Result<[u8; N], TraceParentError> {
    let digit = |at: usize| match text[at] {
        digit @ b'0'..=b'9' => Ok(digit - b'0'),
        digit @ b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(TraceParentError::Digit(at)),
    };
    let mut bytes = [0; N];
    for (i, byte) in bytes.iter_mut().enumerate() {
        let at = at + 2 * i;
        *byte = digit(at)? << 4 | digit(at + 1)?;
    }
    Ok(bytes)
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_standard_has_its_parts() {
        let parent: TraceParent = EXAMPLE.parse().unwrap();

        assert_eq!(
            u128::from_be_bytes(parent.trace_id()),
            0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736
        );
        assert_eq!(u64::from_be_bytes(parent.span_id()), 0x00f0_67aa_0ba9_02b7);
        assert_eq!(parent.flags(), 1);
    }

    #[test]
    fn an_invalid_text_is_refused_by_what_is_wrong() {
        use TraceParentError::{Dash, Digit, Length, SpanId, TraceId, Version};
        let with = |at: usize, text: &str| {
            let mut whole = EXAMPLE.to_owned();
            whole.replace_range(at..at + text.len(), text);
            whole
        };
        for (text, error) in [
            (String::new(), Length(0)),
            (format!("{EXAMPLE}-"), Length(56)),
            (with(0, "01"), Version),
            (with(0, "ff"), Version),
            (with(35, "0"), Dash(35)),
            (with(52, "_"), Dash(52)),
            (with(3, "A"), Digit(3)),
            (with(51, "g"), Digit(51)),
            (with(54, "\u{7f}"), Digit(54)),
            (with(3, &"0".repeat(32)), TraceId),
            (with(36, &"0".repeat(16)), SpanId),
        ] {
            assert_eq!(text.parse::<TraceParent>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_and_words_have_all_of_it(
            trace in 1..=u128::MAX, span in 1..=u64::MAX, flags: u8
        ) {
            let text = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
            let parent: TraceParent = text.parse().unwrap();
            prop_assert_eq!(parent.to_string(), text);
            prop_assert_eq!(TraceParent::from_words(TraceParent::words(Some(&parent))), Some(parent));
        }

        #[test]
        fn words_of_any_page_give_a_valid_one_or_none(words: [u64; 4]) {
            if let Some(parent) = TraceParent::from_words(words) {
                prop_assert_eq!(parent.to_string().parse(), Ok(parent));
            }
        }
    }

    #[test]
    fn zeros_are_none() {
        assert_eq!(TraceParent::words(None), [0; 4]);
        for words in [[0; 4], [0, 0, 1, 1], [1, 1, 0, 1]] {
            assert_eq!(TraceParent::from_words(words), None);
        }
    }
}
