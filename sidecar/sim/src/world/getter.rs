//! Getters: beside each sidecar that does not lead, production's [`Getter`] answers the gets of its apps out of members' mirrors.
//!
//! Carries out what the machine wants: control calls over the network of this world, one-sided reads by
//! [`reading`](super::reading). [`asking`](super::asking) has the apps, and what they are told.

mod fetching;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use tailwind_protocol::backup::Slot;
use tailwind_protocol::board::mirror::LINES_WITH_MIRROR;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::{Epoch, Lsn, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::table::getter::{GetId, Getter, Input, Output};

use super::asking::Apps;
use super::fabric::Key;
use super::host::Running;
use super::network::RPC_TIMEOUT;
use super::queue::{MS, Micros};
use super::reading::{BOARD, ReadFor};
use super::sidecar::Notice;
use super::{Event, HostNo, SidecarNo, World};
use crate::trace::trace;

/// Pause before a look is carried out, at most.
const LOOK_LATE_MAX: Micros = 20 * MS;
/// How long a card tries to read over a link that carries nothing.
const READ_RETRIES: Micros = 400 * MS;
/// Bytes of a bucket.
const BUCKET: u32 = 256;
/// More visits than one getter makes.
const VISITS_MAX: u64 = 1 << 32;

/// What a read of a getter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GetterRead {
    Look,
    /// The first or the second bucket of a get.
    Bucket(GetId, usize),
    Record(GetId),
}

/// What a getter asks of a backup's process.
#[derive(Clone, Debug)]
pub(crate) enum GetterAsk {
    /// Shares of the board and of the mirror.
    Connect,
    /// Shares of a segment, for these bytes of a get.
    Share(GetId, SegmentId, Range<u32>),
}

/// What reaches a getter.
#[derive(Clone, Debug)]
pub(crate) enum GetterNotice {
    Connected(Visit, Result<(Key, Vec<(Slot, Key)>), String>),
    /// A segment of a get is shared, with its epoch; or not in memory.
    Shared(Visit, GetId, SegmentId, Range<u32>, Option<(Slot, Key)>),
    Look(Visit),
    Read(Visit, GetterRead, Micros, Result<Vec<u8>, String>),
    Broken(Visit),
    Told(u64, Result<Lsn, String>),
    Wake,
}

/// A record that a getter fetches.
#[derive(Clone, Debug)]
pub(crate) struct GetterFetch {
    pub(super) visit: Visit,
    get: GetId,
    segment: SegmentId,
    bytes: Range<u32>,
    sources: Vec<HostNo>,
    /// Once an inventory has told it.
    copy: Option<(SegmentIdentity, Closure)>,
}

/// A getter, its visit, and its apps.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    pub(super) machine: Getter,
    pub(super) apps: Apps,
    /// What it has been told of: the latest epoch with a primary.
    pub(super) won: Epoch,
    pub(super) host: HostNo,
    visit: Visit,
    board: Key,
    parts: Vec<(Slot, Key)>,
    segments: BTreeMap<SegmentId, (Slot, Key)>,
    buckets: BTreeMap<GetId, [Option<Vec<u8>>; 2]>,
    wakes_at: Micros,
}

impl Elsewhere {
    pub(super) fn is_visit(&self, visit: Visit) -> bool {
        self.visit == visit
    }
}

impl World {
    /// A tick of a sidecar that does not lead: its apps get keys.
    pub(super) fn get_elsewhere(&mut self, of: SidecarNo) {
        if self.plan.mirrors.is_none() {
            return;
        }
        if self.sidecars[of.0].elsewhere.is_none() {
            self.getters += 1;
            let machine = Getter::new(of.0, Visit(self.getters * VISITS_MAX));
            let apps = self.new_apps();
            self.sidecars[of.0].elsewhere = Some(Box::new(Elsewhere {
                machine,
                apps,
                won: Epoch(0),
                host: HostNo(0),
                visit: Visit(0),
                board: Key(0),
                parts: Vec::new(),
                segments: BTreeMap::new(),
                buckets: BTreeMap::new(),
                wakes_at: 0,
            }));
        }
        if let Some(view) = self.sidecars[of.0].view.clone() {
            self.tell_getter(of, &view);
        }
        self.ask_elsewhere(of);
        self.getter_input(of, Input::Tick);
        self.judge_patience(of);
    }

    fn tell_getter(&mut self, of: SidecarNo, view: &Configuration) {
        if let Some(getting) = &mut self.sidecars[of.0].elsewhere {
            getting.won = getting.won.max(view.won);
        }
        self.getter_input(of, Input::Config(view));
    }

