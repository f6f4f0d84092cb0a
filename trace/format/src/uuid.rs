//! UUIDs of sessions and boots as text: 8-4-4-4-12 hexadecimal digits.

/// Parses a UUID.
pub fn parse(text: &str) -> Option<u128> {
    let groups: Vec<&str> = text.split('-').collect();
    let digits = groups.concat();
    let is_uuid = groups.iter().map(|g| g.len()).eq([8, 4, 4, 4, 12])
        && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u128::from_str_radix(&digits, 16).ok().filter(|_| is_uuid)
}

/// Formats a UUID as [`parse`] reads it.
pub fn text(number: u128) -> String {
    let digits = format!("{number:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uuids_are_parsed() {
        let uuid = "36d00ed1-e68a-4dcf-9f57-8bb3a1fed66d";
        assert_eq!(parse(uuid), Some(0x36d0_0ed1_e68a_4dcf_9f57_8bb3_a1fe_d66d));
        assert_eq!(parse(uuid).map(text).as_deref(), Some(uuid));
        for wrong in ["", "36d00ed1", "36d00ed1-e68a-4dcf-9f57-8bb3a1fed66g", &uuid.repeat(2)] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(parse("+6d00ed1-e68a-4dcf-9f57-8bb3a1fed66d"), None);
    }
}
