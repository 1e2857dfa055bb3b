//! What a backup finds when it starts, and its identity as a result: the same as before, or a new one.
//!
//! Called before anything listens. See "Identity of a backup" in `docs/protocol.md`.
//!
//! A primary trusts a returned backup with its old records only if it shows the identity it had. So the identity is kept
//! 1. when the memory is still there: its table names the same backup, and the kernel has not booted since; or
//! 2. when everything that was acknowledged is on disk: after a shutdown that flushed everything, if nothing was lent
//!    since; or under durability `flushed`.
//!
//! Otherwise a new one is drawn. The promise is kept in any case: it is on disk, and without it nothing starts.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use tailwind_protocol::backup::{Found, Promise, Slot, SlotRow};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{BootId, GroupName, MemberId, Offset, SegmentId};
use tailwind_protocol::layout::{Closure, SEGMENT_OVERHEAD, SegmentIdentity, SegmentSize};
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::rpc::Purpose;
use tailwind_protocol::scan;
use tracing::{info, warn};

use crate::disk::{Disk, Listing};
use crate::files::Folder;
use crate::flushed::{Flushed, Open};
use crate::ledger::{Ledger, LedgerContents};
use crate::memory::Memory;
use crate::promise::{MemberState, PromiseFile};
use crate::table::{Owner, Rows, SlotTable};

/// What to do if the folders cannot be put together again. Emptying every member's folders would remove the log.
const ONE_BACKUP_ONLY: &str = "If that is impossible: only at one backup, and only while the group is well without it, start \
                               that backup with a new, empty --pool and --flush-dir. The group copies the log to it; keep the \
                               old folders until it has";

/// Where a backup lives.
#[derive(Clone, Debug)]
pub struct BackupConfig {
    /// The group that it serves.
    pub group: GroupName,
    /// Its name.
    pub member: MemberId,
    /// The pool's folder, for people.
    pub pool: PathBuf,
    /// Slots in the pool.
    pub buffers: u32,
    /// Bytes of each.
    pub segment_size: SegmentSize,
    /// The running kernel's boot identity.
    pub kernel: String,
}

/// A backup that has found out its identity.
#[derive(Debug)]
pub struct Started {
    /// The flush folder.
    pub disk: Arc<Disk>,
    /// The slot table.
    pub table: SlotTable,
    /// What is owed.
    pub ledger: Ledger,
    /// How far open segments are flushed; for the flusher.
    pub flushed: Flushed,
    /// The promise file.
    pub promise_file: PromiseFile,
    /// Its identity and its promises, as on disk.
    pub member_state: MemberState,
    /// What memory and disk hold.
    pub found: Found,
    /// Files that had a segment's name and are damaged, or not of this log.
    pub unexpected_files: u64,
}

/// Opens both folders, finds out this backup's identity, and collects what it holds. `fresh`, drawn at random, is its identity
/// if it needs a new one.
pub fn start(
    home: &BackupConfig,
    folder: Box<dyn Folder>,
    memory: &mut dyn Memory,
    fresh: BootId,
) -> anyhow::Result<Started> {
    let disk = Disk::new(folder);
    // A process that was killed may have left names that nothing has brought to disk. From here on they are believed: a
    // promise that is there now must be there after a loss of power too.
    disk.folder().sync().with_context(|| format!("write flush folder {}", disk.path().display()))?;
    let promised = PromiseFile::open(disk.folder())?;
    if let Some((_, member_state)) = &promised {
        home.check_owner("flush folder", disk.path(), &member_state.group, &member_state.member)?;
    }
    let table = SlotTable::open(memory.table()?, &home.pool)?;
    let owner = table.owner()?.filter(|owner| owner.kernel == home.kernel);
    if let Some(owner) = &owner {
        home.check_owner("pool", &home.pool, &owner.group, &owner.member)?;
    }
    match (promised, owner) {
        (Some((promise_file, member_state)), Some(owner)) => {
            ensure!(
                owner.boot == member_state.boot,
                "pool {} and flush folder {} belong to different identities of this backup ({} and {}): give the folders that belong \
                 together. {ONE_BACKUP_ONLY}",
                home.pool.display(),
                disk.path().display(),
                owner.boot,
                member_state.boot
            );
            resume(home, disk, memory, table, &owner, promise_file, member_state)
        }
        (None, Some(_)) => bail!(
            "pool {} holds buffers of this backup, but flush folder {} holds no promise, so the epoch that may write is \
             unknown; give the --flush-dir that belongs to the pool. {ONE_BACKUP_ONLY}",
            home.pool.display(),
            disk.path().display()
        ),
        (None, None) if disk.holds_segments().context("list flush folder")? => bail!(
            "flush folder {} holds segments but no promise file: restore that same file, not an older \
             copy. {ONE_BACKUP_ONLY}",
            disk.path().display()
        ),
        (promised, None) => begin(home, disk, memory, table, promised, fresh),
    }
}

