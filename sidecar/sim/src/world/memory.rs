//! A backup's buffers and the table beside them: they outlive the process, and go with the power.
//!
//! [`Pool`] is what the production [`start`](tailwind_backup::start()) asks for memory; [`Lent`] is who the production daemon
//! lends with: the simulated fabric, which judges what lands.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tailwind_backup::{Buffers, Lender, Mapped, Memory, Revocation, SlotTable, TableError};
use tailwind_protocol::backup::{Slot, SlotRow};
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::planted::{self, Bug};

use super::fabric::Key;
use super::files::{Beside, Files};
use super::host::Lending;
use super::sides::part_of;
use super::{BOARD, HostNo, World};
use crate::tally::Fault;

/// Memory that nobody has written, as large as a buffer: [`tailwind_protocol::layout::SegmentSize::MIN`].
static UNWRITTEN: [u8; 64 << 10] = [0; 64 << 10];

/// Where the table has a slot's entry: docs/protocol.md.
const ROWS_AT: usize = 4096;
const ROW_STRIDE: usize = 2048;

/// The slots that have memory, and the table.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Empty: not written yet.
    slots: BTreeMap<Slot, Vec<u8>>,
    table: Beside,
}

impl Pool {
    pub(crate) fn new(files: Files) -> Pool {
        Pool { slots: BTreeMap::new(), table: Beside { bytes: Arc::default(), files } }
    }

    /// All of it is gone.
    pub(crate) fn lose(&mut self) {
        self.slots.clear();
        self.table.bytes = Arc::new(Mutex::new(Vec::new()));
    }

    /// A slot's bytes as they are now.
    pub(crate) fn bytes(&self, slot: Slot, range: Range<usize>) -> &[u8] {
        self.slots
            .get(&slot)
            .filter(|memory| !memory.is_empty())
            .map_or(&UNWRITTEN[..], |memory| memory)
            .get(range)
            .expect("within the slot")
    }

    pub(crate) fn write(&mut self, slot: Slot, at: usize, bytes: &[u8]) {
        let memory = self.slots.entry(slot).or_default();
        memory.resize(UNWRITTEN.len(), 0);
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn flip(&mut self, slot: Slot, at: usize, bit: u8) {
        if let Some(byte) = self.slots.get_mut(&slot).and_then(|memory| memory.get_mut(at)) {
            *byte ^= 1 << bit;
        }
    }

    /// The slot's file is removed.
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.slots.remove(&slot);
    }

    /// The slot's entry in the table becomes zeros.
    pub(crate) fn zero_row(&mut self, slot: Slot) {
        let at = ROWS_AT + slot.0 as usize * ROW_STRIDE;
        if let Some(row) = self.table.bytes.lock().ok().as_mut().and_then(|bytes| bytes.get_mut(at..at + ROW_STRIDE)) {
            row.fill(0);
        }
    }

    fn is_zero(&self, slot: Slot) -> bool {
        self.slots.get(&slot).is_none_or(|memory| memory.iter().all(|byte| *byte == 0))
    }

    /// What the table says is in use.
    pub(crate) fn rows(&self, slots: u32) -> BTreeMap<Slot, SlotRow> {
        let bytes = self.table.bytes.lock().map(|bytes| bytes.clone()).unwrap_or_default();
        // A reader of its own: the process that is dead reads nothing.
        let copy = Beside { bytes: Arc::new(Mutex::new(bytes)), files: Files::untroubled() };
        let table = SlotTable::open(Box::new(copy), Path::new("pool"));
        table.and_then(|table| table.rows(slots)).unwrap_or_default().used.into_iter().collect()
    }
}

impl Memory for Pool {
    fn table(&mut self) -> Result<Box<dyn Mapped>, TableError> {
        Ok(Box::new(self.table.clone()))
    }

    fn clear(&mut self) -> anyhow::Result<()> {
        self.slots.clear();
        Ok(())
    }

