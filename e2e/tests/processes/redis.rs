//! An unmodified Redis under `tailwind-exec` while everything around it dies: everything that it has answered is there
//! afterwards, once.
//!
//! Clients write all the while, and know what was answered: counters, which a lost or repeated write would show, and values
//! that are never used twice. They continue at whichever Redis serves.

use anyhow::Result;
use rustix::process::{Signal, kill_process};
use tailwind_e2e::context::{TestContext, is_privileged, rounds};
use tailwind_e2e::processes::exec::{Ended, TRIMMED_EARLY, first_child};
use tailwind_e2e::processes::exec_client::Client;
use tailwind_e2e::processes::exec_faults::{Fault, Service, check_health, setup, wait_until_whole};
use tailwind_e2e::processes::group::{Group, Setup};
use tailwind_e2e::processes::hosts::Hosts;
use tailwind_e2e::processes::redis::{Servers, Writer, info};
use tailwind_e2e::processes::resp::{RespClient, RespValue};

mod shm {
    use super::*;

    #[test]
    fn redis_loses_no_answered_write() {
        let setup = |test: &TestContext| setup(test, "shm", "256KiB");
        play(events().take(rounds(ROUNDS) as usize), setup, &[]);
    }
}

mod tcp {
    use super::*;

    #[test]
    fn redis_loses_no_answered_write() {
        let setup = |test: &TestContext| setup(test, "tcp", "256KiB");
        play(events().skip(ROUNDS as usize).take(rounds(ROUNDS) as usize), setup, TRIMMED_EARLY);
    }

    #[test]
    fn redis_loses_no_answered_write_with_its_host() {
        if !is_privileged("redis_loses_no_answered_write_with_its_host") {
            return;
        }
        let events = Fault::OF_HOSTS.into_iter().map(Event::Fault).cycle();
        let setup = |test: &TestContext| Hosts::provide(setup(test, "tcp", "256KiB")?);
        play(events.take(rounds(ROUNDS_OF_HOSTS) as usize), setup, &[]);
    }
}

/// Rounds of a test: two of them together play each event of processes once.
const ROUNDS: u64 = 6;
/// Rounds of the third one.
const ROUNDS_OF_HOSTS: u64 = 4;
/// Rounds with one group.
const ROUNDS_OF_A_GROUP: usize = 24;
/// Questions for how far a rewrite is, before something dies in its midst or soon after: some rewrites take longer, some less.
const LOOKS: u64 = 40;

/// What happens in a round.
#[derive(Clone, Copy, Debug)]
enum Event {
    Fault(Fault),
    /// SIGKILL to the child that rewrites the files.
    RewriteIsKilled,
    /// By its own command.
    RedisIsShutDown,
}

fn events() -> impl Iterator<Item = Event> + Clone {
    let others = [Event::RewriteIsKilled, Event::RedisIsShutDown];
    Fault::OF_PROCESSES.into_iter().map(Event::Fault).chain(others).cycle()
}

struct Fixture {
    clients: Vec<Client<Writer>>,
    servers: Servers,
    group: Group,
    /// Of `tailwind-exec`.
    options: &'static [&'static str],
    // Dropped last: the test's turn ends then.
    test: TestContext,
}

fn play(
    events: impl Iterator<Item = Event>,
    setup: impl Fn(&TestContext) -> Result<Setup>,
    options: &'static [&'static str],
) {
    let mut events = events.peekable();
    while events.peek().is_some() {
        let mut fixture = Fixture::start(&setup, options);
        events.by_ref().take(ROUNDS_OF_A_GROUP).for_each(|event| fixture.round(event));
        fixture.end();
    }
}

