//! Whether the policies of a [`Cluster`](super::cluster::Cluster) admit a request.
//! <https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/>

use cel::{Context, Program};
use serde_json::{Value, json};

use super::cluster::{Objects, Target, list, text};

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::AsRefStr)]
#[strum(serialize_all = "UPPERCASE")]
pub(super) enum Operation {
    Create,
    Update,
    Delete,
}

/// Asks each policy that is bound to deny, and whose constraints match. `object` is null in a deletion, `old` in a creation.
pub(super) fn admit(
    objects: &Objects,
    operation: Operation,
    target: &Target,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), (u16, Value)> {
    const API: &str = "/apis/admissionregistration.k8s.io/v1";
    let namespace = target.namespace.as_ref().and_then(|name| objects.all.get(&format!("/api/v1/namespaces/{name}")));
    let of = |resource: &str| {
        let prefix = format!("{API}/{resource}/");
        objects.all.iter().filter(move |(path, _)| path.starts_with(&prefix)).map(|(_, object)| object)
    };
    let denies = |binding: &&Value| list(&binding["spec"]["validationActions"]).any(|action| action == "Deny");
    for binding in of("validatingadmissionpolicybindings").filter(denies) {
        let is_bound = |policy: &&Value| policy["metadata"]["name"] == binding["spec"]["policyName"];
        let bound = of("validatingadmissionpolicies").filter(is_bound);
        for policy in bound.filter(|policy| matches(policy, operation, target)) {
            let mut context = Context::default();
            for (name, value) in [("object", object), ("oldObject", old), ("namespaceObject", namespace)] {
                context.add_variable(name, value.unwrap_or(&Value::Null)).unwrap();
            }
            for validation in list(&policy["spec"]["validations"]) {
                check(validation, &policy["spec"]["failurePolicy"], &context)
                    .map_err(|(reason, why)| refusal(&text(&policy["metadata"]["name"]), &reason, &why))?;
            }
        }
    }
    Ok(())
}

/// <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#matching-requests-rules>
fn matches(policy: &Value, operation: Operation, target: &Target) -> bool {
    let resource = match &target.subresource {
        Some(subresource) => format!("{}/{subresource}", target.resource),
        None => target.resource.clone(),
    };
    assert_known(&policy["spec"], &["failurePolicy", "matchConstraints", "validations"]);
    assert_known(&policy["spec"]["matchConstraints"], &["resourceRules"]);
    let has = |field: &Value, wanted: &str| list(field).any(|value| value == wanted || value == "*");
    list(&policy["spec"]["matchConstraints"]["resourceRules"]).any(|rule| {
        let is_named = rule["resourceNames"].is_null()
            || target.name.as_ref().is_some_and(|name| list(&rule["resourceNames"]).any(|value| value == name));
        has(&rule["operations"], operation.as_ref())
            && has(&rule["apiGroups"], &target.group)
            && has(&rule["apiVersions"], &target.version)
            && list(&rule["resources"]).any(|value| value == &resource || value == "*" && target.subresource.is_none())
            && is_named
    })
}

/// A field that is not played here would make a policy look stricter, or less strict, than it is.
fn assert_known(part: &Value, fields: &[&str]) {
    let unknown = part.as_object().into_iter().flatten().find(|(field, _)| !fields.contains(&field.as_str()));
    assert_eq!(unknown, None, "play this field as well");
}

/// An expression that fails refuses as well, unless failures are to be ignored.
fn check(validation: &Value, failure_policy: &Value, context: &Context<'_>) -> Result<(), (String, String)> {
    let evaluate = |field: &str| {
        let program = Program::compile(validation[field].as_str()?).map_err(|error| error.to_string());
        Some(program.and_then(|program| program.execute(context).map_err(|error| error.to_string())))
    };
    let reason = validation["reason"].as_str().unwrap_or("Invalid").to_owned();
    match evaluate("expression") {
        Some(Ok(cel::Value::Bool(true))) => Ok(()),
        Some(Err(_)) if failure_policy == "Ignore" => Ok(()),
        Some(Err(error)) => Err((reason, error)),
        _ => match evaluate("messageExpression") {
            Some(Ok(cel::Value::String(message))) => Err((reason, message.to_string())),
            _ => Err((reason, text(&validation["message"]))),
        },
    }
}