impl BackupConfig {
    fn check_owner(&self, what: &str, dir: &Path, group: &GroupName, member: &MemberId) -> anyhow::Result<()> {
        ensure!(
            (group, member) == (&self.group, &self.member),
            "{what} {} belongs to backup {member} of group {group}, not to backup {} of group {}: give this backup its own \
             folder",
            dir.display(),
            self.member,
            self.group
        );
        Ok(())
    }
}

/// The memory is still there.
fn resume(
    home: &BackupConfig,
    disk: Disk,
    memory: &mut dyn Memory,
    mut table: SlotTable,
    owner: &Owner,
    mut promise_file: PromiseFile,
    mut member_state: MemberState,
) -> anyhow::Result<Started> {
    memory.open()?;
    let Rows { used: rows, damaged } = table.rows(owner.slots)?;
    let (residents, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, row)| row.is_resident());
    if let Some((slot, _)) = rows.iter().find(|(slot, _)| slot.0 >= home.buffers) {
        bail!(
            "buffer {} is in use, but there are {} (--buffers, and those of --resident): start with at least {}",
            slot.0,
            home.buffers,
            slot.0 + 1
        );
    }
    if let Some((slot, row)) = rows.iter().find(|(_, row)| row.identity.size > home.segment_size) {
        bail!(
            "buffer {} holds a segment of {}, but --segment-size is {}",
            slot.0,
            row.identity.size,
            home.segment_size
        );
    }
    table.reserve(owner, home.buffers)?;
    let (mut evidence, listing) = Evidence::gather(&disk, &mut promise_file, &mut member_state, true)?;
    for slot in &damaged {
        evidence.doubts.push(format!("the row of buffer {} in the slot table cannot be read", slot.0));
    }
    let (rows, missing): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(slot, _)| memory.has(*slot));
    // A file of an open segment whose buffer is no longer in use: given up when the process died, or all that is left.
    let known = |open: &SegmentIdentity| rows.iter().any(|(_, row)| row.identity == *open);
    let mut left: Vec<SegmentIdentity> = listing.open.iter().filter(|open| !known(open)).copied().collect();
    // Rows beyond the buffers that there are now take none of them.
    let unreadable = damaged.iter().copied().filter(|slot| slot.0 < home.buffers);
    let used: Vec<Slot> = rows.iter().chain(&missing).map(|(slot, _)| *slot).chain(unreadable).collect();
    if home.buffers >= owner.slots {
        evidence.leave_on_disk(&mut left, (home.buffers as usize).saturating_sub(used.len()));
    }
    let room = (home.buffers as usize).saturating_sub(used.len() + left.len());
    let residents = keep_residents(home, memory, &table, residents, room)?;
    let used: Vec<Slot> = used.into_iter().chain(residents.iter().map(|(slot, _)| *slot)).collect();
    let mut rows = rows;
    rows.extend(load(home, &disk, memory, &table, &left, &used, |open| disk.read_open(open))?);
    evidence.forget_dropped(rows.iter().map(|(_, row)| row.identity.segment))?;
    let (boot, epoch) = (member_state.boot, member_state.promise.epoch);
    info!(%boot, %epoch, slots = rows.len(), files = listing.closed.len(), "memory survived");
    // Their rows stay until the doubt is on disk: a start that fails before that must not have forgotten them.
    let slots = Slots { here: rows, residents, missing, unreadable: damaged };
    Ok(evidence.started(disk, table, promise_file, member_state, slots, listing))
}