impl Fixture {
    fn start(setup: impl Fn(&TestContext) -> Result<Setup>, options: &'static [&'static str]) -> Fixture {
        let mut test = TestContext::start();
        let group = test.start_group(setup(&test).unwrap()).unwrap();
        let servers = Servers::start_under(&group, options).unwrap();
        // Two write one by one, two more at a time.
        let clients = [1, 1, 8, 32].into_iter().enumerate();
        let clients =
            clients.map(|(number, depth)| servers.client(&format!("client{number}"), test.random.next(), depth));
        Fixture { clients: clients.collect(), servers, group, options, test }
    }

    #[expect(clippy::print_stdout, reason = "a failing test shows what it did")]
    fn round(&mut self, event: Event) {
        let (primary, mut redis) = wait_until_whole(&self.group, &self.servers).unwrap();
        let more = self.test.random.below(300);
        wait_for_clients(&mut self.clients, 1 + more);
        self.start_a_rewrite(&mut redis, event);
        println!("{event:?} beside sidecar{primary}");
        let Fixture { clients, servers, group, test, .. } = self;
        match event {
            Event::Fault(fault) => {
                let load = || wait_for_clients(clients, 50);
                let injected = fault.inject(group, servers, primary, redis, &mut test.random, load);
                injected.unwrap_or_else(|error| panic!("{error:#}"));
            }
            Event::RewriteIsKilled => {
                let program = servers.containers.program(primary).unwrap();
                // Unless it has ended, or is waited for at this moment.
                if let Some(child) = first_child(program) {
                    let _ = kill_process(child, Signal::KILL);
                }
            }
            Event::RedisIsShutDown => shut_down(servers, primary, redis),
        }
        wait_for_clients(&mut self.clients, 50);
    }

    /// Has Redis rewrite its files, and returns at a random moment of that.
    fn start_a_rewrite(&mut self, redis: &mut RespClient, event: Event) {
        let needed = matches!(event, Event::RewriteIsKilled);
        let (command, field) = match self.test.random.below(4) {
            0 if !needed => return,
            1 => ("BGSAVE", "rdb_bgsave_in_progress"),
            _ => ("BGREWRITEAOF", "aof_rewrite_in_progress"),
        };
        let reply = redis.ask(&[command]).unwrap();
        // One may be on its way already: Redis begins some by itself.
        let begins = matches!(&reply, RespValue::Simple(text) if text.starts_with("Background"));
        assert!(begins || reply.is_error("ERR"), "{command}: {reply:?}");
        for _ in 0..self.test.random.below(LOOKS) {
            if info(redis, "persistence", field).unwrap() == "0" && needed {
                break;
            }
        }
    }

    /// A standby takes over from an orderly end with all that there was, and no process has done what a healthy one does not.
    fn end(mut self) {
        if self.options == TRIMMED_EARLY {
            let (primary, mut redis) = wait_until_whole(&self.group, &self.servers).unwrap();
            // The log has to have grown by more than twice the files.
            redis.ask(&["BGREWRITEAOF"]).unwrap();
            self.servers.containers.replace_standby_of_trimmed_log(&self.group, primary).unwrap();
        }
        for client in std::mem::take(&mut self.clients) {
            client.finish().unwrap_or_else(|error| panic!("{error:#}"));
        }
        let (primary, mut redis) = wait_until_whole(&self.group, &self.servers).unwrap();
        let before = digest(&mut redis);
        shut_down(&self.servers, primary, redis);
        self.group.kill_sidecar(primary).unwrap();
        let mut redis = self.servers.wait_until_serves(1 - primary).unwrap();
        assert_eq!(digest(&mut redis), before);

        check_health(&self.group, &self.servers.containers).unwrap();
    }
}

fn wait_for_clients(clients: &mut [Client<Writer>], more: u64) {
    for client in clients {
        client.wait_for(more).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

fn shut_down(servers: &Servers, index: usize, mut redis: RespClient) {
    let ends = servers.containers.ends(index);
    // Its reply is the end of the connection.
    let reply = redis.ask(&["SHUTDOWN"]);
    assert!(reply.is_err(), "{reply:?}");
    assert_eq!(servers.containers.wait_for_end(index, ends).unwrap(), Ended::Code(0));
}

/// What a Redis holds.
fn digest(redis: &mut RespClient) -> RespValue {
    redis.ask(&["DEBUG", "DIGEST"]).unwrap()
}

/// Without a sync no write is safe, and the clients must see that.
#[test]
fn clients_notice_lost_writes() {
    let mut test = TestContext::start();
    let group = test.group("shm").unwrap();
    let servers = Servers::start_with(&group, &["--appendfsync", "no"]).unwrap();
    let primary = group.wait_for_primary().unwrap();
    servers.wait_until_serves(primary).unwrap();
    let mut client = servers.client("client", test.random.next(), 1);
    client.wait_for(100).unwrap();
    let ends = servers.containers.ends(primary);
    servers.containers.signal(primary, Signal::KILL).unwrap();
    assert_eq!(servers.containers.wait_for_end(primary, ends).unwrap(), Ended::Signal(9));
    let error = client.finish().unwrap_err().to_string();
    assert!(error.contains("known is"), "{error}");
}
