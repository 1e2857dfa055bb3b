//! From bytes to requests and responses. Nothing that has come is believed before it is checked here.
//!
//! Part of [`socket`](super): a sidecar decodes requests, a client responses.

use super::{
    BATCH_RECORDS_MAX, Batch, END_TAILING, ErrorCode, FRAME_BODY_MAX, FRAME_HEADER_SIZE, FrameError, LAG_STALE, MAGIC,
    Operations, READ_TAIL, Request, Response, Role, VALUE_STALE, VERSION_FOLLOW, VERSION_HISTORY, VERSION_TABLE,
    WELCOME_RING, WELCOME_TABLE, Welcome, found, kind,
};
use crate::ids::Lsn;
use crate::table::record::{Key, Revision, Value};
use crate::table::request::Mismatch;

/// A decoded frame: the request number, what it says, and how many bytes it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded<T> {
    /// Chosen by the client, echoed by the server.
    pub request: u64,
    /// What the frame says.
    pub frame: T,
    /// Bytes of the frame, header included.
    pub size: usize,
}

/// Bytes of the frame that begins here, by its header; `None` while that has not come.
pub fn frame_size(bytes: &[u8]) -> Option<usize> {
    let (length, _) = bytes.split_first_chunk::<4>().filter(|_| bytes.len() >= FRAME_HEADER_SIZE)?;
    Some(FRAME_HEADER_SIZE + u32::from_le_bytes(*length) as usize)
}

/// The request number of the `Append`, `Batch` or `Apply` that begins here, by its header.
pub fn announced_append(bytes: &[u8]) -> Option<u64> {
    let ([_, _, _, _, kind::APPEND | kind::BATCH | kind::APPLY, _, _, _, request @ ..], _) =
        bytes.split_first_chunk::<FRAME_HEADER_SIZE>()?
    else {
        return None;
    };
    Some(u64::from_le_bytes(*request))
}

/// The request number and the length of the payload, if this is the header of an `Append`.
pub fn read_append_header(header: &[u8; FRAME_HEADER_SIZE]) -> Option<(u64, usize)> {
    let [l0, l1, l2, l3, kind::APPEND, _, 0, 0, request @ ..] = *header else { return None };
    Some((u64::from_le_bytes(request), u32::from_le_bytes([l0, l1, l2, l3]) as usize))
}

/// Reads one request from the start of `bytes`. `None`: more bytes are needed. `version` is the connection's, 0 before its
/// hello: what came later is as unknown as it was then. `body_max` bounds what is accepted.
pub fn decode_request(bytes: &[u8], version: u16, body_max: usize) -> Result<Option<Decoded<Request<'_>>>, FrameError> {
    decode(bytes, body_max, |body| request_from(body, version))
}

/// Reads one response from the start of `bytes`. `None`: more bytes are needed.
pub fn decode_response(bytes: &[u8]) -> Result<Option<Decoded<Response<'_>>>, FrameError> {
    decode(bytes, FRAME_BODY_MAX, response_from)
}

fn decode<'a, T>(
    bytes: &'a [u8],
    body_max: usize,
    parse: impl FnOnce(Body<'a>) -> Result<T, FrameError>,
) -> Result<Option<Decoded<T>>, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER_SIZE>() else { return Ok(None) };
    let [l0, l1, l2, l3, kind, flags, z0, z1, request @ ..] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    if length as usize > body_max {
        return Err(FrameError::TooLong { length, max: body_max });
    }
    if (z0, z1) != (0, 0) {
        return Err(FrameError::Reserved);
    }
    let Some(body) = rest.get(..length as usize) else { return Ok(None) };
    let frame = parse(Body { kind, flags, bytes: body })?;
    Ok(Some(Decoded { request: u64::from_le_bytes(request), frame, size: FRAME_HEADER_SIZE + body.len() }))
}

/// A body being taken apart from the front.
struct Body<'a> {
    kind: u8,
    flags: u8,
    bytes: &'a [u8],
}

