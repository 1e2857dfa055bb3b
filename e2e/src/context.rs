//! What every test begins with: its turn, its seed, and how to replay it if it fails.
//!
//! Used by the tests in `tests/`.

use std::io::Write;
use std::process::Command;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;

use crate::processes::group::{Group, Setup};
use crate::processes::process::program;
use crate::workload::{Numbered, Random};

/// Tests at once. A group has some eight processes; most of the time of most tests they wait for one another's deadlines.
const TURNS: usize = 6;
/// Longest record: some 400 records fill a segment of 64 KiB.
const LENGTH_MAX: u64 = 200;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// A test that has got its turn. Prints how to replay it if it fails.
#[derive(Debug)]
pub struct TestContext {
    seed: u64,
    /// Randomness made from the seed.
    pub random: Random,
}

impl TestContext {
    /// Waits for its turn. The seed is `TAILWIND_SEED`, or drawn from the clock.
    pub fn start() -> TestContext {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        while *running >= TURNS {
            running = ENDED.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        *running += 1;
        let seed = number_from("TAILWIND_SEED").unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            since.as_nanos() as u64 % 1_000_000_000
        });
        TestContext { seed, random: Random(seed) }
    }

    /// Records made from the seed.
    pub fn input(&self) -> Numbered {
        Numbered { seed: self.seed, length_max: LENGTH_MAX }
    }

    /// Other records, made from the next random number.
    pub fn next_input(&mut self) -> Numbered {
        Numbered { seed: self.random.next(), ..self.input() }
    }

    /// The usual setup over a fabric, with time-outs so long that no busy machine is taken for a dead one.
    pub fn setup(&self, fabric: &str) -> Result<Setup> {
        let mut setup = Setup::new(program()?, fabric);
        let timeouts = ["--heartbeat-silence-ms", "--fence-wait-ms", "--rpc-timeout-ms"];
        setup.sidecar_options = timeouts.map(|flag| (flag, "10000".to_owned())).to_vec();
        // Which takes a third of what an idle group costs.
        setup.sidecar_options.push(("--heartbeat-interval-ms", "100".to_owned()));
        Ok(setup)
    }

    /// A setup with the default time-outs, for tests in which any process may be primary or a member. Over verbs it runs in
    /// an emulated machine, ten times slower than its host, and waits longer.
    pub fn setup_with_default_timeouts(&self, fabric: &str) -> Result<Setup> {
        let mut setup = Setup::new(program()?, fabric);
        if fabric == "verbs" {
            let timeouts =
                [("--heartbeat-silence-ms", "3000"), ("--fence-wait-ms", "1500"), ("--rpc-timeout-ms", "10000")];
            setup.sidecar_options = timeouts.map(|(flag, value)| (flag, value.to_owned())).to_vec();
        }
        Ok(setup)
    }

    /// A group with the usual setup, every member in the set.
    pub fn group(&self, fabric: &str) -> Result<Group> {
        self.start_group(self.setup(fabric)?)
    }

    /// A group, every member in the set.
    pub fn start_group(&self, setup: Setup) -> Result<Group> {
        let group = Group::start(setup)?;
        group.wait_for_full_set()?;
        Ok(group)
    }
}

impl Drop for TestContext {
    #[allow(clippy::print_stderr, reason = "tests report to people")]
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
        if std::thread::panicking() {
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            eprintln!("replay: TAILWIND_SEED={} cargo test -p tailwind-e2e {test}", self.seed);
        }
    }
}

/// Excludes all other tests that ask for it: those that share virtual machines or a cluster.
pub fn exclusive() -> MutexGuard<'static, ()> {
    static EXCLUSIVE: Mutex<()> = Mutex::new(());
    EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rounds of a random test: `TAILWIND_ROUNDS`, or else `default`.
pub fn rounds(default: u64) -> u64 {
    number_from("TAILWIND_ROUNDS").unwrap_or(default)
}

/// Rounds of a test of which each is the same as the last one but for chance: as [`rounds`], but a third of them every day
/// (`TAILWIND_EVERY_DAY`, which `./check` sets; it runs all of them by turns).
pub fn repeats(default: u64) -> u64 {
    let every_day = std::env::var_os("TAILWIND_EVERY_DAY").is_some();
    rounds(if every_day { default.div_ceil(3) } else { default })
}

/// True when this user may do what only root may. Otherwise says so where `./check` finds it.
pub fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        cannot_run(test, "needs root");
    }
    root
}

/// True when this user may also mount file systems and make namespaces and links: root may in a virtual machine, and in most
/// containers may not. Otherwise says so where `./check` finds it.
pub fn is_privileged(test: &str) -> bool {
    if !is_root(test) {
        return false;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "sh", "-c", "mount -t tmpfs tmpfs /mnt && ip link set lo up"]);
    let problem = match command.output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    cannot_run(test, &format!("needs a virtual machine or a privileged container: {problem}"));
    false
}

/// Says that a test cannot run here.
pub fn cannot_run(test: &str, why: &str) {
    print_line(&format!("cannot run: {test}: {why}"));
}

/// Prints what a test has measured.
pub fn note(line: &str) {
    print_line(&format!("note: {line}"));
}

/// Past the test harness, which would swallow it: see `CONTRIBUTING.md`.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Makes three tests of each function that takes the name of a fabric: `shm::name`, `tcp::name` and `verbs::name`. The
/// last needs an RDMA device: `./check` runs it in a virtual machine that has one.
#[macro_export]
macro_rules! on_every_fabric {
    ($($name:ident),* $(,)?) => {
        mod shm {
            $(#[test]
            fn $name() {
                super::$name("shm");
            })*
        }
        mod tcp {
            $(#[test]
            fn $name() {
                super::$name("tcp");
            })*
        }
        mod verbs {
            $(#[test]
            #[ignore = "needs an RDMA device"]
            fn $name() {
                super::$name("verbs");
            })*
        }
    };
}
