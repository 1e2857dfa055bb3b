//! Processes as they run in pods: on IPv6, on every address, and as a user that no image knows.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use tailwind_e2e::context::{TestContext, is_root};
use tailwind_e2e::processes::group::{Group, Process, Setup};
use tailwind_e2e::processes::process::{as_nobody, run_to_end, with_options};

use crate::access::{lose_the_primary_and_a_member, tls_group};

/// OpenShift gives each namespace a range of users, and runs its pods as the first.
const ARBITRARY_USER: &str = "1000680000";

/// No address of the group is IPv4: neither control nor data.
#[test]
fn group_survives_faults_on_ipv6() {
    let test = TestContext::start();
    let setup = Setup { host: Ipv6Addr::LOCALHOST.into(), ..test.setup("tcp").unwrap() };
    let group = test.start_group(setup).unwrap();
    for index in 0..group.backups() {
        let log = group.log(&format!("backup{index}"));
        assert!(log.lines().any(|line| line.contains("listening for records") && line.contains("[::1]:")), "{log}");
    }
    lose_the_primary_and_a_member(&test, group, |_| ());
}

/// As in pods: listeners on `[::]`, and each process is told its own address, without brackets.
#[test]
fn listeners_on_every_address_serve_both_families() {
    for host in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let test = TestContext::start();
        let setup = Setup { host, listen: Some(Ipv6Addr::UNSPECIFIED.into()), ..test.setup("tcp").unwrap() };
        let (group, _folder, _authority) = tls_group(&test, setup);
        lose_the_primary_and_a_member(&test, group, |_| ());
    }
}

#[test]
fn any_address_needs_an_address_to_advertise() {
    let test = TestContext::start();
    let (mut group, _folder, _authority) = tls_group(&test, test.setup("tcp").unwrap());
    group.kill_sidecar(1).unwrap();
    let port = group.port(Process::Sidecar(1));
    let listen = format!("[::]:{port}");
    let mut silent = with_options(&group.sidecar_command(1), [("--listen", listen.as_str())]);
    let ended = run_to_end(&mut silent).unwrap();
    assert!(ended.code == Some(2) && ended.errors.contains("--advertise-ip"), "{ended:?}");
    let bare = format!("fd00::1:{port}");
    let ended = run_to_end(&mut with_options(&silent, [("--advertise", bare.as_str())])).unwrap();
    assert!(ended.code == Some(2) && ended.errors.contains("an IPv6 address needs brackets"), "{ended:?}");
}

/// The user has no entry in /etc/passwd and no home, and the app is another user.
#[test]
fn group_runs_as_an_arbitrary_user() {
    if !is_root("pods: group_runs_as_an_arbitrary_user") {
        return;
    }
    let test = TestContext::start();
    let mut setup = Setup { user: Some(ARBITRARY_USER), ..test.setup("tcp").unwrap() };
    setup.sidecar_options.push(("--allow-uid", "any".to_owned()));
    let mut group = Group::prepare(setup).unwrap();
    // Folders as the kubelet makes them for an emptyDir.
    let memory = group.pool(0).parent().unwrap().to_owned();
    for folder in [group.folder(), &memory, &group.folder().join("logs")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    }
    group.start_all().unwrap();
    group.wait_for_full_set().unwrap();
    let socket = group.socket(0).to_owned();
    let found = fs::metadata(&socket).unwrap();
    assert_eq!((found.uid().to_string().as_str(), found.gid(), found.mode() & 0o777), (ARBITRARY_USER, 0, 0o666));
    let mut status = Command::new(&group.setup().program);
    status.arg("status").arg("--socket").arg(&socket);
    let ended = run_to_end(&mut as_nobody(&status)).unwrap();
    assert!(ended.code == Some(0), "an app of another user: {ended:?}");
    lose_the_primary_and_a_member(&test, group, |_| ());
}