/// The memory is new.
fn begin(
    home: &BackupConfig,
    disk: Disk,
    memory: &mut dyn Memory,
    mut table: SlotTable,
    promised: Option<(PromiseFile, MemberState)>,
    fresh: BootId,
) -> anyhow::Result<Started> {
    // Nobody's table first: from here until the last line of this function, a crash means starting over.
    table.clear(home.buffers)?;
    memory.clear()?;
    memory.open()?;
    let is_first = promised.is_none();
    let (mut promise_file, mut member_state) = match promised {
        Some(promised) => promised,
        None => {
            let (group, member) = (home.group.clone(), home.member.clone());
            let boot = fresh;
            let member_state = MemberState { group, member, boot, promise: Promise::default(), complete: false };
            info!(%boot, "new backup");
            (PromiseFile::create(disk.folder(), &member_state)?, member_state)
        }
    };
    let keeps_identity = !is_first && keeps_identity(&member_state);
    if keeps_identity {
        let (boot, epoch) = (member_state.boot, member_state.promise.epoch);
        info!(%boot, %epoch, "memory is new: comparing the disk with the ledger");
    }
    let (mut evidence, mut listing) = Evidence::gather(&disk, &mut promise_file, &mut member_state, keeps_identity)?;
    if !keeps_identity {
        evidence.forget(&disk, &mut listing)?;
    }
    let mut rows = load(home, &disk, memory, &table, &listing.open, &[], |open| {
        let bytes = disk.read_open(open)?;
        evidence.note_open(open, &bytes);
        Ok(bytes)
    })?;
    evidence.flushed.write().context("failed to record how far open segments are flushed")?;
    // What was open and empty has no file.
    let used: Vec<Slot> = rows.iter().map(|(slot, _)| *slot).collect();
    let room = (home.buffers as usize).saturating_sub(rows.len());
    let blank: Vec<SegmentIdentity> = evidence.blank(&listing).take(room).collect();
    rows.extend(load(home, &disk, memory, &table, &blank, &used, |_| Ok(vec![0; SEGMENT_OVERHEAD]))?);
    if !keeps_identity && !is_first {
        // Once nothing else can fail: starts that fail would push out the identity that an administrator recovers from.
        member_state.renew(fresh);
        promise_file.write(&member_state)?;
        warn!(boot = %fresh, epoch = %member_state.promise.epoch, "memory is lost: starting with a new identity");
    }
    table.claim(&Owner {
        group: home.group.clone(),
        member: home.member.clone(),
        boot: member_state.boot,
        kernel: home.kernel.clone(),
        slots: home.buffers,
    })?;
    Ok(evidence.started(
        disk,
        table,
        promise_file,
        member_state,
        Slots { here: rows, residents: Vec::new(), missing: Vec::new(), unreadable: Vec::new() },
        listing,
    ))
}

/// Slots in use.
struct Slots {
    here: Vec<(Slot, SlotRow)>,
    residents: Vec<(Slot, SlotRow)>,
    /// Slots whose memory is gone.
    missing: Vec<(Slot, SlotRow)>,
    unreadable: Vec<Slot>,
}

/// The newest residents whose memory is here, at most `room` of them. What is in them is on disk, so the rows of the others are
/// forgotten: their slots are free.
fn keep_residents(
    home: &BackupConfig,
    memory: &dyn Memory,
    table: &SlotTable,
    rows: Vec<(Slot, SlotRow)>,
    room: usize,
) -> anyhow::Result<Vec<(Slot, SlotRow)>> {
    let fits = |(slot, row): &(Slot, SlotRow)| slot.0 < home.buffers && row.identity.size <= home.segment_size;
    let (mut kept, mut lost): (Vec<_>, Vec<_>) = rows.into_iter().partition(|own| fits(own) && memory.has(own.0));
    kept.sort_unstable_by_key(|(_, row)| Reverse(row.identity.segment));
    lost.extend(kept.drain(room.min(kept.len())..));
    for (slot, _) in lost {
        table.save(slot, None)?;
    }
    Ok(kept)
}

