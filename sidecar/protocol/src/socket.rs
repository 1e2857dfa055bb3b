//! Frames of the append socket: the bytes that an app and its sidecar exchange, versions 1 to 3.
//!
//! Called by the sidecar (decodes requests, encodes responses) and by the client library (the other way round).
//! The same bytes are described for other languages in `docs/append-socket.md`. Integers are little-endian. Reserved bytes
//! are sent as zero; those of the header are checked, those of a body and undefined flags are ignored.

use std::fmt;

/// First bytes of every hello.
pub const MAGIC: [u8; 8] = *b"TWAPPEND";
/// Oldest version that is still spoken.
pub const VERSION_MIN: u16 = 1;
/// Newest version.
pub const VERSION: u16 = 3;
/// First version with [`Request::Follow`], [`Request::Position`], [`READ_ANYWHERE`] and [`Role::Reader`].
pub const VERSION_FOLLOW: u16 = 2;
/// First version with [`Response::History`] and its number in [`Request::Read`] and [`Request::Follow`].
pub const VERSION_HISTORY: u16 = 3;
/// Bytes of the header of every frame.
pub const FRAME_HEADER_SIZE: usize = 16;
/// Largest body of any frame: the largest segment's batch (64 MiB / 2). A server may announce less in its welcome.
pub const FRAME_BODY_MAX: usize = 32 << 20;
/// Most records in one batch: 65,536 empty records need 2.5 MiB of log, which fits a batch of the default segment.
pub const BATCH_RECORDS_MAX: u32 = 1 << 16;
/// Bytes of payload that the server packs into one `Records` frame, unless a single record is larger.
pub const RECORDS_FRAME_TARGET: usize = 64 << 10;

/// Frame kinds. Requests are below 128, responses above.
mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const APPEND: u8 = 2;
    pub(super) const BATCH: u8 = 3;
    pub(super) const READ: u8 = 4;
    pub(super) const BARRIER: u8 = 5;
    pub(super) const TRIM: u8 = 6;
    pub(super) const STATUS: u8 = 7;
    pub(super) const STOP: u8 = 8;
    pub(super) const WAKE: u8 = 9;
    pub(super) const FOLLOW: u8 = 10;
    pub(super) const POSITION: u8 = 11;
    pub(super) const SYNC: u8 = 16;

    pub(super) const WELCOME: u8 = 129;
    pub(super) const ACK: u8 = 130;
    pub(super) const ERROR: u8 = 131;
    pub(super) const RECORDS: u8 = 132;
    pub(super) const END: u8 = 133;
    pub(super) const BARRIER_PASSED: u8 = 134;
    pub(super) const TRIMMED: u8 = 135;
    pub(super) const STATUS_REPORT: u8 = 136;
    pub(super) const ROLE: u8 = 137;
    pub(super) const WAKE_CLIENT: u8 = 138;
    pub(super) const TURN: u8 = 139;
    pub(super) const LAG: u8 = 140;
    pub(super) const LOG_POSITION: u8 = 141;
    pub(super) const HISTORY: u8 = 142;
    pub(super) const SYNCED: u8 = 143;
}

/// Flag of `Hello`: answer only once this sidecar is primary.
pub const HELLO_HOLD: u32 = 1;
/// Flag of `Hello`: the client can use a ring. See `docs/append-ring.md`.
pub const HELLO_RING: u32 = 2;
/// Flag of `Welcome`: a ring comes with this frame.
const WELCOME_RING: u8 = 1;
/// Flag of `Read`: after the last acknowledged record continue with new ones, until `Stop`.
pub const READ_TAIL: u32 = 1;
/// Flag of `Read`: read in any role of the sidecar. Off the primary, what was acknowledged last may be missing. Since version
/// 2; version 1 ignores it.
pub const READ_ANYWHERE: u32 = 2;
/// Flag of `End`: the reader has caught up and the tail continues.
const END_TAILING: u8 = 1;
/// Flag of `Lag`: the view is stale.
const LAG_STALE: u32 = 1;
/// [`Response::Lag::behind_ms`] while it is unknown.
pub const BEHIND_UNKNOWN: u32 = u32::MAX;

