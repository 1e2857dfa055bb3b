//! The reader's half: reads that take no part of the receiver's processor, as over [`shm`](crate::shm), and lookups, which it answers.
//!
//! Called by the sidecar's control code, and the channel by its append path. No call of the channel allocates, blocks or locks.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::error::{ChannelError, FabricError, ReadError};
use crate::message::{ChannelAnswer, FabricKind, Offer, ReadGrant};
use crate::reading::{
    LEAD_SIZE, Lead, LookUp, READS_MAX, ReadChannel, ReadOpening, Readable, Reader, check_read, check_settled,
};
use crate::shm::reading::{attach, take};

use super::Baseline;
use super::link::{Link, ShmLink};
use super::lookup::{HEAD_SIZE, Request, SIZES, read_head};
use super::meeting::Meeting;

/// Reads slots of receivers on this host.
#[derive(Debug)]
pub struct MessageReader {
    baseline: Baseline,
}

/// A read channel that is being opened.
#[derive(Debug)]
struct MessageReadOpening {
    baseline: Baseline,
    meeting: Meeting,
    landing: u32,
}

/// One ordered stream of reads and lookups.
struct MessageReadChannel {
    link: ShmLink,
    landing: Vec<u8>,
    /// What has not been reported, in the order in which it was posted. Its capacity is [`READS_MAX`], and is never exceeded.
    open: VecDeque<Open>,
    /// Bytes of the oldest answer that have arrived: first its head, then what lands.
    head: [u8; HEAD_SIZE],
    arrived: usize,
    failure: Option<ReadError>,
}

#[derive(Debug)]
struct Open {
    place: Range<u32>,
    /// Bytes that land at least, of a lookup without an answer. `None`: everything has landed.
    awaited: Option<usize>,
}

impl MessageReader {
    /// For receivers of the same baseline.
    ///
    /// # Panics
    /// With [`Baseline::Ring`], whose completed writes are not in the slots yet: its receivers share nothing.
    pub fn new(baseline: Baseline) -> MessageReader {
        assert!(baseline != Baseline::Ring, "what is in the log cannot be read");
        MessageReader { baseline }
    }
}

impl Reader for MessageReader {
    fn kind(&self) -> FabricKind {
        FabricKind::Baseline(self.baseline)
    }

    fn begin(&self, landing: u32) -> Result<Box<dyn ReadOpening>, FabricError> {
        let meeting = Meeting::listen().map_err(FabricError::io("listen for the receiver's memory"))?;
        Ok(Box::new(MessageReadOpening { baseline: self.baseline, meeting, landing }))
    }

    fn attach(&self, grant: &ReadGrant) -> Result<Readable, FabricError> {
        match grant {
            ReadGrant::Baseline { baseline, path, key, length } if *baseline == self.baseline => {
                attach(path, *key, *length)
            }
            _ => Err(FabricError::mismatch(self.kind(), grant.kind())),
        }
    }
}

impl ReadOpening for MessageReadOpening {
    fn offer(&self) -> Offer {
        self.meeting.offer(self.baseline)
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, _peer: IpAddr) -> Result<Box<dyn ReadChannel>, FabricError> {
        let link = self.meeting.connect(self.baseline, answer, SIZES)?;
        Ok(Box::new(MessageReadChannel {
            link,
            landing: vec![0; self.landing as usize],
            open: VecDeque::with_capacity(READS_MAX),
            head: [0; HEAD_SIZE],
            arrived: 0,
            failure: None,
        }))
    }
}

impl fmt::Debug for MessageReadChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MessageReadChannel { link, open, failure, .. } = self;
        let mut text = f.debug_struct("MessageReadChannel");
        text.field("link", link).field("open", open).field("failure", failure).finish_non_exhaustive()
    }
}

/// Nothing but the end of a share ends a channel with a word.
fn lost(error: ChannelError) -> ReadError {
    if error == ChannelError::Protocol { ReadError::Protocol } else { ReadError::Disconnected }
}

impl MessageReadChannel {
    /// Where lookups without an answer land.
    fn awaited(&self) -> impl Iterator<Item = &Range<u32>> {
        self.open.iter().filter(|open| open.awaited.is_some()).map(|open| &open.place)
    }

