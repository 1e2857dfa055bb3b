//! The primary's state machine: how far each member is, what is acknowledged, when segments roll, which members are in the set.
//!
//! Driven by the sidecar's append path (and by the simulator). The path calls the small functions ([`Primary::appended`],
//! [`Primary::next_post`], [`Primary::completed`], [`Primary::acked`]) for each record or batch; they allocate nothing.
//! Everything slower comes in as an [`Input`] to [`Primary::step`] and goes out as [`Output`]s.
//!
//! Files, in the order in which data meets them: [`segments`] (the open end of the log), [`seats`] (members and how far
//! they are), [`membership`] (losing and gaining members), [`joining`] (pauses in which a newcomer catches up), [`syncing`]
//! (on disk at every member), [`repair`] (corrupt closed copies), [`sources`] (where images come from), [`lanes`] (what waits for what), [`board`] (what readers
//! are told), [`hearsay`] (what backups say of later epochs). See "The primary" in `docs/protocol.md`.

mod board;
mod hearsay;
mod joining;
mod lanes;
mod membership;
mod refusals;
mod repair;
mod requests;
mod seats;
mod segments;
mod sources;
mod syncing;

use std::collections::VecDeque;

use crate::config::{Configuration, Durability, MEMBERS_MAX, MemberRef, Swap, SwapOutcome, Time};
use crate::ids::{Epoch, Lsn, MemberId, Offset, Position, SegmentId};
use crate::layout::{Closure, SegmentIdentity, SegmentSize};
use crate::planted::{self, Bug};
use crate::recovery::Reference;
use crate::rpc::{CopyReport, Failure, Inventory, SyncPoint};

pub use board::{BEAT_INTERVAL, PUBLISH_INTERVAL, Publication, Seats};
pub use lanes::{INSTALLS_MAX, REPAIRS_AT_ONCE};
pub use repair::REPAIRS_MAX;
pub use seats::{Membership, Post, Seat};

use board::Board;
use hearsay::Hearsay;
use joining::Joining;
use lanes::Lanes;
use membership::Search;
use refusals::Refusals;
use seats::{Member, Stall};
use segments::Segments;
use syncing::Syncing;

/// Work requests in flight to one member. More only deepens the queue: one request carries everything appended since.
pub const INFLIGHT_MAX: usize = 32;

/// The part of these that only the lines of a board may take: appends that take every place as it becomes free would keep the
/// board as it is, for as long as the load lasts.
pub const LINES_MAX: usize = 2;

/// Segments that may be open at once, and so the primary's memory: this many × segment size. One active, one ahead, and
/// four whose closes are on their way.
pub const SEGMENTS_MAX: usize = 6;

/// What the group wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Members that the set should have.
    pub backups: u8,
    /// Members that the set must have for appends to be acknowledged; at least 1.
    pub min_in_sync: u8,
    /// What an ack promises.
    pub durability: Durability,
    /// Size of the segments to open.
    pub segment_size: SegmentSize,
    /// How long a member may hold up the next segment, or acks, before it counts as lost.
    /// A newcomer counts as lost after twice as long without progress.
    pub open_timeout_ms: u64,
    /// Pause between two searches for a spare.
    pub recruit_interval_ms: u64,
    /// Pause before a swap of unknown outcome is sent again.
    pub swap_interval_ms: u64,
}

