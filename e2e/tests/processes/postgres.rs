//! PostgreSQL under `tailwind-exec` while everything around it dies: each committed transaction is there afterwards.
//!
//! Clients insert rows, and know which were committed, while pgbench loads the server.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::Result;
use rustix::process::Signal;
use tailwind_e2e::context::{TestContext, is_privileged, rounds};
use tailwind_e2e::processes::exec::Ended;
use tailwind_e2e::processes::exec_client::Client;
use tailwind_e2e::processes::exec_faults::{Fault, Service, check_health, setup, wait_until_whole};
use tailwind_e2e::processes::group::{Group, Setup};
use tailwind_e2e::processes::hosts::Hosts;
use tailwind_e2e::processes::postgres::{PostgresClient, Servers, Writer};
use tailwind_e2e::processes::process::run_to_end;

/// Rounds of a test.
const ROUNDS: u64 = 2;
/// Rounds of the test of hosts.
const ROUNDS_OF_HOSTS: u64 = 1;
/// Rounds with one group. Its log is never trimmed.
const ROUNDS_OF_A_GROUP: usize = 10;
/// Clients that write, beside pgbench.
const CLIENTS: usize = 2;

#[test]
fn committed_transactions_stay() {
    if !is_privileged("postgres: committed_transactions_stay") {
        return;
    }
    play(&Fault::OF_PROCESSES, ROUNDS, |test| setup(test, "shm", "1MiB"));
}

#[test]
fn committed_transactions_outlive_their_host() {
    if !is_privileged("postgres: committed_transactions_outlive_their_host") {
        return;
    }
    play(&Fault::OF_HOSTS, ROUNDS_OF_HOSTS, |test| Hosts::provide(setup(test, "tcp", "1MiB")?));
}

fn play(faults: &[Fault], default_rounds: u64, setup: impl Fn(&TestContext) -> Result<Setup>) {
    // Another one each time.
    let first = TestContext::start().random.below(faults.len() as u64) as usize;
    let mut faults = faults.iter().cycle().skip(first).take(rounds(default_rounds) as usize).peekable();
    while faults.peek().is_some() {
        let mut fixture = Fixture::start(&setup);
        faults.by_ref().take(ROUNDS_OF_A_GROUP).for_each(|fault| fixture.round(*fault));
        fixture.end();
    }
}

struct Fixture {
    clients: Vec<Client<Writer>>,
    servers: Servers,
    group: Group,
    // Dropped last: the test's turn ends then.
    test: TestContext,
}

impl Fixture {
    fn start(setup: impl Fn(&TestContext) -> Result<Setup>) -> Fixture {
        let mut test = TestContext::start();
        let mut setup = setup(&test).unwrap();
        setup.sidecar_options.push(("--allow-uid", "any".to_owned()));
        let mut group = Group::prepare(setup).unwrap();
        for folder in [group.folder(), group.memory(), &group.folder().join("logs")] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
        }
        group.start_all().unwrap();
        let servers = Servers::start(&group, &[]).unwrap();
        let (primary, mut connection) = wait_until_whole(&group, &servers).unwrap();
        let tables = "CREATE TABLE rows (client text, number bigint, text text, PRIMARY KEY (client, number));
            CREATE INDEX ON rows (md5(text));
            CREATE TABLE lasts (client text PRIMARY KEY, number bigint)";
        connection.rows(tables).unwrap();
        let ended = run_to_end(servers.tool("pgbench", primary).args(["--initialize", "postgres"])).unwrap();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let clients = (0..CLIENTS).map(|number| servers.client(&format!("client{number}"), test.random.next()));
        Fixture { clients: clients.collect(), servers, group, test }
    }

    #[expect(clippy::print_stdout, reason = "a failing test shows what it did")]
    fn round(&mut self, fault: Fault) {
        let (primary, connection) = wait_until_whole(&self.group, &self.servers).unwrap();
        let _bench = self.servers.bench(primary, self.group.folder().join("logs/pgbench.log")).unwrap();
        let more = self.test.random.below(100);
        wait_for_clients(&mut self.clients, 1 + more);
        let checkpoint = self.test.random.below(2) == 0;
        println!("{fault:?} beside sidecar{primary}, during a checkpoint: {checkpoint}");
        if checkpoint {
            self.servers.wait_until_serves(primary).unwrap().send("CHECKPOINT").unwrap();
        }
        let Fixture { clients, servers, group, test } = self;
        let load = || wait_for_clients(clients, 20);
        let injected = fault.inject(group, servers, primary, connection, &mut test.random, load);
        injected.unwrap_or_else(|error| panic!("{error:#}"));
        wait_for_clients(&mut self.clients, 20);
        let (_, mut connection) = wait_until_whole(&self.group, &self.servers).unwrap();
        let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches),
            (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)";
        let sums = connection.rows(sums).unwrap().remove(0);
        assert!(sums.iter().all(|sum| *sum == sums[0]), "transactions of pgbench are there in part: {sums:?}");
    }

    /// The standby takes over from an orderly end, every index and table is whole, and no process has done what a healthy one
    /// does not.
    fn end(mut self) {
        for client in std::mem::take(&mut self.clients) {
            client.finish().unwrap_or_else(|error| panic!("{error:#}"));
        }
        let (primary, _) = wait_until_whole(&self.group, &self.servers).unwrap();
        let containers = &self.servers.containers;
        let ends = containers.ends(primary);
        containers.signal(primary, Signal::INT).unwrap();
        assert_eq!(containers.wait_for_end(primary, ends).unwrap(), Ended::Code(0));
        self.group.kill_sidecar(primary).unwrap();
        let other = 1 - primary;
        let mut connection = self.servers.wait_until_serves(other).unwrap();
        let mut check = self.servers.tool("pg_amcheck", other);
        check.args(["--install-missing", "--heapallindexed", "postgres"]);
        let ended = run_to_end(&mut check).unwrap();
        assert!(ended.code == Some(0) && ended.out.is_empty(), "{ended:?}");
        self.clients_notice_lost_transactions(other, &mut connection);

        check_health(&self.group, containers).unwrap();
    }

    /// Where commits wait for no sync, the last ones are lost, and the clients must see that.
    fn clients_notice_lost_transactions(&self, primary: usize, connection: &mut PostgresClient) {
        for setting in ["synchronous_commit = off", "wal_writer_delay = '10s'"] {
            connection.rows(&format!("ALTER SYSTEM SET {setting}")).unwrap();
        }
        connection.rows("SELECT pg_reload_conf()").unwrap();
        let containers = &self.servers.containers;
        let is_off = || {
            let mut connection = self.servers.wait_until_serves(primary).unwrap();
            let shown = connection.rows("SHOW synchronous_commit").unwrap();
            (shown == [[Some("off".to_owned())]]).then_some(())
        };
        containers.wait("commits that wait for no sync", is_off).unwrap();
        let mut client = self.servers.client("careless", 1);
        client.wait_for(100).unwrap();
        let ends = containers.ends(primary);
        containers.signal(primary, Signal::KILL).unwrap();
        assert_eq!(containers.wait_for_end(primary, ends).unwrap(), Ended::Signal(9));
        let error = client.finish().unwrap_err().to_string();
        assert!(error.contains("known is"), "{error}");
    }
}

fn wait_for_clients(clients: &mut [Client<Writer>], more: u64) {
    for client in clients {
        client.wait_for(more).unwrap_or_else(|error| panic!("{error:#}"));
    }
}
