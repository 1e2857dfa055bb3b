//! The commands of the scripts: what [`ScriptedGroup`] can do, in words.

use std::error::Error;
use std::str::FromStr;

use goldenscript::ArgumentConsumer;
use tailwind_protocol::config::{Durability, Kind};
use tailwind_sim::plan::Shape;
use tailwind_sim::scripted::{Loss, ScriptedGroup, StoreState, Tear};

/// Milliseconds of a `tick`.
const TICK_MS: u64 = 50;

/// Plays one script.
#[derive(Default)]
pub(crate) struct Script {
    group: Option<ScriptedGroup>,
}

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

impl goldenscript::Runner for Script {
    type Command = goldenscript::Command;

    fn run(&mut self, command: &Self::Command, _: &goldenscript::Context) -> Result<String> {
        let mut args = command.consume_args();
        if command.name == "start" {
            self.group = Some(start(&mut args)?);
        }
        let group = self.group.as_mut().ok_or("the first command is `start`")?;
        play(group, &command.name, &mut args)?;
        args.reject_next()?;
        Ok(group.story())
    }
}

/// `start [backups=3] … [primary=s1]`: with a primary the group runs already.
fn start(args: &mut ArgumentConsumer<'_>) -> Result<ScriptedGroup> {
    let default = Shape::default();
    let durability = match args.take_key("durability") {
        None | Some("memory") => Durability::Memory,
        Some("flushed") => Durability::Flushed,
        Some(other) => return Err(format!("no durability {other}").into()),
    };
    let mut group = ScriptedGroup::new(Shape {
        backups: number(args, "backups")?.unwrap_or(default.backups),
        spares: number(args, "spares")?.unwrap_or(default.spares),
        sidecars: number(args, "sidecars")?.unwrap_or(default.sidecars),
        min_in_sync: number(args, "min")?.unwrap_or(default.min_in_sync),
        slots: number(args, "slots")?.unwrap_or(default.slots),
        flush_bytes_max: number(args, "flush_bytes")?,
        durability,
        pulls: args.take_key("pulls").is_some(),
        kind: if args.take_key("table").is_some() { Kind::Table } else { Kind::Log },
    });
    if let Some(primary) = args.take_key("primary") {
        group.promote(primary)?;
        group.settle();
    }
    Ok(group)
}

