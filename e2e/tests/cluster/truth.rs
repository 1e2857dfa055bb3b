//! What a group's status says while a node is dead: what is measured, and nothing that the API server only remembers.

use std::time::{Duration, Instant};

use serde_json::Value;
use tailwind_e2e::cluster::kubernetes::{Cluster, POLL_INTERVAL, text};
use tailwind_e2e::cluster::operated::{OperatedGroup, spec};
use tailwind_e2e::context::note;
use tailwind_e2e::wait::poll;

use crate::operated::outage_and;

/// The status no longer counts a copy on a dead node after so long. The primary drops the member within a second, and the
/// operator is told of the change; the API server itself misses the node only after most of a minute.
const STATUS_DEADLINE: Duration = Duration::from_secs(20);

fn claims_three_copies(group: &Value) -> bool {
    text(group, "/status/phase") == "Ready" && group["status"]["members"] == 3
}

/// A member's node, not the primary's, loses its power. Its pods are shown as running for long, and the group does not claim
/// three copies; it does again once the node is back.
#[test]
fn dead_member_is_not_counted() {
    let Some(cluster) = Cluster::join_own("dead_member_is_not_counted").unwrap() else { return };
    let group = OperatedGroup::prepare(&cluster, "truth").unwrap();
    group.ask_for(spec(3)).unwrap();
    group.start_apps(2).unwrap();
    let whole = group.wait_until_whole(3).unwrap();
    assert!(claims_three_copies(&whole), "{}", whole["status"]);

    let home = group.node_of(&group.namespace.primary().unwrap().1).unwrap();
    let members = group.members().unwrap().into_iter().map(|member| (group.node_of(&member).unwrap(), member));
    let (node, member) = members.into_iter().find(|(node, _)| *node != home).unwrap();
    cluster.node(&node, "kill").unwrap();
    let began = Instant::now();
    let no_longer_counted = || {
        let group = group.get().unwrap();
        // Three others are true as well.
        let log = &group["status"]["log"];
        let members = log["members"].as_array().map_or(0, Vec::len);
        let replaced = members == 3 && !log.to_string().contains(&member);
        (!claims_three_copies(&group) || replaced).then_some(group)
    };
    let after = poll(STATUS_DEADLINE, POLL_INTERVAL, no_longer_counted);
    let after =
        after.unwrap_or_else(|| panic!("{member} on dead {node} is counted: {}", group.get().unwrap()["status"]));
    note(&format!(
        "a member's node is dead: after {:?} the status says {} copies, phase {}, while its pod is {}",
        began.elapsed(),
        after["status"]["members"],
        text(&after, "/status/phase"),
        text(&group.namespace.pod(&member).unwrap(), "/status/phase"),
    ));
    cluster.node(&node, "start").unwrap();
    let healed = group.wait_until_whole(3).unwrap();
    assert!(claims_three_copies(&healed), "{}", healed["status"]);
    // Where a busy machine has a second member count as silent, too few are left for a while.
    group.finish(&outage_and(&["memory is lost", "too few members are left"])).unwrap();
}
