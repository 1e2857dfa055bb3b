//! Serves one read or follow: sends acknowledged records from an LSN on and, if asked, goes on with new ones.
//!
//! Entered by [`control`](super) at [`serve`] when the append path hands a connection over; gives it back when the read has
//! ended. Through promotions and losses of the role the same client goes on with what comes next. Reads at once: [`READS_MAX`].
//! In the order in which one meets them:
//!
//! - [`client_stream`] is the client's connection for as long as the read has it;
//! - [`own`] reads this primary's log while this sidecar leads, and takes a [`position`] to prove where it ends;
//! - [`follow`] hands out what members hold while it does not, as one of the [`follows`] of this process;
//! - [`visit`] asks one [`member`] and reads its memory, [`alarm`] says when it is time for the next look, [`headway`] when a read
//!   that is to end is given up;
//! - [`ahead`] fetches closed segments, for both ways.
//!
//! What else is asked of the primary's log from here is a [`position`], at [`position::ask`].

mod ahead;
mod alarm;
mod client_stream;
mod follow;
pub mod follows;
mod headway;
pub(super) mod member;
mod own;
pub mod position;
pub(super) mod visit;

use std::sync::Arc;

use tailwind_protocol::config::Cut;
use tailwind_protocol::history::{History, Parted};
use tailwind_protocol::ids::{Epoch, LogId, Lsn};
use tailwind_protocol::layout::FIRST_LSN_MAX;
use tailwind_protocol::socket::{ErrorCode, Role};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

use super::{AppendLoopHandle, Context};
use crate::path::connection::{DetachedConnection, KnownRole};
use crate::path::{ClientId, Command, ReadKind, ReadRequest, Start};
use ahead::ReadAhead;
use client_stream::{ClientStream, End};

/// Reads at once.
const READS_MAX: usize = 16;

/// Places of reads; each is free again when its read has ended.
static PLACES: Semaphore = Semaphore::const_new(READS_MAX);

/// Gives a connection back to the append path when this is dropped; without one, tells that it has ended.
struct Handback<'a> {
    path: &'a AppendLoopHandle,
    id: ClientId,
    connection: Option<DetachedConnection>,
}

impl Drop for Handback<'_> {
    fn drop(&mut self) {
        let connection = self.connection.take();
        self.path.send(connection.map_or(Command::Left(self.id), Command::Adopt));
    }
}

/// What a read does when it has sent everything that is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtEnd {
    /// It has done what was asked.
    Done,
    /// Goes on with what will be acknowledged.
    GoOn,
    /// The same, until this sidecar leads: then its client may append.
    Turn,
}

/// One client's read.
struct ClientRead<'a> {
    /// What the roles know.
    context: &'a Arc<Context>,
    /// Who reads.
    client: ClientStream,
    /// What its client gets first, as long as that is to be the first record of the log and nothing has been sent.
    begins: Option<Lsn>,
    /// The record before which it ends.
    until: Lsn,
    /// At most so many records; 0 for no limit.
    limit: u64,
    /// What comes after the last acknowledged record.
    at_end: AtEnd,
    /// The history that what its client has been sent belongs to.
    history: History,
    /// What its client has been told of it.
    told: Option<History>,
    /// Segments on their way.
    ahead: ReadAhead,
}

