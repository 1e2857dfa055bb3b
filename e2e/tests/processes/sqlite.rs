//! SQLite under `tailwind-exec` while everything around it dies: each committed transaction is there afterwards, the last one too.
//!
//! The service is `sqlite_service.py` beside this file. Its clients write rows in transactions, each in many tables that come and
//! go, and know which were committed, while the database is vacuumed and its log is written back.

use anyhow::Result;
use rustix::process::Signal;
use serde_json::json;
use tailwind_e2e::context::{TestContext, is_privileged, rounds};
use tailwind_e2e::processes::exec::{Ended, TRIMMED_EARLY};
use tailwind_e2e::processes::exec_client::Client;
use tailwind_e2e::processes::exec_faults::{Fault, Service, check_health, setup, wait_until_whole};
use tailwind_e2e::processes::group::{Group, Setup};
use tailwind_e2e::processes::hosts::Hosts;
use tailwind_e2e::processes::sqlite::{Mode, Services, Writer};

/// Rounds of a test: three of them together play nearly each fault of processes once.
const ROUNDS: u64 = 3;
/// Rounds of the fourth one.
const ROUNDS_OF_HOSTS: u64 = 4;
/// Rounds with one group.
const ROUNDS_OF_A_GROUP: usize = 24;
/// Clients that write.
const CLIENTS: usize = 2;

const WAL: Mode = Mode { journal: "WAL", synchronous: "FULL" };
const DELETE: Mode = Mode { journal: "DELETE", synchronous: "EXTRA" };
const TRUNCATE: Mode = Mode { journal: "TRUNCATE", synchronous: "EXTRA" };

#[test]
fn committed_rows_stay_in_wal_mode() {
    let setup = |test: &TestContext| setup(test, "tcp", "256KiB");
    play(faults().take(rounds(ROUNDS) as usize), setup, WAL, TRIMMED_EARLY);
}

#[test]
fn committed_rows_stay_where_journals_are_deleted() {
    let faults = faults().skip(ROUNDS as usize);
    play(faults.take(rounds(ROUNDS) as usize), |test| setup(test, "shm", "256KiB"), DELETE, &[]);
}

#[test]
fn committed_rows_stay_where_journals_are_truncated() {
    let faults = faults().skip(2 * ROUNDS as usize);
    play(faults.take(rounds(ROUNDS) as usize), |test| setup(test, "shm", "256KiB"), TRUNCATE, TRIMMED_EARLY);
}

#[test]
fn committed_rows_outlive_their_host() {
    if !is_privileged("committed_rows_outlive_their_host") {
        return;
    }
    let setup = |test: &TestContext| Hosts::provide(setup(test, "tcp", "256KiB")?);
    play(Fault::OF_HOSTS.into_iter().cycle().take(rounds(ROUNDS_OF_HOSTS) as usize), setup, WAL, &[]);
}

struct Fixture {
    clients: Vec<Client<Writer>>,
    services: Services,
    group: Group,
    /// Of `tailwind-exec`.
    options: &'static [&'static str],
    // Dropped last: the test's turn ends then.
    test: TestContext,
}

fn faults() -> impl Iterator<Item = Fault> {
    Fault::OF_PROCESSES.into_iter().cycle()
}

fn play(
    faults: impl Iterator<Item = Fault>,
    setup: impl Fn(&TestContext) -> Result<Setup>,
    mode: Mode,
    options: &'static [&'static str],
) {
    let mut faults = faults.peekable();
    while faults.peek().is_some() {
        let mut fixture = Fixture::start(&setup, mode, options);
        faults.by_ref().take(ROUNDS_OF_A_GROUP).for_each(|fault| fixture.round(fault));
        fixture.end();
    }
}