/// A sidecar's role at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Takes appends.
    Primary = 1,
    /// Waits for the primary to die; knows which sidecar that is.
    Standby = 2,
    /// On its way to become primary.
    Recovering = 3,
    /// Serves reads and follows, and never becomes primary. Since version 2.
    Reader = 4,
}

impl Role {
    fn from_byte(byte: u8) -> Option<Role> {
        [Role::Primary, Role::Standby, Role::Recovering, Role::Reader].into_iter().find(|r| *r as u8 == byte)
    }

    /// What a client of this version is told: to those of version 1 a reader is a standby.
    pub fn in_version(self, version: u16) -> Role {
        if self == Role::Reader && version < VERSION_FOLLOW { Role::Standby } else { self }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Primary => "primary",
            Role::Standby => "standby",
            Role::Recovering => "recovering",
            Role::Reader => "reader",
        })
    }
}

/// Why a request was refused. The number is on the wire; the message beside it is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ErrorCode {
    /// The bytes are not a frame of this protocol, or a frame in the wrong place. The connection ends.
    BadFrame = 1,
    /// No version in common. The connection ends.
    UnsupportedVersion = 2,
    /// This sidecar is not the primary; the message names the primary, if known. Nothing was appended.
    NotPrimary = 3,
    /// The record or batch is above the limit of the welcome. Nothing was appended.
    TooLarge = 4,
    /// The LSN has been trimmed away.
    Trimmed = 5,
    /// The LSN lies beyond the next record to come.
    BeyondEnd = 6,
    /// This user may not connect. The connection ends.
    NotAllowed = 7,
    /// The sidecar lost its role while this request was in flight: the append may or may not be in the log. Read to find out.
    UnknownOutcome = 8,
    /// A read runs on this connection: stop it first, or use another connection.
    Reading = 9,
    /// Too many connections or readers; try again later.
    Busy = 10,
    /// The sidecar is ending. The connection ends.
    ShuttingDown = 11,
    /// No backup could be read, or none is reachable; try again later.
    Unavailable = 12,
}

impl ErrorCode {
    /// Every code, in the order of their numbers.
    pub const ALL: [ErrorCode; 12] = [
        ErrorCode::BadFrame,
        ErrorCode::UnsupportedVersion,
        ErrorCode::NotPrimary,
        ErrorCode::TooLarge,
        ErrorCode::Trimmed,
        ErrorCode::BeyondEnd,
        ErrorCode::NotAllowed,
        ErrorCode::UnknownOutcome,
        ErrorCode::Reading,
        ErrorCode::Busy,
        ErrorCode::ShuttingDown,
        ErrorCode::Unavailable,
    ];

    fn from_number(number: u16) -> Option<ErrorCode> {
        ErrorCode::ALL.into_iter().find(|c| *c as u16 == number)
    }
}

