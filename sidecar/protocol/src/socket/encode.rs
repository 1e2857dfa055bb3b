//! From requests and responses to bytes.
//!
//! Part of [`socket`](super): a client encodes requests, a sidecar responses.

use super::batch::put_batch;
use super::operations::put_operations;
use super::{
    END_TAILING, FRAME_BODY_MAX, FRAME_HEADER_SIZE, LAG_STALE, MAGIC, Request, Response, VALUE_STALE, WELCOME_RING,
    WELCOME_TABLE, found, kind,
};
use crate::table::record::Revision;

/// Writes a frame: the header with a length to be filled in, the body, then the length.
pub(super) fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, request: u64, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind, flags, 0, 0]);
    out.extend_from_slice(&request.to_le_bytes());
    body(out);
    let length = out.len() - start - FRAME_HEADER_SIZE;
    assert!(length <= FRAME_BODY_MAX, "frame body of {length} bytes: the caller must keep to the announced limits");
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
}

impl Request<'_> {
    /// Appends the frame to `out`. Allocates only if `out` lacks room.
    pub fn encode(&self, request: u64, out: &mut Vec<u8>) {
        match self {
            Request::Hello { version_min, version_max, flags } => frame(out, kind::HELLO, 0, request, |out| {
                out.extend_from_slice(&MAGIC);
                out.extend_from_slice(&version_min.to_le_bytes());
                out.extend_from_slice(&version_max.to_le_bytes());
                out.extend_from_slice(&flags.to_le_bytes());
            }),
            Request::Append { payload } => {
                frame(out, kind::APPEND, 0, request, |out| out.extend_from_slice(payload));
            }
            Request::Batch(batch) => frame(out, kind::BATCH, 0, request, |out| put_batch(out, batch)),
            Request::Apply(operations) => frame(out, kind::APPLY, 0, request, |out| put_operations(out, operations)),
            Request::Get { key, least, flags } => frame(out, kind::GET, 0, request, |out| {
                out.extend_from_slice(&flags.to_le_bytes());
                out.extend_from_slice(&(key.as_bytes().len() as u16).to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&least.to_le_bytes());
                out.extend_from_slice(key.as_bytes());
            }),
            Request::Read { from, limit, flags, history } => frame(out, kind::READ, 0, request, |out| {
                out.extend_from_slice(&from.to_le_bytes());
                out.extend_from_slice(&limit.to_le_bytes());
                out.extend_from_slice(&flags.to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                if *history != 0 {
                    out.extend_from_slice(&history.to_le_bytes());
                }
            }),
            Request::Follow { from, history } => frame(out, kind::FOLLOW, 0, request, |out| {
                out.extend_from_slice(&from.to_le_bytes());
                out.extend_from_slice(&history.to_le_bytes());
            }),
            Request::Position => frame(out, kind::POSITION, 0, request, |_| {}),
            Request::Barrier => frame(out, kind::BARRIER, 0, request, |_| {}),
            Request::Sync => frame(out, kind::SYNC, 0, request, |_| {}),
            Request::Trim { below } => {
                frame(out, kind::TRIM, 0, request, |out| out.extend_from_slice(&below.to_le_bytes()));
            }
            Request::Status => frame(out, kind::STATUS, 0, request, |_| {}),
            Request::Stop => frame(out, kind::STOP, 0, request, |_| {}),
            Request::Wake => frame(out, kind::WAKE, 0, request, |_| {}),
        }
    }
}

