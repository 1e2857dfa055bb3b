//! A backup's memory on a real host: a [`Pool`] of buffers, the slot table beside them, a fabric's [`Receiver`].
//!
//! Implements the traits of [`tailwind_backup::memory`]: [`PoolMemory`] for [`run`](super::run), [`Lent`] for the
//! [`actor`](super::actor), [`PoolBuffers`] for the [`flusher`](super::flusher).

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::OFlags;
use tailwind_backup::table::{TABLE, TableError};
use tailwind_backup::{Buffers, Lender, Mapped, Memory, Revocation, is_full};
use tailwind_fabric::shm::{ShmReceiver, ShmSender};
use tailwind_fabric::{
    Admission, ChannelAnswer, FabricError, Grant, MappedFile, Offer, Parts, Pool, PoolError, ReadGrant, ReaderId,
    Receiver, Sender, Sharer, SlotId, Writer,
};
use tailwind_folder::Folder;
use tailwind_protocol::backup::Slot;
use tailwind_protocol::ids::{BootId, Epoch, SegmentId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::rpc::{MirrorReply, READER_SILENCE_MS, Refusal};
use tokio::sync::watch;

use super::actor::other_fabric;
use super::mirror::{Lending, MirrorParts};
use crate::lookup;

/// The running kernel's boot identity (`random(4)`).
pub(super) fn kernel_boot_id() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(path).with_context(|| format!("read {path}"))?.trim().to_owned())
}

/// A new, unique identity.
pub(super) fn fresh_boot_id() -> anyhow::Result<BootId> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("generate a boot identity: {error}"))?;
    Ok(BootId(u128::from_le_bytes(bytes)))
}

/// The pool's folder, until it is open, and then the pool.
#[derive(Debug)]
pub(super) struct PoolMemory {
    dir: PathBuf,
    buffers: u32,
    segment_size: SegmentSize,
    parts: Parts,
    pool: Option<Arc<Pool>>,
}

impl PoolMemory {
    pub(super) fn new(dir: PathBuf, buffers: u32, segment_size: SegmentSize) -> PoolMemory {
        PoolMemory { dir, buffers, segment_size, parts: Parts::NONE, pool: None }
    }

    /// With parts for a mirror.
    pub(super) fn with_parts(self, parts: Parts) -> PoolMemory {
        PoolMemory { parts, ..self }
    }

    /// The pool, which has been opened.
    pub(super) fn pool(&self) -> anyhow::Result<&Arc<Pool>> {
        self.pool.as_ref().context("the pool has not been opened")
    }

    fn folder(&self) -> Result<Folder, TableError> {
        Pool::folder(&self.dir).map_err(|error| match error {
            PoolError::Io { action, path, source } => TableError::Folder(format!(
                "{action} {}: use a --pool whose parent folder this user may write: {source}",
                path.display()
            )),
            other => TableError::Folder(other.to_string()),
        })
    }
}

impl Memory for PoolMemory {
    fn table(&mut self) -> Result<Box<dyn Mapped>, TableError> {
        let folder = self.folder()?;
        let path = self.dir.join(TABLE);
        let file = folder.open_file(TABLE, OFlags::CREATE).map_err(TableError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(TableFile::map(file, 0).map_err(TableError::io("map", &path))?)),
            Err(TryLockError::WouldBlock) => Err(TableError::InUse { path: self.dir.clone() }),
            Err(TryLockError::Error(error)) => Err(TableError::io("lock", &path)(error)),
        }
    }

    fn clear(&mut self) -> anyhow::Result<()> {
        let context = || format!("empty pool folder {}", self.dir.display());
        let folder = self.folder()?;
        for name in folder.names().with_context(context)? {
            if let Some(slot) = name.to_str().filter(|name| name.starts_with("slot-")) {
                folder.remove(slot).with_context(context)?;
            }
        }
        Ok(())
    }

    fn open(&mut self) -> anyhow::Result<()> {
        self.pool = Some(Pool::open_with(&self.dir, self.buffers, self.segment_size.bytes(), self.parts)?);
        Ok(())
    }

    fn has(&self, slot: Slot) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.has(SlotId(slot.0)))
    }

    fn load(&mut self, slot: Slot, bytes: &[u8]) -> anyhow::Result<()> {
        // A lending to ourselves, written like any primary would. The receiver that is made later ends it.
        let mut receiver = ShmReceiver::new(Arc::clone(self.pool()?))?;
        let length = bytes.len() as u32;
        let sender = ShmSender::default();
        let remote = sender.attach(&receiver.lend(Writer(0), SlotId(slot.0))?)?;
        let (mut local, shared) = sender.allocate(length)?;
        local.tail_mut()[..bytes.len()].copy_from_slice(bytes);
        local.publish(length);
        let mut channel = sender.begin()?.connect(&ChannelAnswer::Shm, IpAddr::V4(Ipv4Addr::LOCALHOST))?;
        channel.post(&remote, &shared, 0..length).context("write to an own buffer")
    }
}

