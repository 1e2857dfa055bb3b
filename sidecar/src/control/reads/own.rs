//! Reads this primary's own log for a client: the open end from memory, what is closed from members.
//!
//! Called by [`reads`](super) for as long as this sidecar leads.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tailwind_protocol::ids::{Epoch, Lsn, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::scan::{Scanner, Stop};
use tailwind_protocol::socket::ErrorCode;

use super::ahead::{AHEAD, Part, put};
use super::client_stream::End;
use super::{AtEnd, ClientRead, position};
use crate::control::Context;
use crate::control::log::{Location, Term};
use crate::path::{beyond_the_end, trimmed};

/// A tail looks up at least so often, to notice that this sidecar is no longer primary.
const TAIL_LOOKS_UP: Duration = Duration::from_millis(20);
/// Pause before something is looked for again that is not there yet.
const AGAIN: Duration = Duration::from_millis(1);

/// Sends records in this term. Returns only with the end, which may be that of the term.
pub(super) async fn read(read: &mut ClientRead<'_>, term: Term) -> Result<Infallible, End> {
    OwnRead { context: read.context, read, term, read_so_far: None }.run().await
}

/// A read of this term's log.
struct OwnRead<'r, 'c> {
    context: &'c Arc<Context>,
    read: &'r mut ClientRead<'c>,
    term: Term,
    /// How far the open segment has been read, so that a tail does not read it from the start each time.
    read_so_far: Option<(SegmentId, Closure)>,
}