/// What happens to a primary, apart from appends and completions.
#[derive(Clone, Debug)]
pub enum Input {
    /// Answer to [`Output::Connect`].
    Connected(Seat),
    /// Answer to [`Output::Prepare`].
    Prepared(SegmentId),
    /// Answer to [`Output::Open`]: the member has lent a buffer and the path can post to it.
    Opened(Seat, SegmentId),
    /// Answer to [`Output::Close`].
    Closed(Seat, SegmentId),
    /// Answer to [`Output::Install`].
    Installed(Seat, SegmentId),
    /// Answer to [`Output::Install`]: it failed. No other copy can be fetched, or the member does not accept the image.
    InstallFailed(Seat, SegmentId),
    /// All closed copies at a member that are missing or corrupt. The sidecar asks each member periodically.
    Damaged(Seat, Vec<CopyReport>),
    /// Answer to [`Output::Repair`].
    Repaired(Seat, SegmentId),
    /// Answer to [`Output::Repair`]: it failed. No other copy can be fetched, or the member does not accept the image.
    RepairFailed(Seat, SegmentId),
    /// Answer to [`Output::Trim`] and [`Output::Drop`].
    Tidied(Seat),
    /// Answer to [`Output::Flush`]: on the member's disk up to here, which may be less or more than requested.
    Flushed(Seat, Position),
    /// Answer to [`Output::Sync`]: on the member's disk up to this record.
    Synced(Seat, Lsn),
    /// With a member's heartbeats: whether readers look at its board. Until the first time nobody does.
    Followed(Seat, bool),
    /// A member failed: its channel, its heartbeat, or an RPC that cannot be retried.
    Lost(Seat),
    /// Answer to [`Output::Swap`].
    Swapped(SwapOutcome),
    /// Answer to [`Output::Survey`]: every backup that answered.
    Surveyed(Vec<MemberRef>),
    /// Answer to [`Output::Fence`].
    Fenced(MemberRef, Result<Inventory, Failure>),
    /// The config store has a later epoch.
    Superseded(Epoch),
    /// A member refuses what it was asked, because it has promised this later epoch.
    Refused(Seat, Epoch),
    /// Answer to [`Output::ReadConfig`]; the error is for people.
    Read(Result<Option<Configuration>, String>),
    /// The number of copies or its lower bound has changed. Members beyond the number stay until they are lost: to have
    /// fewer, remove the backup that should go.
    Wanted {
        /// Members that the set should have.
        backups: u8,
        /// Members that the set must have.
        min_in_sync: u8,
    },
    /// The group is to have no primary.
    Retire,
    /// The app no longer needs records below this LSN, which is at most one beyond the last acknowledged.
    Trim(Lsn),
    /// Time passes; expected every few milliseconds.
    Tick,
}

/// Why a primary stops being one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepDown {
    /// A newer epoch exists: another sidecar is primary.
    Superseded(Epoch),
    /// Fewer members than `min_in_sync` are left, and a promotion may reach enough of the lost ones: become a candidate
    /// again and recover with them.
    TooFewMembers {
        /// Members left.
        left: u8,
        /// Members needed.
        needed: u8,
    },
    /// The config store holds a configuration that this primary did not write: become a candidate again and read it.
    Confused,
    /// The group is to have no primary.
    Retired,
}

impl std::fmt::Display for StepDown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StepDown::Superseded(epoch) => write!(f, "superseded by epoch {epoch}"),
            StepDown::TooFewMembers { left: 1, needed } => write!(f, "1 member left, {needed} needed"),
            StepDown::TooFewMembers { left, needed } => write!(f, "{left} members left, {needed} needed"),
            StepDown::Confused => f.write_str("the config store holds a configuration of unknown origin"),
            StepDown::Retired => f.write_str("the group is to have no primary"),
        }
    }
}

/// What a primary wants done. All outputs may be executed concurrently: one that must wait for the answer to another is
/// handed out after that answer; see [`lanes`]. Answers may arrive in any order; those for a former seat are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Open a data channel to this backup for this seat.
    Connect(Seat, MemberRef),
    /// Have local memory ready for a segment.
    Prepare(SegmentIdentity),
    /// Ask the member for a buffer; keep asking while it says "retry later".
    Open(Seat, SegmentIdentity),
    /// Tell the member that the segment is whole (or, of a recovered copy, where it ends).
    Close(Seat, SegmentIdentity, Closure),
    /// Have the member copy a closed segment from one of these members, in this order; or copy it there from any other member
    /// or backup.
    Install(Seat, SegmentIdentity, Closure, Vec<MemberRef>),
    /// As [`Output::Install`], in place of a copy that is missing or corrupt. The member stays in the set even if this
    /// fails, because its open segments are sound.
    Repair(Seat, SegmentIdentity, Closure, Vec<MemberRef>),
    /// Forget these copies at the member.
    Drop(Seat, Vec<CopyReport>),
    /// Bring a segment to the member's disk up to an offset, which need not be where an append ends.
    Flush(Seat, SegmentIdentity, Offset),
    /// Bring the log up to a point to the member's disk, and have it remember that; keep asking while it says "retry later".
    Sync(Seat, SyncPoint),
    /// Inform the member that records below are no longer needed.
    Trim(Seat, Lsn),
    /// Close the channels of this seat; no more answers are expected from it.
    Disconnect(Seat),
    /// The segment is closed at all members: its local memory may go.
    Forget(SegmentId, Closure),
    /// Change the member set. After [`SwapOutcome::Unknown`] the same swap is repeated.
    Swap(Swap),
    /// Ask all known backups for their identity.
    Survey,
    /// Fence this backup under our epoch, to take it in as a spare.
    Fence(MemberRef),
    /// Read the config store: a backup says that it has promised a later epoch.
    ReadConfig,
    /// This is no longer the primary. Always the last output.
    StepDown(StepDown),
}

