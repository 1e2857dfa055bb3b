//! Options, files and users that cannot work, and two sidecars of one name: a clear message, a failing exit code, and a group
//! that continues.

use std::cell::Cell;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use tailwind_e2e::context::{TestContext, cannot_run, is_root};
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::process::{Daemon, NOBODY, as_nobody, free_port, run_to_end, with_options};
use tailwind_e2e::processes::steps::{OUTAGE, append, check_whole, primary};

/// The fabric plays no part in these.
const FABRIC: &str = "shm";
/// The Python client. The user `nobody` may not read this folder.
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sidecar/client/python/tailwind");

#[test]
fn two_sidecars_with_the_same_name() {
    let test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(FABRIC).unwrap();
    setup.sidecars = 1;
    let mut group = test.start_group(setup).unwrap();
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

    // With a socket and a port of its own it is a standby, and warns about the name.
    let other = group.folder().join("twin.sock");
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let own = [("--socket", other.to_str().unwrap()), ("--listen", &listen)];
    let mut twin = Daemon::new("twin", group.folder().join("twin.log"));
    twin.start(with_options(&group.sidecar_command(0), own)).unwrap();
    let role = |path: &Path| {
        let client = tailwind_client::blocking::Client::connect(path);
        client.map(|client| client.welcome().role.to_string()).unwrap_or_default()
    };
    group.wait("the twin to be a standby", |_| role(&other) == "standby").unwrap();
    let epoch = group.status(0)["epoch"].clone();
    let mut client = primary(&group).unwrap();
    let end = append(&mut client, &input, end, 2000).unwrap();
    assert_eq!((role(&other), &group.status(0)["epoch"]), ("standby".to_owned(), &epoch));
    let log = twin.log();
    assert!(log.contains("the primary has this sidecar's name"), "{log}");

    // When the first one dies the twin takes over, once; the first one comes back as a standby.
    group.kill_sidecar(0).unwrap();
    group.wait("the twin to take over", |_| role(&other) == "primary").unwrap();
    group.start_sidecar(0).unwrap();
    group.wait("the first one to be a standby", |group| group.role(0) == "standby").unwrap();
    let mut client = tailwind_client::blocking::Client::connect(&other).unwrap();
    let passed = client.barrier().unwrap();
    append(&mut client, &input, end, 2000).unwrap();
    assert_eq!(client.barrier().unwrap().epoch, passed.epoch, "they depose each other");
    twin.kill().unwrap();
    group.wait("the first one to be primary again", |group| group.role(0) == "primary").unwrap();
    check_whole(&group, &input, end + 2000).unwrap();
}

/// A primary that comes back at another address, while no backup answers, finds itself as primary each time it asks.
#[test]
fn moved_sidecar_limits_its_name_warnings() {
    let test = TestContext::start();
    let mut setup = test.setup(FABRIC).unwrap();
    setup.sidecars = 1;
    let mut group = test.start_group(setup).unwrap();
    append(&mut primary(&group).unwrap(), &test.input(), 0, 100).unwrap();
    group.kill_sidecar(0).unwrap();
    (0..group.backups()).for_each(|index| group.kill_backup(index).unwrap());

    // A listener at the former address counts how often it asks.
    let former = TcpListener::bind(("127.0.0.1", group.port(Process::Sidecar(0)))).unwrap();
    former.set_nonblocking(true).unwrap();
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let started = Instant::now();
    let mut moved = Daemon::new("moved", group.folder().join("moved.log"));
    moved.start(with_options(&group.sidecar_command(0), [("--listen", &*listen)])).unwrap();
    let connections = Cell::new(0);
    let count = |_: &Group| {
        connections.set(connections.get() + u32::from(former.accept().is_ok()));
        connections.get() >= 20
    };
    group.wait("twenty connections to the former address", count).unwrap();
    let log = moved.log();
    // It is repeated every ten seconds, on a machine that is this slow.
    let times = log.matches("the primary has this sidecar's name").count() as u64;
    assert!((1..=1 + started.elapsed().as_secs() / 10).contains(&times), "{log}");
}

/// The command must end at once, with a failure and these words.
fn assert_refused(command: &mut Command, words: &str) {
    let ended = run_to_end(command).unwrap();
    assert!(ended.code.is_some_and(|code| code > 0), "{ended:?}");
    assert!(ended.errors.contains(words), "`{words}` is not in:\n{}", ended.errors);
}

