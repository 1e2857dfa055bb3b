//! Reads this primary's own log for a client: the open end from memory, what is closed from members.
//!
//! Called by [`reads`](super) for as long as this sidecar leads.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tailwind_protocol::ids::{Epoch, Lsn, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::scan::{Scanner, Stop};
use tailwind_protocol::socket::ErrorCode;

use super::ahead::{AHEAD, Part, put};
use super::client_stream::End;
use super::position;
use super::{AtEnd, ClientRead};
use crate::control::log::{Location, Term};
use crate::path::{beyond_the_end, trimmed};

/// A tail looks up at least so often, to notice that this sidecar is no longer primary.
const TAIL_LOOKS_UP: Duration = Duration::from_millis(20);
/// Pause before something is looked for again that is not there yet.
const AGAIN: Duration = Duration::from_millis(1);

/// How far the open segment has been read, so that a tail does not read it from the start each time.
#[derive(Default)]
struct ReadSoFar(Option<(SegmentId, Closure)>);

/// Sends records in this term. Returns only with the end, which may be that of the term.
pub(super) async fn read(read: &mut ClientRead<'_>, term: Term) -> End {
    match read_until_end(read, term).await {
        Err(end) => end,
        Ok(never) => match never {},
    }
}

async fn read_until_end(read: &mut ClientRead<'_>, term: Term) -> Result<std::convert::Infallible, End> {
    let mut read_so_far = ReadSoFar::default();
    read.client.listen().await?;
    let cuts = read.context.log.cuts();
    check_term(read, term)?;
    read.enter_log(term.log, &cuts).await?;
    loop {
        // The recovered log is acknowledged, also before the append path has heard of the term.
        let acked = term.last.max(Lsn(read.context.shared.acked.load(Ordering::Acquire)));
        read.begin_at(term.first.max(Lsn(read.context.shared.first.load(Ordering::Acquire))));
        let next = read.client.next();
        if next >= read.until {
            return Err(End::Done);
        }
        if next > acked {
            if let Some(end) = end_of_log(read.at_end, next, acked, term.epoch) {
                if prove(read, term).await? > acked {
                    continue;
                }
                return Err(end);
            }
            read.client.send_caught_up().await?;
            wait_for_news(read, term, acked).await?;
            continue;
        }
        check_term(read, term)?;
        match read.context.log.locate(next) {
            Some(Location::Open(identity, memory)) => {
                send_open(read, term, memory.published(), &identity, acked, &mut read_so_far).await?;
            }
            Some(Location::Closed(identity, closure)) => send_closed(read, term, identity, closure, acked).await?,
            None => {
                check_term(read, term)?;
                let first = read.context.shared.first.load(Ordering::Acquire);
                if next.0 < first {
                    return Err(End::Refused(ErrorCode::Trimmed, trimmed(next, first)));
                }
                // Between two openings: the next look finds it.
                tokio::time::sleep(AGAIN).await;
            }
        }
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

/// Proves by a barrier that this term was not over when the end of the log was looked up, and returns the last acknowledged record.
/// A process that was stopped may have been deposed meanwhile: others have acknowledged more, and to say that the log ends here
/// would tell a client that records are lost which are not.
async fn prove(read: &ClientRead<'_>, term: Term) -> Result<Lsn, End> {
    let deadline = Instant::now() + position::PATIENCE;
    loop {
        match position::own(read.context).await {
            Ok(position) if position.epoch == term.epoch => return Ok(position.last),
            Ok(_) => return Err(End::RoleLost),
            Err(why) => {
                check_term(read, term)?;
                // A new primary of a full group has no buffer to write to, and its app must be able to trim.
                if position::no_member_has_promised_more(read.context, term).await {
                    return Ok(term.last.max(Lsn(read.context.shared.acked.load(Ordering::Acquire))));
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

fn check_term(read: &ClientRead<'_>, term: Term) -> Result<(), End> {
    if read.context.log.lasts(term) { Ok(()) } else { Err(End::RoleLost) }
}

/// Sends records of an open segment, from the next wanted one to the last acknowledged one.
async fn send_open(
    read: &mut ClientRead<'_>,
    term: Term,
    bytes: &[u8],
    identity: &SegmentIdentity,
    acked: Lsn,
    ReadSoFar(read_so_far): &mut ReadSoFar,
) -> Result<(), End> {
    let mut scanner = match read_so_far.take_if(|(segment, _)| *segment == identity.segment) {
        Some((_, closure)) => Scanner::resume(bytes, identity, closure),
        None => Scanner::new(bytes, identity).map_err(|stop| unreadable(identity, stop))?,
    };
    let before = read.client.next();
    let wanted = before..read.until.min(acked.next());
    let mut frames = read.ahead.frames(read.client.request());
    'segment: while let Ok(append) = scanner.next_append() {
        for record in append.records() {
            if record.lsn >= wanted.end {
                break 'segment;
            }
            put(record, &wanted, &mut frames);
        }
        *read_so_far = Some((identity.segment, scanner.closure()));
    }
    read.client.send_records(&mut frames).await?;
    read.ahead.keep(frames);
    if read.client.next() == before {
        // The segment does not hold what it should; its neighbours in the list may have changed meanwhile.
        check_term(read, term)?;
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}

/// Sends the wanted records of a closed segment; the ones after it are on their way from other members meanwhile. What was not
/// acknowledged when it was sent for is missing.
async fn send_closed(
    read: &mut ClientRead<'_>,
    term: Term,
    identity: SegmentIdentity,
    closure: Closure,
    acked: Lsn,
) -> Result<(), End> {
    let context = read.context;
    let wanted = read.client.next()..read.until.min(acked.next());
    let following = context.log.following(identity.segment, AHEAD);
    let following = following.into_iter().filter_map(|(identity, closure)| Part::new(identity, closure, &wanted));
    let unavailable = |why: String| End::Refused(ErrorCode::Unavailable, why);
    let (Some(first), Some(sources)) = (Part::new(identity, closure, &wanted), context.log.sources()) else {
        check_term(read, term)?;
        return Err(unavailable(format!("segment {}: no member to read from", identity.segment)));
    };
    let fetch = read.ahead.fetch(context, &sources, read.client.request(), first, following);
    match fetch.await {
        Ok(mut frames) => {
            read.client.send_records(&mut frames).await?;
            read.ahead.keep(frames);
            Ok(())
        }
        Err(why) => {
            check_term(read, term)?;
            Err(unavailable(why))
        }
    }
}

/// Waits until there is a record to send, the client says something, or it is time to look up.
async fn wait_for_news(read: &mut ClientRead<'_>, term: Term, acked: Lsn) -> Result<(), End> {
    let shared = &read.context.shared;
    shared.tailing.fetch_add(1, Ordering::AcqRel);
    let news = shared.news.notified();
    let arrived = shared.acked.load(Ordering::Acquire) > acked.0;
    if !arrived {
        tokio::select! {
            () = news => {}
            _ = read.client.speaks() => {}
            () = tokio::time::sleep(TAIL_LOOKS_UP) => {}
        }
    }
    shared.tailing.fetch_sub(1, Ordering::AcqRel);
    check_term(read, term)?;
    read.client.listen().await
}

fn unreadable(identity: &SegmentIdentity, stop: Stop) -> End {
    let message = format!("segment {} cannot be read at {}: {}", identity.segment, stop.at.0, stop.why);
    End::Refused(ErrorCode::Unavailable, message)
}

#[cfg(test)]
mod tests {
    use super::*;

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