/// The ladder: each position is at most the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// On disk at every member whose completion is needed (durability `Flushed`; otherwise the last closed segment's end).
    pub flushed: Position,
    /// Acknowledged.
    pub acked: Position,
    /// In memory at every member whose completion is needed.
    pub completed: Position,
    /// Handed to the fabric for every such member.
    pub posted: Position,
    /// In the primary's own memory.
    pub appended: Position,
}

impl Positions {
    /// True when the positions are in the ladder's order.
    pub fn hold(&self) -> bool {
        self.flushed <= self.acked
            && self.acked <= self.completed
            && self.completed <= self.posted
            && self.posted <= self.appended
    }
}

/// The state of a primary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Primary {
    rules: Rules,
    config: Configuration,
    /// Closed at every member, oldest first.
    closed: VecDeque<(SegmentIdentity, Closure)>,
    segments: Segments,
    members: [Option<Member>; MEMBERS_MAX],
    tenancies: u32,
    acked: Position,
    swap: Option<Swap>,
    /// When a swap of unknown outcome is sent again.
    swap_again: Option<Time>,
    search: Search,
    recruit_after: Time,
    /// Members lost in this epoch, the latest last. As spares they are tried after all others.
    lost: Vec<MemberId>,
    refusals: Refusals,
    hearsay: Hearsay,
    joining: Joining,
    syncing: Syncing,
    lanes: Lanes,
    board: Board,
    /// Number of the latest post to any seat.
    posts: Post,
    segment_stall: Option<Stall<(SegmentId, SegmentId, bool)>>,
    ack_stall: Option<Stall<Position>>,
    /// When the number of members left fell below `min_in_sync`.
    short_since: Option<Time>,
    over: bool,
}

impl Primary {
    /// Begins an epoch: `config` is what the config store holds (with this sidecar as primary), `reference` the recovered
    /// log, which every member of `config` holds. `seed` feeds the generations of the segments to come.
    pub fn new(
        config: Configuration,
        rules: Rules,
        reference: &Reference,
        seed: u64,
        now: Time,
        out: &mut Vec<Output>,
    ) -> Primary {
        let closed = reference.segments.iter().map(|segment| (segment.identity, segment.closure)).collect();
        let segments = Segments::new(&config, &rules, reference, seed);
        let start = segments.start();
        let board = segments.board(reference, start, config.version);
        let mut primary = Primary {
            rules,
            closed,
            segments,
            members: [const { None }; MEMBERS_MAX],
            tenancies: 0,
            acked: start,
            swap: None,
            swap_again: None,
            search: Search::Idle,
            recruit_after: now,
            lost: Vec::new(),
            refusals: Refusals::default(),
            hearsay: Hearsay::default(),
            joining: Joining::default(),
            syncing: Syncing::new(start, reference.synced),
            lanes: Lanes::default(),
            board,
            posts: Post::default(),
            segment_stall: None,
            ack_stall: None,
            short_since: None,
            over: false,
            config,
        };
        let start_of_outputs = out.len();
        for member in primary.config.members.clone() {
            if let Some(seat) = primary.seat(member, Membership::InSet, start.segment, out) {
                primary.trim_to_first(seat, out);
            }
        }
        primary.open_ahead(out);
        primary.hand_out(out, start_of_outputs);
        primary.check();
        primary
    }

