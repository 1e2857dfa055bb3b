//! A status under a definition of ReplicaGroup that is older than this operator: only the image was upgraded, perhaps.
//!
//! Used by [`apply`](super). An apply with a field that the definition lacks is refused as a whole, with code 500:
//! <https://github.com/kubernetes/kubernetes/issues/139253>. But sidecars find the backups in the status.

use std::sync::Once;

use serde_json::Value;
use tracing::warn;

use crate::error::{Cause, Error};

const UNDECLARED: &str = ": field not declared in schema";

/// Says so once, since it holds for every group.
static TOLD: Once = Once::new();

/// Takes out of what was applied the fields that the definition lacks, as the API server has named them. False if it has named
/// none.
pub(super) fn take_out_undeclared(body: &mut Value, error: &Error) -> bool {
    let Cause::Api(kube::Error::Api(answer)) = &error.source else { return false };
    let paths: Vec<&str> = answer.message.lines().filter_map(|line| line.strip_suffix(UNDECLARED)).collect();
    for path in &paths {
        // The first follows what was being done.
        let path = path.rsplit(": ").next().unwrap_or_default();
        take_out(body, &fields(path));
    }
    if !paths.is_empty() {
        TOLD.call_once(|| {
            warn!(
                answer = answer.message,
                "the definition of ReplicaGroup is older than this operator, and the status of groups is incomplete: \
                 upgrade the definition, such as with `tailwind-operator crd | kubectl replace --filename -`"
            );
        });
    }
    !paths.is_empty()
}

/// The names in a path such as `.status.backups[name="orders-backup-a"].node`.
fn fields(path: &str) -> Vec<String> {
    let outside = path.split('[').enumerate().map(|(number, part)| match number {
        0 => part,
        _ => part.split_once(']').map_or("", |(_, after)| after),
    });
    let outside: String = outside.collect();
    outside.split('.').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn take_out(value: &mut Value, path: &[String]) {
    match (value, path) {
        (Value::Array(items), _) => items.iter_mut().for_each(|item| take_out(item, path)),
        (Value::Object(fields), [name]) => _ = fields.remove(name),
        (Value::Object(fields), [name, rest @ ..]) => {
            if let Some(value) = fields.get_mut(name) {
                take_out(value, rest);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    fn answered(message: &str) -> Error {
        let status = Status::failure(message, "").with_code(500);
        Error { doing: "write status".to_owned(), source: Cause::Api(kube::Error::Api(Box::new(status))) }
    }

    #[test]
    fn the_fields_that_an_answer_names_are_taken_out() {
        const FAILED: &str = "failed to create typed patch object (shop/orders; g/v1, Kind=ReplicaGroup): ";
        let whole = json!({"status": {"updating": true, "backups": [{"name": "a.b", "node": "n1"}, {"name": "c"}]}});
        let left = |message: String| {
            let mut body = whole.clone();
            take_out_undeclared(&mut body, &answered(&message)).then_some(body)
        };
        let one = format!("{FAILED}.status.updating{UNDECLARED}");
        let all = format!(
            "{FAILED}errors:\n  .status.updating{UNDECLARED}\n  .status.backups[name=\"a.b\"].node{UNDECLARED}"
        );
        let backups = &whole["status"]["backups"];
        assert_eq!(left(one), Some(json!({"status": {"backups": backups}})));
        assert_eq!(left(all), Some(json!({"status": {"backups": [{"name": "a.b"}, {"name": "c"}]}})));
        assert_eq!(left("etcdserver: request timed out".to_owned()), None);
    }
}
