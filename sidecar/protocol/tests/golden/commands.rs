//! The commands of the scripts.
//!
//! Nothing moves by itself: appends and messages wait until a command delivers them, `settle` moves all until it is quiet,
//! `wait` lets time pass. Names: `m1`, `m2`, … are backups, `s1`, `s2`, … are sidecars.

use std::error::Error;

use goldenscript::ArgumentConsumer;
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{Lsn, MemberId, SegmentId, SidecarId};

use crate::world::{Loss, Mood, Options, Role, Tear, World, tale};

/// Milliseconds between two ticks.
const TICK_MS: u64 = 50;

/// Plays one script.
#[derive(Default)]
pub(crate) struct Stage {
    world: Option<World>,
}

type Told = Result<(), Box<dyn Error>>;

impl goldenscript::Runner for Stage {
    type Command = goldenscript::Command;

    fn run(&mut self, command: &Self::Command, _: &goldenscript::Context) -> Result<String, Box<dyn Error>> {
        let mut args = command.consume_args();
        if command.name == "start" {
            self.world = Some(start(&mut args)?);
        }
        let world = self.world.as_mut().ok_or("the first command is `start`")?;
        play(world, &command.name, &mut args)?;
        args.reject_next()?;
        world.check();
        Ok(world.story())
    }
}

fn start(args: &mut ArgumentConsumer<'_>) -> Result<World, Box<dyn Error>> {
    let default = Options::default();
    let durability = match args.take_key("durability") {
        None | Some("memory") => Durability::Memory,
        Some("flushed") => Durability::Flushed,
        Some(other) => return Err(format!("no durability {other}").into()),
    };
    Ok(World::new(Options {
        backups: number(args, "backups")?.unwrap_or(default.backups),
        spares: number(args, "spares")?.unwrap_or(default.spares),
        sidecars: number(args, "sidecars")?.unwrap_or(default.sidecars),
        min_in_sync: number(args, "min")?.unwrap_or(default.min_in_sync),
        slots: number(args, "slots")?.unwrap_or(default.slots),
        durability,
    }))
}

fn play(world: &mut World, command: &str, args: &mut ArgumentConsumer<'_>) -> Told {
    match command {
        "start" => settled_start(world, args),
        "promote" => world.promote(&sidecar(args)?),
        "settle" => world.settle(),
        "wait" => wait(world, args)?,
        "tick" => world.tick(TICK_MS),
        "append" => append(world, args)?,
        "batch" => batch(world, args)?,
        "deliver" => deliver(world, args)?,
        "land" => world.show(&member(args)?),
        "messages" => messages(world, args)?,
        "lose" => lose(world, args)?,
        "repeat" => repeat(world, args)?,
        "store" => store(world, args)?,
        "call" => drop(world.move_call()),
        "flush" => while world.move_flush(None) {},
        "crash" => crash(world, args)?,
        "restart" => restart(world, args)?,
        "pause" => world.sidecar_mut(&sidecar(args)?).paused = true,
        "resume" => world.resume(&sidecar(args)?),
        "cut" => drop({
            let pair = (sidecar(args)?, member(args)?);
            world.cuts.insert(pair)
        }),
        "heal" => world.cuts.clear(),
        "scrub" => world.host_mut(&member(args)?).scrub(),
        "look" => world.look(&sidecar(args)?),
        "flip" => flip(world, args)?,
        "disk" => disk(world, args)?,
        "stingy" => stingy(world, args)?,
        "shutdown" => shutdown(world, args)?,
        "trim" => {
            let (name, below) = (sidecar(args)?, args.next_pos().ok_or("an LSN")?.parse()?);
            world.trim(&name, Lsn(below));
        }
        "inventory" => inventory(world, args)?,
        "status" => status(world, args)?,
        "read" => read(world, args)?,
        other => return Err(format!("no command `{other}`").into()),
    }
    Ok(())
}