    /// Takes one input; appends to `out` what to do.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        if self.over {
            return;
        }
        let start = out.len();
        self.lanes.settle(&input);
        match input {
            // The lanes now release what waited for these.
            Input::Connected(_) | Input::Prepared(_) => {}
            Input::Opened(seat, segment) => self.on_opened(seat, segment),
            Input::Closed(seat, segment) => self.on_closed(seat, segment, out),
            Input::Installed(seat, segment) => self.on_segment_held(seat, segment, out),
            Input::InstallFailed(seat, segment) => self.on_install_failed(seat, segment, out),
            Input::Damaged(seat, copies) => self.on_damaged(seat, &copies, out),
            Input::Repaired(seat, segment) => self.on_repaired(seat, segment, out),
            Input::RepairFailed(seat, segment) => self.on_repair_failed(now, seat, segment, out),
            Input::Tidied(seat) => self.on_tidied(seat),
            Input::Flushed(seat, position) => self.on_flushed(seat, position),
            Input::Synced(seat, last) => self.on_synced(seat, last),
            Input::Followed(seat, followed) => self.on_followed(seat, followed),
            Input::Lost(seat) => self.on_lost(seat, out),
            Input::Swapped(outcome) => self.on_swapped(now, outcome, out),
            Input::Surveyed(found) => self.on_surveyed(now, found, out),
            Input::Fenced(member, result) => self.on_fenced(now, member, result, out),
            Input::Superseded(epoch) => self.on_superseded(epoch, out),
            Input::Refused(seat, epoch) => self.on_refused(seat, epoch, out),
            Input::Read(found) => self.on_read(now, &found, out),
            Input::Wanted { backups, min_in_sync } => self.on_wanted(backups, min_in_sync),
            Input::Retire => self.step_down(StepDown::Retired, out),
            Input::Trim(below) => self.on_trim(below, out),
            Input::Tick => self.on_tick(now, out),
        }
        self.advance(out);
        self.hand_out(out, start);
    }

    /// Derives from all positions what to do next: acks, closes, flushes, buffers, membership.
    fn advance(&mut self, out: &mut Vec<Output>) {
        if self.over {
            return;
        }
        self.advance_acked();
        self.close_acked_segments(out);
        self.flush_completed(out);
        self.ask_for_buffers(out);
        self.sync_members(out);
        self.plan_swap(out);
        self.end_needless_pause();
        self.check();
    }

    /// The path calls this after completions or appends, once per turn: what it does besides [`Primary::acked`].
    pub fn turn(&mut self, out: &mut Vec<Output>) {
        let start = out.len();
        self.advance(out);
        if out.len() > start {
            self.hand_out(out, start);
        }
    }

    // The append path: these allocate nothing.

    /// The segment to append to; `None` until its buffers are lent.
    pub fn active(&self) -> Option<SegmentIdentity> {
        self.segments.active()
    }

    /// LSN of the first record of this epoch.
    pub fn first(&self) -> Lsn {
        self.segments.first_lsn()
    }

    /// The path has placed bytes in the active segment up to `end`.
    pub fn appended(&mut self, end: Offset) {
        self.segments.appended(end);
    }

    /// The active segment has no room for the next append: seal it and continue with the next one, if its buffers are lent.
    /// Otherwise `None`: take no more appends for now.
    pub fn roll(&mut self, closure: Closure, out: &mut Vec<Output>) -> Option<SegmentIdentity> {
        if self.over || !self.next_is_ready() {
            return None;
        }
        let next = self.segments.roll(closure);
        let start = out.len();
        self.open_ahead(out);
        self.hand_out(out, start);
        self.check();
        Some(next)
    }

    /// The next bytes to post to a seat: one contiguous range of one segment. They count as posted from now on.
    pub fn next_post(&mut self, index: usize, bytes_max: u32) -> Option<(SegmentId, Offset, Offset)> {
        let member = self.members[index].as_mut().filter(|member| !member.is_lost() && member.has_room())?;
        let (from, end) = self.segments.after(member.posted)?;
        if from.offset == end || member.opened < from.segment {
            return None;
        }
        let to = Offset(end.0.min(from.offset.0.saturating_add(bytes_max)));
        let barrier = self.posts;
        self.posts.0 += 1;
        member.post(Position::new(from.segment, to), barrier, self.posts, from.segment);
        Some((from.segment, from.offset, to))
    }

    /// The moment after which a barrier needs a completed post at every required seat.
    pub fn barrier(&self) -> Post {
        self.posts
    }

    /// True when a seat has had no post since `barrier` and has lent the active segment: post it an empty range of that
    /// segment, which counts as posted from now on.
    pub fn probe(&mut self, index: usize, barrier: Post) -> Option<SegmentId> {
        let active = self.segments.active_id();
        let member = self.members[index].as_mut().filter(|member| !member.is_lost() && member.has_room())?;
        if member.last_posted > barrier || member.opened < active {
            return None;
        }
        self.posts.0 += 1;
        member.post(member.posted, barrier, self.posts, active);
        Some(active)
    }

    /// True when every seat that acks need has completed a post made after `barrier`: nobody had fenced it by then.
    pub fn passed(&self, barrier: Post) -> bool {
        !self.over && self.required().all(|member| member.last_completed > barrier)
    }

    /// The oldest `count` posts of a seat have completed. Returns how many of them were no lines of its board: from those
    /// nothing follows.
    pub fn completed(&mut self, index: usize, count: u32) -> u32 {
        self.members[index].as_mut().map_or(0, |member| member.complete(count))
    }

    /// Everything up to here may be acknowledged (S4, S7).
    pub fn acked(&self) -> Position {
        self.acked
    }

    /// The member set, epoch and version as last written to the config store.
    pub fn config(&self) -> &Configuration {
        &self.config
    }

    /// Closed segments of the log, oldest first.
    pub fn closed(&self) -> &VecDeque<(SegmentIdentity, Closure)> {
        &self.closed
    }

    /// Segments of the log, from the first one to the one that takes appends, or will. One that is lent ahead is not counted.
    pub fn log_segments(&self) -> u32 {
        let open = self.segments.active_id().0 + 1 - self.segments.oldest().0;
        self.closed.len() as u32 + open as u32
    }

    /// True once this primary has stepped down.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Where the log stands.
    pub fn positions(&self) -> Positions {
        let required = || self.required();
        let appended = self.segments.appended_position();
        let min = |of: fn(&Member) -> Position| required().map(of).min().unwrap_or(self.acked);
        let flushed = match self.rules.durability {
            Durability::Flushed => min(|member| member.flushed).min(self.acked),
            _ => self.segments.start_of_unclosed().min(self.acked),
        };
        Positions { flushed, acked: self.acked, completed: min(|m| m.completed), posted: min(|m| m.posted), appended }
    }

    fn advance_acked(&mut self) {
        let reached = |member: &Member| member.reached(self.rules.durability);
        let needless = planted::has(Bug::AckAllButOne) && self.required().count() > 1;
        if let Some(acked) = self.required().skip(usize::from(needless)).map(reached).min() {
            self.acked = self.acked.max(acked);
        }
    }

    fn on_superseded(&mut self, epoch: Epoch, out: &mut Vec<Output>) {
        if epoch > self.config.epoch {
            self.step_down(StepDown::Superseded(epoch), out);
        }
    }

    /// Takes effect at the next decision; a swap in flight is not changed.
    fn on_wanted(&mut self, backups: u8, min_in_sync: u8) {
        self.rules = Rules { backups, min_in_sync, ..self.rules };
    }

    fn step_down(&mut self, why: StepDown, out: &mut Vec<Output>) {
        self.over = true;
        out.push(Output::StepDown(why));
    }

    /// Trims whole closed segments only, and never the last one, so that a segment always shows where the log ends.
    fn on_trim(&mut self, below: Lsn, out: &mut Vec<Output>) {
        let Some(last) = self.closed.back() else { return };
        let below = below.min(last.1.first);
        let before = self.closed.len();
        while self.closed.front().is_some_and(|(_, closure)| closure.last < below) {
            self.closed.pop_front();
        }
        self.forget_trimmed();
        // An app that trims for every record must not cost a call to each member for every record (S9).
        if self.closed.len() < before {
            self.refusals.forget();
            out.extend(self.seats().map(|seat| Output::Trim(seat, below)));
        }
    }

    /// A member without the trimmed beginning of the log must know that it was trimmed and not lost.
    fn trim_to_first(&self, seat: Seat, out: &mut Vec<Output>) {
        let first = self.first_readable();
        if first > Lsn(1) {
            out.push(Output::Trim(seat, first));
        }
    }

    /// First record that can be read.
    pub fn first_readable(&self) -> Lsn {
        self.closed.front().map_or(self.segments.first_lsn(), |(_, closure)| closure.first)
    }

    fn on_tick(&mut self, now: Time, out: &mut Vec<Output>) {
        self.members.iter_mut().flatten().for_each(|member| member.flush_stalled_at = Position::default());
        self.drop_stalled_members(now, out);
        self.give_up_newcomers(now, out);
        self.wait_for_lost_members(now, out);
        self.retry_repairs(now, out);
        self.time_round(now);
        self.swap_again(now, out);
        self.read_again(now, out);
        self.recruit(now, out);
        self.pause_for_newcomer(now);
    }

    /// What must be true between any two inputs.
    fn check(&self) {
        let positions = self.positions();
        assert!(positions.hold() || planted::any(), "{positions:?}");
        assert!(self.segments.len() <= SEGMENTS_MAX, "open segments are bounded");
    }
}
