//! Patterns of event names: `*` stands for any run of characters, `?` for any one character.

use std::fmt;
use std::str::FromStr;

/// Maximum size of a pattern in bytes.
pub const MAX_PATTERN: usize = 256;

/// A pattern of event names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// A text that is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no pattern of event names: letters, digits, _, and * and ? for any, at most 256")]
pub struct BadPattern(pub String);

impl Pattern {
    /// Returns true if the pattern can match one name only.
    pub fn is_exact(&self) -> bool {
        !self.0.contains(['*', '?'])
    }

    /// Returns the pattern's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the pattern matches a name.
    pub fn matches(&self, name: &str) -> bool {
        matches(&self.0, name)
    }
}

/// Returns true if `pattern` matches the whole name. `*` stands for any text, `?` for any one byte.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // If the text after the last star does not fit, matching continues at these positions in the pattern and
    // in the name.
    let mut star = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, n));
            p += 1;
        } else if pattern.get(p).is_some_and(|c| *c == b'?' || *c == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((after, from)) = star {
            star = Some((after, from + 1));
            (p, n) = (after, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

impl FromStr for Pattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Pattern, BadPattern> {
        let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'*' | b'?');
        if text.is_empty() || text.len() > MAX_PATTERN || !text.bytes().all(fits) {
            return Err(BadPattern(text.chars().take(MAX_PATTERN).collect()));
        }
        Ok(Pattern(text.to_owned()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name, fits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "anything", true),
            ("virtio_*", "virtio_irq", true),
            ("virtio_*", "virtio", false),
            ("*_irq", "virtio_irq_irq", true),
            ("a*b*c", "axxbxbxc", true),
            ("a*b*c", "axxbxb", false),
            ("v?q", "viq", true),
            ("v?q", "vq", false),
            ("**a**", "bab", true),
        ] {
            assert_eq!(pattern.parse::<Pattern>().unwrap().matches(name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_bounded_time() {
        let pattern: Pattern = "*a".repeat(120).parse().unwrap();
        assert!(!pattern.matches(&"a".repeat(64)));
    }

    #[test]
    fn a_text_that_is_no_name_is_refused() {
        for text in ["", "a b", "a-b", "\x1b[2J", &"x".repeat(257)] {
            assert!(text.parse::<Pattern>().is_err(), "{text:?}");
        }
    }
}