/// What a start that has failed says of its pool, if there is no room in it: it may be tried again.
pub(super) fn no_room(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(FabricError::Pool(no_space @ PoolError::NoSpace { .. })) = cause.downcast_ref() {
            return Some(no_space.to_string());
        }
        if let Some(no_space @ PoolError::NoSpace { .. }) = cause.downcast_ref() {
            return Some(no_space.to_string());
        }
        match cause.downcast_ref() {
            Some(TableError::Io { path, source, .. }) if is_full(source) => {
                let dir = path.parent().unwrap_or(path).display();
                Some(format!("no room in pool {dir}: its file system is full. Free or add space there"))
            }
            _ => None,
        }
    })
}

/// The slot table's file.
#[derive(Debug)]
struct TableFile(MappedFile);

impl TableFile {
    fn map(file: File, length: u64) -> io::Result<TableFile> {
        Ok(TableFile(MappedFile::map(file, length)?))
    }
}

impl Mapped for TableFile {
    fn length(&self) -> u64 {
        self.0.len()
    }

    fn grow(&mut self, length: u64) -> io::Result<()> {
        // The handle that is locked stays open in the old mapping until the new one, a copy of the same handle, is there.
        *self = TableFile::map(self.0.file().try_clone()?, length)?;
        Ok(())
    }

    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(at, out)
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.write(at, bytes);
    }

    fn store(&self, at: u64, word: u64) {
        self.0.store(at, word);
    }
}

/// The pool's bytes.
#[derive(Debug)]
pub(super) struct PoolBuffers(pub(super) Arc<Pool>);

impl Buffers for PoolBuffers {
    fn read(&self, slot: Slot, offset: u32, out: &mut [u8]) -> io::Result<()> {
        self.0.read(SlotId(slot.0), offset, out).map_err(io::Error::other)
    }
}

/// The pool, and the fabric that lends from it.
pub(super) struct Lent {
    pub(super) receiver: Box<dyn Receiver>,
    buffers: PoolBuffers,
    /// The grant of each lending: kept because a repeated open gets the same one.
    slots: Vec<LentSlot>,
    /// The board, in the pool's side slot, of the epoch that it is lent to. As above.
    board: Option<(Epoch, Grant)>,
    /// There was no memory for a board when one was last asked for.
    boardless: bool,
    mirror: MirrorParts,
    /// What it said of the pool when it last had no memory to lend, or to revoke with.
    no_room: Option<String>,
    /// The process ends; see [`Lent::end`].
    ending: bool,
    /// Readers that have a channel.
    readers: BTreeMap<ReaderId, AdmittedReader>,
    /// Whether any of them looks at the board, for the primary: it writes one only then.
    followed: watch::Sender<bool>,
}

/// A reader has a place, and its channel is not ready yet.
pub(super) struct Admitted {
    pub(super) admission: Admission,
    /// When it asked, if it had no place before.
    pub(super) new_at: Option<Instant>,
}

#[derive(Debug)]
struct AdmittedReader {
    /// When it has last asked for something.
    heard: Instant,
    is_guest: bool,
    /// It has asked for the board.
    follows: bool,
}

/// Guests admitted at a time: half of all readers
/// (`READERS_MAX` of the fabric). The rest is for standbys, which have to follow, and for backups that copy
/// segments.
const GUESTS_MAX: usize = 16;

/// What is known of a slot's lending.
#[derive(Debug, Default)]
struct LentSlot {
    grant: Option<Grant>,
    /// The caller has the grant.
    granted: bool,
    /// It has asked for it once more: what it began with the first one may not have ended.
    granted_again: bool,
    filling: Option<Filling>,
}

/// The right of this process to fill a slot that was lent for an image, instead of the caller that it is lent to. It is over
/// when the lending is, when the caller wants to write the slot itself, and when another pull fills it.
#[derive(Clone, Debug)]
pub(super) struct Filling {
    pool: Arc<Pool>,
    slot: SlotId,
    is_over: Arc<Mutex<bool>>,
}

/// The [`Filling`] is over: the slot has another user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FillingOver;

/// Bytes written at a time: the end of a filling waits for no more than that.
const FILL_SIZE: usize = 256 << 10;