impl Fixture {
    fn start(setup: impl Fn(&TestContext) -> Result<Setup>, mode: Mode, options: &'static [&'static str]) -> Fixture {
        let mut test = TestContext::start();
        let group = test.start_group(setup(&test).unwrap()).unwrap();
        let services = Services::start_under(&group, options, mode).unwrap();
        let clients = (0..CLIENTS).map(|number| services.client(&format!("client{number}"), test.random.next()));
        Fixture { clients: clients.collect(), services, group, options, test }
    }

    #[expect(clippy::print_stdout, reason = "a failing test shows what it did")]
    fn round(&mut self, fault: Fault) {
        let (primary, connection) = wait_until_whole(&self.group, &self.services).unwrap();
        let more = self.test.random.below(30);
        wait_for_clients(&mut self.clients, 1 + more);
        // The fault comes in the midst of it, or soon after.
        let request = match self.test.random.below(3) {
            0 => json!(["vacuum"]),
            1 => json!(["pragma", "wal_checkpoint(TRUNCATE)"]),
            _ => json!(["pragma", "incremental_vacuum"]),
        };
        let waits = self.test.random.below(2) == 0;
        println!("{fault:?} beside sidecar{primary} during {request}, which is waited for: {waits}");
        let mut second = self.services.wait_until_serves(primary).unwrap();
        second.send(&request).unwrap();
        if waits {
            second.reply().unwrap().unwrap();
        }
        let Fixture { clients, services, group, test, .. } = self;
        let load = || wait_for_clients(clients, 10);
        let injected = fault.inject(group, services, primary, connection, &mut test.random, load);
        injected.unwrap_or_else(|error| panic!("{error:#}"));
        wait_for_clients(&mut self.clients, 10);
        let (_, mut connection) = wait_until_whole(&self.group, &self.services).unwrap();
        assert_eq!(connection.integrity().unwrap(), json!([["ok"]]));
    }

    /// The directory beside the standby has everything, it takes over from an orderly end with that, and no process has done what
    /// a healthy one does not.
    fn end(mut self) {
        if self.options == TRIMMED_EARLY {
            let (primary, _) = wait_until_whole(&self.group, &self.services).unwrap();
            self.services.containers.replace_standby_of_trimmed_log(&self.group, primary).unwrap();
        }
        let clients = std::mem::take(&mut self.clients).into_iter().enumerate();
        let lasts = clients.map(|(number, client)| {
            let writer = client.finish().unwrap_or_else(|error| panic!("{error:#}"));
            format!("client{number}|{}\n", writer.last())
        });
        let expected = format!("ok\n{}", lasts.collect::<String>());
        let (primary, _) = wait_until_whole(&self.group, &self.services).unwrap();
        let other = 1 - primary;
        let same = || {
            let copy = tempfile::tempdir().unwrap();
            // It fails while the files are being changed.
            (self.services.check_copy(other, copy.path()).ok()? == expected).then_some(())
        };
        self.services.containers.wait("the standby to have every row", same).unwrap();

        let containers = &self.services.containers;
        let ends = containers.ends(primary);
        containers.signal(primary, Signal::TERM).unwrap();
        assert_eq!(containers.wait_for_end(primary, ends).unwrap(), Ended::Code(0));
        self.group.kill_sidecar(primary).unwrap();
        let mut connection = self.services.wait_until_serves(other).unwrap();
        assert_eq!(connection.integrity().unwrap(), json!([["ok"]]));

        check_health(&self.group, containers).unwrap();
    }
}

fn wait_for_clients(clients: &mut [Client<Writer>], more: u64) {
    for client in clients {
        client.wait_for(more).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// Without syncs no transaction is safe, and the clients must see that.
#[test]
fn clients_notice_lost_rows() {
    let mut test = TestContext::start();
    let group = test.group("shm").unwrap();
    let services = Services::start(&group, Mode { journal: "DELETE", synchronous: "OFF" }).unwrap();
    let primary = group.wait_for_primary().unwrap();
    services.wait_until_serves(primary).unwrap();
    let mut client = services.client("client", test.random.next());
    client.wait_for(100).unwrap();
    let ends = services.containers.ends(primary);
    services.containers.signal(primary, Signal::KILL).unwrap();
    assert_eq!(services.containers.wait_for_end(primary, ends).unwrap(), Ended::Signal(9));
    let error = client.finish().unwrap_err().to_string();
    assert!(error.contains("known is"), "{error}");
}