/// What this backup knows that it must hold.
struct Evidence {
    ledger: Ledger,
    flushed: Flushed,
    owed: Vec<(SegmentIdentity, Closure)>,
    ends: Open,
    doubts: Vec<String>,
}

impl Evidence {
    fn gather(
        disk: &Disk,
        promise_file: &mut PromiseFile,
        member_state: &mut MemberState,
        keeps_identity: bool,
    ) -> anyhow::Result<(Evidence, Listing)> {
        // Both are made before the first epoch is promised.
        let expected = member_state.promise.log.is_some();
        let (flushed, mut ends, mut doubts) =
            Flushed::open(disk.folder(), expected).context("open the flush records")?;
        // New notes hide that there were others, and so does a new ledger, from a start after one that fails. Of two that are gone
        // the second must not be made before that is remembered.
        if keeps_identity && !doubts.is_empty() {
            member_state.promise.add_doubts(&doubts);
            promise_file.write(member_state).context("remember what is in doubt")?;
        }
        let promise = &member_state.promise;
        let (ledger, LedgerContents { owed, open, notes_are_older, doubts: more }) =
            Ledger::open(disk.folder(), expected, flushed.entries(), flushed.newest()).context("open the ledger")?;
        if notes_are_older && doubts.is_empty() {
            doubts.push("the notes of what was flushed are older than the ledger".to_owned());
        }
        doubts.extend(more);
        open.into_iter().for_each(|known| raise(&mut ends, known));
        let listing =
            disk.list(promise, &owed).with_context(|| format!("list flush folder {}", disk.path().display()))?;
        Ok((Evidence { ledger, flushed, owed, ends, doubts }, listing))
    }

    /// This backup has a new identity and owes nothing.
    fn forget(&mut self, disk: &Disk, listing: &mut Listing) -> anyhow::Result<()> {
        for segment in listing.not_understood.drain(..) {
            disk.move_aside(segment).context("move an unexpected segment file aside")?;
        }
        self.ledger.clear(disk.folder()).context("clear the ledger")?;
        self.flushed.clear();
        self.flushed.write().context("clear the flush records")?;
        (self.owed, self.ends, self.doubts) = (Vec::new(), Vec::new(), Vec::new());
        Ok(())
    }

    /// Takes down how far the file of an open segment is sound: it need not have been noted when the last process ended. Only
    /// where the memory is new: a kernel that was not restarted may show bytes that never came to disk.
    fn note_open(&mut self, identity: &SegmentIdentity, bytes: &[u8]) {
        let end = scan::scan(bytes, identity).closure.end;
        let noted = self.ends.iter().any(|(known, noted)| known == identity && *noted >= end);
        if !noted && end > Offset(0) {
            self.flushed.note(identity, end);
        }
    }

    /// Open segments beyond these have no buffer, though there are as many as before: rows that cannot be read keep theirs until
    /// the doubt is persisted. Their files stay, and are as good as missing until a later start.
    fn leave_on_disk(&mut self, open: &mut Vec<SegmentIdentity>, room: usize) {
        open.sort_unstable_by_key(|identity| identity.segment);
        for identity in open.drain(room.min(open.len())..) {
            self.doubts.push(format!("segment {} is open on disk, and no buffer is free for it", identity.segment));
            self.ends.retain(|(noted, _)| *noted != identity);
        }
    }