#[test]
fn invalid_options_are_rejected() {
    let test = TestContext::start();
    let input = test.input();
    let group = test.group(FABRIC).unwrap();
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
    let least = "--flush-bytes 128 KiB: must be at least 384 KiB, 6 segments of 64 KiB";
    assert_refused(&mut backup("--flush-bytes", "128KiB"), least);
    assert_refused(&mut sidecar("--backups", "9"), "must be a number from 1 to 7");
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
    let taken = format!("127.0.0.1:{}", group.port(Process::Sidecar(0)));
    assert_refused(&mut sidecar("--listen", &taken), &format!("listen on {taken}: the port is in use"));

    let long = folder.join("s".repeat(120));
    assert_refused(&mut sidecar("--socket", long.to_str().unwrap()), "the limit is 107; choose a shorter --socket");
    assert_refused(
        &mut sidecar("--socket", folder.to_str().unwrap()),
        &format!("--socket {} is a folder: give the path of a socket in it", folder.display()),
    );
    let file = folder.join("a-file");
    fs::write(&file, "somebody's").unwrap();
    assert_refused(
        &mut sidecar("--socket", file.to_str().unwrap()),
        "exists and is not a socket: choose another --socket, or move that file away",
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "somebody's");
    for (path, words) in [(&folder, "give the path of the socket in it"), (&file, "this is no socket")] {
        let mut append = Command::new(&group.setup().program);
        assert_refused(append.args(["append", "--wait", "--file", "/dev/null", "--socket"]).arg(path), words);
    }
    assert_refused(&mut sidecar("--batch-memory", "32KiB"), "--batch-memory 32 KiB: must be at least 32784 bytes");
    assert_refused(&mut sidecar("--client-timeout-ms", "0"), "--client-timeout-ms");
    assert_refused(
        &mut sidecar("--log", "verbose"),
        "`verbose` is no level: use off, error, warn, info, debug or trace",
    );

    let open = folder.join("open.token");
    fs::write(&open, "0".repeat(64)).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let words = format!("control token file {} is open to others (its mode is 0644 instead of 0600)", open.display());
    assert_refused(&mut sidecar("--control-token", open.to_str().unwrap()), &words);
    assert_refused(&mut backup("--control-token", open.to_str().unwrap()), &words);
    assert_refused(&mut backup("--control-token", file.to_str().unwrap()), "control token file");

    for (flag, value) in [
        ("--heartbeat-interval-ms", "0"),
        ("--heartbeat-silence-ms", "18446744073709551615"),
        ("--fence-wait-ms", "18446744073709551615"),
        ("--open-timeout-ms", "0"),
        ("--rpc-timeout-ms", "0"),
        ("--spin-us", "18446744073709551615"),
    ] {
        assert_refused(&mut sidecar(flag, value), &format!("invalid value '{value}' for '{flag} "));
    }
    for value in ["nonsense", "info,loud"] {
        assert_refused(&mut sidecar("--log", value), "is no level: use off, error, warn, info, debug or trace");
    }
    for value in ["0", "1", "2", "5000", "many"] {
        assert_refused(&mut backup("--buffers", value), "must be a number from 3 to 4096");
    }
    let nowhere = folder.join("a-file/config.json");
    let refused = run_to_end(&mut sidecar("--config", nowhere.to_str().unwrap())).unwrap();
    assert_eq!(refused.errors.matches("(os error").count(), 1, "{}", refused.errors);

    let below_a_file = file.join("disk");
    assert_refused(&mut backup("--flush-dir", below_a_file.to_str().unwrap()), "create flush folder");
    let pool = group.pool(0);
    assert_refused(&mut backup("--pool", pool.to_str().unwrap()), "is in use by another backup daemon");
    let disk = group.flush_folder(0);
    assert_refused(&mut backup("--flush-dir", disk.to_str().unwrap()), "is in use by another backup daemon");

    let good = fs::read_to_string(group.newest_config().unwrap()).unwrap();
    let config = folder.join("other.json");
    let from = config.to_str().unwrap();
    let newer = good.replace("\"tailwind_config\":2", "\"tailwind_config\":3");
    for (content, words) in [
        (&newer, "has format 3; this version reads format 2: run the newer version"),
        (
            &good.replace("\"epoch\": 1,", "\"epoch\": 3,"),
            "is damaged (its CRC does not match): do not put an older copy in its place",
        ),
        (&good[..good.len() / 2].to_owned(), "is damaged"),
        (&String::new(), "is damaged (no header)"),
    ] {
        fs::write(&config, content).unwrap();
        assert_refused(&mut sidecar("--config", from), &format!("config file {from} {words}"));
        assert_eq!(fs::read_to_string(&config).unwrap(), *content, "the file has been touched");
    }

    append(&mut primary(&group).unwrap(), &input, end, 500).unwrap();
    check_whole(&group, &input, end + 500).unwrap();
    group.check_logs(&[]).unwrap();
}