/// Serves a read and gives the connection back to the append path.
pub(super) async fn serve(context: Arc<Context>, detached: DetachedConnection, wanted: ReadRequest) {
    let place = PLACES.try_acquire();
    let DetachedConnection { id, stream, ring, received, unsent, version, read_only, known, shown } = detached;
    let id = id.expect("a connection that has been greeted has a name");
    let mut handback = Handback { path: &context.path, id, connection: None };
    let Ok(stream) = UnixStream::from_std(stream) else { return };
    let ReadRequest { request, start: Start { from, history }, kind } = wanted;
    let (request_max, patience) = (context.rules.segment_size.record_size_max(), context.rules.client_timeout);
    let client = ClientStream::new(stream, received, version, request, from, request_max as usize, patience);
    let (limit, at_end, anywhere) = match kind {
        ReadKind::Read { limit, tail, anywhere } => (limit, if tail { AtEnd::GoOn } else { AtEnd::Done }, anywhere),
        ReadKind::Follow => (0, AtEnd::Turn, true),
    };
    let (until, ahead) = (until(from, limit), ReadAhead::default());
    let begins = (from == Lsn(0)).then_some(from);
    let mut read = ClientRead { context: &context, client, begins, until, limit, at_end, history, told: None, ahead };
    let end = match read.client.write(&unsent).await {
        Err(end) => end,
        Ok(()) if place.is_err() => {
            let message = format!("{READS_MAX} reads are running already: try again when one has ended");
            End::Refused(ErrorCode::Busy, message)
        }
        Ok(()) if from > FIRST_LSN_MAX => {
            let message = format!("cannot read from LSN {from}: no log has more than {FIRST_LSN_MAX} records");
            End::Refused(ErrorCode::BeyondEnd, message)
        }
        Ok(()) if anywhere => read.read_anywhere().await,
        Ok(()) => read.read_here().await,
    };
    // What its client knows is complete: whatever role this connection began in, it may append in this epoch.
    let (read_only, known) = match end {
        End::Turn(Epoch(epoch)) => (None, KnownRole { role: Role::Primary, epoch, ..known }),
        _ => (read_only, known),
    };
    let answered = read.client.finish(end).await;
    let (stream, received) = read.client.into_parts();
    if let (true, Ok(stream)) = (answered, stream.into_std()) {
        let (id, unsent) = (Some(id), Vec::new());
        let connection = DetachedConnection { id, stream, ring, received, unsent, version, read_only, known, shown };
        handback.connection = Some(connection);
    }
}

impl ClientRead<'_> {
    /// Reads the log of this sidecar's term; over with it.
    async fn read_here(&mut self) -> End {
        let Some(term) = self.context.log.term() else { return End::RoleLost };
        let Err(end) = own::read(self, term).await;
        end
    }

    /// Reads the own log while this sidecar leads, and what members hold while it does not.
    async fn read_anywhere(&mut self) -> End {
        let mut leading = self.context.log.leading();
        loop {
            let term = *leading.borrow_and_update();
            let Err(end) = match term {
                Some(term) if !self.context.follows.have_outlived(&term) => own::read(self, term).await,
                _ => follow::follow(self, &mut leading).await,
            };
            match end {
                // Only the role: the records go on.
                End::RoleLost => tokio::task::yield_now().await,
                end => return end,
            }
        }
    }

    /// The log begins with this record: so does a read of all there is, unless its client has been sent a record or was told that it
    /// has caught up.
    fn begin_at(&mut self, first: Lsn) {
        if self.begins() && first > self.client.next {
            (self.client.next, self.begins) = (first, Some(first));
            self.until = until(first, self.limit);
        }
    }

    /// Whether its client wants the first record, whichever that is.
    fn begins(&self) -> bool {
        self.begins == Some(self.client.next) && !self.client.has_caught_up()
    }

    /// This log, which has been cut so, is read from now on. A client that has been sent what a cut has taken gets nothing more.
    async fn enter_log(&mut self, log: LogId, cuts: &[Cut]) -> Result<(), End> {
        let next = self.client.next;
        self.history.go_on(next, log, cuts).map_err(|why| parted(next, why))?;
        self.tell_history().await
    }

    /// Tells the client which history it reads, if that is news.
    async fn tell_history(&mut self) -> Result<(), End> {
        if self.history != History::UNKNOWN && self.told.replace(self.history) != Some(self.history) {
            self.client.send_history(self.history).await?;
        }
        Ok(())
    }
}

/// Why a client that wants `next` gets nothing more.
fn parted(next: Lsn, parted: Parted) -> End {
    match parted {
        Parted::Cut(last) => End::Refused(
            ErrorCode::BeyondEnd,
            format!(
                "cannot go on with LSN {next}: by an administrator's order the log was cut after LSN {last}, and what comes there \
                 now follows other records than those that were sent: begin again"
            ),
        ),
        Parted::OtherLog(log) => End::Refused(
            ErrorCode::BeyondEnd,
            format!(
                "the group was created again, with log {log}: what has been read is of another log; read from the beginning"
            ),
        ),
        Parted::NotKnown => End::Refused(
            ErrorCode::Unavailable,
            format!(
                "cannot go on with LSN {next}: this sidecar does not know the history that the request names, in which the log has \
                 been cut since; try again when it has read the config store"
            ),
        ),
    }
}

/// The record before which a read ends: beyond any log if it has no limit. Where it begins with the first there is, that must be
/// known before.
fn until(from: Lsn, limit: u64) -> Lsn {
    Lsn(if limit == 0 || from == Lsn(0) { u64::MAX } else { from.0.saturating_add(limit) })
}
