//! A getter: answers what a table has of a key, out of the memory of members whose processors need not take part.
//!
//! Driven by the append path of a sidecar that is not the primary (and by a model). It visits one member at a time, as a
//! [follower](crate::follower) does: looks at its board to learn what the mirror there shows, reads the two buckets of a key, and
//! then the record that its entry names. What does not verify is read again, then at the next member. See "Getters" in
//! `docs/protocol.md`.
//!
//! ```text
//! Waiting ──published of a completed look ≥ least, and ≥ what the connection has seen; fresh: ≥ a position asked for after it──▶ Entries
//! Entries: both buckets ──an entry of the key──▶ Record    ──none──▶ absent
//!                       ──one does not verify──▶ Entries, 8 times, then the next member
//! Record: exactly its bytes ──they are the record──▶ its value    ──another key's──▶ the next such entry, or absent
//!                           ──else──▶ Entries; the same entry again and no record: the next member
//! no member has memory for a mirror ──▶ unavailable, at once
//! after all members ──older allowed──▶ the place before: its value, marked    ──else──▶ unavailable
//! ```
//!
//! *As of* is the greater of what is published and the entry's revision. Why that is true (S20): the look had completed before the
//! buckets were read, so they show each key's last change up to what it found published (S21), or a later one. A key never moves
//! between entries: if it was deleted and put again in its other bucket, it was absent in between.
//!
//! *Why no key is shown older than before on a connection:* lines of one mirror only become newer, and gets of one key and
//! connection are read one after the other. Between two mirrors, a revision that was shown is below what the other must have
//! published. A key that was absent has none. So at another visit a connection that was told of an absent key waits for a view that
//! covers that moment (S14), and for the mirror to have come so far.

mod answer;
mod messages;
mod record;
mod visit;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::{Configuration, MemberRef};
use crate::follower::Visit;
use crate::ids::{Epoch, Lsn};
use crate::planted::{self, Bug};

pub use self::messages::{Answer, ConnectionId, Get, GetId, Input, Output};
use self::record::Reading;
use self::visit::Visiting;
use super::entry::Present;
use super::record::Key;

/// Gets that may wait.
pub const GETS_MAX: usize = 1024;
/// Gets that are read for at the same time: two reads each.
pub const ACTIVE_MAX: usize = 30;
/// So long a get may take. Then it is unavailable.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// A record is read so soon after its entry, or the get begins again: the cleaner's [grace](super::cleaner::GRACE_MS) is longer.
pub const RECORD_WITHIN: Duration = Duration::from_millis(200);
/// So often the buckets at one member may have an entry that does not verify.
pub const UNSOUND_MAX: u32 = 8;
/// What a get is told that no member can answer, now or later.
const NO_MIRROR: &str = "no backup has memory for a mirror (backup --mirror)";
/// Pause before a position is asked for again that nobody could tell.
const ASK_AGAIN: Duration = Duration::from_millis(100);

const _: () = assert!(RECORD_WITHIN.as_millis() < super::cleaner::GRACE_MS as u128);

/// How fresh a get is to be, and whether it is known what that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    Settled,
    Wanted,
    Asked(u64),
}

/// Where a get is.
#[derive(Clone, Debug)]
enum Stage {
    Waiting,
    /// Its buckets are being read: since when, and as of which record.
    Entries(Duration, Lsn),
    /// A record is being read.
    Record(Reading),
}

#[derive(Clone, Debug)]
struct Waiting {
    id: GetId,
    connection: ConnectionId,
    key: Vec<u8>,
    /// The state after this record, or later.
    least: Lsn,
    proof: Proof,
    older: bool,
    no_value: bool,
    until: Duration,
    stage: Stage,
    /// Members that have not given its record.
    tried: usize,
    /// At this visit: how often an entry was unsound, and which entry had no record.
    unsound: u32,
    failed: Option<Present>,
}

/// What a connection has been shown.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    floor: Lsn,
    /// A key was absent, at this visit and moment.
    absent: Option<(Visit, Duration)>,
}

/// One step: its moment, and where to put what follows.
struct Turn<'a> {
    now: Duration,
    out: &'a mut Vec<Output>,
    answer: &'a mut dyn FnMut(GetId, Answer<'_>),
}