/// The reason decides the code: 403 for `Forbidden`, and 422 for `Invalid`, which is the default.
/// <https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/validating-admission-policy-v1/>
fn refusal(policy: &str, reason: &str, why: &str) -> (u16, Value) {
    let code = match reason {
        "Unauthorized" => 401,
        "Forbidden" => 403,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    let message = format!("ValidatingAdmissionPolicy '{policy}' denied request: {why}");
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use tailwind_crds::names::{ANNOTATION_DELETE_DEFINITION, ANNOTATION_DELETE_LOG};

    use super::super::shop::{CLAIMS, GROUPS, ORDERS, PODS, Shop};
    use super::*;

    const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    const DEFINITION: &str = "replicagroups.replication.tailwind.dev";

    /// A shop with a log, in a cluster in which Tailwind is installed.
    async fn installed() -> Shop {
        let shop = Shop::with_backups(json!({})).await;
        install(&shop);
        shop.write_log(&shop.backups()).await;
        shop
    }

    /// Creates the chart's policies as they are rendered.
    fn install(shop: &Shop) {
        let manifest =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/install.yaml")).unwrap();
        let documents = serde_yaml::Deserializer::from_str(&manifest);
        let mut kinds = Vec::new();
        for object in documents.map(|document| Value::deserialize(document).unwrap()) {
            let collection = match object["kind"].as_str() {
                Some("ValidatingAdmissionPolicy") => POLICIES.to_owned(),
                Some("ValidatingAdmissionPolicyBinding") => POLICIES.replace("policies", "policybindings"),
                Some("CustomResourceDefinition") => DEFINITIONS.to_owned(),
                _ => continue,
            };
            shop.cluster.create(&collection, &object);
            kinds.push(collection);
        }
        assert_eq!(kinds.len(), 5, "{kinds:?}");
    }

    /// By hand, or by a tool that restores objects without their status.
    fn empty_status(shop: &Shop) {
        shop.cluster.change(ORDERS, &json!({"status": null}));
    }

    fn annotate(shop: &Shop, path: &str, annotation: &str, value: &str) {
        shop.cluster.change(path, &json!({"metadata": {"annotations": {annotation: value}}}));
    }

    #[tokio::test]
    async fn a_group_with_a_log_is_deleted_only_on_confirmation() {
        let shop = installed().await;
        let (code, answer) = shop.cluster.delete(ORDERS);
        assert_eq!((code, &answer["reason"]), (403, &json!("Forbidden")), "{answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(
            message.ends_with("kubectl annotate rg orders replication.tailwind.dev/delete-log=orders"),
            "{message}"
        );
        annotate(&shop, ORDERS, ANNOTATION_DELETE_LOG, "payments");
        assert_eq!(shop.cluster.delete(ORDERS).0, 403);
        assert!(shop.cluster.has(ORDERS) && shop.backups().len() == 3);

        annotate(&shop, ORDERS, ANNOTATION_DELETE_LOG, "orders");
        assert_eq!(shop.cluster.delete(ORDERS).0, 200);
        shop.cluster.stop_deleted_pods();
        assert!(!shop.cluster.has(ORDERS) && shop.backups().is_empty());
    }

    #[tokio::test]
    async fn groups_without_a_log_and_other_objects_are_deleted_at_once() {
        let shop = installed().await;
        for status in [Value::Null, json!({"phase": "Pending"})] {
            shop.cluster.create(GROUPS, &json!({"metadata": {"name": "fresh"}, "spec": {}, "status": status}));
            assert_eq!(shop.cluster.delete(&format!("{GROUPS}/fresh")).0, 200);
        }
        shop.cluster.create(DEFINITIONS, &json!({"metadata": {"name": "orders.shop.example.com"}}));
        assert_eq!(shop.cluster.delete(&format!("{DEFINITIONS}/orders.shop.example.com")).0, 200);
    }

    /// Only the operator knows that there is none. Until it has looked there may be one.
    #[tokio::test]
    async fn a_group_whose_status_shows_no_log_is_deleted_at_once() {
        let shop = Shop::with_backups(json!({})).await;
        install(&shop);
        empty_status(&shop);
        assert_eq!(shop.cluster.delete(ORDERS).0, 403);
        shop.reconcile().await;
        assert_eq!(shop.cluster.delete(ORDERS).0, 200);
    }

    /// No pod reports the log: the claims alone show that there may be one.
    #[tokio::test]
    async fn a_group_that_hibernates_is_protected_without_its_status() {
        let claim = json!({"size": "20Gi", "whenRemoved": "Delete"});
        let spec = json!({"backups": 2, "durability": "Flushed", "flushVolume": {"claim": claim}});
        let shop = Shop::with_backups(spec).await;
        install(&shop);
        shop.write_log(&shop.backups()).await;
        shop.cluster.delete(&format!("{PODS}/app-0"));
        shop.cluster.stop_deleted_pods();
        shop.cluster.change(ORDERS, &json!({"spec": {"hibernate": true}}));
        shop.reconcile().await;
        shop.cluster.stop_deleted_pods();
        assert!(shop.backups().is_empty());
        let claims = shop.cluster.names(CLAIMS);
        for hibernate in [true, false] {
            shop.cluster.change(ORDERS, &json!({"spec": {"hibernate": hibernate}}));
            empty_status(&shop);
            assert_eq!(shop.cluster.delete(ORDERS).0, 403, "before the operator looks: {hibernate}");
            shop.reconcile().await;
            assert_eq!(shop.cluster.delete(ORDERS).0, 403, "after it has looked: {hibernate}");
        }
        annotate(&shop, ORDERS, ANNOTATION_DELETE_LOG, "orders");
        assert_eq!(shop.cluster.delete(ORDERS).0, 200);
        shop.cluster.stop_deleted_pods();
        assert!(!shop.cluster.has(ORDERS) && shop.backups().is_empty());
        assert_eq!((claims.len(), shop.cluster.names(CLAIMS)), (2, claims), "nobody has said what is on them");
    }

    #[tokio::test]
    async fn a_namespace_takes_its_groups_along() {
        let shop = installed().await;
        assert_eq!(shop.cluster.delete("/api/v1/namespaces/shop").0, 200);
        assert!(!shop.cluster.has(ORDERS));
        shop.cluster.stop_deleted_pods();
        assert!(!shop.cluster.has("/api/v1/namespaces/shop"), "nothing keeps the namespace");
    }

    #[tokio::test]
    async fn the_definition_takes_no_group_along_without_confirmation() {
        let shop = installed().await;
        let path = format!("{DEFINITIONS}/{DEFINITION}");
        let (code, answer) = shop.cluster.delete(&path);
        assert_eq!((code, &answer["reason"]), (403, &json!("Forbidden")), "{answer}");
        annotate(&shop, &path, ANNOTATION_DELETE_DEFINITION, "true");
        assert_eq!(shop.cluster.delete(&path).0, 403);
        assert!(shop.cluster.has(ORDERS) && shop.cluster.has(&path));

        annotate(&shop, &path, ANNOTATION_DELETE_DEFINITION, DEFINITION);
        assert_eq!(shop.cluster.delete(&path).0, 200);
        assert!(!shop.cluster.has(ORDERS) && !shop.cluster.has(&path));
    }

    /// The API server asks about each object, and about the request as it came: without a name.
    #[tokio::test]
    async fn a_deletion_of_all_definitions_takes_no_group_along() {
        let shop = installed().await;
        shop.cluster.create(DEFINITIONS, &json!({"metadata": {"name": "orders.shop.example.com"}}));
        let (code, answer) = shop.cluster.delete(DEFINITIONS);
        assert_eq!((code, &answer["reason"]), (403, &json!("Forbidden")), "{answer}");
        assert!(shop.cluster.has(ORDERS) && shop.cluster.has(&format!("{DEFINITIONS}/{DEFINITION}")));
        annotate(&shop, &format!("{DEFINITIONS}/{DEFINITION}"), ANNOTATION_DELETE_DEFINITION, DEFINITION);
        assert_eq!(shop.cluster.delete(DEFINITIONS).0, 200);
        assert_eq!((shop.cluster.has(ORDERS), shop.cluster.names(DEFINITIONS)), (false, Vec::new()));
    }

    /// What refuses is the policy, by its binding and with what it says of failures.
    #[tokio::test]
    async fn a_policy_refuses_only_as_its_binding_says() {
        let deletes = |shop: &Shop| shop.cluster.delete(ORDERS).0;
        let binding = format!("{}/tailwind-operator-deletion", POLICIES.replace("policies", "policybindings"));
        let policy = format!("{POLICIES}/tailwind-operator-deletion");
        let failing = json!({"spec": {"validations": [{"expression": "1 / 0 == 1"}]}});

        let shop = installed().await;
        shop.cluster.change(&policy, &failing);
        assert_eq!(deletes(&shop), 422, "Invalid is the default reason");
        shop.cluster.change(&policy, &json!({"spec": {"failurePolicy": "Ignore"}}));
        assert_eq!(deletes(&shop), 200);
        let shop = installed().await;
        shop.cluster.change(&binding, &json!({"spec": {"validationActions": ["Warn", "Audit"]}}));
        assert_eq!(deletes(&shop), 200);
    }
}