impl<'a> Body<'a> {
    fn malformed(&self, why: &'static str) -> FrameError {
        FrameError::Malformed { kind: self.kind, why }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (head, rest) = self.bytes.split_first_chunk::<N>().ok_or_else(|| self.malformed("too short"))?;
        self.bytes = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, FrameError> {
        self.take::<1>().map(|[b]| b)
    }

    fn u16(&mut self) -> Result<u16, FrameError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, FrameError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FrameError> {
        self.take().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<&'a str, FrameError> {
        let bytes = std::mem::take(&mut self.bytes);
        std::str::from_utf8(bytes).map_err(|_| self.malformed("text is not UTF-8"))
    }

    fn batch(&mut self) -> Result<Batch<'a>, FrameError> {
        let count = self.u32()?;
        if count > BATCH_RECORDS_MAX {
            return Err(self.malformed("more records than a batch may have"));
        }
        self.u32()?;
        Batch::new(count, std::mem::take(&mut self.bytes)).map_err(|why| self.malformed(why))
    }

    fn operations(&mut self) -> Result<Operations<'a>, FrameError> {
        let [count @ .., _, _, _, _, _, _] = self.take::<8>()?;
        Ok(Operations::new(u16::from_le_bytes(count), std::mem::take(&mut self.bytes))?)
    }

    /// The key is all that is left of the body.
    fn get(&mut self) -> Result<Request<'a>, FrameError> {
        let (flags, length) = (self.u16()?, self.u16()?);
        self.u32()?;
        let least = self.u64()?;
        let key = std::mem::take(&mut self.bytes);
        if key.len() != usize::from(length) {
            return Err(self.malformed("a key of another length than announced"));
        }
        let key = Key::new(key).map_err(|_| self.malformed("a key must have 1 to 1024 bytes"))?;
        Ok(Request::Get { key, least, flags })
    }

    fn value(&mut self) -> Result<Response<'a>, FrameError> {
        let [found, flags, ..] = self.take::<8>()?;
        let (revision, as_of) = (Revision::of(Lsn(self.u64()?)), self.u64()?);
        let value = std::mem::take(&mut self.bytes);
        match (found, revision) {
            (found::ABSENT, None) if value.is_empty() => {}
            (found::VALUE, Some(_)) if Value::new(value).is_ok() => {}
            (found::OLDER, None) if as_of == 0 && Value::new(value).is_ok() => {}
            (found::ABSENT | found::VALUE | found::OLDER, _) => return Err(self.malformed("a value that no key has")),
            _ => return Err(self.malformed("unknown kind of answer")),
        }
        let (older, stale) = (found == found::OLDER, flags & VALUE_STALE != 0);
        Ok(Response::Value { revision, as_of, value, older, stale })
    }

    fn end<T>(&self, value: T) -> Result<T, FrameError> {
        if self.bytes.is_empty() { Ok(value) } else { Err(self.malformed("bytes left over")) }
    }
}

