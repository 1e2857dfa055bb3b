//! What a primary writes on its boards: when, how far, and what makes the beat grow.

use std::time::Duration;

use crate::group::{config, holds_nothing, member};
use tailwind_protocol::board::{self, BoardIdentity, LINE_SIZE, Progress};
use tailwind_protocol::config::{Durability, SwapOutcome, Time};
use tailwind_protocol::ids::{Epoch, LogId, Lsn, Offset, Position, SegmentId, Version};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::primary::{BEAT_INTERVAL, INFLIGHT_MAX, Input, Output, PUBLISH_INTERVAL, Primary, Rules, Seat};
use tailwind_protocol::recovery::Reference;

fn rules() -> Rules {
    Rules {
        backups: 3,
        min_in_sync: 1,
        durability: Durability::Memory,
        segment_size: SegmentSize::MIN,
        open_timeout_ms: 1000,
        recruit_interval_ms: 0,
        swap_interval_ms: 0,
    }
}

const MICRO: Duration = Duration::from_micros(1);

/// A primary with members that answer at once, each with a board.
struct Group {
    primary: Primary,
    now: Duration,
    seats: Vec<Seat>,
    /// By index of the seat: the bytes, as they will be when all that was posted has completed.
    boards: Vec<[u8; 2 * LINE_SIZE]>,
    /// By index of the seat: posts that have not completed.
    posted: Vec<u32>,
    acked: (Lsn, Position),
}

impl Group {
    /// Readers look at every board.
    fn new(members: usize) -> Group {
        let mut group = Group::unfollowed(members);
        for seat in group.seats.clone() {
            group.step(Input::Followed(seat, true));
        }
        group
    }

    fn unfollowed(members: usize) -> Group {
        let mut out = Vec::new();
        let primary = Primary::new(config(members), rules(), &Reference::default(), 1, Time(0), &mut out);
        let acked = (Lsn(0), primary.acked());
        let now = Duration::from_secs(1);
        let (seats, boards, posted) = Default::default();
        let mut group = Group { primary, now, seats, boards, posted, acked };
        group.carry(out);
        group
    }

    fn step(&mut self, input: Input) {
        let mut out = Vec::new();
        self.primary.step(Time(0), input, &mut out);
        self.carry(out);
    }

    fn carry(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Connect(seat, _) => {
                    assert_eq!(usize::from(seat.index), self.seats.len());
                    self.seats.push(seat);
                    self.boards.push([0; 2 * LINE_SIZE]);
                    self.posted.push(0);
                    self.primary.board_lent(seat);
                    self.step(Input::Connected(seat));
                }
                Output::Prepare(identity) => self.step(Input::Prepared(identity.segment)),
                Output::Open(seat, identity) => self.step(Input::Opened(seat, identity.segment)),
                _ => {}
            }
        }
    }

    /// Publishes if it is time to; whether it was.
    fn publish(&mut self) -> bool {
        let (acked, end) = self.acked;
        let Some(publication) = self.primary.publish(self.now, acked, end) else { return false };
        for index in publication.seats() {
            for (at, line) in publication.lines(index) {
                self.boards[index][*at as usize..][..LINE_SIZE].copy_from_slice(line);
                self.posted[index] += 1;
            }
        }
        true
    }

    /// Appends and posts to one member for as long as it takes more. Returns how far.
    fn fill(&mut self, index: usize, mut end: u32) -> u32 {
        self.primary.appended(Offset(end));
        while self.primary.next_post(index, u32::MAX).is_some() {
            self.posted[index] += 1;
            end += 1;
            self.primary.appended(Offset(end));
        }
        end
    }

    fn publish_after(&mut self, wait: Duration) -> bool {
        self.now += wait;
        self.publish()
    }

    fn probe(&mut self) {
        let Some(barrier) = self.primary.beat_to_probe(self.now) else { return };
        for index in 0..self.seats.len() {
            self.posted[index] += u32::from(self.primary.probe(index, barrier).is_some());
        }
    }

    fn complete(&mut self, index: usize) {
        let count = std::mem::take(&mut self.posted[index]);
        self.primary.completed(index, count);
        self.primary.turn(&mut Vec::new());
    }

    fn complete_all(&mut self) {
        (0..self.seats.len()).for_each(|index| self.complete(index));
    }

    /// A record that ends here is appended, posted and completed everywhere, and acknowledged.
    fn append(&mut self, lsn: u64, end: u32) {
        self.primary.appended(Offset(end));
        for index in 0..self.seats.len() {
            while self.primary.next_post(index, u32::MAX).is_some() {
                self.posted[index] += 1;
            }
        }
        self.complete_all();
        self.acked = (Lsn(lsn), Position::new(SegmentId(1), Offset(end)));
        assert_eq!(self.primary.acked(), self.acked.1);
    }

    fn shown(&self, index: usize) -> Option<(BoardIdentity, Progress)> {
        board::decode(&self.boards[index])
    }

    fn beat(&self, index: usize) -> u64 {
        self.shown(index).map_or(0, |(_, progress)| progress.beat)
    }
}

