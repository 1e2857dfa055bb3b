//! `exec`: unmodified programs under `tailwind-exec`, beside the same programs without it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tailwind_e2e::processes::exec::Containers;
use tailwind_e2e::processes::process::exec_program;
use tailwind_e2e::processes::redis::Servers;

use self::sqlite::Shell;
use crate::load::{Connection, closed_loop};
use crate::machine;
use crate::ours::{Ours, Shape};
use crate::peers::{Peer, redis, version};
use crate::results::{Contestant, Figures, Metric};
use crate::run::Run;

mod sqlite;
mod takeover;

pub(crate) const ABOUT: &str = "Programs as Debian has them, under `tailwind-exec` with a group of 3 backups, and the same programs \
    alone. Redis has `appendfsync always`: it answers the writes of one turn of its loop after it has written and synced its \
    file. A client sets a value of 128 B as soon as the last one is answered; one thread drives them all. *Redis, WAIT 2* has no \
    file, and two replicas. SQLite's shell, in WAL mode with `synchronous=FULL`, commits one row after the other, from \
    statements that lie ready. For the takeover the primary's sidecar, `tailwind-exec` and Redis are killed (SIGKILL) when the \
    file has 100 MiB, and a client sends a SET to the other Redis every millisecond until one is answered.";

pub(crate) const SHM: &str = "tailwind-exec shm";
pub(crate) const TCP: &str = "tailwind-exec tcp";
pub(crate) const WAIT: &str = "Redis, WAIT 2";
pub(crate) const MEMORY: &str = "alone, in memory";
pub(crate) const DISK: &str = "alone, on a disk";

pub(crate) const ONE_CLIENT: &str = "Redis, SET: 1 client";
pub(crate) const MANY_CLIENTS: &str = "Redis, SET: 50 clients";
pub(crate) const COMMITS: &str = "SQLite, commits";
pub(crate) const TAKEOVER: &str = "Redis, takeover: file of 100 MiB";

const SIZE: usize = 128;
const COPIES: usize = 3;

/// Redis, with what it runs in.
enum Redis {
    Alone(redis::Alone),
    Replicated(Box<dyn Peer>),
    Under { servers: Servers, _ours: Box<Ours> },
}

impl Redis {
    fn connection(&self) -> Result<Box<dyn Connection>> {
        match self {
            Redis::Alone(alone) => redis::synced(alone.port),
            Redis::Replicated(peer) => peer.connection(),
            Redis::Under { servers, .. } => redis::synced(servers.ports()[0]),
        }
    }

    /// Lets go of what was written.
    fn rest(&self) -> Result<()> {
        match self {
            Redis::Alone(alone) => redis::rewrite(alone.port),
            Redis::Replicated(peer) => peer.rest(),
            Redis::Under { servers, .. } => redis::rewrite(servers.ports()[0]),
        }
    }
}

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let memory = run.options.memory.clone();
    let mut programs: Vec<(&str, Redis)> = Vec::new();
    let mut shells: Vec<(&str, Shell)> = Vec::new();
    for (name, fabric) in [(SHM, "shm"), (TCP, "tcp")] {
        run.say(format!("starting {name}"));
        let ours = Ours::start(name, &run.program, &memory, &Shape::new(fabric, COPIES))?;
        let servers = Servers::start_with(&ours.group, &["--auto-aof-rewrite-percentage", "0"])?;
        servers.containers.wait("Redis to serve", || redis::synced(servers.ports()[0]).ok().map(drop))?;
        run.enter(under(name, &ours)?);
        programs.push((name, Redis::Under { servers, _ours: Box::new(ours) }));
        let ours = Ours::start(name, &run.program, &memory, &Shape::new(fabric, COPIES))?;
        shells.push((name, Shell::under(ours)?));
    }
    let replicated = redis::start(&memory)?;
    run.enter(Contestant { name: WAIT.to_owned(), ..replicated.contestant() });
    programs.push((WAIT, Redis::Replicated(replicated)));
    let disk = std::env::temp_dir();
    for (name, folder) in [(MEMORY, &memory), (DISK, &disk)] {
        if name == DISK && machine::is_in_memory(&disk) {
            run.absent(DISK, format!("{} is in memory: name a folder on a disk by TMPDIR", disk.display()));
            continue;
        }
        let alone = redis::start_alone(folder)?;
        let shell = Shell::alone(folder)?;
        run.enter(Contestant {
            name: name.to_owned(),
            version: format!("{}; SQLite {}", first_words(&alone.version), sqlite::version()?),
            claim: if name == DISK { "on this disk" } else { "in the memory of this machine alone" }.to_owned(),
            configuration: options(),
        });
        programs.push((name, Redis::Alone(alone)));
        shells.push((name, shell));
    }
    run.rounds(|run| {
        for (case, clients) in [(ONE_CLIENT, 1), (MANY_CLIENTS, 50)] {
            for (name, program) in &programs {
                run.say(format!("{name}, {case}"));
                let mut connections = (0..clients).map(|_| program.connection()).collect::<Result<Vec<_>>>()?;
                let measured = closed_loop(&mut connections, 1, &[b'x'; SIZE], run.time());
                let measured = measured.with_context(|| format!("{name}, {case}"))?;
                run.note(name, case, None, measured.figures());
                program.rest().with_context(|| format!("{name}, after {case}"))?;
            }
        }
        for (name, shell) in &mut shells {
            run.say(format!("{name}, {COMMITS}"));
            let rate = shell.commit_for(run.time()).with_context(|| format!("{name}, {COMMITS}"))?;
            run.note(name, COMMITS, None, Figures::from([(Metric::Rate, rate)]));
        }
        run.say(TAKEOVER);
        let figures = takeover::run(&run.program, &memory).context(TAKEOVER)?;
        run.note(SHM, TAKEOVER, None, figures);
        Ok(())
    })
}

/// How a program that is followed stands in the report.
fn under(name: &str, ours: &Ours) -> Result<Contestant> {
    let sidecar = ours.contestant();
    Ok(Contestant {
        name: name.to_owned(),
        version: version(&exec_program()?, "--version"),
        claim: format!("{}, and in the memory of the primary's own", sidecar.claim),
        configuration: format!("{}; {}", options(), sidecar.configuration),
    })
}

fn options() -> String {
    format!("Redis: {}. SQLite: {}", redis::ALWAYS.join(" ").replace("--save  ", "--save '' "), sqlite::MODE)
}

fn first_words(version: &str) -> String {
    version.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// `tailwind-exec` beside the sidecars of a group, with the command that a directory makes.
fn follow(name: &'static str, ours: &Ours, command: impl Fn(&Path) -> Vec<OsString>) -> Result<Containers> {
    Containers::start(name, &ours.group, &[], |_, directory: &Path| command(directory))
}

/// A file of the group's folder for what its logs are not.
fn beside(ours: &Ours, file: &str) -> PathBuf {
    ours.group.folder().join(file)
}
