//! What the supervisor knows of each file: which bytes may differ from the log's, and who may write. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::proc;
use super::tree::At;
use crate::blocks::Blocks;
use crate::call::{Descriptor, Thread};
use crate::planted::{self, Bug};
use crate::ranges::Ranges;
use crate::record::Number;

/// From the event of an opening to its descriptor in the table there are a few instructions; but a thread may have to wait for a
/// processor among them. (An opening that cuts the file may wait for as long as it likes, and is stopped: see `Effect::opens`.)
const OPENING_TIME: Duration = Duration::from_secs(1);

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
    /// It has another name than the one it was made under, or was made without one. If it was never synced, all its bytes come
    /// with the name.
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

    /// Any byte may differ, and any process may write, or will in a moment: this may have been an opening.
    pub(crate) fn suspect(&mut self) {
        self.doubts.add(Ranges::WHOLE);
        self.writers.look();
        self.writers.opened = Some(Instant::now());
    }
}

/// The descriptors that may write to a file, and the position that each had when its file was last compared.
///
/// A `write` moves the position of its description forward and is not stopped. So what lies between two positions may differ,
/// as long as each description is watched by one descriptor at least, and every step back is known. A description that comes or
/// goes makes the whole file doubtful: its descriptor leaves the table before its last event is queued, so it may be gone
/// without either.
///
/// A call that opens a file tells of it before its descriptor is in the table. So for some time a look at the table is repeated
/// with each sync, and anything that it finds then makes the whole file doubtful.
#[derive(Clone, Default, Debug)]
pub(crate) struct Writers {
    list: Vec<Watched>,
    look: bool,
    /// When an opening was told last, unless a look has come after its end.
    opened: Option<Instant>,
    /// Positions that go back by calls that may not have run yet.
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    thread: Thread,
    /// Where to.
    target: u64,
    /// The lowest position from which it goes back, if others may write at it until then: once it has gone back, no position
    /// tells of what they wrote.
    shared: Option<u64>,
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

    /// Whether an opening may not have come to its end.
    pub(crate) fn is_opening(&self) -> bool {
        // Each of two guards would find what such a bug lets through, so it is without both.
        self.opened.is_some() && !planted::has(Bug::CutByOpenForgotten)
    }

    /// Whether each opening has come to its end by now, and this has not been looked at.
    pub(crate) fn has_opened(&self, now: Instant) -> bool {
        self.opened.is_some_and(|opened| now.saturating_duration_since(opened) >= OPENING_TIME)
    }

    /// Whether a thread's descriptor is watched.
    pub(crate) fn watches(&self, thread: Thread, descriptor: Descriptor) -> bool {
        let same = self.list.iter().filter(|watched| watched.writer.descriptor == descriptor.0);
        same.map(|watched| watched.writer.process)
            .any(|process| process == thread.0 || proc::is_thread_of(thread, process))
    }

    /// Processes of which this number is watched.
    pub(crate) fn processes_with(&self, descriptor: Descriptor) -> impl Iterator<Item = u32> {
        let same = self.list.iter().filter(move |watched| watched.writer.descriptor == descriptor.0);
        same.map(|watched| watched.writer.process)
    }

    /// Takes the descriptors of this file that a look has found which began at `began`. Each description was watched before, and
    /// its position was no lower than the lowest then; or the whole file is doubtful: if it is that of a late descriptor, from
    /// now on.
    pub(crate) fn found(&mut self, doubts: &mut Ranges, found: impl Iterator<Item = proc::Writer>, began: Instant) {
        let seen = self.list.iter().map(|watched| watched.seen).min().unwrap_or(0);
        let before = std::mem::replace(&mut self.list, found.map(|writer| Watched { writer, seen }).collect());
        self.look = false;
        let keys = |list: &[Watched]| -> HashSet<(u32, i32)> {
            list.iter().map(|Watched { writer, .. }| (writer.process, writer.descriptor)).collect()
        };
        let (before, now) = (keys(&before), keys(&self.list));
        // Closed, and its number another file's by now; or opened late.
        if !before.is_subset(&now) || self.is_opening() && !now.is_subset(&before) {
            doubts.add(Ranges::WHOLE);
        }
        if self.has_opened(began) {
            self.opened = None;
        }
    }

