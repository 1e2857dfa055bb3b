//! An unmodified Redis under `tailwind-exec` while everything around it dies: whatever it has answered is there afterwards, once.
//!
//! Clients write all the while, and know what was answered: counters, which a lost or repeated write would show, and values
//! that are never used twice. They go on at whichever Redis serves.

use rustix::process::{Pid, Signal, kill_process};
use tailwind_e2e::context::{TestContext, rounds};
use tailwind_e2e::processes::exec::{Ended, LOST};
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::redis::{Client, Servers, info};
use tailwind_e2e::processes::resp::{RespClient, RespValue};
use tailwind_e2e::processes::steps::{self, wait_for_standby};

mod shm {
    #[test]
    fn redis_loses_no_answered_write() {
        super::redis_loses_no_answered_write("shm", 0);
    }
}

mod tcp {
    #[test]
    fn redis_loses_no_answered_write() {
        super::redis_loses_no_answered_write("tcp", super::ROUNDS);
    }
}

/// Words of the warnings that a supervisor rightly writes when others die.
const OUTAGE: [&str; 2] = ["the program may not go on and is killed", "waits for the sidecar"];
/// Rounds of a test: with both fabrics, each fault once.
const ROUNDS: u64 = FAULTS.len() as u64 / 2;
/// Rounds with one group. Its log is never trimmed.
const ROUNDS_OF_A_GROUP: usize = 40;
/// Questions for how far a rewrite is, before something dies in its midst or soon after: some rewrites take longer, some less.
const LOOKS: u64 = 40;

/// What dies or stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    RedisIsKilled,
    SupervisorIsKilled,
    SidecarIsKilled,
    PodIsKilled,
    BackupIsKilled,
    StandbyIsKilled,
    SidecarIsFrozen,
    SupervisorIsFrozen,
    SupervisorIsFrozenAndSidecarKilled,
    RewriteIsKilled,
    RedisIsShutDown,
}

use Fault::*;

const FAULTS: [Fault; 12] = [
    RedisIsKilled,
    SidecarIsFrozen,
    SupervisorIsKilled,
    BackupIsKilled,
    SupervisorIsFrozen,
    SidecarIsKilled,
    RedisIsShutDown,
    RewriteIsKilled,
    SupervisorIsFrozenAndSidecarKilled,
    PodIsKilled,
    StandbyIsKilled,
    RedisIsKilled,
];

struct Fixture {
    clients: Vec<Client>,
    servers: Servers,
    group: Group,
    // Dropped last: the test's turn ends then.
    test: TestContext,
}

fn redis_loses_no_answered_write(fabric: &str, first: u64) {
    let rounds = first..first + rounds(ROUNDS);
    let mut left = rounds.map(|round| FAULTS[round as usize % FAULTS.len()]).peekable();
    while left.peek().is_some() {
        let mut fixture = Fixture::start(fabric);
        left.by_ref().take(ROUNDS_OF_A_GROUP).for_each(|fault| fixture.round(fault));
        fixture.end();
    }
}

impl Fixture {
    fn start(fabric: &str) -> Fixture {
        let mut test = TestContext::start();
        let group = test.start_group(test.setup_with_default_timeouts(fabric).unwrap()).unwrap();
        let servers = Servers::start(&group).unwrap();
        // Two write one by one, two more at a time.
        let clients = [1, 1, 8, 32].into_iter().enumerate();
        let clients =
            clients.map(|(number, depth)| servers.client(&format!("client{number}"), test.random.next(), depth));
        Fixture { clients: clients.collect(), servers, group, test }
    }

    #[expect(clippy::print_stdout, reason = "a failing test shows what it did")]
    fn round(&mut self, fault: Fault) {
        self.group.wait_for_full_set().unwrap();
        let primary = self.group.wait_for_primary().unwrap();
        let other = 1 - primary;
        wait_for_standby(&self.group, other, primary).unwrap();
        let mut redis = self.servers.wait_until_serves(primary).unwrap();
        let more = self.test.random.below(300);
        self.wait_for_clients(1 + more);
        self.start_a_rewrite(&mut redis, fault);
        let pid: i32 = info(&mut redis, "server", "process_id").unwrap().parse().unwrap();
        let redis_pid = Pid::from_raw(pid).unwrap();
        let before = self.servers.containers.ends(primary);
        let end = |fixture: &Fixture| fixture.servers.containers.wait_for_end(primary, before).unwrap();
        println!("{fault:?} beside sidecar{primary}");
        match fault {
            RedisIsKilled => {
                kill_process(redis_pid, Signal::KILL).unwrap();
                assert_eq!(end(self), Ended::Code(128 + 9));
            }
            SupervisorIsKilled => {
                self.servers.containers.signal(primary, Signal::KILL).unwrap();
                assert_eq!(end(self), Ended::Signal(9));
            }
            SidecarIsKilled => {
                self.group.kill_sidecar(primary).unwrap();
                assert_eq!(end(self), LOST);
                self.serves(other);
                self.group.start_sidecar(primary).unwrap();
            }
            PodIsKilled => {
                self.group.signal(Process::Sidecar(primary), Signal::STOP).unwrap();
                self.servers.containers.signal(primary, Signal::KILL).unwrap();
                self.group.kill_sidecar(primary).unwrap();
                assert_eq!(end(self), Ended::Signal(9));
                self.serves(other);
                self.group.start_sidecar(primary).unwrap();
            }
            BackupIsKilled => {
                let members = self.group.wait_for_full_set().unwrap();
                let victim = members[self.test.random.below(members.len() as u64) as usize];
                self.group.kill_backup(victim).unwrap();
                self.wait_for_clients(50);
                self.group.start_backup(victim).unwrap();
            }
            StandbyIsKilled => {
                let before = self.servers.containers.ends(other);
                self.servers.containers.signal(other, Signal::KILL).unwrap();
                self.group.kill_sidecar(other).unwrap();
                assert_eq!(self.servers.containers.wait_for_end(other, before).unwrap(), Ended::Signal(9));
                self.wait_for_clients(50);
                self.group.start_sidecar(other).unwrap();
            }
            SidecarIsFrozen => {
                self.group.freeze(Process::Sidecar(primary)).unwrap();
                self.serves(other);
                let stale = Stale::write(redis);
                self.group.signal(Process::Sidecar(primary), Signal::CONT).unwrap();
                stale.check();
                assert_eq!(end(self), LOST);
            }
            SupervisorIsFrozen => {
                self.servers.containers.freeze(primary).unwrap();
                let late = Stale::write(redis);
                self.servers.containers.signal(primary, Signal::CONT).unwrap();
                late.check_answered();
            }
            SupervisorIsFrozenAndSidecarKilled => {
                self.servers.containers.freeze(primary).unwrap();
                self.group.kill_sidecar(primary).unwrap();
                self.serves(other);
                let stale = Stale::write(redis);
                self.servers.containers.signal(primary, Signal::CONT).unwrap();
                stale.check();
                assert_eq!(end(self), LOST);
                self.group.start_sidecar(primary).unwrap();
            }
            RewriteIsKilled => {
                // The children that write are found by their parent.
                if let Some(child) = child_of(pid) {
                    let _ = kill_process(child, Signal::KILL);
                }
            }
            RedisIsShutDown => {
                // Its reply is the end of the connection.
                assert!(redis.ask(&["SHUTDOWN"]).is_err());
                assert_eq!(end(self), Ended::Code(0));
            }
        }
        self.wait_for_clients(50);
    }

