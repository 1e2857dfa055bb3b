//! What the primary writes on its boards, and when.
//!
//! Part of [`Primary`]. The append path calls [`Primary::publish`] once per turn and posts the lines that it gets; nothing here
//! allocates. While no member is followed there are no lines, no beats and no probes for them. See [`board`](crate::board) for
//! the bytes, and "The board" in `docs/protocol.md` for the argument.

use std::time::Duration;

use crate::board::{BoardIdentity, IDENTITY_AT, LINE_SIZE, Line, PROGRESS_AT, Progress};
use crate::config::MEMBERS_MAX;
use crate::ids::{Lsn, Position, SegmentId};
use crate::planted::{self, Bug};

use super::seats::Member;
use super::{Post, Primary, Seat};

/// Least time between two progress lines. Readers look every few hundred microseconds, and each line costs a write at each
/// member: at most 10 000 in a second, however many appends there are.
pub const PUBLISH_INTERVAL: Duration = Duration::from_micros(100);
/// Longest time between two growths of the beat, while barriers pass. A reader that has seen it grow
/// [`BEATS`](crate::board::BEATS) times knows how old its view is: 75 ms at most.
pub const BEAT_INTERVAL: Duration = Duration::from_millis(25);
/// A barrier that no append has helped to pass by now gets an empty write at members without a board.
const PROBE_AFTER: Duration = Duration::from_millis(5);

/// Posts to a board go to no segment.
pub(super) const NO_SEGMENT: SegmentId = SegmentId(0);

/// What is on the boards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Board {
    identity: BoardIdentity,
    /// The seed of the lines' CRCs.
    seed: u32,
    progress: Progress,
    /// Taken when the present beat was about to be posted.
    barrier: Post,
    /// When the progress line was last published.
    published: Duration,
    /// When the beat last grew.
    beaten: Duration,
}

/// Lines for the boards of several seats.
#[derive(Clone, Debug)]
pub struct Publication {
    /// Identity and progress, each with its offset.
    lines: [(u32, Line); 2],
    seats: Seats,
    /// Seats whose board needs the identity, too.
    unnamed: u8,
}

/// Indexes of seats, as bits.
#[derive(Clone, Copy, Debug)]
pub struct Seats(u8);

const _: () = assert!(MEMBERS_MAX <= u8::BITS as usize, "a bit for each seat");

impl Publication {
    /// Indexes of the seats whose boards get lines.
    pub fn seats(&self) -> Seats {
        self.seats
    }

    /// The lines for this seat's board and their offsets, in the order in which to post them.
    pub fn lines(&self, index: usize) -> &[(u32, Line)] {
        &self.lines[usize::from(self.unnamed & (1 << index) == 0)..]
    }
}

impl Iterator for Seats {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let index = self.0.trailing_zeros() as usize;
        self.0 &= self.0.checked_sub(1)?;
        Some(index)
    }
}

/// A member's board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum MemberBoard {
    /// The member has lent none.
    #[default]
    None,
    /// It has not been written to.
    Lent,
    /// Its identity has been posted.
    Named,
}

impl Board {
    pub(super) fn new(identity: BoardIdentity, progress: Progress) -> Board {
        let (barrier, published, beaten) = (Post::default(), Duration::ZERO, Duration::ZERO);
        Board { seed: identity.seed(), identity, progress, barrier, published, beaten }
    }
}

impl Member {
    /// Members of the set only: a barrier says nothing of the others.
    fn shows_progress(&self) -> bool {
        self.board != MemberBoard::None && self.in_set() && !self.is_lost()
    }
}

impl Primary {
    /// The identity of this epoch's boards.
    pub fn board_identity(&self) -> BoardIdentity {
        self.board.identity
    }

    /// The member in this seat has lent a board.
    pub fn board_lent(&mut self, seat: Seat) {
        if let Some(member) = self.member_mut(seat) {
            member.board = MemberBoard::Lent;
        }
    }