impl OwnRead<'_, '_> {
    async fn run(mut self) -> Result<Infallible, End> {
        self.read.client.listen().await?;
        let cuts = self.context.log.cuts();
        self.check_term()?;
        self.read.enter_log(self.term.log, &cuts).await?;
        loop {
            // The recovered log is acknowledged, also before the append path has heard of the term.
            let acked = self.term.last.max(Lsn(self.context.shared.acked.load(Ordering::Acquire)));
            self.read.begin_at(self.term.first.max(Lsn(self.context.shared.first.load(Ordering::Acquire))));
            let next = self.read.client.next;
            if next >= self.read.until {
                return Err(End::Done);
            }
            if next > acked {
                if let Some(end) = end_of_log(self.read.at_end, next, acked, self.term.epoch) {
                    if self.prove().await? > acked {
                        continue;
                    }
                    return Err(end);
                }
                self.read.client.send_caught_up().await?;
                self.wait_for_news(acked).await?;
                continue;
            }
            self.check_term()?;
            match self.context.log.locate(next) {
                Some(Location::Open(identity, memory)) => {
                    self.send_open(memory.published(), &identity, acked).await?;
                }
                Some(Location::Closed(identity, closure)) => self.send_closed(identity, closure, acked).await?,
                None => {
                    self.check_term()?;
                    let first = self.context.shared.first.load(Ordering::Acquire);
                    if next.0 < first {
                        return Err(End::Refused(ErrorCode::Trimmed, trimmed(next, first)));
                    }
                    // Between two openings: the next look finds it.
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    /// Proves by a barrier that this term was not over when the end of the log was looked up, and returns the last acknowledged
    /// record. A process that was stopped may have been deposed since: others have acknowledged more, and to say that the log ends
    /// here would tell a client that records are lost which are not.
    async fn prove(&self) -> Result<Lsn, End> {
        let deadline = Instant::now() + position::PATIENCE;
        loop {
            match position::take(self.context).await {
                Ok(position) if position.epoch == self.term.epoch => return Ok(position.last),
                Ok(_) => return Err(End::RoleLost),
                Err(why) => {
                    self.check_term()?;
                    // A new primary of a full group has no buffer to write to, and its app must be able to trim.
                    if position::no_member_has_promised_more(self.context, self.term).await {
                        return Ok(self.term.last.max(Lsn(self.context.shared.acked.load(Ordering::Acquire))));
                    }
                    if Instant::now() >= deadline {
                        let message = format!("where the log ends cannot be proved: {why}");
                        return Err(End::Refused(ErrorCode::Unavailable, message));
                    }
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    fn check_term(&self) -> Result<(), End> {
        if self.context.log.lasts(self.term) { Ok(()) } else { Err(End::RoleLost) }
    }

    /// Sends records of an open segment, from the next wanted one to the last acknowledged one.
    async fn send_open(&mut self, bytes: &[u8], identity: &SegmentIdentity, acked: Lsn) -> Result<(), End> {
        let mut scanner = match self.read_so_far.take_if(|(segment, _)| *segment == identity.segment) {
            Some((_, closure)) => Scanner::resume(bytes, identity, closure),
            None => Scanner::new(bytes, identity).map_err(|stop| unreadable(identity, stop))?,
        };
        let before = self.read.client.next;
        let wanted = before..self.read.until.min(acked.next());
        let mut frames = self.read.ahead.frames(self.read.client.request);
        'segment: while let Ok(append) = scanner.next_append() {
            for record in append.records() {
                if record.lsn >= wanted.end {
                    break 'segment;
                }
                put(record, &wanted, &mut frames);
            }
            self.read_so_far = Some((identity.segment, scanner.closure()));
        }
        self.read.client.send_records(&mut frames).await?;
        self.read.ahead.keep(frames);
        if self.read.client.next == before {
            // The segment does not hold what it should; its neighbours in the list may have changed meanwhile.
            self.check_term()?;
            tokio::time::sleep(AGAIN).await;
        }
        Ok(())
    }

    /// Sends the wanted records of a closed segment, while the ones after it are on their way from other members. What was not
    /// acknowledged when it was sent for is missing.
    async fn send_closed(&mut self, identity: SegmentIdentity, closure: Closure, acked: Lsn) -> Result<(), End> {
        let wanted = self.read.client.next..self.read.until.min(acked.next());
        let following = self.context.log.following(identity.segment, AHEAD);
        let following = following.into_iter().filter_map(|(identity, closure)| Part::new(identity, closure, &wanted));
        let unavailable = |why: String| End::Refused(ErrorCode::Unavailable, why);
        let (Some(first), Some(sources)) = (Part::new(identity, closure, &wanted), self.context.log.sources()) else {
            self.check_term()?;
            return Err(unavailable(format!("segment {}: no member to read from", identity.segment)));
        };
        let fetch = self.read.ahead.fetch(self.context, &sources, self.read.client.request, first, following);
        match fetch.done().await {
            Ok(mut frames) => {
                self.read.client.send_records(&mut frames).await?;
                self.read.ahead.keep(frames);
                Ok(())
            }
            Err(why) => {
                self.check_term()?;
                let first = Lsn(self.context.shared.first.load(Ordering::Acquire));
                Err(not_fetched(wanted.start, &closure, first, why))
            }
        }
    }

    /// Waits until there is a record to send, the client says something, or it is time to look up.
    async fn wait_for_news(&mut self, acked: Lsn) -> Result<(), End> {
        let shared = &self.context.shared;
        shared.tailing.fetch_add(1, Ordering::AcqRel);
        let news = shared.news.notified();
        let arrived = shared.acked.load(Ordering::Acquire) > acked.0;
        if !arrived {
            tokio::select! {
                () = news => {}
                _ = self.read.client.speaks() => {}
                () = tokio::time::sleep(TAIL_LOOKS_UP) => {}
            }
        }
        shared.tailing.fetch_sub(1, Ordering::AcqRel);
        self.check_term()?;
        self.read.client.listen().await
    }
}

/// How a read ends of which everything acknowledged has been sent; `None` if it goes on. It may have begun where only members
/// were asked, which could not tell yet that it begins beyond the end.
fn end_of_log(at_end: AtEnd, next: Lsn, acked: Lsn, epoch: Epoch) -> Option<End> {
    // Its client knows of records that this log does not have: it must neither append behind them, nor get others instead.
    if let Some(message) = beyond_the_end(next.0, acked.0) {
        return Some(End::Refused(ErrorCode::BeyondEnd, message));
    }
    match at_end {
        AtEnd::Done => Some(End::Done),
        AtEnd::Turn => Some(End::Turn(epoch)),
        AtEnd::GoOn => None,
    }
}

/// How a read ends that wants `next` next, of a closed segment that no member has given. Members drop a segment once the log has
/// been trimmed beyond it, so `first` was there before their answers.
fn not_fetched(next: Lsn, closure: &Closure, first: Lsn, why: String) -> End {
    if closure.last < first {
        return End::Refused(ErrorCode::Trimmed, trimmed(next, first.0));
    }
    End::Refused(ErrorCode::Unavailable, why)
}

fn unreadable(identity: &SegmentIdentity, stop: Stop) -> End {
    let message = format!("segment {} cannot be read at {}: {}", identity.segment, stop.at.0, stop.why);
    End::Refused(ErrorCode::Unavailable, message)
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::Offset;
    use tailwind_protocol::layout::Chain;

    use super::*;

    #[test]
    fn a_segment_that_was_trimmed_while_it_was_fetched_is_trimmed() {
        let closure = Closure { first: Lsn(10), last: Lsn(19), end: Offset(640), chain: Chain(0) };
        let end = |first| match not_fetched(Lsn(12), &closure, Lsn(first), "not here".to_owned()) {
            End::Refused(code, message) => (code, message),
            other => panic!("{other:?}"),
        };
        assert_eq!(end(19), (ErrorCode::Unavailable, "not here".to_owned()), "record 19 is there still");
        assert_eq!(end(20), (ErrorCode::Trimmed, trimmed(Lsn(12), 20)));
    }

    #[test]
    fn a_read_ends_at_the_end_but_not_beyond() {
        let end = |at_end, next, acked| match end_of_log(at_end, Lsn(next), Lsn(acked), Epoch(5)) {
            None => "goes on",
            Some(End::Done) => "done",
            Some(End::Turn(Epoch(5))) => "turn",
            Some(End::Refused(ErrorCode::BeyondEnd, _)) => "beyond the end",
            Some(other) => panic!("{other:?}"),
        };
        for (at_end, expected) in [(AtEnd::Done, "done"), (AtEnd::GoOn, "goes on"), (AtEnd::Turn, "turn")] {
            assert_eq!((end(at_end, 8, 7), end(at_end, 1, 0)), (expected, expected));
            assert_eq!((end(at_end, 9, 7), end(at_end, 2, 0)), ("beyond the end", "beyond the end"));
        }
    }
}
