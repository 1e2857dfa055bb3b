//! The primary's side: mirrors are lent and written, and boards tell of them.

use std::sync::Arc;

use tailwind_protocol::board::mirror::PartSize;
use tailwind_protocol::board::{BoardIdentity, LINE_SIZE as BOARD_LINE, Progress};
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, Position, Version};
use tailwind_protocol::table::acked::{LINE_SIZE, LineId};
use tailwind_protocol::table::changed::ChangedLines;
use tailwind_protocol::table::getter;
use tailwind_protocol::table::mirror::{self, MirrorId, Mirrors};

use super::super::World;
use super::{PART, Transfer, What};
use crate::table::log::SIZE;

impl World {
    pub(in super::super) fn tell_mirrors(&mut self, changed: &[LineId], acked: u64) {
        if let Some(reading) = &self.reading {
            changed.iter().for_each(|line| reading.changed.set(*line));
            reading.changed.acked(Lsn(acked));
        }
    }

    pub(in super::super) fn shown_by_mirrors(&self) -> Option<Lsn> {
        let mirrors = self.reading.as_ref().map(|reading| &reading.mirrors);
        mirrors.map_or(self.published.map(Lsn), |mirrors| mirrors.published(self.now))
    }

    pub(super) fn step_mirrors(&mut self, input: mirror::Input) -> Result<(), String> {
        let (now, mut out) = (self.now, Vec::new());
        self.reading().mirrors.step(now, input, &mut out);
        for output in out {
            match output {
                mirror::Output::Write(id, line) => self.copy_line(id, line)?,
                mirror::Output::Publish(id, line) => {
                    let identity = self.identity();
                    let reading = self.reading();
                    reading.tally.rounds += u64::from(line.live);
                    let Some(member) = reading.member_of(id) else { continue };
                    reading.transfers.push(Transfer::new(
                        What::Publish(id),
                        member,
                        line.encode(&identity).to_vec(),
                        8,
                    ));
                }
            }
        }
        Ok(())
    }

    /// Copies a line word by word; now and then something is acknowledged in the middle.
    pub(super) fn copy_line(&mut self, id: MirrorId, line: LineId) -> Result<(), String> {
        let view = Arc::clone(self.index.acked_view());
        let mut acks_at = if self.random.below(4) == 0 { self.random.below(8) } else { u64::MAX };
        let mut result = Ok(());
        let mut bytes = view.line_while(line, || {
            if acks_at == 0 {
                result = self.ack();
            }
            acks_at = acks_at.wrapping_sub(1);
        });
        result?;
        if self.reading().nature.twins {
            self.make_twins(&mut bytes);
        }
        let reading = self.reading();
        if let Some(member) = reading.member_of(id) {
            let at = line.0 as usize * LINE_SIZE;
            reading.transfers.push(Transfer::new(What::Line(id, at), member, bytes.to_vec(), 8));
        }
        Ok(())
    }

    pub(in super::super) fn identity(&self) -> BoardIdentity {
        let (log, generation) = (LogId(1), Generation(self.log.epoch));
        BoardIdentity { log, epoch: Epoch(self.log.epoch), generation, segment_size: SIZE }
    }

    /// Every board that is written gets the same lines at once, so each beat is a barrier.
    pub(super) fn write_boards(&mut self) {
        let (identity, acked, end) = (self.identity(), Lsn(self.log.acked), self.log.open().id());
        let first = self.log.segments[0].closed().first;
        let reading = self.reading();
        reading.beat += 1;
        let progress = Progress {
            beat: reading.beat,
            acked,
            end: Position::new(end, Offset(0)),
            first,
            version: Version(reading.version),
        };
        for member in reading.members.iter_mut().filter(|member| !member.cut) {
            member.board[..BOARD_LINE].copy_from_slice(&identity.encode());
            member.board[BOARD_LINE..2 * BOARD_LINE].copy_from_slice(&progress.encode(&identity));
        }
    }

    /// The memory of mirrors and boards is freed; in the next epoch all is lent again.
    pub(in super::super) fn end_epoch(&mut self) {
        let Some(mut reading) = self.reading.take() else { return };
        let view = self.index.acked_view();
        let changed = Arc::new(ChangedLines::new(view.lines(), Lsn(self.log.acked)));
        reading.mirrors = Mirrors::new(Arc::clone(view), Arc::clone(&changed), PartSize::new(PART).expect("a size"));
        (reading.changed, reading.beat) = (changed, 0);
        reading.transfers.retain(|transfer| matches!(transfer.what, What::Ask(_)));
        reading.named.clear();
        for member in &mut reading.members {
            (member.memory, member.board) = (Vec::new(), [0; 3 * BOARD_LINE]);
            (member.lost, member.cut, member.stale) = (None, false, false);
        }
        let (now, mut out) = (self.since_start(), Vec::new());
        if let Some(visit) = reading.visit() {
            reading.getter.step(now, getter::Input::Broken(visit, "a fence"), &mut out, |_, _| {});
        }
        self.reading = Some(reading);
    }

    /// Lends a mirror's memory at this member.
    pub(super) fn lend(&mut self, at: usize) -> Result<(), String> {
        let size = self.index.acked_view().lines() as usize * LINE_SIZE;
        let reading = self.reading();
        reading.mirror_ids += 1;
        let id = MirrorId(reading.mirror_ids);
        let member = &mut reading.members[at];
        (member.mirror, member.memory) = (id, vec![0; size]);
        self.step_mirrors(mirror::Input::Lent(id))
    }
}