    /// Reads all positions, and adds to `doubts` what was written since they were read last. If a descriptor is gone, the
    /// writers have to be looked for again.
    pub(crate) fn advance(&mut self, doubts: &mut Ranges, mut info: impl FnMut(u32, i32) -> Option<proc::Info>) {
        let floor = self.steps.iter().map(|step| step.target).min().unwrap_or(u64::MAX);
        self.doubt_shared(doubts);
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

    /// A thread moves a position back to `target`, soon; from no lower than `shared`, if it is not the only one that may write at
    /// that position. The positions have been read just now.
    pub(crate) fn step_back(&mut self, thread: Thread, target: u64, shared: Option<u64>) {
        // Each of the other steps may come before this one, or after it.
        for from in self.steps.iter_mut().filter_map(|step| step.shared.as_mut()) {
            *from = target.min(*from);
        }
        let shared = shared.map(|from| self.steps.iter().map(|step| step.target).fold(from, u64::min));
        self.steps.push(Step { thread, target, shared });
        self.reach(target);
    }

    /// The calls of a thread have run.
    pub(crate) fn settle(&mut self, doubts: &mut Ranges, thread: Thread) {
        self.doubt_shared(doubts);
        // Whoever has not moved yet moves from there on.
        for Step { target, .. } in self.steps.extract_if(.., |step| step.thread == thread).collect::<Vec<_>>() {
            self.reach(target);
        }
    }

    /// Positions may be as low as this.
    fn reach(&mut self, target: u64) {
        self.list.iter_mut().for_each(|watched| watched.seen = watched.seen.min(target));
    }

    /// What others write at a position before it goes back.
    fn doubt_shared(&self, doubts: &mut Ranges) {
        if let Some(from) = self.steps.iter().filter_map(|step| step.shared).min() {
            doubts.add((from, u64::MAX));
        }
    }
}

/// Files of the volume's device that have no number, and that memory of the program is or was shared with: by the time they get
/// one, their inodes may be changed by stores.
#[derive(Default, Debug)]
pub(crate) struct MappedElsewhere {
    inodes: HashSet<u64>,
    /// They were too many.
    any: bool,
}

const MAPPED_ELSEWHERE_MAX: usize = 4096;

impl MappedElsewhere {
    pub(crate) fn add(&mut self, inode: u64) {
        self.inodes.insert(inode);
        if self.inodes.len() > MAPPED_ELSEWHERE_MAX {
            self.inodes.clear();
            self.any = true;
        }
    }

    pub(crate) fn has(&self, inode: u64) -> bool {
        self.any || self.inodes.contains(&inode)
    }
}

/// Names that files get by `link`, elsewhere perhaps: then nothing tells who opens them there, and once such a name is gone, nothing
/// tells of it at all. Those that come in the volume are seen to come.
#[derive(Default, Debug)]
pub(crate) struct Links {
    /// Calls that have run.
    pub(crate) made: usize,
    /// New names of known files.
    pub(crate) seen: usize,
    /// Names that have just been made, of files that nobody has looked at.
    pub(crate) created: HashSet<At>,
}

impl Links {
    /// Whether a name may have come elsewhere, with so many calls under way.
    pub(crate) fn may_be_elsewhere(&self, under_way: usize) -> bool {
        self.made + under_way > self.seen
    }

    /// All calls that have run are accounted for.
    pub(crate) fn settle(&mut self) {
        self.seen -= std::mem::take(&mut self.made).min(self.seen);
    }
}

/// What the calls that continued may change, until their threads are stopped again or have ended.
#[derive(Default, Debug)]
pub(crate) struct Effects {
    threads: HashMap<Thread, Effect>,
    /// How many were left when those that have ended were looked for last.
    left: usize,
}

/// Threads whose calls are not known to have run. Beyond that, and twice as many as the last time, those that have ended are
/// looked for.
const EFFECTS: usize = 64;

/// The effects of one thread.
#[derive(Default, Debug)]
pub(crate) struct Effect {
    /// When the thread began: its number may be another one's by now.
    began: Option<u64>,
    /// Bytes that may be written.
    pub(crate) ranges: Vec<(Number, (u64, u64))>,
    /// Files with floors.
    pub(crate) stepped: BTreeSet<Number>,
    /// Inodes of the volume's device that have no number, and may be written to or have a position go back.
    pub(crate) elsewhere: BTreeSet<u64>,
    /// A file that only the program's memory names is cut.
    pub(crate) truncates: bool,
    /// A file is opened and cut: those that were opened since.
    pub(crate) opens: Option<BTreeSet<Number>>,
    /// A number may come to stand for another description.
    pub(crate) duplicates: bool,
    /// Files get so many more names.
    pub(crate) links: usize,
}

impl Effect {
    /// Whether it may be in the midst of opening and cutting a file.
    pub(crate) fn is_opening(&self, number: Number) -> bool {
        self.opens.as_ref().is_some_and(|opens| opens.contains(&number))
    }
}

impl Effects {
    /// Whether a thread may be in the midst of opening and cutting a file.
    pub(crate) fn is_opening(&self, number: Number) -> bool {
        self.all().any(|effect| effect.is_opening(number))
    }

    /// Threads that are in the midst of it may have opened these.
    pub(crate) fn may_open(&mut self, numbers: impl Iterator<Item = Number> + Clone) {
        for opens in self.all_mut().filter_map(|effect| effect.opens.as_mut()) {
            opens.extend(numbers.clone());
        }
    }

