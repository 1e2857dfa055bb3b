//! What is on its way passes piece by piece, in any order.

use std::ops::Range;

use tailwind_protocol::board::LINE_SIZE as BOARD_LINE;
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::table::getter;
use tailwind_protocol::table::mirror::{self, MirrorId};

use super::super::World;
use super::{MEMBERS, Reading, Transfer, What};

impl World {
    /// Some pieces of something pass, often all that are left.
    pub(super) fn transfer(&mut self) -> Result<(), String> {
        let count = self.reading().transfers.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let at = self.random.below(count) as usize;
        let all = self.random.below(3) > 0;
        self.pass_on(at, all)
    }

    pub(super) fn pass_on(&mut self, at: usize, all: bool) -> Result<(), String> {
        let now = self.now;
        let mut transfer = self.reading().transfers.swap_remove(at);
        if let What::Line(id, begin) = transfer.what {
            self.name_segments(id, begin, now);
        }
        for piece in 0..transfer.pieces.len() {
            if !transfer.pieces[piece] && (all || self.random.below(2) == 0) {
                transfer.pieces[piece] = true;
                self.reading().pass_piece(&mut transfer, piece);
            }
        }
        if transfer.pieces.iter().all(|passed| *passed) {
            return self.arrived(transfer);
        }
        self.reading().transfers.push(transfer);
        Ok(())
    }

    pub(super) fn arrived(&mut self, transfer: Transfer) -> Result<(), String> {
        let Transfer { what, member, bytes, .. } = transfer;
        match what {
            What::Line(id, _) => self.step_mirrors(mirror::Input::Written(id, 1)),
            What::Publish(id) => {
                self.check_published(member)?;
                if self.is_live(member) {
                    self.reading().members[member].stale = false;
                }
                self.step_mirrors(mirror::Input::Written(id, 1))
            }
            What::Connect(visit) => self.step_getter(getter::Input::Connected(visit, Ok(()))),
            What::Look(visit, posted) => self.step_getter(getter::Input::Looked(visit, posted, &bytes)),
            What::Buckets(visit, get, _) => self.step_getter(getter::Input::Buckets(visit, get, &bytes)),
            What::Record(visit, get, segment, range) => {
                let found = self.record_at(member, segment, range);
                self.step_getter(getter::Input::Record(visit, get, found.as_deref()))
            }
            What::Fetch(visit, get, segment, range) => {
                self.reading().tally.fetched += 1;
                let from = self.random.below(MEMBERS as u64) as usize;
                let found = self.bytes_at(from, segment, range).ok_or("no such segment");
                self.step_getter(getter::Input::Fetched(visit, get, found.as_deref().map_err(|why| *why)))
            }
            What::Ask(question) => {
                let told = if self.random.below(10) == 0 { Err("nobody answers") } else { Ok(Lsn(self.log.acked)) };
                self.step_getter(getter::Input::Told(question, told))
            }
        }
    }

    /// What a read of a member's memory finds: some closed segments are not there.
    pub(super) fn record_at(&mut self, member: usize, segment: SegmentId, range: Range<u32>) -> Option<Vec<u8>> {
        let foreign = self.reading().nature.foreign;
        if foreign && self.random.below(6) == 0 {
            let other = self.random.below(self.log.segments.len() as u64) as usize;
            return Some(self.log.segments[other].bytes(range).to_vec());
        }
        let is_open = self.log.open().id() == segment;
        if !is_open && (segment.0 as usize + member).is_multiple_of(3) {
            return None;
        }
        self.bytes_at(member, segment, range)
    }

    pub(super) fn bytes_at(&mut self, member: usize, segment: SegmentId, range: Range<u32>) -> Option<Vec<u8>> {
        let found = self.log.segments.iter().find(|found| found.id() == segment)?;
        let mut bytes = found.bytes(range.clone()).to_vec();
        let rotten = &self.reading.as_ref()?.members[member].rotten;
        for (_, at) in rotten.range((segment, range.start)..(segment, range.end)) {
            bytes[(at - range.start) as usize] ^= 4;
        }
        Some(bytes)
    }
}

impl Reading {
    pub(super) fn pass_piece(&mut self, transfer: &mut Transfer, piece: usize) {
        let size = transfer.bytes.len() / transfer.pieces.len();
        let range = piece * size..(piece + 1) * size;
        let member = &mut self.members[transfer.member];
        match transfer.what {
            What::Line(_, at) => {
                member.memory[at + range.start..at + range.end].copy_from_slice(&transfer.bytes[range]);
            }
            What::Publish(_) => {
                let at = 2 * BOARD_LINE;
                member.board[at + range.start..at + range.end].copy_from_slice(&transfer.bytes[range]);
            }
            What::Look(..) => transfer.bytes[range.clone()].copy_from_slice(&member.board[range]),
            What::Buckets(_, _, at) => {
                let from = at[range.start / 256] + range.start % 256;
                transfer.bytes[range.clone()].copy_from_slice(&member.memory[from..from + range.len()]);
            }
            What::Connect(_) | What::Record(..) | What::Fetch(..) | What::Ask(_) => {}
        }
    }
}

impl Transfer {
    pub(super) fn new(what: What, member: usize, bytes: Vec<u8>, grain: usize) -> Transfer {
        Transfer { what, member, pieces: vec![false; bytes.len() / grain], bytes }
    }
}

impl What {
    pub(super) fn is_of_mirror(&self, id: MirrorId) -> bool {
        matches!(self, What::Line(of, _) | What::Publish(of) if *of == id)
    }

    pub(super) fn is_of_a_visit(&self) -> bool {
        !matches!(self, What::Line(..) | What::Publish(_) | What::Ask(_))
    }
}
