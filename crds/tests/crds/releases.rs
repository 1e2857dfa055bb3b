//! What the first release has written, every later one reads. The fixtures are never changed once that release is out; a later
//! release that writes something new gets a folder of its own.

use serde_json::{Value, json};
use tailwind_crds::view::{GroupView, Lenient};
use tailwind_crds::{Durability, ReplicaGroup, Transport, names};
use tailwind_report::Positions;
use tailwind_report::report::{self, BackupReport, FolderUse, Report};
use tailwind_report::sidecar::SidecarReport;
use tailwind_report::verdict::verdict;

use crate::support::lost;

const GROUP: &str = include_str!("../fixtures/v0.1.0/group.json");
const BACKUP_REPORT: &str = include_str!("../fixtures/v0.1.0/backup-report.json");
const SIDECAR_REPORT: &str = include_str!("../fixtures/v0.1.0/sidecar-report.json");
const NAMES: &str = include_str!("../fixtures/v0.1.0/names.json");

/// An operator keeps every field: a status that it writes back lacks none.
#[test]
fn operators_read_groups_of_the_first_release() {
    let written: Value = serde_json::from_str(GROUP).unwrap();
    let group: ReplicaGroup = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(lost(&written, &serde_json::to_value(&group).unwrap(), ""), Vec::<String>::new());
}

#[test]
fn sidecars_read_groups_of_the_first_release() {
    let group: GroupView = serde_json::from_str(GROUP).unwrap();
    assert_eq!((group.spec.backups(), group.spec.min_in_sync(), group.spec.fenced), (2, 1, false));
    assert!(group.spec.may_read());
    assert_eq!(group.spec.durability.known(), Some(&Durability::Flushed));
    assert_eq!(group.spec.segment_size.known().map(|size| size.bytes()), Some(256 << 10));
    assert_eq!(group.spec.transport(), Ok(Transport::Tcp));
    assert_eq!(group.spec.accept_loss_up_to.as_deref(), Some("b28ab9266ebc0ce6502d5427ba9d91de/4825"));
    let status = group.status.unwrap();
    assert_eq!(status.members_wanted, Some(2));
    assert_eq!(status.backups[0].control.as_deref(), Some("10.88.30.4:7420"));
    let switchover = status.switchover.as_ref().and_then(Lenient::known).unwrap();
    assert_eq!((switchover.to.as_str(), switchover.from_epoch), ("app-7d78579cd8-2kq9x", 1));
    assert!(status.log.is_some());
}

#[test]
fn operators_read_reports_of_the_first_release() {
    let folder = Some(FolderUse { bytes: 58_810_368, max: 62_705_664 });
    assert_eq!(
        report::read(BACKUP_REPORT.as_bytes(), "demo", "demo-backup-fftd6"),
        Ok(BackupReport { damaged: 2, quarantined: Some(1), folder, ..BackupReport::default() })
    );
    let report: SidecarReport = report::read(SIDECAR_REPORT.as_bytes(), "demo", "app-7d78579cd8-s7ws6").unwrap();
    assert!(report.is_primary() && report.standbys[0].takeover.as_ref().unwrap().ready);
    assert_eq!((report.epoch, report.connected), (3, Some(2)));
    assert_eq!(report.positions, Some(Positions { first: 1, acked: 4825 }));
    assert_eq!(verdict(&report), report.verdict);
    let written: Value = serde_json::from_str(SIDECAR_REPORT).unwrap();
    assert_eq!(
        lost(&written, &serde_json::to_value(Report::new("demo", "app-7d78579cd8-s7ws6", report)).unwrap(), ""),
        Vec::<String>::new()
    );
}

/// Pods, secrets and services of the first release are found by these.
#[test]
fn names_of_the_first_release_stay() {
    let today = json!({
        "label_group": names::LABEL_GROUP,
        "label_reads": names::LABEL_READS,
        "label_role": names::LABEL_ROLE,
        "role_primary": names::ROLE_PRIMARY,
        "label_backup_of": names::LABEL_BACKUP_OF,
        "annotation_inject": names::ANNOTATION_INJECT,
        "annotation_injected": names::ANNOTATION_INJECTED,
        "annotation_allow_uid": names::ANNOTATION_ALLOW_UID,
        "annotation_delete_log": names::ANNOTATION_DELETE_LOG,
        "annotation_switchover": names::ANNOTATION_SWITCHOVER,
        "annotation_template": names::ANNOTATION_TEMPLATE,
        "annotation_shape": names::ANNOTATION_SHAPE,
        "annotation_attempt": names::ANNOTATION_ATTEMPT,
        "sidecar_container": names::SIDECAR_CONTAINER,
        "backup_container": names::BACKUP_CONTAINER,
        "gate_caught_up": names::GATE_CAUGHT_UP,
        "finalizer": names::FINALIZER,
        "socket": names::SOCKET,
        "tls_folder": names::TLS_FOLDER,
        "port_sidecar": names::PORT_SIDECAR,
        "port_sidecar_probes": names::PORT_SIDECAR_PROBES,
        "port_backup": names::PORT_BACKUP,
        "port_backup_probes": names::PORT_BACKUP_PROBES,
        "port_backup_data": names::PORT_BACKUP_DATA,
        "ca_secret": names::ca_secret("demo"),
        "sidecar_secret": names::sidecar_secret("demo"),
        "reader_secret": names::reader_secret("demo"),
        "backup_secret": names::backup_secret("demo"),
        "primary_service": names::primary_service("demo"),
    });
    assert_eq!(serde_json::from_str::<Value>(NAMES).unwrap(), today);
}