/// The state of a getter.
#[derive(Clone, Debug)]
pub struct Getter {
    config: Option<Configuration>,
    /// In the order in which they came.
    gets: Vec<Waiting>,
    connections: BTreeMap<ConnectionId, Shown>,
    /// Questions that were asked, the one that is not answered, and when the next may be.
    questions: u64,
    asking: Option<u64>,
    ask_at: Duration,
    /// Which member is visited next.
    turn: usize,
    visits: u64,
    /// The latest epoch of a board that verified.
    epoch: Epoch,
    visiting: Option<Visiting>,
    /// The next visit begins then, after a pause of this length.
    revisit: (Duration, Duration),
    /// Members of the configuration that have no memory for a mirror, and when they said so.
    without: Vec<(MemberRef, Duration)>,
    /// Everything acknowledged before this moment was published when its mirror was looked at: up to this record. Another mirror
    /// may be behind it.
    covers: Option<(Duration, Lsn)>,
}

impl Getter {
    /// A getter that begins with the member at `turn` of the set, modulo its size. Its visits are numbered from the one after
    /// `visit` on.
    pub fn new(turn: usize, visit: Visit) -> Getter {
        Getter {
            config: None,
            gets: Vec::with_capacity(GETS_MAX),
            connections: BTreeMap::new(),
            questions: 0,
            asking: None,
            ask_at: Duration::ZERO,
            turn,
            visits: visit.0,
            epoch: Epoch(0),
            visiting: None,
            revisit: (Duration::ZERO, visit::REVISIT_MIN),
            without: Vec::new(),
            covers: None,
        }
    }

    /// One more get may be taken.
    pub fn may_take(&self) -> bool {
        self.gets.len() < GETS_MAX
    }

    /// Gets that are not answered.
    pub fn len(&self) -> usize {
        self.gets.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.gets.is_empty()
    }

    /// The latest epoch of a board that verified: no later one's records have been shown.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// When to tick next.
    pub fn wake_at(&self) -> Option<Duration> {
        let until = self.gets.iter().map(|get| get.until).min();
        let ask = (self.asking.is_none() && self.any_wants_proof()).then_some(self.ask_at);
        [self.visit_at(), until, ask].into_iter().flatten().min()
    }

