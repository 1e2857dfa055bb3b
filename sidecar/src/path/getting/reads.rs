//! What a getter reads of one member: posts its reads, and says what has landed.
//!
//! Part of [`Getting`](super::Getting). Each get that is read for has a place of its own in the channel's landing, as long as a
//! read into it is on its way; the board has one more.
//!
//! Where the channel has [lookups](crate::lookup), one takes the place of a get's reads: it brings the buckets, and the record as
//! well, which the getter then finds here when it asks for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use tailwind_fabric::reading::{LEAD_SIZE, Lead, READS_MAX};
use tailwind_fabric::{LookUp, ReadChannel, ReadError, Readable};
use tailwind_protocol::board::mirror::{BUCKET_SIZE, LINES_WITH_MIRROR, MIRROR_AT, MirrorLine};
use tailwind_protocol::board::{self, LINE_SIZE};
use tailwind_protocol::ids::SegmentId;
use tailwind_protocol::layout::RECORD_HEADER_SIZE;
use tailwind_protocol::rpc::SHARES_MAX;
use tailwind_protocol::table::getter::{ACTIVE_MAX, GetId};
use tailwind_protocol::table::record::{KEYED_SIZE_MAX, Key};

use crate::lookup::Asker;

/// Bytes in which reads land.
pub const LANDING: u32 = 2 << 20;
/// Bytes of a get's place: the longest record, rounded up to lines.
const PLACE_SIZE: u32 = (RECORD_HEADER_SIZE + KEYED_SIZE_MAX).next_multiple_of(LINE_SIZE) as u32;
/// Where boards land.
const BOARD_AT: u32 = ACTIVE_MAX as u32 * PLACE_SIZE;
/// Segments of one member that are readable here. Over `shm` each may take a file descriptor.
const READABLE_MAX: usize = 512;
/// So long a segment that was not in the member's memory counts as not being there.
const ABSENT_FOR: Duration = Duration::from_secs(1);

const _: () = assert!(BOARD_AT + LINES_WITH_MIRROR.end <= LANDING);
const _: () = assert!(2 * BUCKET_SIZE + LEAD_SIZE <= PLACE_SIZE);
const _: () = assert!(2 * ACTIVE_MAX < READS_MAX, "two reads of each get, and the board");

/// What of a member's memory a getter reads, and the channel that reads it.
#[derive(Debug)]
pub struct MirrorMemory {
    /// Has a landing of [`LANDING`] bytes.
    pub channel: Box<dyn ReadChannel>,
    /// Has room for three lines.
    pub board: Readable,
    /// The parts of the mirror's memory.
    pub parts: Vec<Readable>,
}

/// The reads of one visit.
#[derive(Debug)]
pub(super) struct Reads {
    pub(super) memory: MirrorMemory,
    /// On their way, in the order in which they complete.
    posted: VecDeque<Posted>,
    places: [Place; ACTIVE_MAX],
    segments: BTreeMap<SegmentId, Segment>,
    /// To be shared.
    wanted: BTreeSet<SegmentId>,
    /// The last segment of the log, as the board was seen last.
    open: SegmentId,
    /// The channel has not said yet that it has no lookups.
    looks_up: bool,
    /// Asks them, once the board has been seen.
    asker: Option<Asker>,
}

#[derive(Clone, Copy, Debug)]
enum Posted {
    /// The board, at this moment.
    Look(Duration),
    /// Into this place.
    Get(usize),
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// What lands there, until all of it has.
    what: Option<(GetId, What)>,
    /// Reads on their way.
    reads: u32,
}

/// What is read for a get.
#[derive(Clone, Copy, Debug)]
enum What {
    Buckets,
    /// The same, and what they lead to.
    LookUp,
    /// So many bytes of a record.
    Record(u32),
}

#[derive(Debug)]
enum Segment {
    /// Control has been told to have it shared.
    Asked,
    Readable(Readable),
    /// It was not in the member's memory; until this moment that is believed.
    Absent(Duration),
}

