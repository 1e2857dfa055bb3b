//! A dead primary's address has a new owner: another sidecar, a reader, a backup, or the standby itself. A standby takes over
//! all the same; with certificates too, which say who a process is, and not where.

use std::fs;
use std::process::Command;

use tailwind_e2e::certificates::Authority;
use tailwind_e2e::context::TestContext;
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::process::{Daemon, with_options};
use tailwind_e2e::processes::steps::{OUTAGE, append, primary};

use crate::access::tls_group;

/// The fabric plays no part in these.
const FABRIC: &str = "shm";

/// How processes know each other.
#[derive(Clone, Copy)]
enum Access {
    Token,
    Certificates,
}

macro_rules! with_either_access {
    ($($name:ident),* $(,)?) => {
        mod token {
            $(#[test]
            fn $name() {
                super::$name(super::Access::Token);
            })*
        }
        mod certificates {
            $(#[test]
            fn $name() {
                super::$name(super::Access::Certificates);
            })*
        }
    };
}

with_either_access!(
    a_reader_at_the_dead_primarys_address_is_not_the_primary,
    a_backup_at_the_dead_primarys_address_is_not_the_primary,
    a_sidecar_at_the_dead_primarys_address_takes_over,
    sidecars_that_swap_addresses_find_a_primary,
);

/// A group whose first sidecar leads, and whose second stands by.
struct Led {
    group: Group,
    end: u64,
    certificates: Option<(tempfile::TempDir, Authority)>,
}

impl Led {
    fn start(test: &TestContext, access: Access) -> Led {
        let (group, certificates) = match access {
            Access::Token => (test.group(FABRIC).unwrap(), None),
            Access::Certificates => {
                let (group, folder, authority) = tls_group(test, test.setup(FABRIC).unwrap());
                (group, Some((folder, authority)))
            }
        };
        let leads = |group: &Group| group.role(0) == "primary" && group.role(1) == "standby";
        group.wait("the first sidecar to lead", leads).unwrap();
        let end = append(&mut primary(&group).unwrap(), &test.input(), 0, 500).unwrap();
        Led { group, end, certificates }
    }

    /// By what others know a process of this name and role.
    fn access_of(&self, name: &str, role: &str) -> Vec<(&'static str, String)> {
        let Some((folder, authority)) = &self.certificates else {
            return vec![("--control-token", self.group.token_file().display().to_string())];
        };
        authority.issue(folder.path(), name, &format!("tailwind://demo/{role}/{name}")).unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        vec![
            ("--tls-ca", file("ca.pem")),
            ("--tls-cert", file(&format!("{name}.pem"))),
            ("--tls-key", file(&format!("{name}.key"))),
        ]
    }

    /// Somebody leads, and the group goes on.
    fn goes_on(&self, test: &TestContext) {
        append(&mut primary(&self.group).unwrap(), &test.input(), self.end, 100).unwrap();
        self.group.check_logs(&OUTAGE).unwrap();
    }
}

fn address(group: &Group, process: Process) -> String {
    format!("127.0.0.1:{}", group.port(process))
}

/// The same command with these options.
fn with(command: &Command, options: &[(&'static str, String)]) -> Command {
    with_options(command, options.iter().map(|(flag, value)| (*flag, value.as_str())))
}

fn a_reader_at_the_dead_primarys_address_is_not_the_primary(access: Access) {
    let test = TestContext::start();
    let mut led = Led::start(&test, access);
    led.group.kill_sidecar(0).unwrap();
    let mut reader = Daemon::new("feed", led.group.folder().join("feed.log"));
    let socket = led.group.folder().join("feed.sock");
    let mut command = Command::new(&led.group.setup().program);
    command.args(["run", "--reader", "--group", "demo", "--name", "feed", "--fabric", FABRIC]);
    command.args(["--listen", &address(&led.group, Process::Sidecar(0))]);
    command.arg("--socket").arg(socket).arg("--config").arg(led.group.config());
    reader.start(with(&command, &led.access_of("feed", "reader"))).unwrap();
    led.group.wait("the standby to lead", |group| group.role(1) == "primary").unwrap();
    led.goes_on(&test);
}

fn a_backup_at_the_dead_primarys_address_is_not_the_primary(access: Access) {
    let test = TestContext::start();
    let mut led = Led::start(&test, access);
    led.group.kill_sidecar(0).unwrap();
    let folder = |name| led.group.folder().join(name).display().to_string();
    let mut backup = Daemon::new("another", led.group.folder().join("another.log"));
    let mut options = led.access_of("another", "backup");
    options.extend([
        ("--name", "another".to_owned()),
        ("--listen", address(&led.group, Process::Sidecar(0))),
        ("--pool", folder("pool-of-another")),
        ("--flush-dir", folder("flush-of-another")),
    ]);
    backup.start(with(&led.group.backup_command(0), &options)).unwrap();
    led.group.wait("the standby to lead", |group| group.role(1) == "primary").unwrap();
    led.goes_on(&test);
}

/// The one sidecar that is left has another name now, and the address that the config store names.
fn a_sidecar_at_the_dead_primarys_address_takes_over(access: Access) {
    let test = TestContext::start();
    let mut led = Led::start(&test, access);
    led.group.kill_sidecar(0).unwrap();
    led.group.kill_sidecar(1).unwrap();
    let mut renamed = Daemon::new("renamed", led.group.folder().join("renamed.log"));
    let mut options = led.access_of("renamed", "sidecar");
    options.push(("--name", "renamed".to_owned()));
    renamed.start(with(&led.group.sidecar_command(0), &options)).unwrap();
    led.group.wait("it to lead", |group| group.role(0) == "primary").unwrap();
    let log = fs::read_to_string(led.group.folder().join("renamed.log")).unwrap();
    assert!(log.contains("this is sidecar renamed, not sidecar0"), "{log}");
    led.goes_on(&test);
}

fn sidecars_that_swap_addresses_find_a_primary(access: Access) {
    let test = TestContext::start();
    let mut led = Led::start(&test, access);
    let addresses = [0, 1].map(|index| address(&led.group, Process::Sidecar(index)));
    led.group.kill_sidecar(0).unwrap();
    led.group.kill_sidecar(1).unwrap();
    let mut swapped = [0, 1].map(|index| {
        let name = format!("swapped{index}");
        let mut daemon = Daemon::new(&name, led.group.folder().join(format!("{name}.log")));
        let command = led.group.sidecar_command(index);
        daemon.start(with_options(&command, [("--listen", &*addresses[1 - index])])).unwrap();
        daemon
    });
    led.group.wait("one to lead", |group| (0..2).any(|index| group.role(index) == "primary")).unwrap();
    append(&mut primary(&led.group).unwrap(), &test.input(), led.end, 100).unwrap();
    swapped.iter_mut().for_each(|daemon| daemon.kill().unwrap());
    led.group.check_logs(&OUTAGE).unwrap();
}
