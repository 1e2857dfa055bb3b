//! The client's connection while a read or a follow has it: what is sent, and what the client says meanwhile.
//!
//! Used by [`reads`](super) and everything it calls. A client that takes no byte for too long gives its place up:
//! what it holds, others may be waiting for.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tailwind_protocol::history::History;
use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::socket::{ErrorCode, RecordsFrames, Request, Response, VERSION_HISTORY, decode_request};
use tokio::net::UnixStream;

/// Bytes sent between two looks at what the client says: some of the frames of [`RecordsFrames`].
const PIECE_SIZE: usize = 256 << 10;
/// When it may be worth trying again for a place, or for a segment that nobody could give.
const RETRY_MS: u32 = 1000;
/// Frames of a client that are taken before others get their turn: some 20 µs. A client may have said 65,536 small ones.
const FRAMES_PER_TURN: usize = 1024;

/// Why a read or a follow ended.
#[derive(Debug)]
pub(super) enum End {
    /// At the end of the log or at the limit.
    Done,
    /// The client said stop.
    Stopped,
    /// The client has every record, and this sidecar leads this epoch.
    Turn(Epoch),
    /// This sidecar no longer leads the term in which the read began.
    RoleLost,
    /// Something is in the way; the connection goes on.
    Refused(ErrorCode, String),
    /// The client is gone.
    Gone,
    /// The client has taken no byte for so long.
    Stuck(Duration),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Gone
    }
}

/// A client that waits for records.
#[derive(Debug)]
pub(super) struct ClientStream {
    stream: UnixStream,
    /// What has been received and not been taken. Frames leave its front without moving the rest.
    received: BytesMut,
    /// The version that it speaks.
    version: u16,
    /// The number of its request.
    pub(super) request: u64,
    /// Largest request that may come meanwhile, so that what is received fits a connection's inbox; a stop has no body.
    request_max: usize,
    /// How long it may take no byte.
    patience: Duration,
    /// The record to send next; 0 for the first that there is, while that is not known.
    pub(super) next: Lsn,
    /// The record to send next when it was told last that it has caught up.
    caught_up: Option<Lsn>,
    frame: Vec<u8>,
}

impl ClientStream {
    /// A client whose request has this number, and which wants the records from `next` on.
    pub(super) fn new(
        stream: UnixStream,
        received: Vec<u8>,
        version: u16,
        request: u64,
        next: Lsn,
        request_max: usize,
        patience: Duration,
    ) -> ClientStream {
        let received = BytesMut::from(&received[..]);
        ClientStream {
            stream,
            received,
            version,
            request,
            request_max,
            patience,
            next,
            caught_up: None,
            frame: Vec::new(),
        }
    }

    /// The socket, and what has been received and is not for the read.
    pub(super) fn into_parts(self) -> (UnixStream, Vec<u8>) {
        (self.stream, self.received.into())
    }

    /// Sends records, and looks now and then whether the client has said anything.
    pub(super) async fn send_records(&mut self, frames: &mut RecordsFrames) -> Result<(), End> {
        for (piece, next) in frames.pieces(PIECE_SIZE) {
            self.write(piece).await?;
            self.next = Lsn(next);
            self.listen().await?;
        }
        Ok(())
    }

    /// Sends an answer to the request.
    pub(super) async fn send(&mut self, response: &Response<'_>) -> Result<(), End> {
        self.say(self.request, response).await
    }

    /// Tells it which history the records from here on belong to, if it is of a version that knows them.
    pub(super) async fn send_history(&mut self, History(history): History) -> Result<(), End> {
        if self.version < VERSION_HISTORY {
            return Ok(());
        }
        self.send(&Response::History { history }).await
    }

    /// Whether its client was told that it has caught up, at any record.
    pub(super) fn has_caught_up(&self) -> bool {
        self.caught_up.is_some()
    }

    /// Tells it that it has caught up, unless it knows: no record has been sent since.
    pub(super) async fn send_caught_up(&mut self) -> Result<(), End> {
        if self.caught_up.replace(self.next) == Some(self.next) {
            return Ok(());
        }
        self.send(&Response::End { next: self.next.0, tailing: true }).await
    }

    async fn say(&mut self, request: u64, response: &Response<'_>) -> Result<(), End> {
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        response.encode(request, &mut frame);
        let written = self.write(&frame).await;
        self.frame = frame;
        written
    }

    /// Writes everything, as long as the client goes on taking some of it.
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> Result<(), End> {
        while !bytes.is_empty() {
            let ready = tokio::time::timeout(self.patience, self.stream.writable()).await;
            ready.map_err(|_| End::Stuck(self.patience))??;
            match self.stream.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns when the client may have said something: then [listen](ClientStream::listen).
    pub(super) async fn speaks(&self) -> Result<(), End> {
        Ok(self.stream.readable().await?)
    }

    /// Takes what the client has said: a stop, or something that has to wait.
    pub(super) async fn listen(&mut self) -> Result<(), End> {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.try_read(&mut bytes) {
                Ok(0) => return Err(End::Gone),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            if self.received.len() > self.request_max {
                break;
            }
        }
        let mut taken = 0_usize;
        loop {
            let (request, size, stop, wake) = match decode_request(&self.received, self.version, self.request_max) {
                Ok(None) => return Ok(()),
                Ok(Some(decoded)) => {
                    let (stop, wake) = (decoded.frame == Request::Stop, decoded.frame == Request::Wake);
                    (decoded.request, decoded.size, stop, wake)
                }
                Err(error) => return Err(End::Refused(ErrorCode::BadFrame, error.to_string())),
            };
            self.received.advance(size);
            taken += 1;
            if stop && request == self.request {
                return Err(End::Stopped);
            }
            // The stop of an earlier read, whose end has crossed it, or a wake-up for the append path.
            if !stop && !wake {
                let message = "a read runs on this connection: stop it first, or use another connection";
                let refusal = Response::Error { code: ErrorCode::Reading, fatal: false, retry_after_ms: 0, message };
                self.say(request, &refusal).await?;
            }
            if taken.is_multiple_of(FRAMES_PER_TURN) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Says how it ended. False if the connection is not to go on.
    pub(super) async fn finish(&mut self, end: End) -> bool {
        let next = self.next.0;
        let sent = match end {
            End::Gone => return false,
            End::Stuck(patience) => Err(End::Stuck(patience)),
            End::Done | End::Stopped => self.send(&Response::End { next, tailing: false }).await,
            End::Turn(epoch) => self.send(&Response::Turn { epoch: epoch.0, next }).await,
            End::RoleLost => self.refuse(ErrorCode::NotPrimary, "this sidecar is no longer primary").await,
            End::Refused(code, message) => self.refuse(code, &message).await,
        };
        if let Err(End::Stuck(patience)) = &sent {
            let peer = getsockopt(&self.stream.as_fd(), PeerCredentials);
            let (uid, pid) = peer.map_or((None, None), |peer| (Some(peer.uid()), Some(peer.pid())));
            tracing::warn!(uid, pid, next = %self.next, ?patience, "disconnected a reader that read nothing for too long");
        }
        sent.is_ok()
    }

    async fn refuse(&mut self, code: ErrorCode, message: &str) -> Result<(), End> {
        let fatal = code == ErrorCode::BadFrame;
        let passes = matches!(code, ErrorCode::Busy | ErrorCode::Unavailable);
        let retry_after_ms = if passes { RETRY_MS } else { 0 };
        self.send(&Response::Error { code, fatal, retry_after_ms, message }).await?;
        if fatal { Err(End::Gone) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