    pub(super) fn getter_input(&mut self, of: SidecarNo, input: Input<'_>) {
        let Some(mut getting) = self.sidecars[of.0].elsewhere.take() else { return };
        let now = Duration::from_micros(self.queue.now());
        let (mut out, mut answers) = (Vec::new(), Vec::new());
        getting.machine.step(now, input, &mut out, |get, answer| answers.push((get, super::asking::Told::of(&answer))));
        for (get, told) in answers {
            getting.buckets.remove(&get);
            self.judge_told(of, &mut getting, get, told);
        }
        let wake = getting.machine.wake_at().map(|at| at.as_micros() as Micros);
        if let Some(at) = wake.filter(|at| *at != getting.wakes_at) {
            getting.wakes_at = at;
            self.notify_getter(of, at.saturating_sub(self.queue.now()), GetterNotice::Wake);
        }
        self.sidecars[of.0].elsewhere = Some(getting);
        for output in out {
            self.execute_getter(of, output);
        }
    }

    fn notify_getter(&mut self, of: SidecarNo, after: Micros, notice: GetterNotice) {
        let life = self.sidecars[of.0].life;
        self.queue.plan(after, Event::Sidecar(of, life, Notice::Getter(notice)));
    }

    fn execute_getter(&mut self, of: SidecarNo, output: Output) {
        let life = self.sidecars[of.0].life;
        match output {
            Output::Ask(question) => {
                let delay = self.message_delay();
                self.queue.plan(delay, Event::AskPosition(of, life, question));
                self.notify_getter(of, RPC_TIMEOUT, GetterNotice::Told(question, Err("no answer in time".to_owned())));
                return;
            }
            Output::Connect(visit, _, member) => {
                let host = self.host_of(&member.id);
                let Some(getting) = &mut self.sidecars[of.0].elsewhere else { return };
                (getting.host, getting.visit) = (host, visit);
                getting.segments.clear();
                getting.buckets.clear();
                self.tally.visits += 1;
                let delay = self.message_delay();
                self.queue.plan(delay, Event::GetterAsk(of, life, visit, GetterAsk::Connect));
                return;
            }
            Output::Leave(_, why) => return trace!(self, "{} gets keys elsewhere: {why}", self.sidecars[of.0].name),
            _ => {}
        }
        let Some(getting) = &self.sidecars[of.0].elsewhere else { return };
        let host = getting.host;
        match output {
            Output::Look(visit) => {
                let late = self.random.below(LOOK_LATE_MAX);
                self.notify_getter(of, late, GetterNotice::Look(visit));
            }
            Output::Buckets(visit, get, at) => {
                let parts = at.map(|(part, at)| getting.parts.get(part as usize).map(|share| (*share, at)));
                let [Some(first), Some(second)] = parts else {
                    return self.notify_getter(of, 0, GetterNotice::Broken(visit));
                };
                self.begin_to_read_entries(of, get);
                for (nth, ((slot, key), at)) in [first, second].into_iter().enumerate() {
                    let reader = ReadFor::Getter(of, life, visit, GetterRead::Bucket(get, nth));
                    self.begin_read(host, slot, key, at..at + BUCKET, reader);
                }
            }
            Output::Record(visit, get, segment, bytes) => match getting.segments.get(&segment).copied() {
                Some((slot, key)) => {
                    let reader = ReadFor::Getter(of, life, visit, GetterRead::Record(get));
                    self.begin_read(host, slot, key, bytes, reader);
                }
                None => {
                    let delay = self.message_delay();
                    let ask = GetterAsk::Share(get, segment, bytes);
                    self.queue.plan(delay, Event::GetterAsk(of, life, visit, ask));
                }
            },
            Output::Fetch(visit, get, segment, bytes) => {
                let mut sources: Vec<HostNo> = self.hosts.iter().map(|host| host.no).collect();
                sources.sort_by_key(|no| *no == host);
                self.tally.got_fetched += 1;
                self.fetch_for_getter(of, GetterFetch { visit, get, segment, bytes, sources, copy: None });
            }
            Output::Ask(_) | Output::Connect(..) | Output::Leave(..) => {}
        }
    }

    /// A question of a getter has come to a backup's host.
    pub(super) fn on_getter_ask(&mut self, of: SidecarNo, life: u32, visit: Visit, ask: GetterAsk) {
        let sidecar = &self.sidecars[of.0];
        let Some(getting) = sidecar.elsewhere.as_ref().filter(|_| sidecar.life == life) else { return };
        let no = getting.host;
        if getting.visit != visit {
            return;
        }
        let up = self.cuts.is_whole(of, no) && self.hosts[no.0].running == Running::Up;
        let delay = if up { self.message_delay() } else { RPC_TIMEOUT };
        let notice = match ask {
            GetterAsk::Connect => {
                let shared = if up { self.share_for_getter(no) } else { None };
                GetterNotice::Connected(visit, shared.ok_or_else(|| "no board, or no answer".to_owned()))
            }
            GetterAsk::Share(get, segment, bytes) => {
                let asked = self.perhaps_another(no, segment);
                let shared = if up { self.share_for_record(no, asked) } else { None };
                GetterNotice::Shared(visit, get, segment, bytes, shared)
            }
        };
        self.notify_getter(of, delay, notice);
    }

