//! Files in quarantine: counted, listed and released, and by nobody else.

use super::*;

async fn until_quarantined(daemon: &Daemon, count: u64) {
    until_metric(daemon, "tailwind_backup_quarantined", count).await;
}

#[tokio::test]
async fn quarantined_files_are_counted_listed_and_released() {
    let mut daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    until_quarantined(&daemon, 0).await;
    for segment in [1, 2] {
        primary.write_closed(segment, segment * 10).await;
    }
    // A copy that is dropped in the middle of its flush may go into quarantine twice, from memory and as a file.
    until_metric(&daemon, "tailwind_backup_segments_on_disk", 2).await;
    let primary = Primary::new(&daemon, FabricKind::Shm, 2);
    let Inventory { copies, .. } = primary.fence().await;
    let request = DropRequest { caller: primary.caller(), copies };
    // A repetition moves nothing.
    for _ in 0..2 {
        let Empty {} = primary.client.call(path::DROP, &request, TIMEOUT).await.unwrap();
    }
    until_quarantined(&daemon, 2).await;
    assert_ne!(metric_if_known(&daemon, "tailwind_backup_quarantined_bytes"), Some(0));
    let status = get(&daemon, "/status");
    assert!(status.contains("\"files\": 2"), "{status}");
    let reported = read_report(&daemon);
    assert_eq!((reported.epoch, reported.copies, reported.damaged, reported.quarantined), (2, 0, 0, Some(2)));

    // An administrator lists and releases files while the backup runs.
    let listed = quarantine(&daemon, &["list"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    for line in listed.lines() {
        let (name, what) = line.split_once("  ").unwrap();
        assert!(status.contains(&format!("\"name\": \"{name}\"")), "{name} in {status}");
        assert!(what.starts_with("sound ") && what.contains(", epoch 1, LSN "), "{what}");
    }
    let (first, _) = listed.split_once("  ").unwrap();
    let refused = command(&daemon, &["release", first, "promise"]).output().unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && why.contains("`promise`"), "{why}");
    assert_eq!(quarantine(&daemon, &["list"]), listed, "nothing was released");
    assert!(quarantine(&daemon, &["release", first]).starts_with(&format!("released {first}, ")));
    assert_eq!(quarantine(&daemon, &["list"]).lines().count(), 1);
    quarantine(&daemon, &["release", "--all"]);
    assert_eq!(quarantine(&daemon, &["list"]), "");
    until_quarantined(&daemon, 0).await;
    daemon.terminate(Signal::TERM);
    daemon.start();
    until_quarantined(&daemon, 0).await;
}

/// In the environment of the backup's container, which names the folder.
fn command(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
    command.arg("quarantine").args(arguments).env("TAILWIND_FLUSH_DIR", daemon.flush_dir());
    command
}

/// Standard output of a command that must succeed.
fn quarantine(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = command(daemon, arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}
