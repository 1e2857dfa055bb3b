//! What is written and read is what it should be; that the API server does its part is shown by the cluster's tests.

use serde_json::Value;
use tailwind_crds::table::{KEYS_MAX, KEYS_MIN, memory_bounds};
use tailwind_crds::view::GroupView;
use tailwind_protocol::board::mirror::{BUCKET_SIZE, PartSize};
use tailwind_protocol::config::{Configuration, Kind, MemberRef, PrimaryRef};
use tailwind_protocol::ids::{BootId, Claim, Epoch, LogId, Version};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::table::bounds::Bounds;
use tailwind_protocol::table::hash::Buckets;

use super::*;
use crate::control::desired::Switchover;
use crate::options::TableOptions;

fn config(epoch: u64, version: u64) -> Configuration {
    Configuration {
        log: LogId(7),
        kind: Kind::Log,
        epoch: Epoch(epoch),
        claim: Claim(u64::MAX),
        earlier: Vec::new(),
        won: Epoch(0),
        cuts: Vec::new(),
        version: Version(version),
        primary: PrimaryRef { id: "app-0".parse().unwrap(), control: "10.0.0.1:7410".to_owned() },
        members: vec![MemberRef {
            id: "orders-backup-x1".parse().unwrap(),
            boot: BootId(u128::MAX),
            control: "10.0.0.2:7420".to_owned(),
        }],
    }
}

fn object(spec: Value, status: Option<Value>) -> Value {
    let mut object = json!({
        "apiVersion": "replication.tailwind.dev/v1alpha1",
        "kind": "ReplicaGroup",
        "metadata": { "name": "orders", "namespace": "shop", "resourceVersion": "42" },
        "spec": spec,
    });
    if let Some(status) = status {
        object["status"] = status;
    }
    object
}

fn group(object: &Value) -> GroupView {
    serde_json::from_value(object.clone()).unwrap()
}

/// Carries out what a swap would send, as the API server does.
fn apply(object: &Value, seen: &Value, proposed: &Configuration) -> Result<Value, json_patch::PatchError> {
    let seen = group(seen);
    let found = convert::configuration(&seen).unwrap();
    let mut object = object.clone();
    json_patch::patch(&mut object, &tests_and_replacement(&seen, found.as_ref(), proposed)).map(|()| object)
}

#[test]
fn a_configuration_round_trips() {
    let status = json!({ "log": convert::log_status(&config(3, 9)) });
    assert_eq!(convert::configuration(&group(&object(json!({}), Some(status)))), Ok(Some(config(3, 9))));
    assert_eq!(convert::configuration(&group(&object(json!({}), None))), Ok(None));
}

#[test]
fn a_group_of_another_kind_says_so() {
    let table = Configuration { kind: Kind::Table, ..config(3, 9) };
    let written = json!(convert::log_status(&table));
    assert_eq!(written["kind"], "Table");
    assert_eq!(json!(convert::log_status(&config(3, 9)))["kind"], Value::Null, "as before there were tables");
    let object = object(json!({ "table": { "memory": "2Gi", "keys": 5000 } }), Some(json!({ "log": written })));
    assert_eq!(convert::configuration(&group(&object)), Ok(Some(table)));
    assert_eq!(convert::desired(&group(&object)).kind, Some(Kind::Table));
}

/// What the definition lets through, and nothing else.
#[test]
fn sidecars_take_every_table_that_may_be_asked_for() {
    for segment in ["64Ki", "128Ki", "1Mi", "8Mi", "64Mi"] {
        let segment: tailwind_crds::SegmentSize = serde_json::from_value(json!(segment)).unwrap();
        let bounds = memory_bounds(segment);
        let takes = |bytes: u64| {
            let options = TableOptions { table: Some(bytes), table_keys: None };
            options.size(SegmentSize::new(segment.bytes()).unwrap()).is_ok()
        };
        assert!(takes(*bounds.start()) && takes(*bounds.end()), "{segment:?}");
        assert!(!takes(bounds.start() - 1) && !takes(bounds.end() + segment.bytes()), "{segment:?}");
    }
    assert_eq!(KEYS_MAX, tailwind_protocol::table::hash::KEYS_MAX);
}