fn number<T: std::str::FromStr>(args: &mut ArgumentConsumer<'_>, key: &str) -> Result<Option<T>, Box<dyn Error>>
where
    T::Err: Error + 'static,
{
    Ok(args.take_key(key).map(|value| value.parse()).transpose()?)
}

fn sidecar(args: &mut ArgumentConsumer<'_>) -> Result<SidecarId, Box<dyn Error>> {
    Ok(args.next_pos().ok_or("a sidecar's name")?.parse()?)
}

fn member(args: &mut ArgumentConsumer<'_>) -> Result<MemberId, Box<dyn Error>> {
    Ok(args.next_pos().ok_or("a backup's name")?.parse()?)
}

/// `start … primary=s1`: the group runs already.
fn settled_start(world: &mut World, args: &mut ArgumentConsumer<'_>) {
    if let Some(primary) = args.take_key("primary").and_then(|name| name.parse().ok()) {
        world.promote(&primary);
        world.settle();
    }
}

fn wait(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let ms: u64 = args.next_pos().ok_or("milliseconds")?.parse()?;
    for _ in 0..ms.div_ceil(TICK_MS) {
        world.tick(TICK_MS);
        world.settle();
    }
    Ok(())
}

/// `append s1 a b c [size=15000]`: three appends, padded with dots.
fn append(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let (name, size) = (sidecar(args)?, number(args, "size")?.unwrap_or(0));
    for payload in payloads(args, size) {
        world.append(&name, vec![payload]);
    }
    Ok(())
}

/// `batch s1 a b c`: one append of three records.
fn batch(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let (name, size) = (sidecar(args)?, number(args, "size")?.unwrap_or(0));
    let batch = payloads(args, size);
    world.append(&name, batch);
    Ok(())
}

fn payloads(args: &mut ArgumentConsumer<'_>, size: usize) -> Vec<Vec<u8>> {
    let texts = std::iter::from_fn(|| args.next_pos().map(str::to_owned));
    let padded = texts.map(|text| {
        let length = size.max(text.len());
        let mut payload = text.into_bytes();
        payload.resize(length, b'.');
        payload
    });
    padded.collect()
}

/// `deliver`: all writes land. `deliver m1 [from=s1] [count=1] [unseen=true | early=true | bytes=40 | lines="0 2"]
/// [older=1]`: `older` writes that have not landed are left lying; what completes early is visible after `land m1`.
fn deliver(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let from: Option<SidecarId> = args.take_key("from").map(|name| name.parse()).transpose()?;
    let (unseen, early) = (args.take_key("unseen").is_some(), args.take_key("early").is_some());
    let tear = match (number(args, "bytes")?, args.take_key("lines")) {
        (Some(bytes), _) => Tear::Bytes(bytes),
        (_, Some(lines)) => Tear::Lines(lines.split(' ').map(str::parse).collect::<Result<_, _>>()?),
        _ if unseen => Tear::Unseen,
        _ if early => Tear::Early,
        _ => Tear::Whole,
    };
    let partial = matches!(tear, Tear::Bytes(_) | Tear::Lines(_));
    let count = number(args, "count")?.unwrap_or(if partial { 1 } else { usize::MAX });
    let older = number(args, "older")?.unwrap_or(0);
    let to: Vec<MemberId> = std::iter::from_fn(|| args.next_pos()).map(str::parse).collect::<Result<_, _>>()?;
    let pairs = world.pairs_with_writes();
    let wanted = |pair: &&(SidecarId, MemberId)| {
        (to.is_empty() || to.contains(&pair.1)) && from.as_ref().is_none_or(|from| *from == pair.0)
    };
    for (from, to) in pairs.iter().filter(wanted) {
        for _ in 0..count {
            if !world.land_beyond(older, from, to, &tear) {
                break;
            }
        }
    }
    Ok(())
}

/// `messages [m1] [count=1]`: control messages arrive.
fn messages(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let count = number(args, "count")?.unwrap_or(usize::MAX);
    let to: Option<MemberId> = args.next_pos().map(str::parse).transpose()?;
    for _ in 0..count {
        if !world.move_message(to.as_ref()) {
            break;
        }
    }
    Ok(())
}

/// `lose m1 [answer=true]`: the oldest control message to m1, or the answer to it, gets lost.
fn lose(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let (to, answer) = (member(args)?, args.take_key("answer").is_some());
    let lost = if answer { world.lose_answer(Some(&to)) } else { world.lose_message(Some(&to)) };
    let name = lost.ok_or("nothing is on its way")?;
    world.tell(format!("the {}{name} to {to} is lost", if answer { "answer to the " } else { "" }));
    Ok(())
}

/// `repeat m1 open [nth=0]`: the last such message that was sent to m1 (or an earlier one) arrives once more.
fn repeat(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let (to, name) = (member(args)?, args.next_pos().ok_or("a request")?.to_owned());
    let nth = number(args, "nth")?.unwrap_or(0);
    if !world.repeat(&to, &name, nth) {
        return Err(format!("no {name} was sent to {to}").into());
    }
    Ok(())
}

/// `store down`: no answers; `mute`: it does what is asked, and the answer gets lost; `empty`: it is another store.
fn store(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    world.store.mood = match args.next_pos().ok_or("well, down, mute or empty")? {
        "empty" => {
            world.empty_store();
            Mood::Well
        }
        "well" => Mood::Well,
        "down" => Mood::Down,
        "mute" => Mood::Mute,
        other => return Err(format!("no mood {other}").into()),
    };
    Ok(())
}

/// `crash s1 m2 … [after=3]`: processes die, and what a sidecar had posted with it; a backup perhaps only after so many
/// more of its outputs.
fn crash(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let after: Option<u32> = number(args, "after")?;
    while let Some(name) = args.next_pos() {
        if name.starts_with('s') {
            world.crash_sidecar(&name.parse()?);
            world.lose_writes(&name.parse()?);
            continue;
        }
        let host = world.host_mut(&name.parse()?);
        match after {
            Some(outputs) => host.fuse = Some(outputs),
            None => host.kill(),
        }
    }
    Ok(())
}

/// `restart m1 … [memory=lost | disk=lost]`: without its disk it has lost its memory too.
fn restart(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let lost = match (args.take_key("memory"), args.take_key("disk")) {
        (_, Some(_)) => Loss::All,
        (Some(_), _) => Loss::Memory,
        _ => Loss::Nothing,
    };
    while let Some(name) = args.next_pos() {
        if name.starts_with('s') {
            world.sidecar_mut(&name.parse()?).become_role(Role::Standby);
            continue;
        }
        let id: MemberId = name.parse()?;
        let before = world.host(&id).boot;
        world.start_host(&id, lost);
        let identity = if world.host(&id).boot == before { "the same identity" } else { "a new identity" };
        let told = format!("{name} is back with {identity}");
        world.tell(told);
    }
    Ok(())
}

/// `flip m1 segment=1 offset=100`.
fn flip(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let name = member(args)?;
    let segment = SegmentId(number(args, "segment")?.ok_or("a segment")?);
    let offset = number(args, "offset")?.ok_or("an offset")?;
    let place = world.host_mut(&name).flip(segment, offset);
    world.tell(format!("a bit flips in {place} of {name}, segment {segment}, byte {offset}"));
    Ok(())
}

/// `disk m1 full` or `disk m1 free`.
fn disk(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let name = member(args)?;
    world.host_mut(&name).disk.full = args.next_pos() == Some("full");
    Ok(())
}

/// `stingy m1` or `stingy m1 no`: the pool has no memory to lend.
fn stingy(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let name = member(args)?;
    world.host_mut(&name).stingy = args.next_pos() != Some("no");
    Ok(())
}

fn shutdown(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    while let Some(name) = args.next_pos() {
        world.shut_down(&name.parse()?);
    }
    Ok(())
}

fn inventory(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    while let Some(name) = args.next_pos() {
        let host = world.host(&name.parse()?);
        let told = match host.machine() {
            Some(machine) => tale::inventory(&machine.inventory()),
            None => format!("{name} is down"),
        };
        world.tell(told);
    }
    Ok(())
}

fn status(world: &mut World, args: &mut ArgumentConsumer<'_>) -> Told {
    let name = sidecar(args)?;
    let sidecar = world.sidecar(&name);
    let mut lines = Vec::new();
    match &sidecar.role {
        Role::Down => lines.push(format!("{name} is down")),
        Role::Standby => lines.push(format!("{name} is standby")),
        Role::Candidate(_) => lines.push(format!("{name} is candidate")),
        Role::Primary(lead) => {
            let (p, config) = (lead.machine.positions(), lead.machine.config());
            let set = tale::names(config.members.iter().map(|member| &member.id));
            lines.push(format!(
                "{name}: epoch {}, version {}, set {set}; flushed {} ≤ acked {} ≤ completed {} ≤ posted {} ≤ appended {}",
                config.epoch, config.version, p.flushed, p.acked, p.completed, p.posted, p.appended
            ));
        }
    }
    lines.into_iter().for_each(|line| world.tell(line));
    Ok(())
}

/// `read`: everything that was acknowledged or read so far.
fn read(world: &mut World, _: &mut ArgumentConsumer<'_>) -> Told {
    let told = world.owed();
    world.tell(told);
    Ok(())
}