    /// An inode gets a number.
    pub(crate) fn come(&mut self, inode: u64, number: Number) {
        for effect in self.all_mut().filter(|effect| effect.elsewhere.contains(&inode)) {
            effect.ranges.push((number, Ranges::WHOLE));
        }
    }

    /// An inode loses its number. It may come back under another one.
    pub(crate) fn leave(&mut self, inode: u64, number: Number) {
        for effect in self.all_mut() {
            if effect.ranges.iter().any(|(of, _)| *of == number) || effect.stepped.contains(&number) {
                effect.elsewhere.insert(inode);
            }
        }
    }

    /// Calls to `link` that may not have run yet.
    pub(crate) fn links(&self) -> usize {
        self.all().map(|effect| effect.links).sum()
    }

    /// The effect of a thread's calls since it was last stopped.
    pub(crate) fn of(&mut self, thread: Thread, infos: &mut proc::Infos) -> &mut Effect {
        self.threads.entry(thread).or_insert_with(|| Effect { began: infos.began(thread), ..Effect::default() })
    }

    /// What a thread's calls have brought about: it is stopped again.
    pub(crate) fn take(&mut self, thread: Thread) -> Option<Effect> {
        self.threads.remove(&thread)
    }

    /// Threads with such effects that have ended.
    pub(crate) fn ended(&self, which: impl Fn(&Effect) -> bool) -> Vec<Thread> {
        let has_ended = |thread: Thread, effect: &Effect| match proc::began(thread) {
            Ok(None) => true,
            // If it could not be read before, this may be the same thread.
            Ok(now) => effect.began.is_some() && now != effect.began,
            Err(_) => false,
        };
        let such = self.threads.iter().filter(|(_, effect)| which(effect));
        such.filter(|(thread, effect)| has_ended(**thread, effect)).map(|(thread, _)| *thread).collect()
    }

    /// The effects of all threads that are not settled.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Effect> {
        self.threads.values()
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Effect> {
        self.threads.values_mut()
    }

    /// Whether it is time to look for threads that have ended.
    pub(crate) fn are_many(&self) -> bool {
        self.threads.len() > EFFECTS.max(2 * self.left)
    }

    /// Threads that have ended are gone.
    pub(crate) fn looked(&mut self) {
        self.left = self.threads.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(descriptor: i32, position: u64) -> proc::Writer {
        let info = proc::Info { position, inode: 7, mount: 1, writable: true };
        proc::Writer { process: 1, descriptor, info }
    }

    #[test]
    fn what_others_write_before_a_step_back_is_in_doubt_until_it_has_run() {
        let mut writers = Writers::default();
        let doubted = |writers: &mut Writers| {
            let mut doubts = Ranges::default();
            writers.advance(&mut doubts, |_, _| None);
            doubts.iter().next()
        };
        writers.step_back(Thread(1), 10, None);
        assert_eq!(doubted(&mut writers), None, "nobody else writes");
        writers.step_back(Thread(2), 40, Some(100));
        assert_eq!(doubted(&mut writers), Some((10, u64::MAX)), "the first step may come before");
        writers.step_back(Thread(3), 5, Some(200));
        assert_eq!(doubted(&mut writers), Some((5, u64::MAX)), "or a later one");
        let mut doubts = Ranges::default();
        writers.settle(&mut doubts, Thread(3));
        writers.settle(&mut doubts, Thread(1));
        assert_eq!(doubted(&mut writers), Some((5, u64::MAX)), "and both have");
        writers.settle(&mut doubts, Thread(2));
        assert_eq!((doubted(&mut writers), doubts.iter().next()), (None, Some((5, u64::MAX))));
    }

    #[test]
    fn a_descriptor_that_is_found_late_makes_the_file_doubtful() {
        let now = Instant::now();
        let mut writers = Writers { opened: Some(now), ..Writers::default() };
        let find = |writers: &mut Writers, descriptors: &[i32], began| {
            let mut doubts = Ranges::default();
            writers.found(&mut doubts, descriptors.iter().map(|descriptor| writer(*descriptor, 100)), began);
            doubts.blocks(1, 100).size() == 100
        };
        assert!(find(&mut writers, &[3], now), "the first one");
        assert!(!find(&mut writers, &[3], now), "the same one");
        assert!(find(&mut writers, &[3, 4], now + OPENING_TIME / 2), "one that comes late");
        assert!(writers.is_opening() && !writers.has_opened(now + OPENING_TIME / 2));
        assert!(writers.has_opened(now + OPENING_TIME));
        assert!(find(&mut writers, &[3, 4, 5], now + OPENING_TIME), "and at the last look");
        assert!(!writers.is_opening());
    }
}
