//! Comparing what was written with what was read.

use serde_json::Value;

/// Whether all that was written is there when it has been read; what is not was no field.
pub(crate) fn lost(written: &Value, found: &Value, path: &str) -> Vec<String> {
    match (written, found) {
        (Value::Object(written), Value::Object(found)) => {
            let of = |(key, value): (&String, &Value)| match found.get(key) {
                Some(found) => lost(value, found, &format!("{path}.{key}")),
                None => vec![format!("{path}.{key}")],
            };
            written.iter().flat_map(of).collect()
        }
        (Value::Array(written), Value::Array(found)) if written.len() == found.len() => {
            written.iter().zip(found).flat_map(|(written, found)| lost(written, found, path)).collect()
        }
        _ if written == found => Vec::new(),
        _ => vec![format!("{path}: {written} became {found}")],
    }
}
