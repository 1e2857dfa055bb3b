//! Quantities of Kubernetes as numbers: `500m`, `8Gi`, `1e3`. In thousandths, so that CPU shares stay whole.
//!
//! Used by [`capacity`](crate::capacity) and placement.
//! <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Whether it is one. Its type takes any text.
pub fn is_valid(quantity: &Quantity) -> bool {
    parse(&quantity.0).is_some()
}

/// Thousandths of a unit. What is no quantity counts as nothing: API servers keep it from most objects, and
/// [`validity`](crate::plan) reports it in the spec of a group.
pub fn milli(quantity: &Quantity) -> i128 {
    parse(&quantity.0).unwrap_or(0)
}

/// Whole units: bytes, for example.
pub fn whole(quantity: &Quantity) -> u64 {
    u64::try_from(milli(quantity) / 1000).unwrap_or(0)
}

/// The quantity of so many bytes, in the largest unit that is exact.
pub fn bytes(bytes: u64) -> Quantity {
    let units = [("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let exact = units.into_iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    Quantity(exact.map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift)))
}

fn parse(text: &str) -> Option<i128> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    // In thousandths: (times, divided by).
    let (times, by) = match unit {
        "" => (1000, 1),
        "n" => (1, 1_000_000),
        "u" => (1, 1000),
        "m" => (1, 1),
        "k" => (1_000_000, 1),
        "M" => (1_000_000_000, 1),
        "G" => (1_000_000_000_000, 1),
        "T" => (1_000_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000_000, 1),
        "Ki" => (1000 << 10, 1),
        "Mi" => (1000 << 20, 1),
        "Gi" => (1000 << 30, 1),
        "Ti" => (1000_i128 << 40, 1),
        "Pi" => (1000_i128 << 50, 1),
        "Ei" => (1000_i128 << 60, 1),
        exponent => {
            let exponent: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
            if exponent >= 0 { (power.checked_mul(1000)?, 1) } else { (1000, power) }
        }
    };
    Some(digits.checked_mul(times)? / (scale * by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        for (text, thousandths) in [
            ("1", 1000),
            ("500m", 500),
            ("0.5", 500),
            ("1.5Gi", 1_610_612_736_000),
            ("8Mi", 8_388_608_000),
            ("1e3", 1_000_000),
            ("2k", 2_000_000),
            ("1E3", 1_000_000),
            ("3E", 3_000_000_000_000_000_000_000),
            ("2Ei", 2_305_843_009_213_693_952_000),
            ("100n", 0),
            ("nothing", 0),
        ] {
            assert_eq!(milli(&Quantity(text.to_owned())), thousandths, "{text}");
        }
    }

    /// As the pattern of the definition has it: `crds/tests/crds/rules.rs`.
    #[test]
    fn other_texts_are_no_quantities() {
        let is_valid = |text: &str| is_valid(&Quantity(text.to_owned()));
        for good in ["0", "8Gi", "500m", "0.5", ".5", "1.", "1e3", "1E-3", "3E", "2Ei", "100n", "1024", "+1", "-1"] {
            assert!(is_valid(good), "{good}");
        }
        for bad in ["", "1GB", "8 Gi", " 8Gi", "8gi", "Gi", "8K", "1e", "1.2.3", "1-2", "lots"] {
            assert!(!is_valid(bad), "{bad}");
        }
    }

    #[test]
    fn bytes_are_written_in_the_largest_unit_that_fits() {
        let written = [(0, "0"), (1 << 30, "1Gi"), (3 << 20, "3Mi"), (1025, "1025")];
        for (number, text) in written {
            assert_eq!(bytes(number).0, text);
        }
    }
}
