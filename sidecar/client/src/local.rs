//! How a local table reads its table's log, without I/O: which read comes next, and what each item of it means.
//!
//! Held by the local tables of both clients, which wait for the socket and do nothing else. See [`Content`] for the maps.

use tailwind_protocol::history::History;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::socket::{ErrorCode, READ_ANYWHERE, READ_TAIL};

use crate::content::{Change, Content};
use crate::session::{ReadItem, Session};
use crate::types::Start;
use crate::{Error, Result};

/// A local table's place in the log.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) content: Content,
    /// The record to come; 0 for the first that there is.
    next: Lsn,
    /// The history of what came before it.
    history: History,
    /// The read that runs, or comes next.
    way: Way,
    runs: bool,
}

/// How the log is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Until the sidecar's turn.
    Follow,
    /// After that, in any role: a follow would end at once.
    Tail,
}

impl Local {
    pub(crate) fn new(prefix: &[u8]) -> Local {
        let content = Content::new(prefix);
        Local { content, next: Lsn(0), history: History::UNKNOWN, way: Way::Follow, runs: false }
    }

    /// Another connection takes the place of the one that is over.
    pub(crate) fn reconnected(&mut self) {
        (self.way, self.runs) = (Way::Follow, false);
    }

    /// The next change. `None`: more has to come first. Inner `None`: the sidecar has ended the read, and the next call begins
    /// another.
    pub(crate) fn next_change(&mut self, session: &mut Session) -> Result<Option<Option<Change>>> {
        loop {
            if let Some(change) = self.content.take_change() {
                return Ok(Some(Some(change)));
            }
            if !self.runs {
                self.begin(session);
            }
            let item = match session.next_item() {
                Ok(Some(item)) => item,
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.runs = false;
                    self.begin_again(error)?;
                    continue;
                }
            };
            self.history = session.history();
            match item {
                ReadItem::Record => {
                    let (lsn, payload) = session.take_record();
                    self.next = lsn.next();
                    self.content.record(lsn, payload);
                }
                ReadItem::CaughtUp(next) => {
                    self.next = next;
                    self.content.caught_up(next);
                    self.content.tell(Change::CaughtUp { next });
                }
                ReadItem::Lag { acked, behind, stale } => self.content.tell(Change::Lag { acked, behind, stale }),
                ReadItem::Turn { epoch, next } => {
                    (self.next, self.way, self.runs) = (next, Way::Tail, false);
                    self.content.caught_up(next);
                    self.content.tell(Change::Turn { epoch, next });
                }
                ReadItem::Ended => {
                    self.runs = false;
                    return Ok(Some(None));
                }
            }
        }
    }

    fn begin(&mut self, session: &mut Session) {
        let start = Start { from: self.next, history: self.history };
        match self.way {
            Way::Follow => session.start_follow(start),
            Way::Tail => session.start_read(start, 0, READ_TAIL | READ_ANYWHERE),
        }
        self.runs = true;
    }

    /// What the log no longer has in front of `next`, or has no longer, is made good by what it has: the table is folded again.
    /// Any other error is the caller's, and so is that of a read from the first record on, unless the log has gone on while that
    /// record was looked for.
    fn begin_again(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Trimmed { .. } if self.next == Lsn(0) => Ok(()),
            Error::Trimmed { .. } | Error::Refused { code: ErrorCode::BeyondEnd, .. } if self.next > Lsn(0) => {
                (self.next, self.history) = (Lsn(0), History::UNKNOWN);
                self.content.rebuild();
                Ok(())
            }
            error => Err(error),
        }
    }
}
