//! Bad input, from clients and on the command line: a clear answer to whoever gave it, and no harm to anybody else.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use tailwind_client::Lsn;
use tailwind_e2e::group::{Group, PATIENCE, Who, free_port, resident_memory, run_to_end, with_options};
use tailwind_e2e::scene::{Scene, is_root};
use tailwind_e2e::steps::{OUTAGE, append, check_logs, check_whole, primary};
use tailwind_e2e::workload::Numbered;
use tailwind_protocol::socket::{ErrorCode, Request, Response, decode_response, encode_batch};

/// The fabric plays no part in these.
const FABRIC: &str = "shm";
const HELLO: Request<'_> = Request::Hello { version_min: 1, version_max: 1, flags: 0 };

/// A client that keeps to no protocol.
struct Raw {
    stream: UnixStream,
    received: Vec<u8>,
}

/// What came back, as far as these tests care.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Welcome { record_size_max: u32, batch_size_max: u32 },
    Ack(u64),
    Error { code: ErrorCode, fatal: bool, message: String },
    Other,
    Closed,
}

impl Raw {
    fn connect(group: &Group) -> Raw {
        let stream = UnixStream::connect(group.socket(0)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Raw { stream, received: Vec::new() }
    }

    fn greeted(group: &Group) -> (Raw, usize, usize) {
        let mut raw = Raw::connect(group);
        raw.send(&frame(1, &HELLO));
        let Said::Welcome { record_size_max, batch_size_max } = raw.hear() else { panic!("no welcome") };
        (raw, record_size_max as usize, batch_size_max as usize)
    }

    /// The other side may have had enough already; what it said is still to be heard.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    fn hear(&mut self) -> Said {
        loop {
            if let Some(decoded) = decode_response(&self.received).unwrap() {
                let said = match decoded.frame {
                    Response::Welcome(welcome) => Said::Welcome {
                        record_size_max: welcome.record_size_max,
                        batch_size_max: welcome.batch_size_max,
                    },
                    Response::Ack { lsn } => Said::Ack(lsn),
                    Response::Error { code, fatal, message, .. } => {
                        Said::Error { code, fatal, message: message.to_owned() }
                    }
                    _ => Said::Other,
                };
                let size = decoded.size;
                self.received.drain(..size);
                return said;
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Said::Closed,
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Said::Closed,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn hear_error(&mut self) -> (ErrorCode, bool, String) {
        match self.hear() {
            Said::Error { code, fatal, message } => (code, fatal, message),
            other => panic!("{other:?} instead of an error"),
        }
    }

    /// An error that ends the connection.
    fn hear_the_end(&mut self, expected: ErrorCode) -> String {
        let (code, fatal, message) = self.hear_error();
        assert_eq!((code, fatal), (expected, true), "{message}");
        assert_eq!(self.hear(), Said::Closed);
        message
    }
}

fn frame(request: u64, what: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    what.encode(request, &mut bytes);
    bytes
}

fn batch(request: u64, records: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_batch(request, records.iter().copied(), &mut bytes);
    bytes
}

fn input(scene: &Scene) -> Numbered {
    Numbered { seed: scene.seed(), length_max: 200 }
}

#[test]
fn records_of_any_allowed_length_and_none_above() {
    let scene = Scene::begin();
    let group = scene.group(FABRIC).unwrap();
    let (mut raw, largest, batch_size_max) = Raw::greeted(&group);
    let mut lsn = 0;
    for length in [0, 1, 7, 8, largest - 1, largest] {
        raw.send(&frame(2, &Request::Append { payload: &vec![9; length] }));
        lsn += 1;
        assert_eq!(raw.hear(), Said::Ack(lsn), "{length} bytes");
    }
    let limit = "the limit is 16384";
    raw.send(&frame(3, &Request::Append { payload: &vec![9; largest + 1] }));
    let (code, fatal, message) = raw.hear_error();
    assert_eq!((code, fatal), (ErrorCode::TooLarge, false));
    assert_eq!(message, format!("record of 16385 bytes: {limit}"));
    raw.send(&batch(4, &[b"small", &vec![9; largest + 1]]));
    let (code, fatal, message) = raw.hear_error();
    assert_eq!((code, fatal), (ErrorCode::TooLarge, false));
    assert_eq!(message, format!("record of 16385 bytes in a batch: {limit}"));
    // As large as a frame may be; with its headers too large for the log.
    let record = vec![9; largest];
    raw.send(&batch(5, &[&record, &vec![9; batch_size_max - largest - 16]]));
    let (code, fatal, message) = raw.hear_error();
    assert_eq!((code, fatal), (ErrorCode::TooLarge, false), "{message}");
    assert!(message.contains("split it"), "{message}");
    // The connection goes on, and nothing of the above is in the log.
    raw.send(&frame(6, &Request::Append { payload: b"next" }));
    assert_eq!(raw.hear(), Said::Ack(lsn + 1));
    let (mut raw, ..) = Raw::greeted(&group);
    raw.send(&frame(2, &Request::Append { payload: &vec![9; batch_size_max + 1] }));
    let message = raw.hear_the_end(ErrorCode::BadFrame);
    assert_eq!(message, format!("frame of {} bytes: the limit is {batch_size_max}", batch_size_max + 1));
    check_logs(&group, &[]).unwrap();
}

#[test]
fn garbage_truncated_and_slow_frames() {
    let mut scene = Scene::begin();
    let group = scene.group(FABRIC).unwrap();
    for _ in 0..scene.rounds(20) {
        let garbage: Vec<u8> = (0..16 + scene.random.below(500)).map(|_| scene.random.next() as u8).collect();
        let mut raw = Raw::connect(&group);
        // Of a small length, so that it is not just waited for.
        raw.send(&[&16_u32.to_le_bytes()[..], &garbage].concat());
        raw.hear_the_end(ErrorCode::BadFrame);
        let (mut raw, ..) = Raw::greeted(&group);
        raw.send(&[&0_u32.to_le_bytes()[..], &[200], &garbage].concat());
        raw.hear_the_end(ErrorCode::BadFrame);
        // Cut off in the middle of a frame: nothing of it counts.
        let (mut raw, ..) = Raw::greeted(&group);
        let whole = frame(2, &Request::Append { payload: &garbage });
        raw.send(&whole[..1 + scene.random.below(whole.len() as u64 - 1) as usize]);
    }
    let (mut raw, ..) = Raw::greeted(&group);
    for byte in frame(2, &Request::Append { payload: b"slow but sound" }) {
        raw.send(&[byte]);
        std::thread::yield_now();
    }
    assert_eq!(raw.hear(), Said::Ack(1), "something else has been appended");
    check_logs(&group, &[]).unwrap();
}

#[test]
fn wrong_versions_and_wrong_first_frames() {
    let scene = Scene::begin();
    let group = scene.group(FABRIC).unwrap();
    let hello = |version_min, version_max| frame(1, &Request::Hello { version_min, version_max, flags: 0 });
    for (first, code, words) in [
        (hello(2, 9), ErrorCode::UnsupportedVersion, "this sidecar speaks version 1; the client speaks 2 to 9"),
        (hello(0, 0), ErrorCode::UnsupportedVersion, "this sidecar speaks version 1; the client speaks 0 to 0"),
        (frame(1, &Request::Append { payload: b"x" }), ErrorCode::BadFrame, "the first frame must be a hello"),
        (frame(1, &Request::Status), ErrorCode::BadFrame, "the first frame must be a hello"),
    ] {
        let mut raw = Raw::connect(&group);
        raw.send(&first);
        assert_eq!(raw.hear_the_end(code), words);
    }
    let mut raw = Raw::connect(&group);
    raw.send(&[hello(1, 7), hello(1, 1)].concat());
    assert!(matches!(raw.hear(), Said::Welcome { .. }), "a range that holds version 1 will do");
    assert_eq!(raw.hear_the_end(ErrorCode::BadFrame), "a second hello");
    check_logs(&group, &[]).unwrap();
}

#[test]
fn a_client_that_never_reads_its_acks_holds_up_nobody_else() {
    let scene = Scene::begin();
    let group = scene.group(FABRIC).unwrap();
    let pid = group.pid(Who::Sidecar(0)).unwrap();
    let mut client = primary(&group).unwrap();
    client.append(b"warm").unwrap();
    let before = resident_memory(pid).unwrap();
    let (mut raw, ..) = Raw::greeted(&group);
    raw.stream.set_nonblocking(true).unwrap();
    let many = frame(2, &Request::Append { payload: b"deaf" }).repeat(1000);
    let (mut place, mut others) = (0, 0);
    // Blocked for good, if it stays so while so many others are served.
    while others < 500 {
        match raw.stream.write(&many[place..]) {
            Ok(count) => (place, others) = ((place + count) % many.len(), 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                client.append(b"others go on").unwrap();
                others += 1;
            }
        }
    }
    let last = client.append(b"the last").unwrap();
    assert!(last > Lsn(8000), "the deaf client was stopped after {last} records already");
    let grown = resident_memory(pid).unwrap().saturating_sub(before);
    assert!(grown < 32 << 20, "the sidecar has grown by {grown} bytes");
    assert_eq!(client.read(last, 0).unwrap().count(), 1);
    check_logs(&group, &[]).unwrap();
}

#[test]
fn too_many_clients() {
    let scene = Scene::begin();
    let group = scene.group(FABRIC).unwrap();
    let mut clients: Vec<Raw> = (0..64).map(|_| Raw::greeted(&group).0).collect();
    let mut late = Raw::connect(&group);
    let message = late.hear_the_end(ErrorCode::Busy);
    assert_eq!(message, "64 clients are connected already");
    clients[63].send(&frame(2, &Request::Append { payload: b"those inside go on" }));
    assert_eq!(clients[63].hear(), Said::Ack(1));
    clients.pop();
    group.wait("the free place to be given", |group| group.primary().is_some()).unwrap();
    check_logs(&group, &[]).unwrap();
}

#[test]
fn a_second_sidecar_of_the_same_name() {
    let scene = Scene::begin();
    let input = input(&scene);
    let mut setup = scene.setup(FABRIC).unwrap();
    setup.sidecars = 1;
    let mut group = scene.start(setup).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, 0, 500).unwrap();

    let same = run_to_end(&mut group.sidecar_command(0)).unwrap();
    assert_eq!(same.code, Some(1));
    let socket = group.socket(0);
    assert!(
        same.errors.contains(&format!(
            "socket {} is in use by another process: stop it, or choose another --socket",
            socket.display()
        )),
        "{}",
        same.errors
    );

    // With a socket and a port of its own it is a standby, and says what is odd.
    let other = group.folder().join("twin.sock");
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let own = [("--socket", other.to_str().unwrap()), ("--listen", &listen)];
    let mut command = with_options(&group.sidecar_command(0), own);
    let log = fs::File::create(group.folder().join("twin.log")).unwrap();
    let mut twin = Running(command.stderr(log).spawn().unwrap());
    let role = |path: &Path| {
        let client = tailwind_client::blocking::Client::connect(path);
        client.map(|client| client.welcome().role.to_string()).unwrap_or_default()
    };
    group.wait("the twin to be a standby", |_| role(&other) == "standby").unwrap();
    let epoch = group.status(0)["epoch"].clone();
    let mut client = primary(&group).unwrap();
    let end = append(&mut client, &input, end, 2000).unwrap();
    assert_eq!((role(&other), &group.status(0)["epoch"]), ("standby".to_owned(), &epoch));
    let said = fs::read_to_string(group.folder().join("twin.log")).unwrap();
    assert!(said.contains("the primary has this sidecar's name"), "{said}");

    // When the first one dies the twin takes over, once; the first one comes back as a standby.
    group.kill_sidecar(0).unwrap();
    group.wait("the twin to take over", |_| role(&other) == "primary").unwrap();
    group.start_sidecar(0).unwrap();
    group.wait("the first one to be a standby", |group| group.role(0) == "standby").unwrap();
    let mut client = tailwind_client::blocking::Client::connect(&other).unwrap();
    let passed = client.barrier().unwrap();
    append(&mut client, &input, end, 2000).unwrap();
    assert_eq!(client.barrier().unwrap().epoch, passed.epoch, "they take the role from each other");
    twin.0.kill().unwrap();
    group.wait("the first one to be primary again", |group| group.role(0) == "primary").unwrap();
    check_whole(&group, &input, end + 2000).unwrap();
}

/// A process beside the group, killed when dropped.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The command must end at once, with a failure and these words.
fn assert_refused(command: &mut Command, words: &str) {
    let ended = run_to_end(command).unwrap();
    assert!(ended.code.is_some_and(|code| code > 0), "{ended:?}");
    assert!(ended.errors.contains(words), "`{words}` is not in:\n{}", ended.errors);
}

#[test]
fn options_that_cannot_work() {
    let scene = Scene::begin();
    let input = input(&scene);
    let group = scene.group(FABRIC).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, 0, 500).unwrap();
    let folder = group.folder().to_owned();
    let (socket, pool, disk) =
        (folder.join("other.sock"), group.pool(0).with_file_name("other"), folder.join("other-disk"));
    let sidecar = |flag: &str, value: &str| {
        let own = [("--socket", socket.to_str().unwrap()), ("--listen", "127.0.0.1:0"), ("--name", "other")];
        with_options(&group.sidecar_command(0), own.into_iter().chain([(flag, value)]))
    };
    let own = [("--listen", "127.0.0.1:0"), ("--name", "other"), ("--pool", pool.to_str().unwrap())];
    let backup = |flag: &str, value: &str| {
        let disk = [("--flush-dir", disk.to_str().unwrap()), (flag, value)];
        with_options(&group.backup_command(0), own.into_iter().chain(disk))
    };

    let sizes = "must be a power of two between 64 KiB and 64 MiB";
    assert_refused(&mut sidecar("--segment-size", "3MiB"), &format!("segment size 3 MiB: {sizes}"));
    assert_refused(&mut backup("--segment-size", "32KiB"), &format!("segment size 32 KiB: {sizes}"));
    assert_refused(&mut sidecar("--backups", "9"), "--backups 9: must be 1 to 8");
    assert_refused(&mut sidecar("--min-in-sync", "4"), "--min-in-sync 4: must be 1 to --backups (3)");
    assert_refused(
        &mut sidecar("--listen", "0.0.0.0:0"),
        "refusing to listen on 0.0.0.0:0 without TLS: give --tls-ca, --tls-cert and --tls-key, or listen on loopback",
    );
    assert_refused(&mut backup("--listen", "0.0.0.0:0"), "refusing to listen on 0.0.0.0:0 without TLS");
    assert_refused(
        &mut with_options(&backup("--fabric", "tcp"), [("--data-listen", "0.0.0.0:0")]),
        "refusing to listen on 0.0.0.0:0 without TLS",
    );
    let taken = format!("127.0.0.1:{}", group.port(Who::Sidecar(0)));
    assert_refused(&mut sidecar("--listen", &taken), &format!("listen on {taken}: the port is in use"));

    let long = folder.join("s".repeat(120));
    assert_refused(&mut sidecar("--socket", long.to_str().unwrap()), "the limit is 107; choose a shorter --socket");
    let file = folder.join("a-file");
    fs::write(&file, "somebody's").unwrap();
    assert_refused(
        &mut sidecar("--socket", file.to_str().unwrap()),
        "exists and is not a socket: remove it, or choose another",
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "somebody's");

    let below_a_file = file.join("disk");
    assert_refused(&mut backup("--flush-dir", below_a_file.to_str().unwrap()), "create flush folder");
    let pool = group.pool(0);
    assert_refused(&mut backup("--pool", pool.to_str().unwrap()), "is in use by another backup daemon");
    let disk = group.flush_folder(0);
    assert_refused(&mut backup("--flush-dir", disk.to_str().unwrap()), "is in use by another backup daemon");

    let good = fs::read_to_string(group.config()).unwrap();
    let config = folder.join("other.json");
    let from = config.to_str().unwrap();
    let newer = good.replace("\"tailwind_config\":1", "\"tailwind_config\":2");
    for (content, words) in [
        (&newer, "has format 2; this version reads format 1: run the newer version"),
        (&good.replace("\"epoch\": 1", "\"epoch\": 3"), "is damaged (its CRC does not match): restore it from a copy"),
        (&good[..good.len() / 2].to_owned(), "is damaged"),
        (&String::new(), "is damaged (no header)"),
    ] {
        fs::write(&config, content).unwrap();
        assert_refused(&mut sidecar("--config", from), &format!("config file {from} {words}"));
        assert_eq!(fs::read_to_string(&config).unwrap(), *content, "the file has been touched");
    }

    append(&mut primary(&group).unwrap(), &input, end, 500).unwrap();
    check_whole(&group, &input, end + 500).unwrap();
    check_logs(&group, &[]).unwrap();
}

#[test]
fn a_folder_of_another_backup() {
    let scene = Scene::begin();
    let mut group = scene.group(FABRIC).unwrap();
    append(&mut primary(&group).unwrap(), &input(&scene), 0, 100).unwrap();
    group.kill_backup(0).unwrap();
    assert_refused(
        &mut with_options(&group.backup_command(0), [("--name", "other")]),
        "belongs to backup backup0 of group demo",
    );
    assert_refused(
        &mut with_options(&group.backup_command(0), [("--group", "other")]),
        "belongs to backup backup0 of group demo",
    );
    assert_refused(
        &mut with_options(&group.backup_command(0), [("--segment-size", "128KiB")]),
        "slots of 131072 bytes need",
    );
    group.start_backup(0).unwrap();
    group.wait_for_full_set().unwrap();
    check_whole(&group, &input(&scene), 100).unwrap();
    check_logs(&group, &OUTAGE).unwrap();
}

#[test]
fn segments_larger_than_the_backups_buffers() {
    let scene = Scene::begin();
    let mut setup = scene.setup(FABRIC).unwrap();
    setup.sidecar_options = vec![("--segment-size", "128KiB".into())];
    let mut group = Group::prepare(setup).unwrap();
    for index in 0..group.backups() {
        group.start_backup(index).unwrap();
    }
    group.start_sidecar(0).unwrap();
    group
        .wait("a clear word", |group| {
            let words = "segment size 128 KiB: the buffers of backup backup0 are 64 KiB; start it with larger ones";
            group.log("sidecar0").contains(words)
        })
        .unwrap();
    // Nothing is broken by it: with the right size the group starts.
    group.kill_sidecar(0).unwrap();
    group.setup_mut().sidecar_options.clear();
    group.start_sidecar(0).unwrap();
    append(&mut primary(&group).unwrap(), &input(&scene), 0, 500).unwrap();
}

#[test]
fn users_that_are_not_allowed() {
    if !is_root("bad_input: users_that_are_not_allowed") {
        return;
    }
    const NOBODY: &str = "65534";
    let scene = Scene::begin();
    for (options, allowed) in [(vec![], false), (vec![("--allow-uid", format!("0,{NOBODY}"))], true)] {
        let mut setup = scene.setup(FABRIC).unwrap();
        setup.sidecar_options = options;
        let group = scene.start(setup).unwrap();
        // As far as the file system goes, anybody may.
        fs::set_permissions(group.folder(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(group.socket(0), fs::Permissions::from_mode(0o666)).unwrap();
        let client =
            fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../sidecar/client/python/tailwind.py")).unwrap();
        let script = format!("{client}\nimport sys\nprint('appended', Client(sys.argv[1], timeout=20).append(b'x'))");
        let mut python = Command::new("setpriv");
        python.args([
            "--reuid",
            NOBODY,
            "--regid",
            NOBODY,
            "--clear-groups",
            "/usr/bin/env",
            "python3",
            "-B",
            "-c",
            &script,
        ]);
        let ended = run_to_end(python.arg(group.socket(0)).current_dir("/")).unwrap();
        match allowed {
            true => assert_eq!(ended.out, "appended 1\n", "{ended:?}"),
            false => assert!(
                ended.errors.contains("NotAllowed: user 65534 is not on the allow-list (--allow-uid)"),
                "{ended:?}"
            ),
        }
        assert_eq!(ended.code == Some(0), allowed);
        primary(&group).unwrap().append(b"the allowed go on").unwrap();
        check_logs(&group, &[]).unwrap();
    }
}

#[test]
fn a_flush_folder_that_may_not_be_written() {
    if !is_root("bad_input: a_flush_folder_that_may_not_be_written") {
        return;
    }
    let scene = Scene::begin();
    let mut group = Group::prepare(scene.setup(FABRIC).unwrap()).unwrap();
    let folder = group.flush_folder(0);
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(group.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    let backup = group.backup_command(0);
    let mut as_nobody = Command::new("setpriv");
    as_nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    as_nobody.arg(backup.get_program()).args(backup.get_args()).current_dir("/");
    let ended = run_to_end(&mut as_nobody).unwrap();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let words =
        format!("write to flush folder {}: give --flush-dir a folder that this user may write", folder.display());
    assert!(ended.errors.contains(&words), "{ended:?}");
    group.start_all().unwrap();
}
