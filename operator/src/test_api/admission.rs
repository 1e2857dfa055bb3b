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
