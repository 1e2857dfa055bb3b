//! One client: reads commands, has them carried out, writes the replies in their order.
//!
//! Started by [`server`](crate::server). At most one batch of commands is under way for each client; further commands wait in
//! the socket, which is the back-pressure. A command that is large needs one of few places before it is read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::command::{Command, Local, parse};
use crate::limits::{BATCH_COMMANDS_MAX, CLIENT_PATIENCE, REPLY_PIECE_SIZE, SMALL_COMMAND_SIZE};
use crate::resp::{Parser, ProtocolError, Reply};
use crate::server_state::{Batch, ServerState, StateWatch};
use crate::stats::{Stats, count};
use crate::term::{Operation, refuse_all, unknown_outcome};
use crate::turns::now;

/// What all connections share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Where commands go.
    pub state: StateWatch,
    /// Counted here.
    pub stats: Arc<Stats>,
    /// Places of large commands.
    pub large: Arc<Semaphore>,
}

/// Commands that have been received together.
#[derive(Debug, Default)]
struct Received {
    operations: Vec<Operation>,
    /// The client wants no more, or can be understood no more.
    last: bool,
}

/// Serves a client until it goes, or `stopping` says so.
pub async fn serve(stream: TcpStream, shared: Shared, mut stopping: watch::Receiver<bool>) -> io::Result<()> {
    tune(&stream)?;
    let mut connection = Connection { stream, shared, parser: Parser::default(), place: None, begun: None };
    loop {
        let received = connection.received();
        if received.operations.is_empty() {
            tokio::select! {
                more = connection.read_more() => if !more? { return Ok(()) },
                _ = stopping.wait_for(|stop| *stop) => return Ok(()),
            }
            continue;
        }
        let replies = connection.carry_out(received.operations).await;
        connection.send(replies).await?;
        (connection.place, connection.begun) = (None, None);
        if received.last || *stopping.borrow() {
            return connection.stream.shutdown().await;
        }
    }
}

/// No waiting for more bytes to send, and an end when the client's host is dead: its place is wanted.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, CLIENT_PATIENCE)?;
    sockopt::set_tcp_keepintvl(stream, CLIENT_PATIENCE)?;
    Ok(sockopt::set_tcp_keepcnt(stream, 3)?)
}

struct Connection {
    stream: TcpStream,
    shared: Shared,
    parser: Parser,
    /// One of the places of large commands.
    place: Option<OwnedSemaphorePermit>,
    /// When the command began that is not whole yet.
    begun: Option<Instant>,
}

impl Connection {
    /// The whole commands that are here.
    fn received(&mut self) -> Received {
        let mut received = Received::default();
        while received.operations.len() < BATCH_COMMANDS_MAX && !received.last {
            let arguments = match self.parser.next_command() {
                Ok(Some(arguments)) => arguments,
                Ok(None) => break,
                Err(error) => {
                    received.operations.push(self.refuse(&error));
                    received.last = true;
                    break;
                }
            };
            count(&self.shared.stats.commands);
            let operation = match parse(&arguments, now()) {
                Ok(Command::Read(read)) => Operation::Read(read),
                Ok(Command::Write(write)) => Operation::Write(write),
                Ok(Command::Local(Local::Answer(reply))) => Operation::Ready(reply),
                Ok(Command::Local(Local::Info)) => {
                    Operation::Ready(Reply::text(self.shared.stats.info(&self.shared.state.borrow())))
                }
                Ok(Command::Local(Local::Quit)) => {
                    received.last = true;
                    Operation::Ready(Reply::OK)
                }
                Err(error) => {
                    count(&self.shared.stats.errors);
                    Operation::Ready(error)
                }
            };
            received.operations.push(operation);
        }
        received
    }

    fn refuse(&self, error: &ProtocolError) -> Operation {
        count(&self.shared.stats.errors);
        Operation::Ready(Reply::error(format!("ERR {error}")))
    }

