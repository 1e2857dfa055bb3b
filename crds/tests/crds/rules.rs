//! The rules of a `ReplicaGroup`, as the API server checks them and as the operator does; and the committed definition.

use serde_json::Value;
use tailwind_crds::table::{KEYS_MAX, KEYS_MIN, memory_bounds};
use tailwind_crds::{ReplicaGroup, definition, problems};

fn group(spec: &str) -> ReplicaGroup {
    let text = format!(
        "apiVersion: replication.tailwind.dev/v1alpha1\nkind: ReplicaGroup\nmetadata: {{name: orders, namespace: shop}}\nspec: {spec}"
    );
    serde_yaml::from_str(&text).unwrap()
}

fn said(spec: &str) -> Vec<String> {
    problems(&group(spec), None)
}

#[test]
fn the_committed_definition_is_the_generated_one() {
    let committed = include_str!("../../replicagroups.yaml");
    assert!(committed == definition(), "run: cargo run --package tailwind-crds >crds/replicagroups.yaml");
}

#[test]
fn kubectl_can_explain_every_field() {
    assert!(!definition().contains("nullable"));
    let definition: serde_yaml::Value = serde_yaml::from_str(&definition()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let template = &schema["properties"]["podTemplate"];
    let nested = [template, &template["properties"]["metadata"], &template["properties"]["spec"]];
    let ours = ["rdma", "placement", "flushVolume", "table"].map(|part| &schema["properties"][part]);
    for part in [schema].into_iter().chain(ours).chain(nested) {
        for (field, schema) in part["properties"].as_mapping().unwrap() {
            assert!(schema["description"].as_str().is_some_and(|text| text.len() > 20), "{field:?}");
            assert!(schema["type"].is_string() || schema["x-kubernetes-int-or-string"].is_bool(), "{field:?}");
        }
    }
}

#[test]
fn an_empty_spec_is_valid() {
    let group = group("{}");
    assert_eq!(problems(&group, None), Vec::<String>::new());
    assert_eq!((group.spec.backups, group.spec.min_in_sync(), group.spec.buffers), (3, 2, 16));
    assert_eq!(group.spec.segment_size.bytes(), 8 << 20);
}

#[test]
fn min_in_sync_is_at_most_backups() {
    assert_eq!(said("{backups: 2, minInSync: 2}"), Vec::<String>::new());
    assert_eq!(said("{backups: 2, minInSync: 3}"), ["minInSync must not be greater than backups"]);
}

#[test]
fn a_device_is_requested_in_one_way() {
    let one = "exactly one of extendedResource and resourceClaimTemplateName must be given";
    assert_eq!(said("{rdma: {extendedResource: {name: rdma/hca}}}"), Vec::<String>::new());
    assert_eq!(said("{rdma: {resourceClaimTemplateName: nic}}"), Vec::<String>::new());
    assert_eq!(said("{rdma: {}}"), [one]);
    assert_eq!(said("{rdma: {extendedResource: {name: rdma/hca}, resourceClaimTemplateName: nic}}"), [one]);
}

#[test]
fn transport_and_device_match() {
    assert_eq!(said("{transport: Rdma}").len(), 1);
    assert_eq!(said("{transport: Tcp, rdma: {resourceClaimTemplateName: nic}}").len(), 1);
    assert_eq!(said("{transport: Rdma, rdma: {resourceClaimTemplateName: nic}}"), Vec::<String>::new());
}

#[test]
fn a_disk_is_requested_in_one_way() {
    assert_eq!(said("{flushVolume: {emptyDirSizeLimit: 1Gi}}"), Vec::<String>::new());
    assert_eq!(said("{flushVolume: {claim: {size: 1Gi}}}"), Vec::<String>::new());
    assert_eq!(said("{flushVolume: {}}").len(), 1);
}

#[test]
fn the_shape_of_the_log_is_immutable() {
    let before = group("{}");
    let after = |spec| problems(&group(spec), Some(&before));
    assert_eq!(after("{backups: 5, minInSync: 1, buffers: 32, fenced: true}"), Vec::<String>::new());
    for spec in
        ["{segmentSize: 1Mi}", "{durability: Flushed}", "{transport: Tcp}", "{rdma: {resourceClaimTemplateName: x}}"]
    {
        let said = after(spec);
        assert!(said.len() == 1 && said[0].contains("cannot be"), "{spec}: {said:?}");
    }
}

#[test]
fn a_table_has_16_segments_to_12_gib() {
    let least = "table.memory must be at least 16 segments: enlarge it, or choose a smaller segmentSize";
    let most = "table.memory must be at most 12Gi";
    let many = "table.memory must be at most 7936Mi with segmentSize 64Ki: choose a larger segmentSize";
    for (memory, segment, why) in [
        ("128Mi", "8Mi", None),
        ("127Mi", "8Mi", Some(least)),
        ("12Gi", "8Mi", None),
        ("12289Mi", "8Mi", Some(most)),
        ("13Gi", "64Mi", Some(most)),
        ("1Gi", "64Mi", None),
        ("1023Mi", "64Mi", Some(least)),
        ("1Mi", "64Ki", None),
        ("1Mi", "128Ki", Some(least)),
        ("7936Mi", "64Ki", None),
        ("7937Mi", "64Ki", Some(many)),
        ("8Gi", "64Ki", Some(many)),
        ("12Gi", "128Ki", None),
    ] {
        let said = said(&format!("{{segmentSize: {segment}, table: {{memory: {memory}}}}}"));
        assert_eq!(said, Vec::from_iter(why), "{memory} in segments of {segment}");
        let spec = group(&format!("{{segmentSize: {segment}, table: {{memory: {memory}}}}}")).spec;
        let bytes = spec.table.unwrap().memory_bytes();
        assert_eq!(memory_bounds(spec.segment_size).contains(&bytes), why.is_none(), "{memory} of {segment}");
    }
}

#[test]
fn a_backup_keeps_no_more_of_a_table_than_there_is() {
    let more = "table.resident must be at most table.memory: no more is used";
    for (resident, why) in [("0Mi", None), ("1024Mi", None), ("1Gi", None), ("1025Mi", Some(more)), ("2Gi", Some(more))]
    {
        let said = said(&format!("{{table: {{memory: 1Gi, resident: {resident}}}}}"));
        assert_eq!(said, Vec::from_iter(why), "{resident}");
    }
    let change = |before: &str, after: &str| problems(&group(after), Some(&group(before)));
    let [all, some] = ["{table: {memory: 1Gi}}", "{table: {memory: 1Gi, resident: 64Mi}}"];
    assert_eq!([change(all, some), change(some, all)], [Vec::<String>::new(), Vec::new()], "it may change");
}

#[test]
fn a_table_grows_and_does_not_shrink() {
    let change = |before: &str, after: &str| problems(&group(after), Some(&group(before)));
    let grown = |before: &str, after: &str| change(&format!("{{table: {before}}}"), &format!("{{table: {after}}}"));
    for (before, after) in [
        ("{memory: 1Gi}", "{memory: 1024Mi}"),
        ("{memory: 1Gi}", "{memory: 2Gi}"),
        ("{memory: 900Mi}", "{memory: 1Gi}"),
        ("{memory: 1Gi, keys: 5000}", "{memory: 1Gi, keys: 5001}"),
        ("{memory: 1Gi}", "{memory: 1Gi, keys: 1048576}"),
        ("{memory: 1Gi, keys: 5000}", "{memory: 1Gi}"),
    ] {
        assert_eq!(grown(before, after), Vec::<String>::new(), "{before} to {after}");
    }
    for (before, after, field) in [
        ("{memory: 1Gi, keys: 5000}", "{memory: 1023Mi, keys: 5000}", "table.memory"),
        ("{memory: 1Gi, keys: 5000}", "{memory: 1Gi, keys: 4999}", "table.keys"),
        ("{memory: 1Gi}", "{memory: 2Gi, keys: 1048575}", "table.keys"),
        ("{memory: 1Gi, keys: 2000000}", "{memory: 1Gi}", "table.keys"),
    ] {
        let said = grown(before, after);
        assert!(
            said.len() == 1 && said[0].starts_with(&format!("{field} cannot be made smaller")),
            "{after}: {said:?}"
        );
    }
    for (before, after) in [("{}", "{table: {memory: 1Gi}}"), ("{table: {memory: 1Gi}}", "{}")] {
        let said = change(before, after);
        assert!(said.len() == 1 && said[0].starts_with("table cannot be added or removed"), "{after}: {said:?}");
    }
}

/// As the API server has it: the pattern lets only through what the rules can compare.
#[test]
fn the_size_of_a_table_is_in_mi_or_gi() {
    let definition: serde_yaml::Value = serde_yaml::from_str(&definition()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let table = &schema["properties"]["table"]["properties"];
    let pattern = table["memory"]["pattern"].as_str().unwrap();
    for (text, good) in [("2Gi", true), ("512Mi", true), ("2G", false), ("0Gi", false), ("1.5Gi", false), ("64", false)]
    {
        assert_eq!(matches(pattern, text), good, "{text}");
    }
    assert_eq!(table["memory"]["maxLength"].as_u64(), Some(7));
    let pattern = table["resident"]["pattern"].as_str().unwrap();
    for (text, good) in [("2Gi", true), ("0Mi", true), ("0", false), ("01Mi", false), ("2G", false)] {
        assert_eq!(matches(pattern, text), good, "{text}");
    }
    let bounds = [&table["keys"]["minimum"], &table["keys"]["maximum"]].map(|bound| bound.as_f64());
    assert_eq!(bounds, [KEYS_MIN, KEYS_MAX].map(|bound| Some(f64::from(bound))));
}

#[test]
fn long_names_are_refused() {
    let mut group = group("{}");
    for (name, good) in [("a", true), ("orders-2", true), ("2orders", false), ("orders-", false), ("or.ders", false)] {
        group.metadata.name = Some(name.to_owned());
        assert_eq!(problems(&group, None).is_empty(), good, "{name}");
    }
    group.metadata.name = Some("a".repeat(41));
    assert_eq!(problems(&group, None).len(), 1);
}

#[test]
fn what_the_operator_sets_is_not_for_the_pod_template() {
    let metadata = |text: &str| said(&format!("{{podTemplate: {{metadata: {text}}}}}"));
    let free =
        "{labels: {team: payments, app.kubernetes.io/part-of: shop}, annotations: {sidecar.istio.io/inject: 'no'}}";
    assert_eq!(metadata(free), Vec::<String>::new());
    for (given, field) in [
        ("{labels: {replication.tailwind.dev/backup-of: other}}", "podTemplate.metadata.labels"),
        ("{labels: {team: a, app.kubernetes.io/instance: other}}", "podTemplate.metadata.labels"),
        ("{annotations: {replication.tailwind.dev/template-hash: '1'}}", "podTemplate.metadata.annotations"),
    ] {
        let said = metadata(given);
        assert!(said.len() == 1 && said[0].starts_with(field), "{given}: {said:?}");
    }
}

#[test]
fn a_backup_that_must_be_root_has_no_other_user() {
    let with = |rdma: &str| {
        said(&format!("{{podTemplate: {{spec: {{securityContext: {{runAsUser: 1000, fsGroup: 1000}}}}}}{rdma}}}"))
    };
    assert_eq!(with(""), Vec::<String>::new());
    assert_eq!(with(", rdma: {resourceClaimTemplateName: nic, memlock: NodeLimit}"), Vec::<String>::new());
    let said = with(", rdma: {resourceClaimTemplateName: nic}");
    assert!(said.len() == 1 && said[0].starts_with("podTemplate.spec.securityContext.runAsUser: "), "{said:?}");
}

/// As the API server has it: a pattern and lengths. The operator reads what passed them.
#[test]
fn image_and_class_have_their_patterns() {
    let definition: serde_yaml::Value = serde_yaml::from_str(&definition()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let of = |field: &str| {
        let schema = &schema["properties"][field];
        (schema["pattern"].as_str().unwrap().to_owned(), schema["minLength"].as_u64(), schema["maxLength"].as_u64())
    };
    assert_eq!(of("image"), (r"^[^\s]+$".to_owned(), Some(1), Some(512)));
    assert_eq!(of("operatorClass"), ("^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$".to_owned(), Some(1), Some(63)));
}

/// Whether a text matches a pattern of the definition.
fn matches(pattern: &str, text: &str) -> bool {
    let expression = cel::Program::compile("text.matches(pattern)").unwrap();
    let mut context = cel::Context::default();
    context.add_variable("text", text).unwrap();
    context.add_variable("pattern", pattern).unwrap();
    expression.execute(&context).unwrap() == cel::Value::Bool(true)
}

/// With any other, sidecars and backups would end with a usage error: `RetryPolicy` of the fabric.
#[test]
fn a_retry_policy_is_one_that_programs_take() {
    let definition: serde_yaml::Value = serde_yaml::from_str(&definition()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let pattern = schema["properties"]["rdma"]["properties"]["retry"]["pattern"].as_str().unwrap();
    for exponent in 0..100 {
        for retries in 0..10 {
            let good = (1..=31).contains(&exponent) && (1..=7).contains(&retries);
            assert_eq!(matches(pattern, &format!("{exponent}/{retries}")), good, "{exponent}/{retries}");
        }
    }
    for bad in ["", "11", "11/", "/6", "011/6", "11/06", "11/6 "] {
        assert!(!matches(pattern, bad), "{bad}");
    }
}

/// The patterns of all quantities in a schema, each with its place.
fn quantities<'a>(schema: &'a Value, path: &str, found: &mut Vec<(String, &'a Value)>) {
    if schema["x-kubernetes-int-or-string"] == true {
        found.push((path.to_owned(), &schema["pattern"]));
    }
    for (name, schema) in schema.as_object().into_iter().flatten() {
        quantities(schema, &format!("{path}.{name}"), found);
    }
}

/// A text that is no quantity would count as nothing, and nothing as no limit.
#[test]
fn quantities_have_the_pattern_of_kubernetes() {
    let definition: Value = serde_yaml::from_str(&definition()).unwrap();
    let mut found = Vec::new();
    quantities(&definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut found);
    assert!(found.len() >= 6, "{found:?}");
    for (path, pattern) in found {
        let pattern = pattern.as_str().unwrap_or_else(|| panic!("{path} has no pattern"));
        for good in ["0", "8Gi", "500m", "0.5", ".5", "1e3", "1E-3", "3E", "2Ei", "100n", "1024"] {
            assert!(matches(pattern, good), "{path}: {good}");
        }
        for bad in ["", "1GB", "8 Gi", "8gi", "Gi", "8K", "1e", "lots"] {
            assert!(!matches(pattern, bad), "{path}: {bad}");
        }
    }
}
