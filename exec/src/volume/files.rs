//! What the supervisor knows of each file: which bytes may differ from the log's, and who may write. Pure.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;

use super::proc;
use crate::blocks::Blocks;
use crate::call::Thread;
use crate::ranges::Ranges;
use crate::record::Number;

/// One regular file that has a name, or had one until a moment ago.
pub(crate) struct File {
    pub(crate) inode: u64,
    /// For reading. It keeps the inode from being another file's.
    pub(crate) reader: OwnedFd,
    /// What the log has.
    pub(crate) blocks: Blocks,
    /// What may differ from that, beside what `writers` say.
    pub(crate) doubts: Ranges,
    pub(crate) writers: Writers,
    /// It may be changed by stores, at any time and without a call.
    pub(crate) mapped: bool,
    /// It was synced: the log has all bytes that were.
    pub(crate) synced: bool,
    /// It was never synced and has another name than the one it was made under.
    pub(crate) moved: bool,
    /// It has lost one of several names: events come under names that are not its own.
    pub(crate) ragged: bool,
    /// Why it cannot be followed any more.
    pub(crate) fault: Option<String>,
}

impl File {
    /// A file of which nothing is known but that it is there.
    pub(crate) fn new(inode: u64, reader: OwnedFd) -> File {
        let mut file = File::known(inode, reader, Blocks::default());
        file.suspect();
        file
    }

    /// A file that is as the log has it, and to which nobody writes.
    pub(crate) fn known(inode: u64, reader: OwnedFd, blocks: Blocks) -> File {
        File {
            inode,
            reader,
            blocks,
            doubts: Ranges::default(),
            writers: Writers::default(),
            mapped: false,
            synced: false,
            moved: false,
            ragged: false,
            fault: None,
        }
    }

    /// Any byte may differ, and anybody may write.
    pub(crate) fn suspect(&mut self) {
        self.doubts.add(Ranges::WHOLE);
        self.writers.look();
    }
}

/// The descriptors that may write to a file, and the position that each had when its file was last compared.
///
/// A `write` moves the position of its description forward and is not stopped. So what lies between two positions may differ,
/// as long as each description is watched by one descriptor at least, and every step back is known. A description that comes or
/// goes makes the whole file doubtful: its descriptor leaves the table before its last event is queued, so it may be gone
/// without either.
#[derive(Clone, Default, Debug)]
pub(crate) struct Writers {
    list: Vec<Watched>,
    look: bool,
    /// Positions to which a call that may not have run yet goes back.
    floors: Vec<(Thread, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    writer: proc::Writer,
    seen: u64,
}

impl Writers {
    /// The list may not be complete.
    pub(crate) fn must_look(&self) -> bool {
        self.look
    }

    /// A number may stand for another description.
    pub(crate) fn look(&mut self) {
        self.look = true;
    }

    /// Takes the descriptors that were found by a look, of this file. Each description was watched before, and its position was
    /// no lower than the lowest then; or the whole file is doubtful anyway.
    pub(crate) fn found(&mut self, found: impl Iterator<Item = proc::Writer>) {
        let seen = self.list.iter().map(|watched| watched.seen).min().unwrap_or(0);
        self.list = found.map(|writer| Watched { writer, seen }).collect();
        self.look = false;
    }

    /// Reads all positions, and adds to `doubts` what was written since they were read last. If a descriptor is gone, the
    /// writers have to be looked for again.
    pub(crate) fn advance(&mut self, doubts: &mut Ranges, mut info: impl FnMut(u32, i32) -> Option<proc::Info>) {
        let floor = self.floors.iter().map(|(_, floor)| *floor).min().unwrap_or(u64::MAX);
        self.list.retain_mut(|Watched { writer, seen }| {
            let now = info(writer.process, writer.descriptor)
                .filter(|now| now.writable && now.inode == writer.info.inode && now.mount == writer.info.mount);
            let Some(now) = now else {
                self.look = true;
                doubts.add(Ranges::WHOLE);
                return false;
            };
            if now.position < *seen {
                doubts.add(Ranges::WHOLE);
            }
            doubts.add(((*seen).min(floor), now.position));
            *seen = now.position;
            true
        });
    }

    /// A thread moves a position back to `target`, soon. The positions have been read just now.
    pub(crate) fn step_back(&mut self, thread: Thread, target: u64) {
        self.floors.push((thread, target));
        self.list.iter_mut().for_each(|watched| watched.seen = watched.seen.min(target));
    }

    /// The calls of a thread have run.
    pub(crate) fn settle(&mut self, thread: Thread) {
        // Whoever has not moved yet moves from there on.
        for (_, floor) in self.floors.extract_if(.., |(of, _)| *of == thread) {
            self.list.iter_mut().for_each(|watched| watched.seen = watched.seen.min(floor));
        }
    }
}

/// What calls that went on may bring about, until their threads are stopped again or have ended.
#[derive(Default, Debug)]
pub(crate) struct Effects(HashMap<Thread, Effect>);

/// Of one thread.
#[derive(Default, Debug)]
pub(crate) struct Effect {
    /// When the thread began: its number may be another one's by now.
    began: Option<u64>,
    /// Bytes that may be written.
    pub(crate) ranges: Vec<(Number, (u64, u64))>,
    /// Files with floors.
    pub(crate) stepped: BTreeSet<Number>,
    /// A file that only the program's memory names is cut.
    pub(crate) truncates: bool,
    /// A file is opened and cut: those that were opened since.
    pub(crate) opens: Option<BTreeSet<Number>>,
    /// A number may come to stand for another description.
    pub(crate) duplicates: bool,
}

impl Effects {
    /// The effect of a thread's calls since it was last stopped.
    pub(crate) fn of(&mut self, thread: Thread) -> &mut Effect {
        self.0.entry(thread).or_insert_with(|| Effect { began: proc::began(thread), ..Effect::default() })
    }

    /// What a thread's calls have brought about: it is stopped again.
    pub(crate) fn take(&mut self, thread: Thread) -> Option<Effect> {
        self.0.remove(&thread)
    }

    /// Threads that have ended.
    pub(crate) fn ended(&self) -> Vec<Thread> {
        let ended = |(thread, effect): (&Thread, &Effect)| (proc::began(*thread) != effect.began).then_some(*thread);
        self.0.iter().filter_map(ended).collect()
    }

    /// Of all threads that are not settled.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Effect> {
        self.0.values()
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Effect> {
        self.0.values_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