/// The operator wants room on a backup's disk for a sixteenth of a table beside itself, and for six segments. After a failover moves
/// may exceed the table's memory by their reserve and one segment, and another segment is lent ahead.
#[test]
fn what_moves_may_exceed_has_room_on_a_disk() {
    for kib in [64, 128, 1024, 8192, 65_536] {
        let size = SegmentSize::new(kib << 10).unwrap();
        let most = (7936 << 10) / kib as u32;
        for segments in (16..=most).step_by(1 + most as usize / 1000).chain([most]) {
            let bounds = Bounds::new(size, segments).unwrap();
            assert!(bounds.reserve() + 2 <= segments / 16 + 6, "{segments} segments of {size}");
        }
    }
}

/// Its index fits the memory that the operator requests for it: an entry has what it shows, and what was appended.
#[test]
fn the_index_of_a_table_has_its_memory() {
    const ENTRY_BYTES: u64 = 32 + 24;
    for keys in [KEYS_MIN, 1_000_000, KEYS_MAX] {
        let entries = 8 * u64::from(Buckets::for_keys(keys).number());
        assert!(entries * ENTRY_BYTES <= tailwind_report::memory::table_index(keys.into(), 0), "{keys} keys");
    }
}

/// Its mirror fits what the operator gives a backup for it, to the byte; and a backup takes as many residents.
#[test]
fn the_mirror_of_a_table_has_its_memory() {
    for keys in [KEYS_MIN, KEYS_MIN + 1, 199_999, 200_000, 1_000_000, KEYS_MAX] {
        let buckets = Buckets::for_keys(keys);
        let bytes = tailwind_report::memory::mirrored_index(keys.into());
        assert_eq!(bytes, u64::from(buckets.number()) * u64::from(BUCKET_SIZE), "{keys} keys");
        for segment in [SegmentSize::MIN, SegmentSize::new(8 << 20).unwrap(), SegmentSize::MAX] {
            let (part, size) =
                (tailwind_report::memory::mirror_part(segment.bytes().into()), PartSize::beside(segment));
            assert_eq!(u64::from(size.bytes()), part);
            assert_eq!(u64::from(size.parts(buckets)), bytes.div_ceil(part), "{keys} keys in parts of {part} bytes");
        }
    }
    assert_eq!(tailwind_report::memory::BUFFERS_MAX, u64::from(tailwind_protocol::rpc::BUFFERS_MAX));
}

#[test]
fn a_log_of_the_first_release_is_read() {
    let object: Value =
        serde_json::from_str(include_str!("../../../../crds/tests/fixtures/v0.1.0/group.json")).unwrap();
    let config = convert::configuration(&group(&object)).unwrap().unwrap();
    assert_eq!((config.epoch, config.version, config.members.len()), (Epoch(1), Version(2), 2));
    assert_eq!(config.earlier, [Claim(0x00c0_ffee_0200_2a73)]);
    assert_eq!(json!(convert::log_status(&config)), object["status"]["log"], "and written as it was");
}

/// A reader's pod outlives its group, which is recreated: its log begins with low stamps again.
#[tokio::test]
async fn another_log_is_news_whatever_its_stamp() {
    let shown = |config: &Configuration| {
        Some(Arc::new(group(&object(json!({}), Some(json!({ "log": convert::log_status(config) }))))))
    };
    let (tell, seen) = watch::channel(shown(&config(5, 9)));
    // Nobody is asked: what is news is what the watch shows.
    let client = Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
    let path: GroupPath = "shop/orders".parse().unwrap();
    let logged = Arc::new(Mutex::new(Repeats::every(LOG_AGAIN)));
    let store = KubernetesStore { client: client.clone(), api: Api::namespaced(client, "shop"), path, seen, logged };
    let known = store.news(None).await;
    let anew = Configuration { log: LogId(8), ..config(1, 1) };
    tell.send_replace(shown(&anew));
    assert_eq!(store.news(Some((known.log, known.stamp()))).await, anew);
}

#[test]
fn an_invalid_log_is_an_error() {
    for (field, bad) in [("id", json!("7")), ("claim", json!("-1")), ("claim", json!(""))] {
        let mut log = json!(convert::log_status(&config(3, 9)));
        log[field] = bad;
        let error = convert::configuration(&group(&object(json!({}), Some(json!({ "log": log }))))).unwrap_err();
        assert!(error.contains("status.log of the ReplicaGroup is damaged"), "{error}");
    }
}

