//! Patterns of `KEYS` and `SCAN`: `*`, `?`, `[a-c]`, `[^x]`, and `\` before a character that means itself.
//!
//! Takes time of pattern × text at most, for any input of a client.

/// True when the pattern describes the whole text.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Behind the last star, and how far the text was when it took nothing: after a failure the star takes one byte more.
    // Going back to the last star alone is enough, because what stands before it has been found as early as possible.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if p < pattern.len() && pattern[p] == b'*' {
            p += 1;
            star = Some((p, t));
            continue;
        }
        match text.get(t) {
            None if p == pattern.len() => return true,
            None => return false,
            Some(&byte) => {
                if let Some(size) = item(&pattern[p..], byte) {
                    p += size;
                    t += 1;
                } else if let Some((after, taken)) = star {
                    (p, t) = (after, taken + 1);
                    star = Some((after, t));
                } else {
                    return false;
                }
            }
        }
    }
}

/// Length of the pattern's first item, if it describes the byte.
fn item(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', ..] => class(pattern, byte),
        [b'\\', plain, ..] => (*plain == byte).then_some(2),
        [plain, ..] => (*plain == byte).then_some(1),
    }
}

/// The same for a class. One that is not closed ends with the pattern.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let negated = pattern.get(1) == Some(&b'^');
    let mut at = if negated { 2 } else { 1 };
    let mut found = false;
    loop {
        match &pattern[at.min(pattern.len())..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', plain, ..] => {
                found |= *plain == byte;
                at += 2;
            }
            [from, b'-', to, ..] if *to != b']' => {
                found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                at += 3;
            }
            [plain, ..] => {
                found |= *plain == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, text: &str) -> bool {
        matches(pattern.as_bytes(), text.as_bytes())
    }

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*", "abc"),
            ("a*c", "abbc"),
            ("a*b*c", "axbxbxc"),
            ("?b?", "abc"),
            ("[a-c]x", "bx"),
            ("[c-a]x", "bx"),
            ("[^a]x", "bx"),
            ("[\\]]", "]"),
            ("\\*", "*"),
            ("h[ae]llo", "hallo"),
            ("user:*:name", "user:17:name"),
            ("[a", "a"),
            ("a**", "a"),
        ] {
            assert!(check(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("a", ""),
            ("a*c", "abb"),
            ("?", ""),
            ("[a-c]", "d"),
            ("[^a]", "a"),
            ("\\*", "a"),
            ("[", "["),
            ("abc", "ab"),
            ("ab", "abc"),
        ] {
            assert!(!check(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_match_in_bounded_time() {
        let pattern = "a*".repeat(2000) + "b";
        assert!(!check(&pattern, &"a".repeat(20_000)));
    }
}
