//! What a buffer or segment file holds: name, header, footer, scan, and whether they agree. No I/O.
//!
//! Called by [`scan`](super) and [`folder`](super::folder). What is valid is for [`tailwind_protocol::scan`] to say; this adds
//! what an administrator wants to know about the rest of the file.

use std::fmt;

use tailwind_protocol::ids::{Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{
    Closure, FOOTER_SIZE, Footer, SEGMENT_HEADER_SIZE, SEGMENT_MAGIC, Sealed, SegmentIdentity, SegmentSize, record_size,
};
use tailwind_protocol::scan::{Scanner, Stop, StopReason};

/// Bytes behind a buffer's segment: the flag page of its lending.
const FLAG_PAGE_SIZE: usize = 4096;
/// Bytes of the magic that are the same in every version; the one after them is the version.
const MAGIC_SIZE: usize = SEGMENT_MAGIC.len() - 1;

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// `segment-N.closed`.
    Closed,
    /// `segment-N.open`.
    Open,
    /// `slot-NNNN.buf`.
    Buffer,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::Closed => "file of a closed segment",
            FileKind::Open => "file of an open segment",
            FileKind::Buffer => "buffer",
        })
    }
}

/// What the name of a segment's file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFileName {
    /// The segment.
    pub segment: SegmentId,
    /// Closed or open.
    pub kind: FileKind,
    /// A backup finds the file under this name. Another one, such as `segment-3.closed.old`, belongs to a copy that
    /// somebody made, or to one that was set aside.
    pub is_in_place: bool,
}

impl SegmentFileName {
    /// `None`: not the name of a segment's file.
    pub fn parse(name: &str) -> Option<SegmentFileName> {
        let (number, rest) = name.strip_prefix("segment-")?.split_once('.')?;
        let segment = SegmentId(number.parse().ok()?);
        let (kind, extension) = match rest.split('.').next()? {
            "closed" => (FileKind::Closed, "closed"),
            "open" => (FileKind::Open, "open"),
            _ => return None,
        };
        Some(SegmentFileName { segment, kind, is_in_place: name == format!("segment-{:016}.{extension}", segment.0) })
    }
}

/// Why a file is none of ours, or cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFile {
    /// Nothing there.
    #[error("the file is empty: neither a buffer nor a segment file")]
    Empty,
    /// Something else.
    #[error(
        "neither a buffer nor a segment file: it begins with \"{0}\", not with \"{magic}\"",
        magic = SEGMENT_MAGIC.escape_ascii()
    )]
    Magic(String),
    /// The segment is of another version.
    #[error(
        "a segment of format version {found}: this program supports version {known}",
        known = char::from(SEGMENT_MAGIC[MAGIC_SIZE])
    )]
    Version {
        /// Its version.
        found: char,
    },
    /// Ours, but which segment it is cannot be told.
    #[error("the segment header is damaged (invalid log, segment, epoch or size): nothing in this copy can be trusted")]
    Header,
    /// Zero where the header should be, and not a buffer that is zero all over.
    #[error("no segment header, but {0} non-zero bytes after its position: the header never arrived, or was erased")]
    NoHeader(u64),
}

/// What a file of ours holds.
#[derive(Clone, Debug)]
pub enum Content<'a> {
    /// A buffer of zeros.
    Unwritten,
    /// A segment.
    Segment(Box<SegmentReport<'a>>),
}

/// All about a segment.
#[derive(Clone, Debug)]
pub struct SegmentReport<'a> {
    /// What kind of file it is.
    pub kind: FileKind,
    /// Which segment the file's name says that it is, if it says so.
    pub named: Option<SegmentId>,
    /// Which segment it is.
    pub identity: SegmentIdentity,
    /// LSN of its first record, there or still to come.
    pub first: Lsn,
    /// Where the scan looked: the file without flag page and footer.
    pub log: &'a [u8],
    /// Where the valid log ends.
    pub closure: Closure,
    /// Where and why the scan stopped.
    pub stop: Stop,
    /// Appends accepted.
    pub appends: u64,
    /// Bytes of the accepted records' payloads.
    pub payload_size: u64,
    /// The bytes after the valid log.
    pub tail: Option<UnverifiedTail>,
    /// What the file says of itself.
    pub footer: Option<Footer>,
}