    /// What was open here and empty has a buffer, or was dropped, or has lost its buffer, which is a doubt: then its note has
    /// outlived it, and would bring it back.
    fn forget_dropped(&mut self, rows: impl Iterator<Item = SegmentId>) -> anyhow::Result<()> {
        let here: BTreeSet<SegmentId> = rows.collect();
        let empty = self.ends.iter().filter(|(_, end)| *end == Offset(0)).map(|(identity, _)| identity.segment);
        empty.filter(|segment| !here.contains(segment)).for_each(|segment| self.flushed.forget(segment));
        self.flushed.write().context("delete flush records of dropped segments")
    }

    /// Segments that were open here, and of which nothing had arrived.
    fn blank(&self, listing: &Listing) -> impl Iterator<Item = SegmentIdentity> {
        let closed = self.owed.iter().chain(&listing.closed).map(|(identity, _)| identity.segment);
        let open = listing.open.iter().map(|identity| identity.segment).chain(listing.not_understood.iter().copied());
        let here: BTreeSet<SegmentId> = closed.chain(open).collect();
        let blank = self.ends.iter().filter(|(_, end)| *end == Offset(0)).map(|(identity, _)| *identity);
        blank.filter(move |identity| !here.contains(&identity.segment))
    }

    fn started(
        self,
        disk: Disk,
        table: SlotTable,
        promise_file: PromiseFile,
        member_state: MemberState,
        slots: Slots,
        listing: Listing,
    ) -> Started {
        let disk_suffices = disk_suffices(&member_state);
        let Evidence { ledger, flushed, owed, ends, doubts } = self;
        let Listing { closed: files, not_understood, unexpected: unexpected_files, .. } = listing;
        let found = Found {
            promise: member_state.promise.clone(),
            rows: slots.here,
            residents: slots.residents,
            missing: slots.missing,
            unreadable: slots.unreadable,
            files,
            owed,
            flushed: ends,
            not_understood,
            // Counted by a process that has a bound.
            other_bytes: 0,
            doubts,
            disk_suffices,
        };
        Started { disk: Arc::new(disk), table, ledger, flushed, promise_file, member_state, found, unexpected_files }
    }
}

/// Adds to the notes how far this open segment is on disk at least.
fn raise(ends: &mut Open, (identity, end): (SegmentIdentity, Offset)) {
    match ends.iter_mut().find(|(noted, _)| *noted == identity) {
        Some((_, noted)) => *noted = end.max(*noted),
        None => ends.push((identity, end)),
    }
}

/// True when the disk alone holds everything that this backup has acknowledged.
fn disk_suffices(member_state: &MemberState) -> bool {
    member_state.complete || member_state.promise.durability == Durability::Flushed
}

fn keeps_identity(member_state: &MemberState) -> bool {
    disk_suffices(member_state) || planted::has(Bug::IdentityKept)
}

/// Puts open segments from disk back into buffers, where they are scanned like buffers that survived.
fn load(
    home: &BackupConfig,
    disk: &Disk,
    memory: &mut dyn Memory,
    table: &SlotTable,
    open: &[SegmentIdentity],
    used: &[Slot],
    mut read: impl FnMut(&SegmentIdentity) -> io::Result<Vec<u8>>,
) -> anyhow::Result<Vec<(Slot, SlotRow)>> {
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let needed = open.len() + used.len();
    ensure!(
        needed <= home.buffers as usize,
        "flush folder {} holds {} open segments, but --buffers is {}: start with at least {needed}",
        disk.path().display(),
        open.len(),
        home.buffers,
    );
    let mut rows = Vec::new();
    for (slot, identity) in (0..).map(Slot).filter(|slot| !used.contains(slot)).zip(open) {
        ensure!(
            identity.size <= home.segment_size,
            "flush folder {} holds a segment of {}, but --segment-size is {}",
            disk.path().display(),
            identity.size,
            home.segment_size
        );
        let bytes = read(identity).with_context(|| format!("read open segment {}", identity.segment))?;
        memory.load(slot, &bytes)?;
        let row = SlotRow { identity: *identity, purpose: Purpose::Append, lender: identity.epoch, closed: None };
        table.save(slot, Some(&row))?;
        info!(segment = %identity.segment, epoch = %identity.epoch, "open segment loaded");
        rows.push((slot, row));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests;
