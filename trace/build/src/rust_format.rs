//! Translation of C's conversions to Rust's, with the same output.

use crate::printf::{Conversion, MAX_WIDTH};
use crate::types::Kind;

/// Returns the statement that adds a parameter of this kind to the line `out`, in the form that C would show.
/// `width` is the parameter of a star. The statement uses `core::fmt` only for forms that no method of the
/// line can write, because `core::fmt` can take longer for one number than the kernel takes for a whole
/// event.
pub(crate) fn statement(
    conversion: &Conversion,
    kind: Kind,
    parameter: &str,
    width: Option<&str>,
    out: &str,
) -> String {
    let letter = conversion.letter;
    let value = match letter {
        'p' => return format!("{out}.push(b\"0x\"); {out}.hex({parameter});"),
        'c' => format!("g::Escaped(&[{parameter} as u8])"),
        's' => format!("g::Escaped({parameter})"),
        'd' | 'i' => integer(conversion, true, kind, parameter),
        _ => integer(conversion, false, kind, parameter),
    };
    let base = match letter {
        'o' => "o",
        'x' => "x",
        'X' => "X",
        _ => "",
    };
    if let Some(width) = width {
        // C takes a negative width as the flag `-`, which puts the value on the left and fills with spaces,
        // not zeros.
        let left = write(out, &format!("<1${base}"), &value, ", w.unsigned_abs() as usize");
        let padding = match (letter, conversion.zero) {
            ('s', _) => ">",
            (_, true) => "0",
            (_, false) => "",
        };
        let right = write(out, &format!("{padding}1${base}"), &value, ", w as usize");
        return format!(
            "match ({width} as i64).clamp(-{MAX_WIDTH}, {MAX_WIDTH}) \
             {{ w if w < 0 => {{ {left} }} w => {{ {right} }} }}"
        );
    }
    let padding = conversion.padding();
    match (letter, &*padding) {
        ('d' | 'i' | 'u', "") => return format!("{out}.decimal({value});"),
        ('x', "") => return format!("{out}.hex({value});"),
        _ => {}
    }
    // C aligns text to the right by default, Rust to the left.
    let align = if letter == 's' && !padding.is_empty() { ">" } else { "" };
    write(out, &format!("{align}{padding}{base}"), &value, "")
}

/// Returns the statement that writes a value with this Rust format specification. `width` is an argument for
/// the specification, after a comma.
fn write(out: &str, spec: &str, value: &str, width: &str) -> String {
    let colon = if spec.is_empty() { "" } else { ":" };
    format!(
        "let _ = ::core::fmt::Write::write_fmt({out}, \
         ::core::format_args!(\"{{{colon}{spec}}}\", {value}{width}));"
    )
}

/// Returns the parameter in the form that printf takes: an integer smaller than an int becomes an int, and
/// the conversion determines whether the integer is signed.
fn integer(conversion: &Conversion, signed: bool, kind: Kind, parameter: &str) -> String {
    let (bits, has_sign) = kind.integer().unwrap_or((64, false));
    if kind == Kind::Bool {
        return format!("u8::from({parameter})");
    }
    if has_sign == signed || (signed && bits < 32) {
        return parameter.to_owned();
    }
    let sign = if signed { 'i' } else { 'u' };
    format!("{parameter} as {sign}{}", if conversion.is_long { 64 } else { 32 })
}