    /// False: the client has gone.
    async fn read_more(&mut self) -> io::Result<bool> {
        if self.parser.size() > SMALL_COMMAND_SIZE && self.place.is_none() {
            let large = Arc::clone(&self.shared.large);
            self.place = large.acquire_owned().await.ok();
            self.begun = None;
        }
        let midway = self.parser.is_midway();
        let read = self.stream.read_buf(self.parser.room());
        if !midway {
            return Ok(read.await? > 0);
        }
        // A client that sends a byte now and then would hold a place forever.
        let until = *self.begun.get_or_insert_with(Instant::now) + CLIENT_PATIENCE;
        let size = timeout_at(until, read).await;
        let size =
            size.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the rest of a command did not come"))??;
        Ok(size > 0)
    }

    /// The replies to these commands. Those that want keys go to the task that has them; at a standby those that change keys do
    /// not.
    async fn carry_out(&self, operations: Vec<Operation>) -> Vec<Reply> {
        if operations.iter().all(|operation| matches!(operation, Operation::Ready(_))) {
            return refuse_all(operations, &Reply::Nil);
        }
        let state = self.shared.state.borrow().clone();
        let (work, operations) = match &state {
            ServerState::Primary { work, .. } => (work, operations),
            ServerState::Standby { work, .. } => (work, refuse_writes(operations, &state.refusal())),
            ServerState::Alone { .. } | ServerState::Loading { .. } => {
                return refuse_all(operations, &state.refusal());
            }
        };
        let count = operations.len();
        // A standby writes nothing: an answer that never comes leaves no doubt.
        let is_standby = matches!(state, ServerState::Standby { .. });
        let unanswered = is_standby.then(|| refuse_all(operations.clone(), &follows_anew()));
        let (answer, replies) = oneshot::channel();
        match work.send(Batch { operations, answer }).await {
            // The task is gone with the batch: what became of it is not known.
            Ok(()) => replies.await.unwrap_or_else(|_| unanswered.unwrap_or_else(|| vec![unknown_outcome(); count])),
            Err(refused) => refuse_all(refused.0.operations, &state.refusal()),
        }
    }

    /// Writes replies, a piece at a time, so that a long array is not in memory twice.
    async fn send(&mut self, replies: Vec<Reply>) -> io::Result<()> {
        let mut piece = Vec::with_capacity(REPLY_PIECE_SIZE.min(64 * replies.len()));
        for reply in replies {
            match reply {
                Reply::Array(items) => {
                    Reply::encode_array_head(items.len(), &mut piece);
                    for item in items {
                        item.encode(&mut piece);
                        self.send_piece(&mut piece, REPLY_PIECE_SIZE).await?;
                    }
                }
                reply => reply.encode(&mut piece),
            }
            self.send_piece(&mut piece, REPLY_PIECE_SIZE).await?;
        }
        self.send_piece(&mut piece, 1).await
    }

    /// Sends what has been gathered, if it is that much.
    async fn send_piece(&mut self, piece: &mut Vec<u8>, size_min: usize) -> io::Result<()> {
        if piece.len() < size_min {
            return Ok(());
        }
        let unread = || io::Error::new(io::ErrorKind::TimedOut, "replies are not read");
        timeout(CLIENT_PATIENCE, self.stream.write_all(piece)).await.map_err(|_| unread())??;
        piece.clear();
        Ok(())
    }
}

fn follows_anew() -> Reply {
    Reply::error("LOADING this server restarts its follow of the log: ask again")
}

fn refuse_writes(operations: Vec<Operation>, refusal: &Reply) -> Vec<Operation> {
    let refuse = |operation| match operation {
        Operation::Write(_) => Operation::Ready(refusal.clone()),
        other => other,
    };
    operations.into_iter().map(refuse).collect()
}

/// Counts a client for as long as it lives.
pub struct Counted(Arc<Stats>);

impl Counted {
    /// Counts one more.
    pub fn new(stats: &Arc<Stats>) -> Counted {
        count(&stats.clients);
        Counted(Arc::clone(stats))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}
