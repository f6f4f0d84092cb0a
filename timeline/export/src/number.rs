// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Numbers as text. Formats numbers fast. Most of the output is numbers. With `write!`, the numbers would
//! take more time than the rest of the output.

use hypertrace_timeline::Name;
use std::fmt::Write as _;

/// Appends a number.
pub fn decimal(out: &mut String, value: u64) {
    out.push_str(itoa::Buffer::new().format(value));
}

/// Appends a number with its sign.
pub fn signed(out: &mut String, value: i64) {
    if value < 0 {
        out.push('-');
    }
    decimal(out, value.unsigned_abs());
}

/// Appends the names that a field's value has, such as the names of flags. The names get quotes if `always`
/// is true or if they contain a blank.
pub fn named(out: &mut String, name: &Name<'_>, always: bool) -> std::fmt::Result {
    let begin = out.len();
    write!(out, "{name}")?;
    // Names are printable ASCII without quotes, so they need no escapes.
    if always || out[begin..].contains(' ') {
        out.insert(begin, '"');
        out.push('"');
    }
    Ok(())
}
