//! Reading YAML strictly: what types do not know is lost when they write it again.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// The repository.
pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The documents of a stream.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    let all = serde_yaml::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap());
    all.filter(|document| !document.is_null()).collect()
}

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
            let pairs = written.iter().zip(found).enumerate();
            pairs.flat_map(|(at, (written, found))| lost(written, found, &format!("{path}[{at}]"))).collect()
        }
        // 1 and 1.0.
        (Value::Number(written), Value::Number(found)) if written.as_f64() == found.as_f64() => Vec::new(),
        _ if written == found => Vec::new(),
        _ => vec![format!("{path}: {written} became {found}")],
    }
}
