//! What a backup says about itself: probes, metrics, heartbeats, and options that it cannot run with.

use super::*;

#[tokio::test]
async fn probes_metrics_and_heartbeats() {
    let daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 3);
    primary.fence().await;
    for path in ["/healthz", "/readyz"] {
        assert!(get(&daemon, path).starts_with("HTTP/1.1 200"), "{path}");
    }
    assert_eq!(metric(&daemon, "tailwind_backup_promised_epoch"), 3);
    assert_eq!(metric(&daemon, "tailwind_backup_fences_total"), 1);
    let status = get(&daemon, "/status");
    assert!(status.contains("\"role\": \"backup\"") && status.contains("\"unflushed_bytes\": 0"), "{status}");
    assert!(get(&daemon, "/nothing").starts_with("HTTP/1.1 404"));

    let watching = tokio::spawn({
        let client = primary.client.clone();
        async move { client.watch_heartbeats(Duration::from_secs(5), |_| {}).await }
    });
    let beaten = tokio::time::timeout(Duration::from_millis(100), async {
        while !watching.is_finished() {
            tokio::task::yield_now().await
        }
    });
    assert!(beaten.await.is_err(), "it lives, so nobody stops watching");
    drop(daemon);
    let why = tokio::time::timeout(TIMEOUT, watching).await.unwrap().unwrap();
    assert!(why.contains("connection"), "{why}");
}

/// Killed when dropped.
struct Sidecar(Child);

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_primary_reports_its_positions() {
    let daemon = Daemon::started(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
    command.args(["run", "--group", "db", "--name", "app-0", "--listen", "127.0.0.1:0", "--segment-size", "64KiB"]);
    command.args(["--backups", "1", "--backup", &format!("b0={}", daemon.control())]);
    command.arg("--control-token").arg(daemon.token()).arg("--port-file").arg(path("port"));
    command.arg("--config").arg(path("config.json")).arg("--socket").arg(path("socket"));
    let _sidecar = Sidecar(command.stderr(fs::File::create(path("log")).unwrap()).spawn().unwrap());
    until("the sidecar listens", async || path("port").exists()).await;
    let control = fs::read_to_string(path("port")).unwrap().trim().to_owned();
    let is_one_of = |found: &Value, wanted: &[Value]| {
        wanted.iter().any(|wanted| wanted.as_object().unwrap().iter().all(|(field, value)| &found[field] == value))
    };
    let primary = |connected: u8| json!({"role": "primary", "epoch": 1, "positions": {"first": 1, "acked": 0}, "connected": connected});
    let before = [json!({"role": "standby", "epoch": 0}), json!({"role": "recovering", "epoch": 0}), primary(0)];
    until("the positions", async || {
        let found: Value = serde_json::from_str(&report(&control)).unwrap();
        assert_eq!((&found["version"], &found["group"], &found["name"]), (&json!(1), &json!("db"), &json!("app-0")));
        let is_there = is_one_of(&found, &[primary(1)]);
        assert!(is_there || is_one_of(&found, &before), "{found}");
        is_there
    })
    .await;
}

#[tokio::test]
async fn a_hung_process_stops_sending_heartbeats() {
    let daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    daemon.signal(Signal::STOP);
    let why = primary.client.watch_heartbeats(Duration::from_millis(100), |_| {}).await;
    assert!(why.contains("silent"), "{why}");
    daemon.signal(Signal::CONT);
    primary.inventory().await;
}

#[test]
fn impossible_options_are_explained_at_start() {
    let mut daemon = Daemon::started(&[]);
    let other = tempfile::tempdir().unwrap();
    let (pool, flush) = (other.path().join("pool"), other.path().join("flush"));
    let says = |pool: &std::path::Path, flush: &std::path::Path, arguments: &[&str], expected: i32, words: &[&str]| {
        let (code, said) = daemon.refuses(pool, flush, arguments);
        assert_eq!(code, expected, "{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is not in:\n{said}");
        }
    };
    says(&daemon.pool(), &flush, &[], 1, &["is in use by another backup daemon", "--pool"]);
    let _ = fs::remove_dir_all(&flush);
    says(&pool, &daemon.flush_dir(), &[], 1, &["is in use by another backup daemon", "--flush-dir"]);
    let control = daemon.control();
    says(&pool, &flush, &["--listen", &control], 1, &["the port is in use"]);
    says(&pool, &flush, &["--listen", "0.0.0.0:0"], 2, &["without TLS", "--tls-ca"]);
    says(&pool, &flush, &["--fabric", "tcp", "--data-listen", "0.0.0.0:0"], 2, &["without TLS"]);
    let _ = fs::remove_dir_all(&flush);
    let _ = fs::remove_dir_all(&pool);
    says(&pool, &flush, &["--flush-bandwidth", "1KiB", "--hold-up", "1"], 2, &["no buffer could be lent"]);
    says(&pool, std::path::Path::new("/proc/nowhere"), &[], 1, &["flush folder /proc/nowhere"]);
    says(&other.path().join("a/b"), &flush, &[], 1, &["pool folder", "--pool"]);

    daemon.terminate(Signal::INT);
    let says = |arguments: &[&str], words: &[&str]| {
        let (code, said) = daemon.refuses(&daemon.pool(), &daemon.flush_dir(), arguments);
        assert_eq!(code, 1, "{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is not in:\n{said}");
        }
    };
    let promise = daemon.flush_dir().join("promise");
    let sound = fs::read(&promise).unwrap();
    fs::write(&promise, "?").unwrap();
    says(&[], &["promise file", "is damaged"]);
    fs::remove_file(&promise).unwrap();
    says(&[], &["holds no promise"]);
    fs::write(&promise, &sound).unwrap();
    daemon.start();
}