#[test]
fn boards_show_what_is_acknowledged() {
    let mut group = Group::new(3);
    assert!(!group.publish(), "no barrier has passed, and there is nothing to tell");
    group.append(1, 200);
    assert!(group.publish());
    for index in 0..3 {
        let (identity, progress) = group.shown(index).expect("both lines");
        assert_eq!((identity.log, identity.epoch, identity.segment_size), (LogId(1), Epoch(1), SegmentSize::MIN));
        assert_eq!((progress.acked, progress.first, progress.version), (Lsn(1), Lsn(1), Version(1)));
        assert_eq!(progress.end, Position::new(SegmentId(1), Offset(200)));
        assert_eq!(group.posted[index], 2);
    }
    group.complete_all();
    group.append(9, 400);
    assert!(!group.publish_after(PUBLISH_INTERVAL - MICRO), "not so soon");
    assert_eq!(group.primary.news_due(Lsn(9)), Some(group.now + MICRO));
    assert!(group.publish_after(MICRO));
    assert_eq!(group.primary.news_due(Lsn(9)), None);
    assert_eq!(group.shown(2).expect("both lines").1.acked, Lsn(9));
    assert_eq!(group.posted, [1, 1, 1], "the identity is written once");
}

#[test]
fn an_idle_primary_beats() {
    let mut group = Group::new(2);
    group.probe();
    assert_eq!(group.posted, [1, 1], "empty writes: nothing else is posted");
    group.complete_all();
    assert!(group.publish());
    for beat in 1..10 {
        assert_eq!([group.beat(0), group.beat(1)], [beat; 2]);
        group.probe();
        assert_eq!(group.posted[0], if beat == 1 { 2 } else { 1 }, "the line itself is the barrier");
        group.complete_all();
        assert!(!group.publish_after(BEAT_INTERVAL - MICRO));
        assert!(group.publish_after(MICRO));
    }
}

/// The rule that makes a view's age known: what was posted with a beat completes everywhere before the next.
#[test]
fn the_beat_waits_for_every_member_of_the_set() {
    let mut group = Group::new(3);
    group.append(1, 200);
    assert!(group.publish());
    assert_eq!(group.beat(0), 1);
    group.complete(0);
    group.complete(1);
    for _ in 0..5 {
        assert!(!group.publish_after(BEAT_INTERVAL), "the third has not confirmed");
        group.probe();
    }
    group.complete(2);
    assert!(group.publish());
    assert_eq!(group.beat(0), 2);

    // News do not wait, and do not make it grow.
    group.complete(0);
    group.complete(1);
    let posted = group.posted[2];
    group.acked.0 = Lsn(2);
    assert!(group.publish_after(PUBLISH_INTERVAL));
    assert_eq!((group.beat(0), group.shown(0).expect("both lines").1.acked), (2, Lsn(2)));
    assert_eq!(group.posted[2], posted + 1);
}

/// Lines are all that is in flight. The beat stands still, and so does every reader that waits for it.
#[test]
fn idle_member_that_confirms_no_line_is_dropped() {
    for slow in 0..3 {
        let mut group = Group::new(3);
        group.append(1, 200);
        assert!(group.publish());
        let lost_at = |group: &mut Group, millis: u64| {
            let mut out = Vec::new();
            group.primary.step(Time(millis), Input::Tick, &mut out);
            out.into_iter().filter(|output| matches!(output, Output::Disconnect(_))).collect::<Vec<_>>()
        };
        assert_eq!(lost_at(&mut group, 0), []);
        assert_eq!(lost_at(&mut group, 5000), [], "no other member has confirmed more");
        (0..3).filter(|index| *index != slow).for_each(|index| group.complete(index));
        assert_eq!(lost_at(&mut group, 5000), []);
        assert_eq!(lost_at(&mut group, 5900), []);
        assert_eq!(lost_at(&mut group, 6000), [Output::Disconnect(group.seats[slow])]);
        group.step(Input::Swapped(SwapOutcome::Applied));
        assert!(group.publish_after(BEAT_INTERVAL), "the beat grows");
    }
}

#[test]
fn nothing_follows_from_a_line_that_has_completed() {
    let mut group = Group::new(1);
    group.append(1, 200);
    assert!(group.publish());
    assert_eq!(group.primary.completed(0, 2), 0);
    group.acked.0 = Lsn(2);
    assert!(group.publish_after(PUBLISH_INTERVAL));
    group.primary.appended(Offset(300));
    assert!(group.primary.next_post(0, u32::MAX).is_some());
    assert_eq!(group.primary.completed(0, 2), 1, "one of them was not a line");
}

#[test]
fn a_full_queue_makes_all_boards_wait() {
    let mut group = Group::new(2);
    group.append(1, 200);
    assert!(group.publish());
    group.complete(0);
    group.fill(1, 201);
    group.acked.0 = Lsn(2);
    assert!(group.publish_after(PUBLISH_INTERVAL), "appends leave room for it");
    group.acked.0 = Lsn(3);
    assert!(!group.publish_after(BEAT_INTERVAL) && group.primary.news_due(Lsn(3)).is_none());
    group.complete(1);
    assert!(group.publish());
}

