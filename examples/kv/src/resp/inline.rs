//! Commands as people type them over telnet: words with blanks between, quoted where a word holds blanks.
//!
//! Called by the parser for a line that does not begin with `*`.

use bytes::Bytes;

/// Splits a line into words. `None`: a quotation mark is open, or a word continues right behind a closed one.
pub(super) fn split(line: &[u8]) -> Option<Vec<Bytes>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        let blanks = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        rest = &rest[blanks..];
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'"' | b'\'' => {
                    rest = quoted(byte, rest, &mut word)?;
                    if rest.first().is_some_and(|next| !next.is_ascii_whitespace()) {
                        return None;
                    }
                }
                byte if byte.is_ascii_whitespace() => break,
                byte => word.push(byte),
            }
        }
        words.push(Bytes::from(word));
    }
}

/// Takes what stands before the closing mark; returns what stands behind it.
fn quoted<'a>(mark: u8, mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        if byte == mark {
            return Some(rest);
        }
        let (byte, after) = if byte == b'\\' { escaped(mark, rest)? } else { (byte, rest) };
        word.push(byte);
        rest = after;
    }
}

/// What a backslash stands for. Within single quotation marks it only hides the mark.
fn escaped(mark: u8, rest: &[u8]) -> Option<(u8, &[u8])> {
    let (&byte, after) = rest.split_first()?;
    if mark == b'\'' {
        return Some(if byte == mark { (mark, after) } else { (b'\\', rest) });
    }
    let hex = |at: usize| char::from(*rest.get(at)?).to_digit(16);
    Some(match byte {
        b'n' => (b'\n', after),
        b'r' => (b'\r', after),
        b't' => (b'\t', after),
        b'a' => (7, after),
        b'b' => (8, after),
        b'x' => match (hex(1), hex(2)) {
            (Some(high), Some(low)) => ((high * 16 + low) as u8, &rest[3..]),
            _ => (b'x', after),
        },
        byte => (byte, after),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Option<Vec<String>> {
        let words = split(line.as_bytes())?;
        Some(words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect())
    }

    #[test]
    fn words_are_split_at_blanks_unless_quoted() {
        assert_eq!(words("  set  a\tb "), Some(vec!["set".into(), "a".into(), "b".into()]));
        assert_eq!(words(r#"set "a b" 'c "d'"#), Some(vec!["set".into(), "a b".into(), r#"c "d"#.into()]));
        assert_eq!(words(r#""\x41\n\"" '\n\''"#), Some(vec!["A\n\"".into(), "\\n'".into()]));
        assert_eq!(words(r#""" "#), Some(vec![String::new()]));
        assert_eq!(words("   "), Some(vec![]));
    }

    #[test]
    fn unbalanced_quotes_are_refused() {
        for bad in [r#"set "a"#, "set 'a", r#"set "a"b"#, r#"set "a\"#] {
            assert_eq!(words(bad), None, "{bad}");
        }
    }
}