fn play(group: &mut ScriptedGroup, command: &str, args: &mut ArgumentConsumer<'_>) -> Result {
    match command {
        "start" => {}
        "promote" => group.promote(name(args)?)?,
        // `stand-by s2`: it judges its primary. From then on it is never quiet: `run MS` instead of `settle`.
        "stand-by" => group.stand_by(name(args)?)?,
        "run" => group.run_for(name(args)?.parse()?),
        "settle" => group.settle(),
        "wait" => group.wait(name(args)?.parse()?),
        // `tick [MS]`.
        "tick" => group.tick(args.next_pos().map(str::parse).transpose()?.unwrap_or(TICK_MS)),
        // `append s1 a b c [size=15000]`: three appends, padded with dots.
        "append" => {
            let (sidecar, size) = (name(args)?, number(args, "size")?.unwrap_or(0));
            for payload in payloads(args, size) {
                group.append(sidecar, vec![payload])?;
            }
        }
        // `batch s1 a b c`: one append of three records.
        "batch" => {
            let (sidecar, size) = (name(args)?, number(args, "size")?.unwrap_or(0));
            group.append(sidecar, payloads(args, size))?;
        }
        // `apply s1 put/a/1 delete/b require/c@0 put/d@7/2 [size=3000] [count=1]`: so many requests, each of which puts a, deletes b,
        // requires that c is absent, and puts d only if it has revision 7. Values are padded with dots.
        "apply" => {
            let (sidecar, size) = (name(args)?, number(args, "size")?.unwrap_or(0));
            let count = number(args, "count")?.unwrap_or(1);
            let operations: Vec<&str> = std::iter::from_fn(|| args.next_pos()).collect();
            for _ in 0..count {
                group.apply(sidecar, &operations, size)?;
            }
        }
        // `key a`: what the log says of it, as far as it is acknowledged.
        "key" => {
            while let Some(key) = args.next_pos() {
                group.key(key);
            }
        }
        "deliver" => deliver(group, args)?,
        // What was delivered early can be seen.
        "land" => group.show(name(args)?)?,
        // `messages [m1] [count=1]`: requests arrive.
        "messages" => {
            let count = number(args, "count")?.unwrap_or(usize::MAX);
            group.messages(args.next_pos(), count)?;
        }
        // `lose m1 [answer=true]`: the oldest request to m1, or the answer to it, gets lost.
        "lose" => group.lose(name(args)?, args.take_key("answer").is_some())?,
        // `repeat m1 open [nth=0]`: the last such request that was sent to m1, or an earlier one, arrives once more.
        "repeat" => {
            let nth = number(args, "nth")?.unwrap_or(0);
            group.repeat(name(args)?, name(args)?, nth)?;
        }
        "store" => group.store(match name(args)? {
            "well" => StoreState::Well,
            "down" => StoreState::Down,
            "mute" => StoreState::Mute,
            "empty" => StoreState::Empty,
            other => return Err(format!("no store is {other}").into()),
        }),
        "call" => group.call(),
        "flush" => group.flush(),
        // `crash s1 m2 … [after=3]`: a backup perhaps only after so many more of its outputs.
        "crash" => {
            let after = number(args, "after")?;
            while let Some(process) = args.next_pos() {
                group.crash(process, after)?;
            }
        }
        // `restart m1 … [memory=lost | disk=lost]`: without its disk it has lost its memory too.
        "restart" => {
            let loss = match (args.take_key("memory"), args.take_key("disk")) {
                (_, Some(_)) => Loss::All,
                (Some(_), _) => Loss::Memory,
                _ => Loss::Nothing,
            };
            while let Some(process) = args.next_pos() {
                group.restart(process, loss)?;
            }
        }
        "pause" => group.pause(name(args)?)?,
        "resume" => group.resume(name(args)?)?,
        "cut" => group.cut(name(args)?, name(args)?)?,
        // `cut-backups m1 m2`.
        "cut-backups" => group.cut_backups(name(args)?, name(args)?)?,
        // `pull [count=1]`: steps of pulls.
        "pull" => group.pull(number(args, "count")?.unwrap_or(usize::MAX)),
        "heal" => group.heal(),
        "scrub" => group.scrub(name(args)?)?,
        // `flip m1 segment=1 offset=100`.
        "flip" => {
            let segment = number(args, "segment")?.ok_or("a segment")?;
            let offset = number(args, "offset")?.ok_or("an offset")?;
            group.flip(name(args)?, segment, offset)?;
        }
        // `disk m1 full` or `disk m1 free`; `pool m1 empty` or `pool m1 free`: a backup's disk has no room, its pool no memory.
        "disk" => group.disk(name(args)?, name(args)? == "full")?,
        "pool" => group.pool(name(args)?, name(args)? == "empty")?,
        // `sync s1`: its app wants everything on disk. `recover-from-disk`: a person orders it.
        "sync" => group.sync(name(args)?)?,
        "recover-from-disk" => group.recover_from_disk(),
        "shutdown" => {
            while let Some(backup) = args.next_pos() {
                group.shut_down(backup)?;
            }
        }
        "trim" => group.trim(name(args)?, name(args)?.parse()?)?,
        "inventory" => {
            while let Some(backup) = args.next_pos() {
                group.inventory(backup)?;
            }
        }
        "status" => group.status(name(args)?)?,
        // `read s1`: its app reads on. `read`: everything that was acknowledged or read so far.
        "read" => match args.next_pos() {
            Some(sidecar) => group.read_back(sidecar)?,
            None => group.read(),
        },
        other => return Err(format!("no command `{other}`").into()),
    }
    Ok(())
}

fn number<T: FromStr<Err: Error + 'static>>(args: &mut ArgumentConsumer<'_>, key: &str) -> Result<Option<T>> {
    Ok(args.take_key(key).map(str::parse).transpose()?)
}

/// The next argument, mostly the name of a backup or a sidecar.
fn name<'a>(args: &mut ArgumentConsumer<'a>) -> Result<&'a str> {
    Ok(args.next_pos().ok_or("one more argument")?)
}

fn payloads(args: &mut ArgumentConsumer<'_>, size: usize) -> Vec<Vec<u8>> {
    let texts = std::iter::from_fn(|| args.next_pos());
    let padded = texts.map(|text| {
        let mut payload = text.as_bytes().to_vec();
        payload.resize(size.max(text.len()), b'.');
        payload
    });
    padded.collect()
}

/// `deliver`: all writes land. `deliver m1 [from=s1] [count=1] [unseen=true | early=true | bytes=40 | lines="0 2"]
/// [older=1]`: `older` writes that have not landed are left lying; what completes early is visible after `land m1`.
fn deliver(group: &mut ScriptedGroup, args: &mut ArgumentConsumer<'_>) -> Result {
    let from = args.take_key("from");
    let (unseen, early) = (args.take_key("unseen").is_some(), args.take_key("early").is_some());
    let tear = match (number(args, "bytes")?, args.take_key("lines")) {
        (Some(bytes), _) => Tear::Bytes(bytes),
        (_, Some(lines)) => Tear::Lines(lines.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?),
        _ if unseen => Tear::Unseen,
        _ if early => Tear::Early,
        _ => Tear::Whole,
    };
    let partial = matches!(tear, Tear::Bytes(_) | Tear::Lines(_));
    let count = number(args, "count")?.unwrap_or(if partial { 1 } else { usize::MAX });
    let older = number(args, "older")?.unwrap_or(0);
    let to: Vec<&str> = std::iter::from_fn(|| args.next_pos()).collect();
    Ok(group.deliver(from, &to, &tear, count, older)?)
}