impl Response<'_> {
    /// Appends the frame to `out`. Allocates only if `out` lacks room.
    pub fn encode(&self, request: u64, out: &mut Vec<u8>) {
        match self {
            Response::Welcome(welcome) => frame(out, kind::WELCOME, 0, request, |out| {
                out.extend_from_slice(&welcome.version.to_le_bytes());
                let ring = if welcome.ring { WELCOME_RING } else { 0 };
                let table = if welcome.table { WELCOME_TABLE } else { 0 };
                out.extend_from_slice(&[welcome.role as u8, ring | table]);
                let limits =
                    [welcome.record_size_max, welcome.batch_size_max, welcome.batch_records_max, welcome.inflight_max];
                limits.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
                [welcome.record_cost, welcome.batch_cost].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
                [welcome.epoch, welcome.first, welcome.last]
                    .iter()
                    .for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
                out.extend_from_slice(welcome.primary.as_bytes());
            }),
            Response::Ack { lsn } => {
                frame(out, kind::ACK, 0, request, |out| out.extend_from_slice(&lsn.to_le_bytes()));
            }
            Response::Error { code, fatal, retry_after_ms, message } => frame(out, kind::ERROR, 0, request, |out| {
                out.extend_from_slice(&(*code as u16).to_le_bytes());
                out.extend_from_slice(&[u8::from(*fatal), 0]);
                out.extend_from_slice(&retry_after_ms.to_le_bytes());
                out.extend_from_slice(message.as_bytes());
            }),
            Response::Records { first, records } => frame(out, kind::RECORDS, 0, request, |out| {
                out.extend_from_slice(&first.to_le_bytes());
                put_batch(out, records);
            }),
            Response::End { next, tailing } => {
                let flags = if *tailing { END_TAILING } else { 0 };
                frame(out, kind::END, flags, request, |out| out.extend_from_slice(&next.to_le_bytes()));
            }
            Response::BarrierPassed { epoch, last } => frame(out, kind::BARRIER_PASSED, 0, request, |out| {
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(&last.to_le_bytes());
            }),
            Response::Synced { lsn } => {
                frame(out, kind::SYNCED, 0, request, |out| out.extend_from_slice(&lsn.to_le_bytes()));
            }
            Response::Trimmed { first } => {
                frame(out, kind::TRIMMED, 0, request, |out| out.extend_from_slice(&first.to_le_bytes()));
            }
            Response::StatusReport { json } => {
                frame(out, kind::STATUS_REPORT, 0, request, |out| out.extend_from_slice(json.as_bytes()));
            }
            Response::Role { role, epoch, last, primary } => frame(out, kind::ROLE, 0, request, |out| {
                out.extend_from_slice(&[*role as u8, 0, 0, 0, 0, 0, 0, 0]);
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(&last.to_le_bytes());
                out.extend_from_slice(primary.as_bytes());
            }),
            Response::Turn { epoch, next } => frame(out, kind::TURN, 0, request, |out| {
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(&next.to_le_bytes());
            }),
            Response::Lag { acked, behind_ms, stale } => frame(out, kind::LAG, 0, request, |out| {
                let flags = if *stale { LAG_STALE } else { 0 };
                out.extend_from_slice(&acked.to_le_bytes());
                out.extend_from_slice(&behind_ms.to_le_bytes());
                out.extend_from_slice(&flags.to_le_bytes());
            }),
            Response::Position { epoch, last } => frame(out, kind::LOG_POSITION, 0, request, |out| {
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(&last.to_le_bytes());
            }),
            Response::History { history } => {
                frame(out, kind::HISTORY, 0, request, |out| out.extend_from_slice(&history.to_le_bytes()));
            }
            Response::Mismatch(mismatch) => frame(out, kind::MISMATCH, 0, request, |out| {
                out.extend_from_slice(&mismatch.operation.to_le_bytes());
                out.extend_from_slice(&[0; 6]);
                out.extend_from_slice(&Revision::number(mismatch.now).to_le_bytes());
            }),
            Response::Value { revision, as_of, value, older, stale } => frame(out, kind::VALUE, 0, request, |out| {
                let found = match revision {
                    Some(_) => found::VALUE,
                    None if *older => found::OLDER,
                    None => found::ABSENT,
                };
                let flags = if *stale { VALUE_STALE } else { 0 };
                out.extend_from_slice(&[found, flags, 0, 0, 0, 0, 0, 0]);
                out.extend_from_slice(&Revision::number(*revision).to_le_bytes());
                out.extend_from_slice(&as_of.to_le_bytes());
                out.extend_from_slice(value);
            }),
            Response::Wake => frame(out, kind::WAKE_CLIENT, 0, request, |_| {}),
        }
    }
}

/// The whole frame [`Request::Wake`], number 0.
pub const WAKE_SIDECAR_FRAME: [u8; FRAME_HEADER_SIZE] = [0, 0, 0, 0, kind::WAKE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The whole frame [`Response::Wake`].
pub const WAKE_CLIENT_FRAME: [u8; FRAME_HEADER_SIZE] = [0, 0, 0, 0, kind::WAKE_CLIENT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The header of an `Append` whose payload has this length: for callers that write the payload in place.
pub fn append_header(request: u64, length: usize) -> [u8; FRAME_HEADER_SIZE] {
    assert!(length <= FRAME_BODY_MAX, "frame body of {length} bytes: the caller must keep to the announced limits");
    let mut header = [0; FRAME_HEADER_SIZE];
    header[..4].copy_from_slice(&(length as u32).to_le_bytes());
    header[4] = kind::APPEND;
    header[8..].copy_from_slice(&request.to_le_bytes());
    header
}