/// What an app asks. Payloads borrow from the receive buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// First frame of a connection.
    Hello {
        /// Lowest version the client speaks.
        version_min: u16,
        /// Highest version the client speaks.
        version_max: u16,
        /// [`HELLO_HOLD`] and [`HELLO_RING`].
        flags: u32,
    },
    /// Append one record.
    Append {
        /// The record; may be empty.
        payload: &'a [u8],
    },
    /// Append several records, at least one: all or none of them survive.
    Batch(Batch<'a>),
    /// Send acknowledged records from an LSN on.
    Read {
        /// First record wanted.
        from: u64,
        /// At most so many records; 0 for no limit.
        limit: u64,
        /// [`READ_TAIL`] and [`READ_ANYWHERE`].
        flags: u32,
        /// The [history](Response::History) of what was read before; 0 if it is not known. Since version 3.
        history: u64,
    },
    /// Send acknowledged records from an LSN on, in any role, until this sidecar is primary. Since version 2.
    Follow {
        /// First record wanted; 0 for the first that can be read.
        from: u64,
        /// The [history](Response::History) of what was read before; 0 if it is not known. Since version 3.
        history: u64,
    },
    /// Answer with a position of the primary's log that was taken after this request came in. Since version 2.
    Position,
    /// Answer once it is proved that this sidecar was primary after the request came in.
    Barrier,
    /// Answer once everything that was appended before is on disk at every member.
    Sync,
    /// Records below this LSN are no longer needed.
    Trim {
        /// First record that must stay.
        below: u64,
    },
    /// Report as JSON.
    Status,
    /// End the read of this very request number. A stop whose read has already ended has no answer: the two may cross.
    Stop,
    /// Look at the ring, in which something has changed. Has no answer.
    Wake,
}

/// What a sidecar answers. Each carries the request number of what it answers; `Role` carries 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// Answer to a hello.
    Welcome(Welcome<'a>),
    /// Every current backup has the append.
    Ack {
        /// LSN of the append's last record.
        lsn: u64,
    },
    /// The request was refused or failed.
    Error {
        /// Why.
        code: ErrorCode,
        /// True when the server closes the connection after this frame.
        fatal: bool,
        /// When it may be worth trying again; 0 for no advice.
        retry_after_ms: u32,
        /// For people: what was wrong, where, what to do.
        message: &'a str,
    },
    /// Records of a read, LSNs ascending without gaps.
    Records {
        /// LSN of the first record.
        first: u64,
        /// The records.
        records: Batch<'a>,
    },
    /// A read has ended or, with `tailing`, has caught up and continues; the same of a follow. Bears its number, also when a
    /// stop ended it.
    End {
        /// LSN that a further read would start at.
        next: u64,
        /// The read continues.
        tailing: bool,
    },
    /// The barrier has been passed.
    BarrierPassed {
        /// The epoch in which it was.
        epoch: u64,
        /// Last acknowledged record then.
        last: u64,
    },
    /// The log is on disk at every member.
    Synced {
        /// Up to this record.
        lsn: u64,
    },
    /// The log has been trimmed as far as whole segments allow.
    Trimmed {
        /// First record that can still be read.
        first: u64,
    },
    /// A JSON document.
    StatusReport {
        /// The document.
        json: &'a str,
    },
    /// This sidecar's role has changed, or the primary that it knows of.
    Role {
        /// The role now.
        role: Role,
        /// The epoch now.
        epoch: u64,
        /// Last acknowledged record that this sidecar knows.
        last: u64,
        /// The primary; empty if unknown.
        primary: &'a str,
    },
    /// A follow has ended: its client has every record, and this sidecar is primary.
    Turn {
        /// The epoch that this sidecar leads.
        epoch: u64,
        /// The record to come.
        next: u64,
    },
    /// How old the view of a follow is. Comes unasked while it runs, at most twice a second.
    Lag {
        /// Last acknowledged record that this sidecar knows.
        acked: u64,
        /// Everything that was acknowledged so many milliseconds ago, and before, has been sent; [`BEHIND_UNKNOWN`].
        behind_ms: u32,
        /// That is unknown, or longer than 300 ms: the records are many, or the primary is gone or out of sight.
        stale: bool,
    },
    /// A position of the primary's log.
    Position {
        /// The epoch of that primary.
        epoch: u64,
        /// The last acknowledged record there: all that was acknowledged before the request is at or before it.
        last: u64,
    },
    /// The history of the log that a read or follow sends: the answer to each begins with it, and it comes again if the log was cut
    /// behind what was sent. Since version 3.
    History {
        /// Its number.
        history: u64,
    },
    /// Look at the ring, in which something has changed. Answers nothing: request 0.
    Wake,
}