/// Non-zero bytes that the scan did not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnverifiedTail {
    /// How many bytes.
    pub bytes: u64,
    /// Where the first one is.
    pub first: usize,
    /// Where the last one is.
    pub last: usize,
}

/// The verdict on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A closed segment, every byte of it vouched for.
    Closed,
    /// An open segment, valid up to here.
    Open,
    /// Not what it was when it was written.
    Damaged(String),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Closed => f.write_str("sound: the whole segment, every byte vouched for"),
            State::Open => f.write_str("open: valid up to where the scan stopped; other members may hold more"),
            State::Damaged(why) => write!(f, "DAMAGED: {why}; use another member's copy"),
        }
    }
}

/// One accepted record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Its number.
    pub lsn: Lsn,
    /// Where its header is.
    pub offset: Offset,
    /// CRC-32 of its payload.
    pub crc: u32,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// Looks at the bytes of the file called `name`. The name tells the segment and the kind; where it does not, the bytes do.
pub fn examine<'a>(name: &str, bytes: &'a [u8]) -> Result<Content<'a>, InvalidFile> {
    let Some((identity, first)) = read_header(bytes)? else { return Ok(Content::Unwritten) };
    let footer = bytes.split_last_chunk::<FOOTER_SIZE>().and_then(|(_, footer)| Footer::from_bytes(footer));
    let named = SegmentFileName::parse(name);
    // Set aside under a name that was taken, it has a number behind that.
    let ending = name.rsplit_once('.').and_then(|(_, ending)| ending.split('-').next());
    let kind = match (named, ending, footer) {
        (Some(named), ..) => named.kind,
        (None, Some("closed"), _) => FileKind::Closed,
        (None, Some("open"), _) => FileKind::Open,
        (None, Some("buf"), _) => FileKind::Buffer,
        (None, _, Some(Footer { sealed: Sealed::Closed, .. })) => FileKind::Closed,
        (None, _, Some(Footer { sealed: Sealed::Open, .. })) => FileKind::Open,
        (None, _, None) => FileKind::Buffer,
    };
    let footer = footer.filter(|_| kind != FileKind::Buffer);
    let log = &bytes[..bytes.len() - if footer.is_some() { FOOTER_SIZE } else { 0 }];
    let log = &log[..log.len().min(identity.size.bytes() as usize)];

    let mut report = SegmentReport {
        kind,
        named: named.map(|named| named.segment),
        identity,
        first,
        log,
        closure: Closure::default(),
        stop: Stop { at: Offset(0), why: StopReason::SegmentHeader },
        appends: 0,
        payload_size: 0,
        tail: None,
        footer,
    };
    match Scanner::new(log, &identity) {
        Err(stop) => report.stop = stop,
        Ok(mut scanner) => {
            report.stop = loop {
                match scanner.next_append() {
                    Err(stop) => break stop,
                    Ok(append) => {
                        // Marks hold no records.
                        report.appends += u64::from(append.records().next().is_some());
                        report.payload_size += append.records().map(|record| record.payload.len() as u64).sum::<u64>();
                    }
                }
            };
            report.closure = scanner.closure();
        }
    }
    report.tail = non_zero(log, report.closure.end.0 as usize);
    Ok(Content::Segment(Box::new(report)))
}

