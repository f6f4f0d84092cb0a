//! Translation of C's conversions to Rust's, with the same output.

use crate::printf::Conversion;
use crate::types::Kind;

/// Returns the statement that adds a parameter of this kind to the line `out`, as C shows it.
/// `core::fmt` is used only where it is needed: it takes longer for one number than the kernel
/// may take for the whole event.
pub(crate) fn statement(conversion: &Conversion, kind: Kind, parameter: &str, out: &str) -> String {
    let (letter, padding) = (conversion.letter, conversion.padding());
    let (value, spec) = match letter {
        'p' => return format!("{out}.push(b\"0x\"); {out}.hex({parameter});"),
        'c' => (format!("g::Escaped(&[{parameter} as u8])"), padding),
        's' if padding.is_empty() => (format!("g::Escaped({parameter})"), padding),
        // C aligns text to the right by default, Rust to the left.
        's' => (format!("g::Escaped({parameter})"), format!(">{padding}")),
        'o' | 'x' | 'X' => {
            (integer(conversion, false, kind, parameter), format!("{padding}{letter}"))
        }
        _ => (integer(conversion, letter != 'u', kind, parameter), padding),
    };
    match (letter, &*spec) {
        ('d' | 'i' | 'u', "") => return format!("{out}.decimal({value});"),
        ('x', "x") => return format!("{out}.hex({value});"),
        _ => {}
    }
    let colon = if spec.is_empty() { "" } else { ":" };
    format!(
        "let _ = ::core::fmt::Write::write_fmt({out}, ::core::format_args!(\"{{{colon}{spec}}}\", {value}));"
    )
}

/// Returns the parameter as printf takes it: a smaller one becomes an int, and
/// the conversion determines whether it is signed.
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