fn request_from(mut body: Body<'_>, version: u16) -> Result<Request<'_>, FrameError> {
    let request = match body.kind {
        kind::HELLO => {
            if body.take::<8>()? != MAGIC {
                return Err(body.malformed("not an append-socket hello"));
            }
            Request::Hello { version_min: body.u16()?, version_max: body.u16()?, flags: body.u32()? }
        }
        kind::APPEND => Request::Append { payload: std::mem::take(&mut body.bytes) },
        // An ack names an append's last record; a batch of none has no such record.
        kind::BATCH => match body.batch()? {
            batch if batch.is_empty() => return Err(body.malformed("a batch without a record")),
            batch => Request::Batch(batch),
        },
        kind::READ => {
            let known = if version < VERSION_FOLLOW { READ_TAIL } else { u32::MAX };
            let (from, limit, flags) = (body.u64()?, body.u64()?, body.u32()? & known);
            body.u32()?;
            let history = if version < VERSION_HISTORY || body.bytes.is_empty() { 0 } else { body.u64()? };
            Request::Read { from, limit, flags, history }
        }
        kind::FOLLOW if version >= VERSION_FOLLOW => {
            let (from, history) = (body.u64()?, body.u64()?);
            Request::Follow { from, history: if version < VERSION_HISTORY { 0 } else { history } }
        }
        kind::POSITION if version >= VERSION_FOLLOW => Request::Position,
        kind::APPLY if version >= VERSION_TABLE => Request::Apply(body.operations()?),
        kind::GET if version >= VERSION_TABLE => body.get()?,
        kind::BARRIER => Request::Barrier,
        kind::SYNC => Request::Sync,
        kind::TRIM => Request::Trim { below: body.u64()? },
        kind::STATUS => Request::Status,
        kind::STOP => Request::Stop,
        kind::WAKE => Request::Wake,
        unknown => return Err(FrameError::UnknownKind(unknown)),
    };
    body.end(request)
}

fn response_from(mut body: Body<'_>) -> Result<Response<'_>, FrameError> {
    let response = match body.kind {
        kind::WELCOME => {
            let version = body.u16()?;
            let role = body.u8()?;
            let role = Role::from_byte(role).ok_or_else(|| body.malformed("unknown role"))?;
            let flags = body.u8()?;
            Response::Welcome(Welcome {
                version,
                role,
                ring: flags & WELCOME_RING != 0,
                table: flags & WELCOME_TABLE != 0,
                record_size_max: body.u32()?,
                batch_size_max: body.u32()?,
                batch_records_max: body.u32()?,
                inflight_max: body.u32()?,
                record_cost: body.u16()?,
                batch_cost: body.u16()?,
                epoch: body.u64()?,
                first: body.u64()?,
                last: body.u64()?,
                primary: body.text()?,
            })
        }
        kind::ACK => Response::Ack { lsn: body.u64()? },
        kind::ERROR => {
            let code = body.u16()?;
            let code = ErrorCode::from_number(code).ok_or_else(|| body.malformed("unknown error code"))?;
            let fatal = body.u8()? != 0;
            body.u8()?;
            Response::Error { code, fatal, retry_after_ms: body.u32()?, message: body.text()? }
        }
        kind::RECORDS => Response::Records { first: body.u64()?, records: body.batch()? },
        kind::END => Response::End { next: body.u64()?, tailing: body.flags & END_TAILING != 0 },
        kind::BARRIER_PASSED => Response::BarrierPassed { epoch: body.u64()?, last: body.u64()? },
        kind::SYNCED => Response::Synced { lsn: body.u64()? },
        kind::TRIMMED => Response::Trimmed { first: body.u64()? },
        kind::STATUS_REPORT => Response::StatusReport { json: body.text()? },
        kind::ROLE => {
            let [role, ..] = body.take::<8>()?;
            let role = Role::from_byte(role).ok_or_else(|| body.malformed("unknown role"))?;
            Response::Role { role, epoch: body.u64()?, last: body.u64()?, primary: body.text()? }
        }
        kind::WAKE_CLIENT => Response::Wake,
        kind::TURN => Response::Turn { epoch: body.u64()?, next: body.u64()? },
        kind::LAG => Response::Lag { acked: body.u64()?, behind_ms: body.u32()?, stale: body.u32()? & LAG_STALE != 0 },
        kind::LOG_POSITION => Response::Position { epoch: body.u64()?, last: body.u64()? },
        kind::HISTORY => Response::History { history: body.u64()? },
        kind::MISMATCH => {
            let [operation @ .., _, _, _, _, _, _] = body.take::<8>()?;
            let now = Revision::of(Lsn(body.u64()?));
            Response::Mismatch(Mismatch { operation: u16::from_le_bytes(operation), now })
        }
        kind::VALUE => body.value()?,
        unknown => return Err(FrameError::UnknownKind(unknown)),
    };
    body.end(response)
}
