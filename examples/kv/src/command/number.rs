//! Numbers as Redis reads them: one way to write each.

/// A 64-bit number without blanks, plus sign or leading zeros; otherwise `None`.
pub fn number(text: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = digits.first()?.is_ascii_digit() && (digits.len() == 1 || digits[0] != b'0') && text != b"-0";
    plain.then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_one_spelling() {
        for good in [0, 7, -7, i64::MAX, i64::MIN] {
            assert_eq!(number(good.to_string().as_bytes()), Some(good));
        }
        for bad in ["", "-", "+1", "01", "-01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "x"] {
            assert_eq!(number(bad.as_bytes()), None, "{bad}");
        }
    }
}
