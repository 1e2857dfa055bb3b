//! A sidecar that only reads, as a process.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// A start that takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tests may run as root, which no mode keeps from writing: any change of the folder would show in its time.
#[test]
fn a_reader_does_not_write_to_the_config_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    fs::create_dir(&store).unwrap();
    let opened = File::open(&store).unwrap();
    opened.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    opened.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
    let port_file = folder.path().join("port");
    let log = folder.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
    command.args(["run", "--reader", "--group", "db", "--name", "r0", "--listen", "127.0.0.1:0"]);
    command.arg("--config").arg(store.join("config.json")).arg("--port-file").arg(&port_file);
    command.arg("--socket").arg(folder.path().join("append.sock"));
    command.arg("--control-token").arg(folder.path().join("token"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        let ended = child.try_wait().unwrap();
        if ended.is_some() || port_file.exists() || Instant::now() > deadline {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ended.is_none() && port_file.exists(), "not started: {ended:?}\n{}", fs::read_to_string(&log).unwrap());
    assert_eq!(opened.metadata().unwrap().modified().unwrap(), SystemTime::UNIX_EPOCH, "the folder has been changed");
}