    fn share_for_getter(&mut self, no: HostNo) -> Option<(Key, Vec<(Slot, Key)>)> {
        let board = self.share_promised_board(no)?;
        Some((board, self.share_parts(no)))
    }

    fn share_for_record(&mut self, no: HostNo, segment: SegmentId) -> Option<(Slot, Key)> {
        let machine = self.hosts[no.0].process.as_ref()?.daemon.machine();
        let (slot, ..) = machine.shareable(&[segment]).ok()?.pop()?;
        Some((slot, self.share_memory(no, slot)))
    }

    pub(super) fn on_getter_notice(&mut self, of: SidecarNo, notice: GetterNotice) {
        let life = self.sidecars[of.0].life;
        let Some(getting) = &mut self.sidecars[of.0].elsewhere else { return };
        let current = getting.visit;
        let is_now = |visit: Visit| visit == current;
        match notice {
            GetterNotice::Connected(visit, answer) => {
                if let (Ok((board, parts)), true) = (&answer, is_now(visit)) {
                    (getting.board, getting.parts) = (*board, parts.clone());
                }
                let answer = answer.as_ref().map(|_| ()).map_err(|why| &why[..]);
                self.getter_input(of, Input::Connected(visit, answer));
            }
            GetterNotice::Look(visit) if is_now(visit) => {
                let (host, board) = (getting.host, getting.board);
                self.note_look(host);
                let reader = ReadFor::Getter(of, life, visit, GetterRead::Look);
                self.begin_read(host, BOARD, board, LINES_WITH_MIRROR, reader);
            }
            GetterNotice::Shared(visit, get, segment, bytes, shared) if is_now(visit) => match shared {
                Some((slot, key)) => {
                    getting.segments.insert(segment, (slot, key));
                    let host = getting.host;
                    let reader = ReadFor::Getter(of, life, visit, GetterRead::Record(get));
                    self.begin_read(host, slot, key, bytes, reader);
                }
                None => self.getter_input(of, Input::Record(visit, get, None)),
            },
            GetterNotice::Read(visit, what, posted, Ok(bytes)) if is_now(visit) => match what {
                GetterRead::Look => {
                    self.getter_input(of, Input::Looked(visit, Duration::from_micros(posted), &bytes));
                }
                GetterRead::Bucket(get, nth) => {
                    let both = getting.buckets.entry(get).or_default();
                    both[nth] = Some(bytes);
                    if let [Some(first), Some(second)] = both {
                        let both = [&first[..], second].concat();
                        getting.buckets.remove(&get);
                        self.getter_input(of, Input::Buckets(visit, get, &both));
                    }
                }
                GetterRead::Record(get) => {
                    self.tally.got_records += 1;
                    self.getter_input(of, Input::Record(visit, get, Some(&bytes)));
                }
            },
            // The share of a segment has ended: it has left the memory, or the channel is over.
            GetterNotice::Read(visit, GetterRead::Record(get), _, Err(why)) if is_now(visit) => {
                getting.segments.clear();
                match self.random.one_in(2) {
                    true => self.getter_input(of, Input::Record(visit, get, None)),
                    false => self.getter_input(of, Input::Broken(visit, &why)),
                }
            }
            GetterNotice::Read(visit, _, _, Err(why)) => self.getter_input(of, Input::Broken(visit, &why)),
            GetterNotice::Broken(visit) => self.getter_input(of, Input::Broken(visit, "the read channel is over")),
            GetterNotice::Told(question, position) => {
                let position = position.as_ref().copied().map_err(|why| &why[..]);
                self.getter_input(of, Input::Told(question, position));
            }
            GetterNotice::Wake => self.getter_input(of, Input::Tick),
            // Of a visit that is over.
            GetterNotice::Look(_) | GetterNotice::Shared(..) | GetterNotice::Read(..) => {}
        }
    }

    /// A read over a link that carries nothing: the card gives up after a while.
    pub(super) fn break_getter(&mut self, of: SidecarNo, life: u32, visit: Visit) {
        let broken = Notice::Getter(GetterNotice::Broken(visit));
        self.queue.plan(READ_RETRIES, Event::Sidecar(of, life, broken));
    }

    /// A read of a getter has ended.
    pub(super) fn on_getter_read(
        &mut self,
        (of, life, visit): (SidecarNo, u32, Visit),
        what: GetterRead,
        (from, slot): (HostNo, Slot),
        posted: Micros,
        mut result: Result<Vec<u8>, String>,
    ) {
        if let Ok(bytes) = &mut result {
            self.perhaps_falsify(from, bytes);
            if let GetterRead::Record(get) = what {
                self.judge_record_read(of, visit, get, (from, self.segment_in(from, slot)));
            }
        }
        let notice = Notice::Getter(GetterNotice::Read(visit, what, posted, result));
        self.queue.plan(0, Event::Sidecar(of, life, notice));
    }
}