/// What the server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome<'a> {
    /// The version spoken from now on.
    pub version: u16,
    /// The server's role.
    pub role: Role,
    /// A ring comes with this frame.
    pub ring: bool,
    /// Largest record, in bytes.
    pub record_size_max: u32,
    /// Largest batch, in bytes of log: see [`batch_log_size`]. No frame body may be larger either.
    pub batch_size_max: u32,
    /// Most records in a batch.
    pub batch_records_max: u32,
    /// Unacknowledged appends that a connection may have before the server stops reading from it.
    pub inflight_max: u32,
    /// Bytes of log that a record takes beside its payload, which is padded to a multiple of [`PADDED_TO`].
    pub record_cost: u16,
    /// Bytes of log that a batch takes beside its records.
    pub batch_cost: u16,
    /// The current epoch; 0 if unknown.
    pub epoch: u64,
    /// First record that can be read.
    pub first: u64,
    /// Last acknowledged record; 0 if there is none or it is unknown.
    pub last: u64,
    /// The primary; empty if unknown.
    pub primary: &'a str,
}

/// Why bytes are not a frame. Always the end of the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is out of bounds.
    #[error("frame of {length} bytes: the limit is {max}")]
    TooLong {
        /// Length in the header.
        length: u32,
        /// The limit.
        max: usize,
    },
    /// The kind is not of this version or not of this direction.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// The two reserved bytes are not zero.
    #[error("reserved bytes of the frame header are not zero")]
    Reserved,
    /// The body does not fit its kind.
    #[error("body of frame kind {kind} is malformed: {why}")]
    Malformed {
        /// The kind.
        kind: u8,
        /// What is wrong.
        why: &'static str,
    },
}

/// A run of length-prefixed records, checked as a whole when decoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Batch<'a> {
    count: u32,
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Checks that `bytes` hold exactly `count` records, each a `u32` length and as many bytes.
    pub fn new(count: u32, bytes: &'a [u8]) -> Result<Batch<'a>, &'static str> {
        let mut rest = bytes;
        for _ in 0..count {
            let (length, tail) = rest.split_first_chunk::<4>().ok_or("a record's length is cut off")?;
            let length = u32::from_le_bytes(*length) as usize;
            rest = tail.get(length..).ok_or("a record is cut off")?;
        }
        if rest.is_empty() { Ok(Batch { count, bytes }) } else { Err("bytes left over after the last record") }
    }

    /// Number of records.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// True when there is no record.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of all payloads together.
    pub fn payload_size(&self) -> usize {
        self.bytes.len() - 4 * self.count as usize
    }

    /// The length-prefixed bytes.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The records in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| {
            let (length, tail) = rest.split_first_chunk::<4>()?;
            let (payload, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = tail;
            Some(payload)
        })
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} records, {} bytes)", self.count, self.payload_size())
    }
}

