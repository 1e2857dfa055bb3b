//! What the operator may do is listed with reasons, and nothing is listed that is dangerous.

use std::collections::BTreeSet;

use serde_json::Value;
use tailwind_operator::permissions::{PERMISSIONS, Scope, yaml};

#[test]
fn each_permission_has_a_reason_and_is_listed_once() {
    let mut seen = BTreeSet::new();
    for permission in PERMISSIONS {
        assert!(permission.reason.len() > 10, "{permission:?}");
        let place = (format!("{:?}", permission.scope), permission.group, permission.resource);
        assert!(seen.insert(place), "twice: {permission:?}");
        assert!(!permission.verbs.is_empty() && permission.resource != "*", "{permission:?}");
        assert!(!permission.verbs.contains(&"*") && !permission.verbs.contains(&"deletecollection"), "{permission:?}");
    }
}

#[test]
fn no_permission_is_dangerous() {
    for permission in PERMISSIONS {
        let of = |verb: &str| permission.verbs.contains(&verb);
        if permission.resource == "secrets" {
            assert!(!of("list") && !of("watch") && !of("delete"), "{permission:?}");
        }
        assert!(!of("escalate") && !of("bind") && !of("impersonate"), "{permission:?}");
        assert!(permission.scope != Scope::Cluster || permission.verbs == ["list", "watch"], "{permission:?}");
    }
}

#[test]
fn printed_permissions_are_the_listed_ones() {
    let printed: Value = serde_yaml::from_str(&yaml()).unwrap();
    let rules: usize =
        ["groups", "cluster", "own", "webhook"].iter().map(|scope| printed[*scope].as_array().unwrap().len()).sum();
    assert_eq!(rules, PERMISSIONS.len());
    assert_eq!(printed["own"][0]["resources"][0], "leases");
}

#[test]
fn the_chart_has_the_listed_permissions() {
    let chart = include_str!("../../../charts/tailwind/files/permissions.yaml");
    let command = "tailwind-operator -- permissions >charts/tailwind/files/permissions.yaml";
    assert!(chart == yaml(), "run: cargo run --package {command}");
}