#[test]
fn the_first_content_is_written_only_if_unchanged() {
    for status in [None, Some(json!({ "phase": "Pending" }))] {
        let seen = object(json!({}), status);
        let written = apply(&seen, &seen, &config(1, 1)).unwrap();
        assert_eq!(convert::configuration(&group(&written)), Ok(Some(config(1, 1))));
        assert_eq!(written["status"]["phase"], seen["status"]["phase"], "the operator's part stays");
        let mut changed = seen.clone();
        changed["metadata"]["resourceVersion"] = json!("43");
        assert!(apply(&changed, &seen, &config(1, 1)).is_err());
    }
}

#[test]
fn a_later_write_replaces_only_the_expected_content() {
    let with = |config: &Configuration| {
        object(json!({}), Some(json!({ "phase": "Ready", "log": convert::log_status(config) })))
    };
    let seen = with(&config(3, 9));
    let written = apply(&seen, &seen, &config(4, 10)).unwrap();
    assert_eq!(written, with(&config(4, 10)));
    for other in [config(4, 9), config(3, 10), Configuration { log: LogId(8), ..config(3, 9) }] {
        assert!(apply(&with(&other), &seen, &config(4, 10)).is_err(), "{other:?}");
    }
    // Another writer of the object does not matter.
    let mut touched = seen.clone();
    touched["metadata"]["resourceVersion"] = json!("43");
    assert!(apply(&touched, &seen, &config(4, 10)).is_ok());
}

#[test]
fn settings_come_from_spec_and_status() {
    let status = json!({
        "membersWanted": 4,
        "backups": [
            { "name": "orders-backup-x1", "control": "10.0.0.2:7420", "state": "Member" },
            { "name": "orders-backup-x2", "state": "Pending" },
        ],
        "switchover": { "to": "app-1", "fromEpoch": 3 },
    });
    let desired = convert::desired(&group(&object(json!({ "backups": 3, "fenced": true }), Some(status))));
    assert_eq!((desired.members, desired.min_in_sync, desired.fenced), (4, 2, true));
    assert_eq!(desired.backups, [("orders-backup-x1".parse().unwrap(), "10.0.0.2:7420".to_owned())]);
    assert_eq!(desired.switchover, Some(Switchover { to: "app-1".parse().unwrap(), from: Epoch(3) }));

    let alone = convert::desired(&group(&object(json!({ "backups": 5 }), None)));
    assert!(alone.may_read);
    assert_eq!(alone.kind, Some(Kind::Log));
    let closed = convert::desired(&group(&object(json!({ "reads": "Disabled" }), None)));
    assert!(!closed.may_read);
    assert_eq!((alone.members, alone.min_in_sync, alone.backups), (5, 3, vec![]));
}

/// A newer operator has written words and fields that this build does not know.
#[test]
fn unknown_words_hide_no_configuration() {
    let status = json!({
        "log": convert::log_status(&config(3, 9)), "phase": "Hibernating", "membersWanted": 2,
        "backups": [{ "name": "orders-backup-x1", "control": "10.0.0.2:7420", "state": "Dreaming" }],
    });
    let group = group(&object(json!({ "backups": 1, "durability": "Mirrored", "deletion": "Never" }), Some(status)));
    assert_eq!(convert::configuration(&group), Ok(Some(config(3, 9))));
    let desired = convert::desired(&group);
    assert_eq!((desired.members, desired.backups.len()), (2, 1));
    let error = convert::shape(&group.spec).unwrap_err().to_string();
    assert!(error.contains("spec.durability is \"Mirrored\", which this sidecar does not know"), "{error}");
}

#[tokio::test]
async fn a_call_that_is_refused_is_sent_once() {
    let (calls, mut called) = watch::channel(0);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(move || {
        calls.send_modify(|calls| *calls += 1);
        std::future::ready(axum::http::StatusCode::SERVICE_UNAVAILABLE)
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    let api: Api<GroupView> = Api::namespaced(client(Config::new(address.parse().unwrap())).unwrap(), "shop");
    let refused = api.get("orders").await;
    assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 503), "{refused:?}");
    assert_eq!(*called.borrow_and_update(), 1);
}