#[test]
fn folder_of_another_backup_is_rejected() {
    let test = TestContext::start();
    let mut group = test.group(FABRIC).unwrap();
    append(&mut primary(&group).unwrap(), &test.input(), 0, 100).unwrap();
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
    check_whole(&group, &test.input(), 100).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn segments_larger_than_buffers_are_reported() {
    let test = TestContext::start();
    let mut setup = test.setup(FABRIC).unwrap();
    setup.sidecar_options.push(("--segment-size", "128KiB".into()));
    let mut group = Group::prepare(setup).unwrap();
    for index in 0..group.backups() {
        group.start_backup(index).unwrap();
    }
    group.start_sidecar(0).unwrap();
    group
        .wait("the message", |group| {
            let words =
                "its buffers are 64 KiB, the segments of this sidecar 128 KiB: give both the same --segment-size";
            group.log("sidecar0").contains(&format!("backup0 (127.0.0.1:{}): {words}", group.port(Process::Backup(0))))
        })
        .unwrap();
    // With the right size the group starts.
    group.kill_sidecar(0).unwrap();
    group.setup_mut().sidecar_options.clear();
    group.start_sidecar(0).unwrap();
    append(&mut primary(&group).unwrap(), &test.input(), 0, 500).unwrap();
}

/// A restart with another fabric or segment size than the group has: it claims no epoch that it could not serve, says so once,
/// and continues when the mistake is gone.
#[test]
fn options_that_do_not_fit_claim_no_epoch() {
    let test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(FABRIC).unwrap();
    setup.sidecars = 1;
    let mut group = test.start_group(setup).unwrap();
    let mut end = append(&mut primary(&group).unwrap(), &input, 0, 500).unwrap();
    for (flag, value, words) in [
        ("--fabric", "tcp", "it runs --fabric shm, this sidecar --fabric tcp: give both the same"),
        ("--segment-size", "128KiB", "its buffers are 64 KiB, the segments of this sidecar 128 KiB"),
    ] {
        group.kill_sidecar(0).unwrap();
        let config = group.newest_config().unwrap();
        let mut odd = Daemon::new("odd", group.folder().join(format!("odd{flag}.log")));
        odd.start(with_options(&group.sidecar_command(0), [(flag, value)])).unwrap();
        let waits = |group: &Group| group.status(0)["waiting"]["why"].as_str().unwrap_or_default().contains(words);
        group.wait("it to say what does not fit", waits).unwrap();
        // It asks again a few times a second.
        let log = odd.log();
        assert_eq!(log.matches(" WARN ").count(), 1, "{log}");
        assert_eq!(group.newest_config().unwrap(), config, "an epoch was claimed");
        odd.kill().unwrap();
        group.start_sidecar(0).unwrap();
        end = append(&mut primary(&group).unwrap(), &input, end, 500).unwrap();
    }
    check_whole(&group, &input, end).unwrap();
}

#[test]
fn only_allowed_users_can_connect() {
    if !is_root("bad_options: only_allowed_users_can_connect") {
        return;
    }
    let test = TestContext::start();
    for (options, allowed) in [(vec![], false), (vec![("--allow-uid", format!("0,{NOBODY}"))], true)] {
        let mut setup = test.setup(FABRIC).unwrap();
        setup.sidecar_options.extend(options);
        let group = test.start_group(setup).unwrap();
        // The file system admits all users.
        fs::set_permissions(group.folder(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(group.socket(0), fs::Permissions::from_mode(0o666)).unwrap();
        // The repository's folder need not.
        let package = group.folder().join("tailwind");
        fs::create_dir(&package).unwrap();
        for module in fs::read_dir(CLIENT).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
            fs::copy(module.path(), package.join(module.file_name())).unwrap();
        }
        let script = "import sys, tailwind\nprint('appended', tailwind.Client(sys.argv[1], timeout=20).append(b'x'))";
        // Not the first of that name in the path, which `nobody` may not be able to run.
        let mut python = Command::new("/usr/bin/env");
        let path = format!("PYTHONPATH={}", group.folder().display());
        python.args([&path, "python3", "-B", "-c", script]).arg(group.socket(0));
        let ended = run_to_end(&mut as_nobody(&python)).unwrap();
        match allowed {
            true => assert_eq!(ended.out, "appended 1\n", "{ended:?}"),
            false => assert!(
                ended.errors.contains("NotAllowed: ")
                    && ended.errors.contains("append-0.sock: user 65534 is not on the allow-list (--allow-uid)"),
                "{ended:?}"
            ),
        }
        assert_eq!(ended.code == Some(0), allowed);
        primary(&group).unwrap().append(b"allowed users go on").unwrap();
        group.check_logs(&[]).unwrap();
    }
}

#[test]
fn unwritable_flush_folder_is_rejected() {
    if !is_root("bad_options: unwritable_flush_folder_is_rejected") {
        return;
    }
    let test = TestContext::start();
    let mut group = Group::prepare(test.setup(FABRIC).unwrap()).unwrap();
    let folder = group.flush_folder(0);
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(group.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    // It must be able to read its own token.
    let own = group.folder().join("nobody");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
    let token = own.join("token");
    let backup = with_options(&group.backup_command(0), [("--control-token", token.to_str().unwrap())]);
    let ended = run_to_end(&mut as_nobody(&backup)).unwrap();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let words = format!("write to flush folder {}: use a --flush-dir that this user may write", folder.display());
    assert!(ended.errors.contains(&words), "{ended:?}");
    group.start_all().unwrap();
}

/// Without a device, `verbs` is refused in one sentence, and `auto` falls back to tcp, with a warning.
/// With a device the same tests run over it, in `kills` and the others.
#[test]
fn missing_rdma_device_is_reported() {
    let has_device = fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    if has_device {
        cannot_run("missing_rdma_device_is_reported", "this host has an RDMA device");
        return;
    }
    let test = TestContext::start();
    let mut setup = test.setup("auto").unwrap();
    (setup.backups, setup.copies) = (1, 1);
    let group = test.start_group(setup).unwrap();
    let end = append(&mut primary(&group).unwrap(), &test.input(), 0, 500).unwrap();
    check_whole(&group, &test.input(), end).unwrap();
    let fallback = "no RDMA: records travel by tcp, which costs backups CPU time";
    group.check_logs(&[fallback]).unwrap();
    assert_eq!(group.status(0)["fabric"], "tcp");
    for log in ["sidecar0", "backup0"] {
        let log = group.log(log);
        assert!(log.contains(fallback), "{log}");
    }

    let verbs = [("--fabric", "verbs"), ("--listen", "127.0.0.1:0"), ("--name", "other")];
    let (socket, pool) = (group.folder().join("other.sock"), group.pool(0).with_file_name("other"));
    let own = [("--socket", socket.to_str().unwrap())];
    let advice = "run `tailwind-sidecar doctor` for details, or use --fabric tcp";
    assert_refused(&mut with_options(&group.sidecar_command(0), verbs.into_iter().chain(own)), advice);
    let disk = group.folder().join("other-disk");
    let own = [("--pool", pool.to_str().unwrap()), ("--flush-dir", disk.to_str().unwrap())];
    assert_refused(&mut with_options(&group.backup_command(0), verbs.into_iter().chain(own)), advice);

    let mut doctor = Command::new(&group.setup().program);
    assert_refused(doctor.arg("doctor"), "RDMA does not work here");
    let bad = with_options(&group.sidecar_command(0), [("--rdma-retry", "0/7"), ("--listen", "127.0.0.1:0")]);
    assert_refused(&mut { bad }, "must be EXPONENT/RETRIES, 1 to 31 and 1 to 7, such as 11/6");
}