/// What has landed, and where.
#[derive(Clone, Debug)]
pub(super) enum Landed {
    /// The board, whose read was posted then.
    Look(Duration, Range<u32>),
    /// Perhaps with the record that is asked for next.
    Buckets(GetId, Range<u32>, Option<Found>),
    Record(GetId, Range<u32>),
}

/// A record that a lookup has brought.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) segment: SegmentId,
    /// Which bytes of the segment it is.
    pub(super) bytes: Range<u32>,
    /// Where they have landed.
    pub(super) at: Range<u32>,
}

/// What became of what was to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// It is on its way.
    Posted,
    /// Not now.
    Later,
    /// It is not in the member's memory.
    NotThere,
}

impl Reads {
    pub(super) fn new(memory: MirrorMemory) -> Reads {
        Reads {
            memory,
            posted: VecDeque::with_capacity(READS_MAX),
            places: [Place::default(); ACTIVE_MAX],
            segments: BTreeMap::new(),
            wanted: BTreeSet::new(),
            open: SegmentId(0),
            looks_up: true,
            asker: None,
        }
    }

    /// True while a read is on its way.
    pub(super) fn is_waiting(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Reads the board.
    pub(super) fn look(&mut self, now: Duration) -> Result<(), ReadError> {
        self.memory.channel.read(&self.memory.board, LINES_WITH_MIRROR, BOARD_AT)?;
        self.posted.push_back(Posted::Look(now));
        Ok(())
    }

    /// Reads two buckets, each of a part, from this byte on. The key is that of the get, if it still waits.
    pub(super) fn buckets(
        &mut self,
        get: GetId,
        key: Option<Key<'_>>,
        buckets: [(u32, u32); 2],
    ) -> Result<Reading, ReadError> {
        let readable = buckets.map(|(part, at)| {
            let part = self.memory.parts.get(part as usize);
            part.filter(|part| at.checked_add(BUCKET_SIZE).is_some_and(|end| end <= part.len()))
        });
        let [Some(first), Some(second)] = readable else { return Ok(Reading::NotThere) };
        let Some(place) = free_place(&self.places) else { return Ok(Reading::Later) };
        if let (true, Some(asker), Some(key)) = (self.looks_up, &self.asker, key) {
            let [a, b] = buckets.map(|(_, at)| at..at + BUCKET_SIZE);
            let lookup = LookUp { reads: [(first, a), (second, b)], question: &asker.question(key) };
            let begin = place as u32 * PLACE_SIZE;
            self.looks_up = self.memory.channel.look_up(&lookup, begin..begin + PLACE_SIZE)?;
            if self.looks_up {
                self.posted.push_back(Posted::Get(place));
                self.places[place] = Place { what: Some((get, What::LookUp)), reads: 1 };
                return Ok(Reading::Posted);
            }
        }
        for (nth, (part, (_, at))) in [first, second].into_iter().zip(buckets).enumerate() {
            let landing = place as u32 * PLACE_SIZE + nth as u32 * BUCKET_SIZE;
            self.memory.channel.read(part, at..at + BUCKET_SIZE, landing)?;
            self.posted.push_back(Posted::Get(place));
        }
        self.places[place] = Place { what: Some((get, What::Buckets)), reads: 2 };
        Ok(Reading::Posted)
    }

    /// Reads these bytes of a segment, once it is shared.
    pub(super) fn record(
        &mut self,
        get: GetId,
        segment: SegmentId,
        bytes: Range<u32>,
        now: Duration,
    ) -> Result<Reading, ReadError> {
        let readable = match self.segments.get(&segment) {
            Some(Segment::Readable(readable)) => readable,
            Some(Segment::Asked) => return Ok(Reading::Later),
            Some(Segment::Absent(until)) if now < *until => return Ok(Reading::NotThere),
            Some(Segment::Absent(_)) | None => {
                self.wanted.insert(segment);
                return Ok(Reading::Later);
            }
        };
        let length = bytes.end.saturating_sub(bytes.start);
        if length == 0 || length > PLACE_SIZE || bytes.end > readable.len() {
            return Ok(Reading::NotThere);
        }
        let Some(place) = free_place(&self.places) else { return Ok(Reading::Later) };
        self.memory.channel.read(readable, bytes, place as u32 * PLACE_SIZE)?;
        self.posted.push_back(Posted::Get(place));
        self.places[place] = Place { what: Some((get, What::Record(length))), reads: 1 };
        Ok(Reading::Posted)
    }

    /// Puts what has landed since into `landed`. It stays there until the next read is posted.
    pub(super) fn poll(&mut self, landed: &mut Vec<Landed>) -> Result<(), ReadError> {
        for _ in 0..self.memory.channel.poll()? {
            match self.posted.pop_front().expect("no more reads complete than were posted") {
                Posted::Look(at) => landed.push(Landed::Look(at, BOARD_AT..BOARD_AT + LINES_WITH_MIRROR.end)),
                Posted::Get(nth) => {
                    let place = &mut self.places[nth];
                    place.reads -= 1;
                    if place.reads == 0
                        && let Some((get, what)) = place.what.take()
                    {
                        let begin = nth as u32 * PLACE_SIZE;
                        landed.push(match what {
                            What::Buckets => Landed::Buckets(get, begin..begin + 2 * BUCKET_SIZE, None),
                            What::LookUp => {
                                let found = found(&*self.memory.channel, begin + 2 * BUCKET_SIZE);
                                Landed::Buckets(get, begin..begin + 2 * BUCKET_SIZE, found)
                            }
                            What::Record(length) => Landed::Record(get, begin..begin + length),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Before the path sleeps: true if something has landed.
    pub(super) fn arm(&mut self) -> bool {
        self.is_waiting() && self.memory.channel.arm()
    }

    /// The log ends there by what was landed of the board: this segment and the next will be needed.
    pub(super) fn look_ahead(&mut self, landed: &Range<u32>) {
        let lines = self.memory.channel.landed(landed.clone());
        let (first, second) = lines.split_at(MIRROR_AT as usize);
        let Some((identity, progress)) = board::decode(first) else { return };
        if self.looks_up {
            let mirror = second.first_chunk().and_then(|line| MirrorLine::decode(line, &identity).ok().flatten());
            self.asker = mirror.map(|mirror| Asker::new(&identity, &progress, &mirror));
        }
        let open = progress.end.segment;
        if open > self.open {
            self.open = open;
            self.wanted.extend([open, open.next()].into_iter().filter(|segment| !self.segments.contains_key(segment)));
        }
    }

    /// The segments that control is to have shared now, if there are any: as many as a request may name.
    pub(super) fn take_wanted(&mut self) -> Vec<SegmentId> {
        let count = self.wanted.len().min(SHARES_MAX);
        let wanted: Vec<SegmentId> = (0..count).filter_map(|_| self.wanted.pop_last()).collect();
        self.segments.extend(wanted.iter().map(|segment| (*segment, Segment::Asked)));
        wanted
    }

    /// Of these segments, those are shared. One that is not there although it is not closed is not there yet.
    pub(super) fn shared(&mut self, asked: &[SegmentId], shared: Vec<(SegmentId, Readable)>, now: Duration) {
        let absent = |segment: SegmentId| Segment::Absent(if segment < self.open { now + ABSENT_FOR } else { now });
        self.segments.extend(asked.iter().map(|segment| (*segment, absent(*segment))));
        self.segments.extend(shared.into_iter().map(|(segment, readable)| (segment, Segment::Readable(readable))));
        while self.segments.len() > READABLE_MAX {
            self.segments.pop_first();
        }
    }
}

/// The record that a lookup has brought, if any. Its lead has landed there.
fn found(channel: &dyn ReadChannel, lead_at: u32) -> Option<Found> {
    let begin = lead_at + LEAD_SIZE;
    let Lead { name, bytes } = channel.landed(lead_at..begin).first_chunk().and_then(Lead::from_bytes)?;
    let at = begin..begin + (bytes.end - bytes.start);
    Some(Found { segment: SegmentId(name), bytes, at })
}

fn free_place(places: &[Place]) -> Option<usize> {
    places.iter().position(|place| place.reads == 0)
}