/// As many posts as there may be are on their way all the time: what completes is replaced at once.
#[test]
fn boards_keep_up_with_a_load_that_fills_the_queue() {
    let mut group = Group::new(1);
    group.append(1, 200);
    assert!(group.publish());
    let mut end = 200;
    for lsn in 2..50 {
        group.acked.0 = Lsn(lsn);
        let before = group.now;
        while !group.publish_after(PUBLISH_INTERVAL) {
            end = group.fill(0, end + 1);
            group.posted[0] -= 1;
            group.primary.completed(0, 1);
            assert!(group.now < before + PUBLISH_INTERVAL * 2 * INFLIGHT_MAX as u32, "record {lsn} is not shown");
        }
        assert_eq!(group.shown(0).expect("both lines").1.acked, Lsn(lsn));
    }
}

#[test]
fn only_members_of_the_set_have_boards_that_show() {
    let mut group = Group::new(2);
    group.append(1, 200);
    assert!(group.publish());
    group.complete_all();

    group.step(Input::Tick);
    group.step(Input::Surveyed(vec![member(3)]));
    group.step(Input::Fenced(member(3), Ok(holds_nothing(&member(3)))));
    assert_eq!(group.seats.len(), 3);
    assert!(group.publish_after(BEAT_INTERVAL));
    assert_eq!((group.posted[2], group.shown(2)), (0, None), "a newcomer's: a barrier says nothing of it");
    group.complete_all();

    group.step(Input::Lost(group.seats[0]));
    assert!(group.publish_after(BEAT_INTERVAL), "it had confirmed the beat before");
    group.complete(1);
    assert!(!group.publish_after(BEAT_INTERVAL), "acks and barriers wait for the swap");
    group.step(Input::Swapped(SwapOutcome::Applied));
    assert!(group.publish_after(BEAT_INTERVAL));
    assert_eq!((group.posted[0], group.posted[1]), (0, 1), "the lost one is out");
    assert_eq!(group.shown(1).expect("both lines").1.version, Version(2));
}

/// Nothing is posted for readers where there are none: neither lines, nor beats, nor probes for them.
#[test]
fn a_group_that_nobody_follows_pays_nothing() {
    let mut group = Group::unfollowed(3);
    let idle = |group: &mut Group, acked| {
        for _ in 0..10 {
            assert!(!group.publish_after(BEAT_INTERVAL));
            assert_eq!(group.primary.news_due(acked), None);
            group.probe();
        }
        assert_eq!(group.posted, [0; 3]);
    };
    idle(&mut group, Lsn(0));
    group.append(1, 200);
    idle(&mut group, Lsn(1));

    group.step(Input::Followed(group.seats[1], true));
    assert!(group.publish());
    for index in 0..3 {
        assert_eq!(group.shown(index).expect("both lines").1.acked, Lsn(1), "readers go from member to member");
    }
    group.complete_all();
    let beat = group.beat(0);
    group.step(Input::Followed(group.seats[2], true));
    group.step(Input::Followed(group.seats[1], false));
    assert!(group.publish_after(BEAT_INTERVAL), "another member is followed");
    group.complete_all();

    group.step(Input::Followed(group.seats[2], false));
    group.append(2, 300);
    idle(&mut group, Lsn(2));
    assert_eq!(group.beat(0), beat + 1);
    group.step(Input::Followed(group.seats[0], true));
    assert!(group.publish());
    let progress = group.shown(1).expect("both lines").1;
    assert_eq!((progress.beat, progress.acked), (beat + 2, Lsn(2)), "appends were its barrier");
}

/// Its readers continue at other members, which report them.
#[test]
fn a_lost_member_that_was_followed_does_not_count() {
    let mut group = Group::unfollowed(3);
    let lost = group.seats[0];
    group.step(Input::Followed(lost, true));
    group.append(1, 200);
    assert!(group.publish());
    group.complete_all();
    group.step(Input::Lost(lost));
    assert!(!group.publish_after(BEAT_INTERVAL));
    group.step(Input::Swapped(SwapOutcome::Applied));
    assert!(!group.publish_after(BEAT_INTERVAL));
    group.step(Input::Followed(lost, true));
    assert!(!group.publish_after(BEAT_INTERVAL), "what comes late from an earlier occupant of a seat");
    group.step(Input::Followed(group.seats[1], true));
    assert!(group.publish_after(BEAT_INTERVAL));
}

#[test]
fn without_boards_nothing_is_published() {
    let mut out = Vec::new();
    let mut primary = Primary::new(config(1), rules(), &Reference::default(), 1, Time(0), &mut out);
    for millis in 0..1000 {
        assert!(primary.publish(Duration::from_millis(millis), Lsn(0), primary.acked()).is_none());
        assert_eq!(primary.beat_to_probe(Duration::from_millis(millis)), None);
    }
}