    /// Has Redis write its files anew, and returns at a random moment of it.
    fn start_a_rewrite(&mut self, redis: &mut RespClient, fault: Fault) {
        let (command, field) = match self.test.random.below(4) {
            0 if fault != RewriteIsKilled => return,
            1 => ("BGSAVE", "rdb_bgsave_in_progress"),
            _ => ("BGREWRITEAOF", "aof_rewrite_in_progress"),
        };
        let reply = redis.ask(&[command]).unwrap();
        // One may be on its way already: Redis begins some by itself.
        let begins = matches!(&reply, RespValue::Simple(text) if text.starts_with("Background"));
        assert!(begins || reply.is_error("ERR"), "{command}: {reply:?}");
        for _ in 0..self.test.random.below(LOOKS) {
            if info(redis, "persistence", field).unwrap() == "0" && fault == RewriteIsKilled {
                break;
            }
        }
    }

    /// Waits until this one serves: it took over.
    fn serves(&self, index: usize) {
        self.servers.wait_until_serves(index).unwrap();
    }

    fn wait_for_clients(&mut self, more: u64) {
        for client in &mut self.clients {
            let waited = client.wait_for(more);
            waited.unwrap_or_else(|error| panic!("{error:#}"));
        }
    }

    /// A standby takes over from an orderly end with all that there was, and no process has done what a healthy one does not.
    fn end(mut self) {
        for client in std::mem::take(&mut self.clients) {
            client.finish().unwrap_or_else(|error| panic!("{error:#}"));
        }
        let primary = self.group.wait_for_primary().unwrap();
        let other = 1 - primary;
        let mut redis = self.servers.wait_until_serves(primary).unwrap();
        let before = digest(&mut redis);
        let ends = self.servers.containers.ends(primary);
        wait_for_standby(&self.group, other, primary).unwrap();
        assert!(redis.ask(&["SHUTDOWN"]).is_err());
        assert_eq!(self.servers.containers.wait_for_end(primary, ends).unwrap(), Ended::Code(0));
        self.group.kill_sidecar(primary).unwrap();
        let mut redis = self.servers.wait_until_serves(other).unwrap();
        assert_eq!(digest(&mut redis), before);

        self.group.check_logs(&steps::OUTAGE).unwrap();
        self.servers.containers.check_logs(&OUTAGE).unwrap();
        for index in 0..2 {
            let expected = [Ended::Code(0), Ended::Code(128 + 9), Ended::Signal(9), LOST];
            let ended = self.servers.containers.ended(index);
            assert!(ended.iter().all(|end| expected.contains(end)), "redis{index} has ended so: {ended:?}");
        }
    }
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

/// What a Redis holds.
fn digest(redis: &mut RespClient) -> RespValue {
    redis.ask(&["DEBUG", "DIGEST"]).unwrap()
}

/// A write that was sent to a Redis which cannot have it acknowledged.
struct Stale {
    redis: RespClient,
}

impl Stale {
    fn write(mut redis: RespClient) -> Stale {
        redis.send(&["INCR", "stale"]).unwrap();
        Stale { redis }
    }

    /// It is not answered, other than by the end of the connection.
    fn check(mut self) {
        if let Ok(reply) = self.redis.reply() {
            panic!("a Redis answered {reply:?} after another one had answered writes");
        }
    }

    fn check_answered(mut self) {
        let reply = self.redis.reply().unwrap();
        assert!(matches!(reply, RespValue::Integer(_)), "{reply:?}");
    }
}

/// A child of a process, from proc(5).
fn child_of(pid: i32) -> Option<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}
