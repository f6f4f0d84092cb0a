//! Translation of C's conversions to Rust's, with the same output.

use crate::printf::Conversion;
use crate::types::Kind;
use std::fmt::Write;

/// A conversion in Rust, and the expression for its value.
pub(crate) struct Shown {
    /// The format spec between the braces: `:02x`, or nothing.
    pub spec: String,
    /// The text before the braces.
    pub prefix: &'static str,
    /// The expression for the value, in terms of the parameter.
    pub value: String,
    /// True if the value needs the module `c_printf`.
    pub needs_c_printf: bool,
}

/// Returns the conversion for `core::fmt` that shows a parameter of this kind as C does.
pub(crate) fn shown(conversion: &Conversion, kind: Kind, parameter: &str) -> Shown {
    match conversion.letter {
        's' => string(conversion, parameter),
        'c' => character(conversion, parameter),
        'p' => address(conversion, parameter),
        'd' | 'i' | 'u' | 'o' | 'x' | 'X' => integer(conversion, kind, parameter),
        _ => float(conversion, parameter),
    }
}

fn simple(spec: String, value: String) -> Shown {
    Shown { spec, prefix: "", value, needs_c_printf: false }
}

fn c_printf(spec: String, value: String) -> Shown {
    Shown { needs_c_printf: true, ..simple(spec, value) }
}

fn string(conversion: &Conversion, parameter: &str) -> Shown {
    let bytes = match conversion.precision {
        Some(most) => format!("&{parameter}[..{parameter}.len().min({most})]"),
        None => parameter.to_owned(),
    };
    simple(text_spec(conversion), format!("g::Escaped({bytes})"))
}

fn character(conversion: &Conversion, parameter: &str) -> Shown {
    simple(text_spec(conversion), format!("g::Escaped(&[{parameter} as u8])"))
}

/// Returns the format spec of a text. C aligns text to the right by default, Rust to the left.
fn text_spec(conversion: &Conversion) -> String {
    let align = if conversion.has('-') { '<' } else { '>' };
    conversion.width.map(|width| format!(":{align}{width}")).unwrap_or_default()
}

fn address(conversion: &Conversion, parameter: &str) -> Shown {
    if conversion.width.is_some() {
        let flags = if conversion.has('-') { "<#" } else { "#" };
        return simple(number_spec(conversion, flags, "x"), parameter.to_owned());
    }
    Shown { prefix: "0x", ..simple(":x".to_owned(), parameter.to_owned()) }
}

fn integer(conversion: &Conversion, kind: Kind, parameter: &str) -> Shown {
    let signed = matches!(conversion.letter, 'd' | 'i');
    let value = integer_value(conversion.bits, signed, kind, parameter);
    let (letter, flags) = (conversion.letter, number_flags(conversion));
    let space = conversion.has(' ');
    if conversion.has('#') || conversion.precision.is_some() || (space && !conversion.has('+')) {
        let value = match signed {
            true => format!("super::c_printf::signed(i64::from({value}), {space})"),
            false => format!("super::c_printf::unsigned(u64::from({value}), '{letter}')"),
        };
        return c_printf(number_spec(conversion, &flags, ""), value);
    }
    let ty = match letter {
        'o' => "o",
        'x' => "x",
        'X' => "X",
        _ => "",
    };
    simple(number_spec(conversion, &flags, ty), value)
}

/// Returns the parameter as printf takes it: a smaller one becomes an int, the
/// length may cut it off, and the conversion determines whether it is signed.
fn integer_value(shown_bits: u32, signed: bool, kind: Kind, parameter: &str) -> String {
    let (bits, has_sign) = kind.integer().unwrap_or((64, false));
    if kind == Kind::Bool {
        return format!("u8::from({parameter})");
    }
    let same = match (has_sign, signed) {
        _ if bits > shown_bits => false,
        (true, false) => false,
        (false, true) => bits < shown_bits,
        (true, true) | (false, false) => true,
    };
    if same {
        return parameter.to_owned();
    }
    format!("{parameter} as {}{shown_bits}", if signed { 'i' } else { 'u' })
}

fn float(conversion: &Conversion, parameter: &str) -> Shown {
    let spec = number_spec(conversion, &number_flags(conversion), "");
    let (letter, space) = (conversion.letter, conversion.has(' '));
    c_printf(spec, format!("super::c_printf::float({parameter}, '{letter}', {space})"))
}

/// Returns the flags in Rust's order. A zero is ignored where C ignores it.
fn number_flags(conversion: &Conversion) -> String {
    let is_float = !matches!(conversion.letter, 'd' | 'i' | 'u' | 'o' | 'x' | 'X');
    let zero = !conversion.has('-') && (is_float || conversion.precision.is_none());
    [('-', '<'), ('+', '+'), ('#', '#'), ('0', '0')]
        .into_iter()
        .filter(|(flag, _)| conversion.has(*flag) && (*flag != '0' || zero))
        .map(|(_, flag)| flag)
        .collect()
}

fn number_spec(conversion: &Conversion, flags: &str, ty: &str) -> String {
    let mut spec = flags.to_owned();
    if let Some(width) = conversion.width {
        let _ = write!(spec, "{width}");
    } else {
        // Without a width they have no effect, and `<` alone would be a fill.
        spec = spec.replace(['<', '0'], "");
    }
    if let Some(precision) = conversion.precision {
        let _ = write!(spec, ".{precision}");
    }
    spec.push_str(ty);
    if spec.is_empty() { spec } else { format!(":{spec}") }
}

#[cfg(test)]
mod tests {
    use crate::c_printf::{float, signed, unsigned};

    // `tests/printf.rs` checks that the output is C's. These tests are examples
    // for readers.

    #[test]
    fn zero_has_no_prefix() {
        assert_eq!(
            format!("{:#} {:#} {:#}", unsigned(0, 'x'), unsigned(31, 'x'), unsigned(31, 'X')),
            "0 0x1f 0X1F"
        );
        assert_eq!(format!("{:#} {:#}", unsigned(0, 'o'), unsigned(8, 'o')), "0 010");
    }

    #[test]
    fn a_precision_is_digits_and_a_width_is_not() {
        assert_eq!(format!("[{:6.3}]", signed(-5, false)), "[  -005]");
        assert_eq!(format!("[{:<6.0}]", signed(0, true)), "[      ]");
        assert_eq!(format!("[{:06}]", signed(5, true)), "[ 00005]");
    }

    #[test]
    fn an_exponent_has_two_digits() {
        let shown = |letter| format!("{}", float(1e-7, letter, false));
        assert_eq!(['e', 'G', 'f'].map(shown), ["1.000000e-07", "1E-07", "0.000000"]);
        assert_eq!(format!("{:012.999}", float(f64::MAX, 'f', false)).len(), 309 + 1 + 999);
    }
}