impl Filling {
    fn new(pool: &Arc<Pool>, slot: SlotId) -> Filling {
        Filling { pool: Arc::clone(pool), slot, is_over: Arc::default() }
    }

    /// Writes into the slot, which must have room for it.
    pub(super) fn write(&self, at: u32, bytes: &[u8]) -> Result<(), FillingOver> {
        for (nth, piece) in bytes.chunks(FILL_SIZE).enumerate() {
            // Held while it is written: once `end` returns, nothing is written any more.
            let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
            if *is_over {
                return Err(FillingOver);
            }
            self.pool.write(self.slot, at + (nth * FILL_SIZE) as u32, piece);
        }
        Ok(())
    }

    /// The slot that it fills.
    pub(super) fn slot(&self) -> Slot {
        Slot(self.slot.0)
    }

    pub(super) fn is_over(&self) -> bool {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it: from then on it writes nothing.
    pub(super) fn end(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

impl LentSlot {
    fn end_filling(&mut self) {
        self.filling.take().iter().for_each(Filling::end);
    }
}

impl Lent {
    pub(super) fn new(receiver: Box<dyn Receiver>, pool: Arc<Pool>) -> Lent {
        Lent {
            receiver,
            slots: (0..pool.slots()).map(|_| LentSlot::default()).collect(),
            board: None,
            boardless: false,
            mirror: MirrorParts::new(&pool),
            no_room: None,
            ending: false,
            readers: BTreeMap::new(),
            followed: watch::Sender::new(false),
            buffers: PoolBuffers(pool),
        }
    }

    /// The process ends, and answers no fence any more. From now on a revocation for which there is no memory counts as done:
    /// its writers complete nothing more, and what they have completed is read for the disk alone, where every copy is scanned
    /// or verified. Without this what is in memory would not be flushed for want of room in the pool, though the disk has room.
    pub(super) fn end(&mut self) {
        self.ending = true;
    }

    /// Why nothing can be lent for want of memory.
    pub(super) fn no_room(&self) -> Option<&str> {
        self.no_room.as_deref()
    }

    /// Looks whether there is room again for a buffer.
    pub(super) fn look_for_room(&mut self) {
        if self.no_room.is_some() && self.buffers.0.has_room() {
            self.note_room(None);
        }
    }

    /// Says it once, and when it is over.
    fn note_room(&mut self, no_room: Option<String>) {
        match (&no_room, &self.no_room) {
            (Some(why), None) => tracing::error!(%why, "this backup lends nothing"),
            (None, Some(_)) => tracing::info!("there is room in the pool again"),
            _ => {}
        }
        // The numbers in it change all the time.
        if no_room.is_none() || self.no_room.is_none() {
            self.no_room = no_room;
        }
    }

    /// Lends the board to the primary of the promised epoch. Without memory for it there is none: readers go to another
    /// member.
    pub(super) fn board(&mut self, epoch: Epoch) -> Option<Grant> {
        if self.board.as_ref().is_none_or(|(of, _)| *of != epoch) {
            match self.receiver.lend(Writer(epoch.0), self.buffers.0.side_slot()) {
                Ok(grant) => (self.board, self.boardless) = (Some((epoch, grant)), false),
                Err(error) => {
                    // Asked for again with each segment.
                    if !std::mem::replace(&mut self.boardless, true) {
                        tracing::warn!(%epoch, %error, "no board is lent: readers cannot follow here");
                    }
                    return None;
                }
            }
        }
        self.board.as_ref().map(|(_, grant)| grant.clone())
    }

    /// Lends a part of the memory for a mirror to the primary of the promised epoch.
    pub(super) fn mirror(&mut self, lending: Lending, part: u32) -> Result<MirrorReply<Grant>, Refusal> {
        let Parts { count: parts, size: part_size } = self.mirror_parts();
        let grant = self.mirror.lend(&mut *self.receiver, &self.buffers.0, lending, part)?;
        Ok(MirrorReply { parts, part_size, grant })
    }

    /// The memory that there is for a mirror, lent or not.
    pub(super) fn mirror_parts(&self) -> Parts {
        self.buffers.0.parts()
    }

    /// How many parts of a mirror are lent.
    pub(super) fn mirror_parts_lent(&self) -> u32 {
        self.mirror.lent()
    }

    /// True while parts that a fence has ended wait for [`Lent::free_part`].
    pub(super) fn has_parts_to_free(&self) -> bool {
        self.mirror.is_to_free()
    }

    /// Gives the memory of one such part back. On an error the process must end.
    pub(super) fn free_part(&mut self) -> anyhow::Result<()> {
        Ok(self.mirror.free_one(&mut *self.receiver, &self.buffers.0)?)
    }

    /// The grant of a slot's lending, for the caller, which fills it from now on; a lending of an earlier process has none.
    pub(super) fn grant(&mut self, slot: Slot) -> Option<&Grant> {
        let lent = &mut self.slots[slot.0 as usize];
        lent.end_filling();
        lent.granted_again |= lent.granted;
        lent.granted = true;
        lent.grant.as_ref()
    }

    /// Lets this process fill a slot's lending; `None` if the caller may be filling it.
    pub(super) fn fill(&mut self, slot: Slot) -> Option<Filling> {
        let lent = &mut self.slots[slot.0 as usize];
        lent.end_filling();
        if lent.granted || lent.grant.is_none() {
            return None;
        }
        lent.filling = Some(Filling::new(&self.buffers.0, SlotId(slot.0)));
        lent.filling.clone()
    }
}

/// The read side. Refusals are for the reader.
impl Lent {
    /// Prepares for a read channel. What is left to do may wait for the network.
    pub(super) fn admit_reader(
        &mut self,
        reader: ReaderId,
        offer: &Offer,
        is_guest: bool,
    ) -> Result<Admitted, Refusal> {
        let guests = self.readers.values().filter(|reader| reader.is_guest).count();
        if is_guest && guests >= GUESTS_MAX && !self.readers.contains_key(&reader) {
            let why = format!("{GUESTS_MAX} readers read from this backup already: read from another one");
            return Err(Refusal::RetryLater { after_ms: 1000, why });
        }
        let known = self.readers.get(&reader);
        let (is_known, follows) = (known.is_some(), known.is_some_and(|known| known.follows));
        let sharer = self.sharer()?;
        let admission = sharer.admit(reader, offer).map_err(|error| {
            // It may have taken a place before it failed, and nobody would ever hear of that reader again.
            if !is_known {
                sharer.dismiss(reader);
            }
            match error {
                FabricError::Mismatch { ours, theirs } => Refusal::BadRequest { why: other_fabric(ours, theirs) },
                FabricError::TooManyReaders => Refusal::RetryLater { after_ms: 1000, why: error.to_string() },
                _ => Refusal::Failed { why: error.to_string() },
            }
        })?;
        let heard = Instant::now();
        self.readers.insert(reader, AdmittedReader { heard, is_guest, follows });
        Ok(Admitted { admission, new_at: (!is_known).then_some(heard) })
    }

    /// The first channel of a reader has not become ready. It keeps its place if it has asked for something since: then another
    /// channel may have.
    pub(super) fn give_up_reader(&mut self, reader: ReaderId, new_at: Instant) {
        if self.readers.get(&reader).is_some_and(|known| known.heard == new_at) {
            self.dismiss_reader(reader);
        }
    }

    /// Gives a reader's place to others.
    pub(super) fn dismiss_reader(&mut self, reader: ReaderId) {
        self.readers.remove(&reader);
        self.tell_whether_followed();
        if let Ok(sharer) = self.sharer() {
            sharer.dismiss(reader);
        }
    }

    /// A reader that is admitted has asked for something; for the board, if it says so.
    pub(super) fn note_reader(&mut self, reader: ReaderId, follows: bool) -> Result<(), Refusal> {
        let unknown = || Refusal::BadRequest { why: "this reader has no read channel here: connect first".to_owned() };
        let known = self.readers.get_mut(&reader).ok_or_else(unknown)?;
        known.heard = Instant::now();
        known.follows |= follows;
        self.tell_whether_followed();
        Ok(())
    }

    /// Whether readers look at the board, from now on.
    pub(super) fn watch_followed(&self) -> watch::Receiver<bool> {
        self.followed.subscribe()
    }

    fn tell_whether_followed(&self) {
        let followed = self.readers.values().any(|reader| reader.follows);
        self.followed.send_if_modified(|known| std::mem::replace(known, followed) != followed);
    }

    /// Forgets readers that have been silent for too long: nobody says when one has died.
    pub(super) fn dismiss_silent_readers(&mut self) {
        let silence = Duration::from_millis(READER_SILENCE_MS);
        let silent: Vec<ReaderId> =
            self.readers.iter().filter(|(_, reader)| reader.heard.elapsed() > silence).map(|(id, _)| *id).collect();
        for reader in silent {
            self.dismiss_reader(reader);
        }
    }

    /// Shares a slot's memory, in which this segment is; `None` if it has none.
    pub(super) fn share(&mut self, slot: Slot, segment: SegmentId) -> Result<Option<ReadGrant>, Refusal> {
        let shared = self.share_slot(SlotId(slot.0))?;
        self.sharer()?.answer_lookups(SlotId(slot.0), segment.0, lookup::follow);
        Ok(shared)
    }

    /// Shares the board of this epoch, if it is lent.
    pub(super) fn share_board(&mut self, epoch: Epoch) -> Result<Option<ReadGrant>, Refusal> {
        match self.board {
            Some((of, _)) if of == epoch => self.share_slot(self.buffers.0.side_slot()),
            _ => Ok(None),
        }
    }

    /// Shares parts of this epoch's mirror, from this one on: as [`MirrorParts::share`].
    pub(super) fn share_mirror(&mut self, epoch: Epoch, first: u32) -> Result<Vec<ReadGrant>, Refusal> {
        let Lent { receiver, mirror, buffers, .. } = self;
        let shared = mirror.share(sharer(&mut **receiver)?, &buffers.0, epoch, first);
        shared.map_err(|error| Refusal::Failed { why: error.to_string() })
    }

    fn share_slot(&mut self, slot: SlotId) -> Result<Option<ReadGrant>, Refusal> {
        self.sharer()?.share(slot).map_err(|error| Refusal::Failed { why: error.to_string() })
    }

    fn sharer(&mut self) -> Result<&mut dyn Sharer, Refusal> {
        sharer(&mut *self.receiver)
    }
}

fn sharer(receiver: &mut dyn Receiver) -> Result<&mut dyn Sharer, Refusal> {
    let kind = receiver.kind();
    let none = || Refusal::Failed { why: format!("nothing can be read one-sidedly over {kind}") };
    receiver.sharer().ok_or_else(none)
}

impl Buffers for Lent {
    fn read(&self, slot: Slot, offset: u32, out: &mut [u8]) -> io::Result<()> {
        self.buffers.read(slot, offset, out)
    }
}

impl Lender for Lent {
    fn lend(&mut self, epoch: Epoch, slot: Slot) -> Result<(), String> {
        self.slots[slot.0 as usize].end_filling();
        let grant = match self.receiver.lend(Writer(epoch.0), SlotId(slot.0)) {
            Ok(grant) => grant,
            Err(error) => {
                if let FabricError::Pool(no_space @ PoolError::NoSpace { .. }) = &error {
                    self.note_room(Some(no_space.to_string()));
                }
                return Err(error.to_string());
            }
        };
        self.note_room(None);
        self.slots[slot.0 as usize] = LentSlot { grant: Some(grant), ..LentSlot::default() };
        Ok(())
    }

    fn end_lending(&mut self, slot: Slot) {
        let lent = &mut self.slots[slot.0 as usize];
        lent.end_filling();
        self.receiver.end_lending(SlotId(slot.0));
        if lent.granted_again {
            self.receiver.doubt_end(SlotId(slot.0));
        }
    }

    fn retain(&mut self, slot: Slot) {
        self.receiver.retain(SlotId(slot.0));
    }

    fn load(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), String> {
        self.receiver.hold(SlotId(slot.0)).map_err(|error| error.to_string())?;
        self.buffers.0.write(SlotId(slot.0), 0, bytes);
        Ok(())
    }

    fn revoke_below(&mut self, epoch: Epoch) -> anyhow::Result<Revocation> {
        // Only the promised epoch has images filled, so they are all older.
        self.slots.iter_mut().for_each(LentSlot::end_filling);
        self.mirror.end_below(epoch);
        match self.receiver.revoke_below(Writer(epoch.0)) {
            Ok(()) => {}
            // No writer completes anything any more, but what they have written is not out of their reach yet.
            Err(FabricError::Pool(no_space @ PoolError::NoSpace { .. })) => {
                let why = no_space.to_string();
                self.note_room(Some(why.clone()));
                if !self.ending {
                    return Ok(Revocation::NoRoom(why));
                }
            }
            Err(error) => return Err(error.into()),
        }
        // What the board says is over with the epoch that wrote it.
        if self.board.take_if(|(of, _)| *of < epoch).is_some() {
            self.receiver.release(self.buffers.0.side_slot())?;
        }
        Ok(Revocation::Done)
    }

    fn release(&mut self, slot: Slot) -> anyhow::Result<()> {
        self.slots[slot.0 as usize].end_filling();
        self.slots[slot.0 as usize] = LentSlot::default();
        Ok(self.receiver.release(SlotId(slot.0))?)
    }
}

#[cfg(test)]
mod tests;