    /// Refuses what is posted once the channel is over, or too many reads are open.
    fn may_post(&mut self, place: &Range<u32>) -> Result<(), ReadError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        check_settled(place, self.awaited());
        self.link.check().map_err(|error| *self.failure.insert(lost(error)))?;
        if self.open.len() == READS_MAX { Err(ReadError::QueueFull) } else { Ok(()) }
    }

    /// Takes the answers that have arrived.
    fn receive(&mut self) -> Result<(), ReadError> {
        loop {
            let Some(open) = self.open.iter_mut().find(|open| open.awaited.is_some()) else { return Ok(()) };
            let (place, least) = (open.place.clone(), open.awaited.unwrap_or_default());
            let landed = self.arrived.checked_sub(HEAD_SIZE);
            let room = match landed {
                None => &mut self.head[self.arrived..],
                Some(landed) => {
                    let end = place.start as usize + read_head(&self.head).0;
                    &mut self.landing[place.start as usize + landed..end]
                }
            };
            let count = self.link.receive(room).map_err(lost)?;
            if count == 0 {
                return Ok(());
            }
            self.arrived += count;
            if self.arrived < HEAD_SIZE {
                continue;
            }
            let (length, ended) = read_head(&self.head);
            if ended {
                return Err(ReadError::Ended);
            }
            if length < least || length > place.len() {
                return Err(ReadError::Protocol);
            }
            if self.arrived == HEAD_SIZE + length {
                let lead_at = place.start as usize + least - LEAD_SIZE as usize;
                let lead = self.landing[lead_at..].first_chunk().and_then(Lead::from_bytes);
                if length - least != lead.map_or(0, |lead| lead.bytes.len()) {
                    return Err(ReadError::Protocol);
                }
                (open.awaited, self.arrived) = (None, 0);
            }
        }
    }
}

impl ReadChannel for MessageReadChannel {
    fn read(&mut self, from: &Readable, at: Range<u32>, place: u32) -> Result<(), ReadError> {
        let place = check_read(from, &at, place, self.landing.len());
        self.may_post(&place)?;
        if !take(from, at.start, &mut self.landing[place.start as usize..place.end as usize]) {
            return Err(*self.failure.insert(ReadError::Ended));
        }
        self.open.push_back(Open { place, awaited: None });
        Ok(())
    }

    fn look_up(&mut self, lookup: &LookUp<'_>, place: Range<u32>) -> Result<bool, ReadError> {
        let reads = lookup.reads.each_ref().map(|(from, at)| {
            check_read(from, at, place.start, self.landing.len());
            (from.key, at.clone())
        });
        assert!(place.end as usize <= self.landing.len(), "a lookup lands within the landing");
        let request = Request::new(reads, lookup.question, place.end.saturating_sub(place.start));
        self.may_post(&place)?;
        let bytes = request.encode();
        let sent = self.link.send([&bytes, &[]]).map_err(lost);
        // There is room for as many as may be open.
        let sent = sent.and_then(|count| if count == bytes.len() { Ok(()) } else { Err(ReadError::Protocol) });
        sent.map_err(|failure| *self.failure.insert(failure))?;
        self.open.push_back(Open { place, awaited: Some(request.least() as usize) });
        Ok(true)
    }

    fn poll(&mut self) -> Result<u32, ReadError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        // Answers first: the end of the channel would take them with it.
        let received = self.receive().and_then(|()| self.link.check().map_err(lost));
        let mut completed = 0;
        while self.open.front().is_some_and(|open| open.awaited.is_none()) {
            self.open.pop_front();
            completed += 1;
        }
        match received {
            Ok(()) => Ok(completed),
            Err(failure) => {
                self.failure = Some(failure);
                // What completed before the end is reported first.
                if completed > 0 { Ok(completed) } else { Err(failure) }
            }
        }
    }

    fn landed(&self, range: Range<u32>) -> &[u8] {
        check_settled(&range, self.awaited());
        &self.landing[range.start as usize..range.end as usize]
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.link.readiness())
    }

    fn arm(&mut self) -> bool {
        match self.open.front() {
            _ if self.failure.is_some() => true,
            Some(open) => open.awaited.is_none() || self.link.arm(false),
            None => false,
        }
    }
}
