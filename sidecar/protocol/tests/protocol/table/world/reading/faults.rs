//! What goes wrong; and the end, when all is well again and every get is answered.

use std::collections::BTreeSet;

use tailwind_protocol::board::LINE_SIZE as BOARD_LINE;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::table::getter::{self, PATIENCE};
use tailwind_protocol::table::mirror::{self, MirrorId};

use super::super::{World, key, unless};
use super::MEMBERS;

impl World {
    pub(super) fn fault(&mut self) -> Result<(), String> {
        let mut at = self.random.below(MEMBERS as u64) as usize;
        let now = self.now;
        // Mostly one member is ill at a time, or all gets would only wait.
        let ill = self.reading().members.iter().position(|member| member.cut || member.lost.is_some());
        if let Some(ill) = ill
            && self.random.below(4) > 0
        {
            at = ill;
        }
        if self.reading().members[at].memory.is_empty() {
            return Ok(());
        }
        let id = self.reading().members[at].mirror;
        match self.random.below(7) {
            0 | 1 => match self.reading().members[at].lost {
                // Some of what was on its way has landed, some never will.
                None => {
                    let reading = self.reading();
                    reading.members[at].lost = Some(now);
                    reading.transfers.retain(|transfer| !transfer.what.is_of_mirror(id));
                    self.step_mirrors(mirror::Input::Lost(id))
                }
                Some(_) => self.reopen(at),
            },
            2 => {
                let reading = self.reading();
                let member = &mut reading.members[at];
                member.cut = !member.cut;
                if !member.cut {
                    reading.version += 1;
                }
                Ok(())
            }
            3 => {
                let memory = std::mem::take(&mut self.reading().members[at].memory);
                if !self.reading().members[at].stale {
                    self.name_all(memory, now);
                }
                let reading = self.reading();
                (reading.members[at].lost, reading.members[at].stale) = (None, false);
                reading.members[at].board[2 * BOARD_LINE..].fill(0);
                reading.transfers.retain(|transfer| !transfer.what.is_of_mirror(id));
                if reading.visiting == at
                    && let Some(visit) = reading.visit()
                {
                    self.step_getter(getter::Input::Broken(visit, "the memory is gone"))?;
                }
                self.step_mirrors(mirror::Input::Left(id))
            }
            4 => {
                let bits = self.reading().members[at].memory.len() as u64 * 8;
                let bit = self.random.below(bits) as usize;
                self.reading().members[at].memory[bit / 8] ^= 1 << (bit % 8);
                Ok(())
            }
            _ => self.rot(at),
        }
    }

    pub(super) fn reopen(&mut self, at: usize) -> Result<(), String> {
        let now = self.now;
        let reading = self.reading();
        reading.tally.reopened += 1;
        let member = &mut reading.members[at];
        member.stale |= member.lost.take().is_some_and(|since| since.plus(mirror::LOST_AFTER_MS) <= now);
        let id = member.mirror;
        self.step_mirrors(mirror::Input::Reopened(id))
    }

    /// A key's record rots at this member, or at all, and somebody asks for the key.
    pub(super) fn rot(&mut self, at: usize) -> Result<(), String> {
        let name = self.random.below(self.names.len() as u64) as usize;
        let (everywhere, byte) = (self.random.below(2) == 0, self.random.below(40) as u32);
        let place = self.index.acknowledged(key(&self.names[name])).and_then(|present| present.word.new_place());
        let end = self.log.open().id();
        let position = place.and_then(|place| self.index.window().position(place, end));
        let now = self.now;
        let reading = self.reading();
        let Some(position) = position.filter(|_| reading.nature.rots) else { return Ok(()) };
        for (number, member) in reading.members.iter_mut().enumerate() {
            if everywhere || number == at {
                member.rotten.insert((position.segment, position.offset.0 + byte));
            }
        }
        if everywhere {
            reading.quiet_until = now.plus(1200);
        }
        if reading.nature.twins && name == 1 {
            return Ok(());
        }
        self.get(name, false, true, 0)
    }

    /// What mirrors are to be told is told, and lands.
    pub(in super::super) fn settle_mirrors(&mut self) -> Result<(), String> {
        if self.reading.is_none() {
            return Ok(());
        }
        for _ in 0..1000 {
            self.tick()?;
            self.write_boards();
            // A visit that ends takes others with it.
            for _ in 0..self.reading().transfers.len() {
                if !self.reading().transfers.is_empty() {
                    self.pass_on(0, true)?;
                }
            }
            let acked = self.log.acked;
            let members = self.reading().members.iter().filter(|member| !member.memory.is_empty()).count();
            let behind =
                |state: (MirrorId, mirror::State, Lsn)| state.1 != mirror::State::Live || state.2 != Lsn(acked);
            if members == MEMBERS
                && !self.reading().mirrors.states().any(behind)
                && self.reading().told == self.log.epoch
            {
                return Ok(());
            }
        }
        Err("stuck: a mirror is not filled".to_owned())
    }

    pub(super) fn rest_reading(&mut self) -> Result<(), String> {
        for at in 0..MEMBERS {
            let member = &mut self.reading().members[at];
            (member.cut, member.rotten) = (false, BTreeSet::new());
            if member.lost.is_some() {
                self.reopen(at)?;
            }
        }
        self.reading().version += 1;
        (self.reading().nature.foreign, self.reading().nature.rots) = (false, false);
        self.acknowledge(self.log.last())?;
        self.settle_mirrors()?;
        // What rotted is written again within a turn through all lines.
        let lots = self.index.acked_view().lines() / mirror::REFRESH_LINES + 2;
        for _ in 0..lots {
            self.now = self.now.plus(mirror::REFRESH_MS);
            self.settle_mirrors()?;
        }
        self.check_mirrors()?;
        self.now = self.now.plus(PATIENCE.as_millis() as u64);
        self.settle_mirrors()?;
        let first = usize::from(self.reading().nature.twins);
        for name in (0..self.names.len()).filter(|name| *name != 1 || first == 0) {
            self.get(name, true, false, 0)?;
        }
        let unavailable = self.get_tally().unavailable;
        for _ in 0..2000 {
            if self.reading().asked.is_empty() {
                let now = self.get_tally().unavailable;
                return unless(now == unavailable, || "stuck: nothing is wrong, and a get is unavailable".to_owned());
            }
            self.now = self.now.plus(1);
            self.settle_mirrors()?;
        }
        Err("stuck: a get is not answered".to_owned())
    }
}
