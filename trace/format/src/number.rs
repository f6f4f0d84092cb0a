//! Numbers in messages.

/// Formats a number with a comma between thousands.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number of things, such as `1 event` or `2,000 events`. `one` is the noun for one thing.
pub fn counted(n: u64, one: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        _ => format!("{} {one}s", grouped(n)),
    }
}

/// Parses a time such as `1.5ms` to nanoseconds, exactly. A number without a unit but with a point is in
/// seconds, because reports show times in this form. Digits below a nanosecond are dropped.
///
/// # Errors
/// If the text is no time, or the time is too large. The error describes the expected text.
pub fn time(text: &str) -> Result<i64, String> {
    let number = text.trim_end_matches(|c: char| !c.is_ascii_digit() && c != '.');
    let unit: u64 = match &text[number.len()..] {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "" if number.contains('.') => 1_000_000_000,
        _ => {
            return Err(
                "a time is a number with ns, us, ms or s, such as 1.5ms, or 0.001500000".into()
            );
        }
    };
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if digits.trim_matches('.').is_empty() || !is_number(whole) || !is_number(fraction) {
        return Err("expected a number such as 1.5 before the unit".into());
    }
    let too_large = || "too large for a time".to_string();
    let parse =
        |s: &str| if s.is_empty() { Ok(0) } else { s.parse::<i64>().map_err(|_| too_large()) };
    let mut ns = parse(whole)?.checked_mul(unit as i64).ok_or_else(too_large)?;
    let mut place = unit as i64;
    for digit in fraction.bytes() {
        place /= 10;
        ns = ns.checked_add(place * i64::from(digit - b'0')).ok_or_else(too_large)?;
    }
    Ok(sign * ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_the_singular() {
        for (n, text) in [(0, "0 events"), (1, "1 event"), (2_000, "2,000 events")] {
            assert_eq!(counted(n, "event"), text);
        }
    }

    #[test]
    fn thousands_are_grouped() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (13_600, "13,600")] {
            assert_eq!(grouped(n), text);
        }
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }
}