    fn open(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn has(&self, slot: Slot) -> bool {
        self.slots.contains_key(&slot)
    }

    fn load(&mut self, slot: Slot, bytes: &[u8]) -> anyhow::Result<()> {
        self.slots.remove(&slot);
        self.write(slot, 0, bytes);
        Ok(())
    }
}

impl Buffers for Pool {
    fn read(&self, slot: Slot, offset: u32, out: &mut [u8]) -> io::Result<()> {
        let offset = offset as usize;
        out.copy_from_slice(self.bytes(slot, offset..offset + out.len()));
        Ok(())
    }
}

/// A backup's pool, and the fabric that lends from it.
pub(super) struct Lent<'a> {
    pub(super) world: &'a mut World,
    pub(super) no: HostNo,
}

impl Lent<'_> {
    /// Nobody can write the slot any more; what was acknowledged is there.
    fn end(&mut self, slot: Slot) {
        self.world.settle_slot(self.no, slot);
        self.world.hosts[self.no.0].pulls.release(slot);
        self.world.hosts[self.no.0].lendings.remove(&slot);
    }
}

impl Buffers for Lent<'_> {
    fn read(&self, slot: Slot, offset: u32, out: &mut [u8]) -> io::Result<()> {
        self.world.hosts[self.no.0].pool.read(slot, offset, out)
    }
}

impl Lender for Lent<'_> {
    /// A slot is lent all zero, and only while nobody else can write it.
    fn lend(&mut self, epoch: Epoch, slot: Slot) -> Result<(), String> {
        let world = &mut *self.world;
        let host = &mut world.hosts[self.no.0];
        if host.pool_empty {
            return Err("the pool has no memory".to_owned());
        }
        world.checks.lends(host, slot);
        host.shares.remove(&slot);
        host.pulls.release(slot);
        let keeps_part = planted::has(Bug::PartNotZeroed) && part_of(slot).is_some();
        if !keeps_bytes() && !keeps_part {
            host.pool.slots.insert(slot, Vec::new());
        }
        host.keys += 1;
        let key = Key(host.keys);
        let zero = host.pool.is_zero(slot) || planted::has(Bug::UnseededChain);
        host.lendings.insert(slot, Lending { key, writer: epoch });
        world.checks.lent(&world.hosts[self.no.0], slot, zero);
        Ok(())
    }

    fn end_lending(&mut self, slot: Slot) {
        let host = &self.world.hosts[self.no.0];
        if let Some(Lending { key, .. }) = host.lendings.get(&slot) {
            let writing = self.world.fabric.is_writing(self.no, slot, *key);
            self.world.checks.finishes(host, slot, writing);
        }
        self.end(slot);
    }

    fn retain(&mut self, slot: Slot) {
        self.world.checks.lends(&self.world.hosts[self.no.0], slot);
    }

    fn load(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), String> {
        if self.world.hosts[self.no.0].pool_empty || self.world.fault_occurs(Fault::LoadRefused, 300) {
            return Err("the pool has no memory".to_owned());
        }
        self.world.checks.lends(&self.world.hosts[self.no.0], slot);
        self.world.end_share(self.no, slot);
        self.world.tally.loads += 1;
        let host = &mut self.world.hosts[self.no.0];
        host.pulls.release(slot);
        host.pool.slots.remove(&slot);
        host.write(slot, 0, bytes);
        Ok(())
    }

    fn revoke_below(&mut self, epoch: Epoch) -> anyhow::Result<Revocation> {
        self.world.stop_channels(self.no, epoch);
        self.world.hosts[self.no.0].pulls.stop_filling();
        if !planted::has(Bug::QueuePairReused) {
            let host = &mut self.world.hosts[self.no.0];
            host.lendings.retain(|_, lending| lending.writer >= epoch);
            // What the board says is over with the epoch that wrote it.
            if !host.lendings.contains_key(&BOARD) {
                self.release(BOARD)?;
            }
            self.world.free_parts(self.no)?;
        }
        Ok(Revocation::Done)
    }

    fn release(&mut self, slot: Slot) -> anyhow::Result<()> {
        self.world.part_goes(self.no, slot);
        self.world.end_share(self.no, slot);
        self.end(slot);
        let keeps_part = planted::has(Bug::PartNotZeroed) && part_of(slot).is_some();
        if !keeps_bytes() && !keeps_part {
            self.world.hosts[self.no.0].pool.slots.remove(&slot);
        }
        Ok(())
    }
}

/// What an unseeded chain would accept lies in memory that is not zeroed.
fn keeps_bytes() -> bool {
    planted::has(Bug::NoRezeroing) || planted::has(Bug::UnseededChain)
}
