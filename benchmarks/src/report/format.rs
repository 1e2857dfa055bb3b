//! Numbers, cells and lines of Markdown.

use crate::statistics::Summary;

/// A line; writing to a string cannot fail.
macro_rules! line {
    ($out:expr) => { $out.push('\n') };
    ($out:expr, $($text:tt)*) => {{
        use std::fmt::Write;
        let _ = writeln!($out, $($text)*);
    }};
}
pub(super) use line;

/// `median (least–greatest)`.
pub(super) fn range(summary: &Summary) -> String {
    format!("{} ({}–{})", number(summary.median), number(summary.min), number(summary.max))
}

/// Three digits that matter, and thousands apart.
pub(super) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        small if small < 0.1 => 4,
        small if small < 1.0 => 3,
        small if small < 10.0 => 2,
        small if small < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    if decimals > 0 {
        return text;
    }
    let digits = text.trim_start_matches('-');
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if text.starts_with('-') { format!("-{grouped}") } else { grouped }
}

/// Text that stays within its cell.
pub(super) fn cell_text(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}

/// Lines of at most 100 characters.
pub(super) fn wrap(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("at least one line");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > 100 {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_matter() {
        for (value, text) in [
            (0.0, "0"),
            (0.01234, "0.0123"),
            (0.5, "0.500"),
            (1.2345, "1.23"),
            (12.345, "12.3"),
            (123.4, "123"),
            (1234.5, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn cells_and_lines_stay_within_their_bounds() {
        assert_eq!(cell_text("a | b\nc"), "a \\| b c");
        let wrapped = wrap(&"µs and more ".repeat(40));
        assert!(wrapped.lines().all(|line| line.chars().count() <= 100) && wrapped.lines().count() > 4);
    }
}