/// The identity in the header; `None` for a buffer of zeros.
fn read_header(bytes: &[u8]) -> Result<Option<(SegmentIdentity, Lsn)>, InvalidFile> {
    let beginning = &bytes[..bytes.len().min(SEGMENT_HEADER_SIZE)];
    if bytes.is_empty() {
        return Err(InvalidFile::Empty);
    }
    if beginning.iter().all(|byte| *byte == 0) {
        // The flag page has bytes of its own.
        let end = bytes.len().saturating_sub(FLAG_PAGE_SIZE).max(beginning.len());
        return match non_zero(&bytes[..end], 0) {
            Some(tail) => Err(InvalidFile::NoHeader(tail.bytes)),
            None if end >= SegmentSize::MIN.bytes() as usize => Ok(None),
            None => Err(InvalidFile::Magic("\\x00".to_owned())),
        };
    }
    match beginning.first_chunk() {
        Some(header) if header.starts_with(&SEGMENT_MAGIC[..MAGIC_SIZE]) => {
            match SegmentIdentity::from_header(header) {
                Some(found) => Ok(Some(found)),
                None if header[MAGIC_SIZE] != SEGMENT_MAGIC[MAGIC_SIZE] => {
                    Err(InvalidFile::Version { found: char::from(header[MAGIC_SIZE]) })
                }
                None => Err(InvalidFile::Header),
            }
        }
        _ => Err(InvalidFile::Magic(beginning[..beginning.len().min(SEGMENT_MAGIC.len())].escape_ascii().to_string())),
    }
}

fn non_zero(bytes: &[u8], from: usize) -> Option<UnverifiedTail> {
    let behind = bytes.get(from..)?;
    let first = from + behind.iter().position(|byte| *byte != 0)?;
    let last = from + behind.iter().rposition(|byte| *byte != 0)?;
    Some(UnverifiedTail { bytes: behind.iter().filter(|byte| **byte != 0).count() as u64, first, last })
}

impl<'a> SegmentReport<'a> {
    /// Records accepted.
    pub fn count(&self) -> u64 {
        self.closure.records()
    }

    /// The accepted records.
    pub fn records(&self) -> impl Iterator<Item = RecordView<'a>> {
        let mut scanner = Scanner::new(self.log, &self.identity).ok();
        let appends = std::iter::from_fn(move || {
            let scanner = scanner.as_mut()?;
            let start = scanner.closure().end;
            Some((start, scanner.next_append().ok()?))
        });
        appends.flat_map(|(start, append)| {
            let mut at = start.0;
            append.records().map(move |record| {
                let (lsn, payload, offset) = (record.lsn, record.payload, Offset(at));
                at += record_size(payload.len()) as u32;
                RecordView { lsn, offset, crc: crc32fast::hash(payload), payload }
            })
        })
    }

    /// Why the scan stopped, in the words of this file.
    pub fn why_stopped(&self) -> String {
        let is_cut = self.log.len() < self.identity.size.bytes() as usize;
        match self.stop.why {
            StopReason::Full if is_cut => "the end of the segment's bytes in this file".to_owned(),
            StopReason::Bounds if is_cut => "the entry reaches beyond the bytes in this file".to_owned(),
            why => why.to_string(),
        }
    }

    /// How the footer says that the segment came to its end.
    pub fn footer_kind(&self) -> &'static str {
        match self.footer.map(|footer| footer.sealed) {
            Some(Sealed::Closed) => "closed",
            Some(Sealed::Open) => "open",
            None => "none",
        }
    }

    /// The verdict on it.
    pub fn sound(&self) -> State {
        let damaged = |why: &str| State::Damaged(why.to_owned());
        match (self.kind, self.footer) {
            // A search by name would find the wrong segment, and never this one.
            _ if self.named.is_some_and(|named| named != self.identity.segment) => State::Damaged(format!(
                "the name says segment {}, the header says segment {}",
                self.named.unwrap_or_default(),
                self.identity.segment
            )),
            (FileKind::Closed, None) => damaged("a closed segment's file without a footer is not whole"),
            (FileKind::Closed, Some(Footer { sealed: Sealed::Open, .. })) => {
                damaged("the name says closed, the footer says open")
            }
            (FileKind::Open, Some(Footer { sealed: Sealed::Closed, .. })) => {
                damaged("the name says open, the footer says closed")
            }
            (_, Some(footer)) if footer.closure != self.closure => damaged("footer and scan disagree"),
            (_, Some(footer)) if footer.closure.end.0 as usize != self.log.len() => {
                damaged("there are bytes between the end of the segment and the footer")
            }
            (FileKind::Closed, Some(_)) => State::Closed,
            (FileKind::Open | FileKind::Buffer, _) => State::Open,
        }
    }
}

#[cfg(test)]
mod tests;
