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