    /// The member in this seat says whether readers look at its board.
    pub(super) fn on_followed(&mut self, seat: Seat, followed: bool) {
        if let Some(member) = self.member_mut(seat) {
            member.followed = followed;
        }
    }

    /// True while readers look at any member's board. All boards are written then: a reader that continues at another member
    /// finds that one's just as new.
    fn is_followed(&self) -> bool {
        !self.over && self.members.iter().flatten().any(|member| member.followed && !member.is_lost())
    }

    /// What to write on the boards now, if it is time for it and a reader looks at them: `acked` is the last acknowledged
    /// record, and `end` where its append ends. It counts as posted, so it must be, before anything else is. `now` is any clock
    /// that only goes forward.
    pub fn publish(&mut self, now: Duration, acked: Lsn, end: Position) -> Option<Publication> {
        if now < self.board.published + PUBLISH_INTERVAL || !self.is_followed() {
            return None;
        }
        let passed = self.passed(self.board.barrier) || planted::has(Bug::BeatWithoutBarrier);
        let (first, version) = (self.first_readable(), self.config.version);
        let Board { progress, beaten, .. } = &self.board;
        let beats = passed && now >= *beaten + BEAT_INTERVAL;
        let news = (progress.acked, progress.end, progress.first, progress.version) != (acked, end, first, version);
        if !beats && !news {
            return None;
        }
        // A beat that one of them did not get would prove nothing there.
        if !self.boards_have_room() {
            return None;
        }
        assert!(acked >= progress.acked && end >= progress.end, "acknowledged is acknowledged");
        assert!(end <= self.acked || planted::any(), "a board names what is acknowledged");
        let beat = progress.beat + u64::from(passed);
        if passed {
            self.board.barrier = self.posts;
            self.board.beaten = now;
        }
        self.board.published = now;
        self.board.progress = Progress { beat, acked, end, first, version };
        Some(self.post_boards())
    }

    /// From when on [`Primary::publish`] will have something new to say; `None` where it depends on more than time.
    pub fn news_due(&self, acked: Lsn) -> Option<Duration> {
        let has_news = acked > self.board.progress.acked && self.is_followed() && self.boards_have_room();
        has_news.then_some(self.board.published + PUBLISH_INTERVAL)
    }

    /// True when there are boards, and each can take a line now.
    fn boards_have_room(&self) -> bool {
        let mut boards = self.members.iter().flatten().filter(|member| member.shows_progress()).peekable();
        boards.peek().is_some() && boards.all(Member::has_room_for_lines)
    }

    /// The lines of the present progress, for every board that shows it.
    fn post_boards(&mut self) -> Publication {
        let Board { identity, seed, progress, .. } = &self.board;
        let (mut seats, mut unnamed, barrier) = (0, 0, self.posts);
        for (index, member) in self.members.iter_mut().enumerate() {
            let Some(member) = member.as_mut().filter(|member| member.shows_progress()) else { continue };
            let lines = if member.board == MemberBoard::Lent { 2 } else { 1 };
            for _ in 0..lines {
                self.posts.0 += 1;
                member.post(member.posted, barrier, self.posts, NO_SEGMENT);
            }
            seats |= 1 << index;
            unnamed |= u8::from(lines == 2) << index;
            member.board = MemberBoard::Named;
        }
        let name = if unnamed == 0 { [0; LINE_SIZE] } else { identity.encode() };
        let lines = [(IDENTITY_AT, name), (PROGRESS_AT, progress.encode_seeded(*seed))];
        Publication { lines, seats: Seats(seats), unnamed }
    }

    /// The barrier of the present beat, if no append has helped it to pass yet: probe for it.
    pub fn beat_to_probe(&self, now: Duration) -> Option<Post> {
        let late = now >= self.board.beaten + PROBE_AFTER && self.members.iter().flatten().any(Member::shows_progress);
        (late && self.is_followed() && !self.passed(self.board.barrier)).then_some(self.board.barrier)
    }
}
