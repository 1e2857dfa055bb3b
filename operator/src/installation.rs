//! Which groups are managed by this installation of the operator, and which by others in the same cluster: see decision 36.
//!
//! Asked by [`observe`](crate::observe) about each group before anything else is read of it, and by the webhook.

use kube::ResourceExt;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;
use tailwind_crds::names::ANNOTATION_OPERATOR;

use crate::apply::MANAGER;
use crate::error::{Doing, Error};

/// Replicas that share a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// NAMESPACE/NAME of the Lease: no two installations have the same, and one that is installed again has it again.
    pub name: String,
    /// The class of groups that it manages; none: those without a class.
    pub class: Option<String>,
}

/// Which installation a group belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// This installation's.
    Ours,
    /// Nobody's yet, and of our class.
    Unclaimed,
    /// The group is of another class.
    OtherClass,
    /// The group is of another class, and still recorded as ours: its class has changed.
    GivenUp,
    /// The group is of our class, and belongs to another installation.
    Other(String),
}

impl Installation {
    /// By the object as it is stored: it may be one that cannot be read.
    pub(crate) fn ownership(&self, group: &DynamicObject) -> Ownership {
        let class = group.data.pointer("/spec/operatorClass").and_then(|class| class.as_str());
        let owner = group.annotations().get(ANNOTATION_OPERATOR).map(String::as_str).filter(|owner| !owner.is_empty());
        match (class == self.class.as_deref(), owner) {
            (true, None) => Ownership::Unclaimed,
            (true, Some(owner)) if owner == self.name => Ownership::Ours,
            (true, Some(owner)) => Ownership::Other(owner.to_owned()),
            (false, Some(owner)) if owner == self.name => Ownership::GivenUp,
            (false, _) => Ownership::OtherClass,
        }
    }

    /// Records in the group that it is ours, or no longer. With the version that was read: of two installations that claim it at
    /// once, one gets a conflict.
    pub(crate) async fn record(
        &self,
        api: &Api<DynamicObject>,
        group: &DynamicObject,
        is_ours: bool,
    ) -> Result<DynamicObject, Error> {
        let patch = json!({"metadata": {
            "annotations": {ANNOTATION_OPERATOR: is_ours.then_some(&self.name)},
            "resourceVersion": group.metadata.resource_version,
        }});
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let doing = || format!("write annotation {ANNOTATION_OPERATOR}");
        api.patch(&group.name_any(), &params, &Patch::Merge(patch)).await.doing(doing)
    }
}

/// Reads `--class`.
pub(crate) fn class(text: &str) -> Result<String, String> {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_valid = text.len() <= 63
        && text.starts_with(inside)
        && text.ends_with(inside)
        && text.chars().all(|c| inside(c) || c == '-' || c == '.');
    let rule = "at most 63 lower-case letters, digits, dashes and dots, beginning and ending with a letter or digit";
    if is_valid { Ok(text.to_owned()) } else { Err(rule.to_owned()) }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::http::StatusCode;
    use axum::{Json, Router};
    use kube::api::ApiResource;
    use kube::{Client, Config};
    use serde_json::Value;
    use tailwind_crds::ReplicaGroup;

    use super::*;
    use crate::error::Class;

    fn group(class: Value, owner: Value) -> DynamicObject {
        let mut group = json!({"metadata": {"name": "orders"}, "spec": {"backups": "many"}});
        if !owner.is_null() {
            group["metadata"]["annotations"] = json!({ANNOTATION_OPERATOR: owner});
        }
        if !class.is_null() {
            group["spec"]["operatorClass"] = class;
        }
        serde_json::from_value(group).unwrap()
    }

    #[test]
    fn class_and_record_decide_whose_a_group_is() {
        let named = |class: Option<&str>| Installation { name: "a/op".to_owned(), class: class.map(str::to_owned) };
        let (plain, blue) = (named(None), named(Some("blue")));
        let (none, ours, theirs) = (Value::Null, json!("a/op"), json!("b/op"));
        for (installation, class, owner, expected) in [
            (&plain, &none, &none, Ownership::Unclaimed),
            (&plain, &none, &json!(""), Ownership::Unclaimed),
            (&plain, &none, &ours, Ownership::Ours),
            (&plain, &none, &theirs, Ownership::Other("b/op".to_owned())),
            (&plain, &json!("blue"), &none, Ownership::OtherClass),
            (&plain, &json!("blue"), &theirs, Ownership::OtherClass),
            (&plain, &json!("blue"), &ours, Ownership::GivenUp),
            (&blue, &json!("blue"), &none, Ownership::Unclaimed),
            (&blue, &json!("blue"), &theirs, Ownership::Other("b/op".to_owned())),
            (&blue, &none, &none, Ownership::OtherClass),
            (&blue, &none, &ours, Ownership::GivenUp),
        ] {
            let group = group(class.clone(), owner.clone());
            assert_eq!(installation.ownership(&group), expected, "{installation:?} {class} {owner}");
        }
    }

    /// If two claim a group at once, the API server refuses the second by the version that it has read.
    #[tokio::test]
    async fn a_claim_names_the_version_that_was_read() {
        let bodies: Arc<Mutex<Vec<Value>>> = Arc::default();
        let seen = Arc::clone(&bodies);
        let handle = move |Json(body): Json<Value>| {
            seen.lock().unwrap().push(body);
            let status =
                json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "no"});
            std::future::ready((StatusCode::CONFLICT, Json(status)))
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handle)).await });
        let client = Client::try_from(Config::new(address.parse().unwrap())).unwrap();
        let api = Api::namespaced_with(client, "shop", &ApiResource::erase::<ReplicaGroup>(&()));
        let mut group = group(Value::Null, Value::Null);
        group.metadata.resource_version = Some("7".to_owned());
        let us = Installation { name: "a/op".to_owned(), class: None };
        for is_ours in [true, false] {
            let error = us.record(&api, &group, is_ours).await.unwrap_err();
            assert_eq!(error.class(), Class::Conflict);
        }
        let record =
            |owner: Value| json!({"metadata": {"annotations": {ANNOTATION_OPERATOR: owner}, "resourceVersion": "7"}});
        assert_eq!(*bodies.lock().unwrap(), [record(json!("a/op")), record(Value::Null)]);
    }

    #[test]
    fn a_class_is_what_the_definition_takes() {
        for good in ["blue", "a", "storage.example.com", "team-2"] {
            assert_eq!(class(good).as_deref(), Ok(good));
        }
        for bad in ["", "Blue", "-blue", "blue.", "a b", "a/b", &"a".repeat(64)] {
            class(bad).unwrap_err();
        }
    }
}