/// Appends one record in a batch's form to `out`.
pub fn put_batch_record(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

/// `Records` frames in a row, each record copied once.
#[derive(Debug)]
pub struct RecordsFrames {
    request: u64,
    bytes: Vec<u8>,
    /// Where each whole frame ends, and the record after its last one.
    ends: Vec<(usize, u64)>,
    /// Where the frame that is being filled begins, and its records.
    start: usize,
    count: u32,
    /// The record after the last one put.
    next: u64,
}

impl RecordsFrames {
    /// Frames that answer this request.
    pub fn new(request: u64) -> RecordsFrames {
        RecordsFrames { request, bytes: Vec::new(), ends: Vec::new(), start: 0, count: 0, next: 0 }
    }

    /// Adds a record. Within a frame LSNs follow one another: the caller puts them in order, without gaps.
    pub fn put(&mut self, lsn: u64, payload: &[u8]) {
        let size = self.bytes.len() - self.start;
        if self.count > 0 && size + payload.len() > RECORDS_FRAME_TARGET {
            self.end_frame();
        }
        if self.count == 0 {
            self.start = self.bytes.len();
            self.bytes.extend_from_slice(&[0, 0, 0, 0, kind::RECORDS, 0, 0, 0]);
            self.bytes.extend_from_slice(&self.request.to_le_bytes());
            self.bytes.extend_from_slice(&lsn.to_le_bytes());
            self.bytes.extend_from_slice(&[0; 8]);
        }
        put_batch_record(&mut self.bytes, payload);
        self.count += 1;
        self.next = lsn + 1;
    }

    fn end_frame(&mut self) {
        if self.count == 0 {
            return;
        }
        let length = self.bytes.len() - self.start - FRAME_HEADER_SIZE;
        self.bytes[self.start..self.start + 4].copy_from_slice(&(length as u32).to_le_bytes());
        let count = self.start + FRAME_HEADER_SIZE + 8;
        self.bytes[count..count + 4].copy_from_slice(&self.count.to_le_bytes());
        self.ends.push((self.bytes.len(), self.next));
        self.count = 0;
    }

    /// The frames, in pieces of whole frames with this many bytes or a little more: each with the record that follows.
    pub fn pieces(&mut self, size: usize) -> impl Iterator<Item = (&[u8], u64)> {
        self.end_frame();
        let (mut start, mut ends) = (0, self.ends.iter());
        let bytes = &self.bytes;
        std::iter::from_fn(move || {
            let enough = ends.by_ref().find(|(end, _)| end - start >= size || *end == bytes.len());
            let (end, next) = enough?;
            Some((&bytes[std::mem::replace(&mut start, *end)..*end], *next))
        })
    }

    /// Forgets all records; the memory is kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        (self.start, self.count) = (0, 0);
    }
}

/// Appends a whole batch request to `out`, each record copied once. Allocates only if `out` lacks room.
pub fn encode_batch<'a>(request: u64, records: impl ExactSizeIterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    frame(out, kind::BATCH, 0, request, |out| {
        out.extend_from_slice(&(records.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        records.for_each(|payload| put_batch_record(out, payload));
    });
}

/// What the log pads each payload to, and so what a payload counts as in a batch.
pub const PADDED_TO: usize = 8;

/// Bytes of log that a batch of these payload lengths takes, by the costs of a welcome: what `batch_size_max` bounds. Never
/// less than the bytes of the batch's body.
pub fn batch_log_size(record_cost: u16, batch_cost: u16, lengths: impl Iterator<Item = usize>) -> usize {
    // A server that tells no costs is held to the body: 4 bytes for each record, 8 for the run of them.
    let (record_cost, batch_cost) = (usize::from(record_cost).max(4), usize::from(batch_cost).max(8));
    batch_cost + lengths.map(|length| record_cost + length.next_multiple_of(PADDED_TO)).sum::<usize>()
}

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

/// True if the frame that begins here is an `Append` or a `Batch`, by its header.
pub fn announces_append(bytes: &[u8]) -> bool {
    matches!(bytes.get(4), Some(&(kind::APPEND | kind::BATCH)))
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
        unknown => return Err(FrameError::UnknownKind(unknown)),
    };
    body.end(response)
}

/// Writes a frame: the header with a length to be filled in, the body, then the length.
fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, request: u64, body: impl FnOnce(&mut Vec<u8>)) {
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
                out.extend_from_slice(&[welcome.role as u8, if welcome.ring { WELCOME_RING } else { 0 }]);
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
            Response::Wake => frame(out, kind::WAKE_CLIENT, 0, request, |_| {}),
        }
    }
}

fn put_batch(out: &mut Vec<u8>, batch: &Batch<'_>) {
    out.extend_from_slice(&batch.count.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(batch.bytes);
}

/// Bytes of an ack frame: what the server must keep free for each append that it has taken.
pub const ACK_FRAME_SIZE: usize = FRAME_HEADER_SIZE + 8;