    /// Takes one input; appends to `out` what to do, and answers the gets that can be. Late answers are ignored.
    pub fn step(
        &mut self,
        now: Duration,
        input: Input<'_>,
        out: &mut Vec<Output>,
        mut answer: impl FnMut(GetId, Answer<'_>),
    ) {
        let turn = &mut Turn { now, out, answer: &mut answer };
        match input {
            Input::Config(config) => self.on_config(config, turn),
            Input::Get(get) => self.on_get(&get, turn),
            Input::Gone(connection) => self.on_gone(connection),
            Input::Told(question, position) => self.on_told(question, position, turn),
            Input::Connected(visit, connected) => self.on_connected(visit, connected, turn),
            Input::NoMemory(visit) => self.on_no_memory(visit, turn),
            Input::Looked(visit, posted, lines) => self.on_looked(visit, posted, lines, turn),
            Input::Buckets(visit, id, bytes) => self.on_buckets(visit, id, bytes, turn),
            Input::Record(visit, id, bytes) => self.on_record(visit, id, bytes, turn),
            Input::Fetched(visit, id, bytes) => self.on_fetched(visit, id, bytes, turn),
            Input::Broken(visit, why) => self.on_broken(visit, why, turn),
            Input::Tick => {}
        }
        self.give_up(turn);
        self.go_on_visiting(turn);
        self.ask(turn);
        self.start(turn);
    }

    fn on_get(&mut self, get: &Get<'_>, turn: &Turn<'_>) {
        assert!(self.may_take(), "there is room for it");
        let shown = self.connections.entry(get.connection).or_default();
        shown.floor = shown.floor.max(get.floor);
        self.gets.push(Waiting {
            id: get.id,
            connection: get.connection,
            key: get.key.as_bytes().to_vec(),
            least: get.least,
            proof: if get.fresh { Proof::Wanted } else { Proof::Settled },
            older: get.older,
            no_value: get.no_value,
            until: turn.now + PATIENCE,
            stage: Stage::Waiting,
            tried: 0,
            unsound: 0,
            failed: None,
        });
    }

    fn on_gone(&mut self, connection: ConnectionId) {
        self.gets.retain(|get| get.connection != connection);
        self.connections.remove(&connection);
    }

    fn on_told(&mut self, question: u64, position: Result<Lsn, &str>, turn: &Turn<'_>) {
        if self.asking == Some(question) {
            self.asking = None;
            self.ask_at = if position.is_ok() { turn.now } else { turn.now + ASK_AGAIN };
        }
        for get in self.gets.iter_mut().filter(|get| get.proof == Proof::Asked(question)) {
            match position {
                Ok(position) => (get.proof, get.least) = (Proof::Settled, get.least.max(position)),
                Err(_) => get.proof = Proof::Wanted,
            }
        }
    }

    fn any_wants_proof(&self) -> bool {
        self.gets.iter().any(|get| get.proof == Proof::Wanted)
    }

    /// Asks one question for all that want one: it is asked after they came.
    fn ask(&mut self, turn: &mut Turn<'_>) {
        if self.asking.is_some() || self.ask_at > turn.now || !self.any_wants_proof() {
            return;
        }
        self.questions += 1;
        self.asking = Some(self.questions);
        for get in self.gets.iter_mut().filter(|get| get.proof == Proof::Wanted) {
            get.proof = Proof::Asked(self.questions);
        }
        turn.out.push(Output::Ask(self.questions));
    }

    fn give_up(&mut self, turn: &mut Turn<'_>) {
        let no_mirror = self.no_member_has_memory(turn.now);
        self.gets.retain(|get| {
            let why = if no_mirror { Some(NO_MIRROR) } else { (get.until <= turn.now).then(|| get.waits_for()) };
            if let Some(why) = why {
                (turn.answer)(get.id, Answer::Unavailable(why));
            }
            why.is_none()
        });
    }

    /// Begins with what waits and can be read now.
    fn start(&mut self, turn: &mut Turn<'_>) {
        let Some(published) = self.board().map(|board| board.mirror.published) else { return };
        let mut active = self.gets.iter().filter(|get| get.is_active()).count();
        for at in 0..self.gets.len() {
            if active == ACTIVE_MAX {
                return;
            }
            if self.may_start(at, published) {
                active += 1;
                self.read_entries(at, turn);
            }
        }
    }

    fn may_start(&mut self, at: usize, published: Lsn) -> bool {
        let get = &self.gets[at];
        if get.is_active() || get.proof != Proof::Settled {
            return false;
        }
        let same = |other: &Waiting| other.is_active() && other.connection == get.connection && other.key == get.key;
        if self.gets.iter().any(same) {
            return false;
        }
        let covered = self.covered();
        let shown = self.connections.entry(get.connection).or_default();
        match (shown.absent, covered) {
            (Some((visit, _)), Some(covered)) if visit == covered.visit => {}
            // What was absent then is in this view: it is a record of the log, like any other.
            (Some((_, moment)), Some(covered)) if covered.covers >= Some(moment) => {
                (shown.floor, shown.absent) = (shown.floor.max(covered.acked), None);
            }
            (Some(_), _) => return false,
            (None, _) => {}
        }
        get.least.max(shown.floor) <= published || planted::has(Bug::AbsentWithoutPublished)
    }
}

impl Waiting {
    fn is_active(&self) -> bool {
        !matches!(self.stage, Stage::Waiting)
    }

    fn key(&self) -> Key<'_> {
        Key::new(&self.key).expect("it was a key when it came")
    }

    /// Why it is not answered, for people.
    fn waits_for(&self) -> &'static str {
        match (self.proof, &self.stage) {
            (Proof::Wanted | Proof::Asked(_), _) => "the primary did not say in time how far the log is acknowledged",
            (Proof::Settled, Stage::Waiting) => "no mirror has shown in time what was asked for",
            (Proof::Settled, _) => "it could not be read in time",
        }
    }
}
