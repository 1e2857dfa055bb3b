//! What a backup finds when it starts, and who it is by that: the same as before, or somebody new.
//!
//! Called before anything listens. See "Boot identity" in `docs/protocol.md`.
//!
//! A primary trusts a returned backup with its old records only if it shows the identity it had. So the identity is kept
//! 1. when the memory is still there: its table names the same backup, and the kernel has not booted since; or
//! 2. when everything that was acknowledged is on disk: after a shutdown that flushed everything, if nothing was lent
//!    since; or under durability `flushed`.
//!
//! Otherwise a new one is drawn. The promise is kept in any case: it is on disk, and without it nothing starts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use tailwind_protocol::backup::{Found, Promise, Slot, SlotRow};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{BootId, GroupName, MemberId};
use tailwind_protocol::layout::{SegmentIdentity, SegmentSize};
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::rpc::Purpose;
use tracing::{info, warn};

use crate::disk::{Disk, Listing};
use crate::files::Folder;
use crate::memory::Memory;
use crate::promise::{PromiseFile, Standing};
use crate::table::{Owner, SlotTable};

/// Where a backup lives.
#[derive(Clone, Debug)]
pub struct Home {
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

/// A backup that knows who it is.
#[derive(Debug)]
pub struct Woken {
    /// The flush folder.
    pub disk: Arc<Disk>,
    /// The slot table.
    pub table: SlotTable,
    /// The promise file.
    pub promise_file: PromiseFile,
    /// Who this is and what it has promised, as on disk.
    pub standing: Standing,
    /// What memory and disk hold.
    pub found: Found,
    /// Slots in use that have no memory: the process died before it lent them, or their files were removed.
    pub missing: Vec<Slot>,
    /// Segment files that are damaged or not of this log.
    pub strange_files: u64,
}

/// Opens both folders, finds out who this backup is, and collects what it holds. `fresh` is its identity if it is somebody
/// new: drawn at random.
pub fn wake(home: &Home, folder: Box<dyn Folder>, memory: &mut dyn Memory, fresh: BootId) -> anyhow::Result<Woken> {
    let disk = Disk::new(folder);
    // A process that was killed may have left names that nothing has brought to disk. From here on they are believed: a
    // promise that is there now must be there after a loss of power too.
    disk.folder().sync().with_context(|| format!("write flush folder {}", disk.path().display()))?;
    let promised = PromiseFile::open(disk.folder())?;
    if let Some((_, standing)) = &promised {
        home.check_owner("flush folder", disk.path(), &standing.group, &standing.member)?;
    }
    let table = SlotTable::open(memory.table()?, &home.pool)?;
    let owner = table.owner()?.filter(|owner| owner.kernel == home.kernel);
    if let Some(owner) = &owner {
        home.check_owner("pool", &home.pool, &owner.group, &owner.member)?;
    }
    match (promised, owner) {
        (Some((promise_file, standing)), Some(owner)) => {
            ensure!(
                owner.boot == standing.boot,
                "pool {} and flush folder {} are of different lives of this backup ({} and {}): give the folders that belong \
                 together, or remove the pool, which loses the records in it that are not flushed",
                home.pool.display(),
                disk.path().display(),
                owner.boot,
                standing.boot
            );
            resume(home, disk, memory, table, promise_file, standing)
        }
        (None, Some(_)) => bail!(
            "pool {} holds buffers of this backup, but flush folder {} holds no promise: without it nobody knows which epoch \
             may write; give the --flush-dir that belongs to the pool, or remove the pool to start anew",
            home.pool.display(),
            disk.path().display()
        ),
        (None, None) if disk.holds_segments().context("list flush folder")? => bail!(
            "flush folder {} holds segments but no promise file: restore the file, or give an empty --flush-dir",
            disk.path().display()
        ),
        (promised, None) => begin(home, disk, memory, table, promised, fresh),
    }
}

impl Home {
    fn check_owner(&self, what: &str, dir: &Path, group: &GroupName, member: &MemberId) -> anyhow::Result<()> {
        ensure!(
            (group, member) == (&self.group, &self.member),
            "{what} {} belongs to backup {member} of group {group}, not to backup {} of group {}: give this backup a folder \
             of its own",
            dir.display(),
            self.member,
            self.group
        );
        Ok(())
    }
}

/// The memory is still there.
fn resume(
    home: &Home,
    disk: Disk,
    memory: &mut dyn Memory,
    mut table: SlotTable,
    promise_file: PromiseFile,
    standing: Standing,
) -> anyhow::Result<Woken> {
    memory.open()?;
    let rows = table.rows()?;
    if let Some((slot, _)) = rows.iter().find(|(slot, _)| slot.0 >= home.buffers) {
        bail!("buffer {} is in use, but --buffers is {}: start with at least {}", slot.0, home.buffers, slot.0 + 1);
    }
    if let Some((slot, row)) = rows.iter().find(|(_, row)| row.identity.size > home.segment_size) {
        bail!(
            "buffer {} holds a segment of {}, but --segment-size is {}",
            slot.0,
            row.identity.size,
            home.segment_size
        );
    }
    table.reserve(home.buffers)?;
    let listing = list(&disk, &standing.promise)?;
    for identity in listing.open.iter().filter(|open| !rows.iter().any(|(_, row)| row.identity == **open)) {
        // The buffer it was written from has been given up, so this is no part of the log any more. The files of buffers
        // that are still in use stay: under durability `flushed` they are what an ack stands on.
        disk.delete_open(identity.segment).context("delete the file of an open segment")?;
    }
    let missing: Vec<Slot> = rows.iter().map(|(slot, _)| *slot).filter(|slot| !memory.has(*slot)).collect();
    let (boot, epoch) = (standing.boot, standing.promise.epoch);
    info!(%boot, %epoch, slots = rows.len(), files = listing.closed.len(), "memory survived");
    Ok(woken(disk, table, promise_file, standing, rows, missing, listing))
}

/// The memory is new.
fn begin(
    home: &Home,
    disk: Disk,
    memory: &mut dyn Memory,
    mut table: SlotTable,
    promised: Option<(PromiseFile, Standing)>,
    fresh: BootId,
) -> anyhow::Result<Woken> {
    // Nobody's table first: from here until the last line of this function, a crash means starting over.
    table.clear(home.buffers)?;
    memory.clear()?;
    let (promise_file, standing) = match promised {
        Some((mut file, standing)) => {
            let keep = keeps_identity(&standing);
            let boot = if keep { standing.boot } else { fresh };
            let standing = Standing { boot, complete: keep && standing.complete, ..standing };
            file.write(&standing)?;
            match keep {
                true => {
                    info!(%boot, epoch = %standing.promise.epoch, "memory is new, everything is on disk: identity kept")
                }
                false => warn!(%boot, epoch = %standing.promise.epoch, "memory is lost: starting with a new identity"),
            }
            (file, standing)
        }
        None => {
            let (group, member) = (home.group.clone(), home.member.clone());
            let boot = fresh;
            let standing = Standing { group, member, boot, promise: Promise::default(), complete: false };
            info!(%boot, "new backup");
            (PromiseFile::create(disk.folder(), &standing)?, standing)
        }
    };
    memory.open()?;
    let listing = list(&disk, &standing.promise)?;
    let rows = load(home, &disk, memory, &table, &listing.open)?;
    table.claim(&Owner {
        group: home.group.clone(),
        member: home.member.clone(),
        boot: standing.boot,
        kernel: home.kernel.clone(),
    })?;
    Ok(woken(disk, table, promise_file, standing, rows, Vec::new(), listing))
}

fn woken(
    disk: Disk,
    table: SlotTable,
    promise_file: PromiseFile,
    standing: Standing,
    rows: Vec<(Slot, SlotRow)>,
    missing: Vec<Slot>,
    listing: Listing,
) -> Woken {
    let found = Found { promise: standing.promise.clone(), rows, files: listing.closed };
    let disk = Arc::new(disk);
    Woken { disk, table, promise_file, standing, found, missing, strange_files: listing.strange }
}

/// True when the disk alone holds whatever this backup has acknowledged.
fn keeps_identity(standing: &Standing) -> bool {
    standing.complete || standing.promise.durability == Durability::Flushed || planted::has(Bug::IdentityKept)
}

/// Puts open segments from disk back into buffers, where they are scanned like buffers that survived.
fn load(
    home: &Home,
    disk: &Disk,
    memory: &mut dyn Memory,
    table: &SlotTable,
    open: &[SegmentIdentity],
) -> anyhow::Result<Vec<(Slot, SlotRow)>> {
    if open.is_empty() {
        return Ok(Vec::new());
    }
    ensure!(
        open.len() <= home.buffers as usize,
        "flush folder {} holds {} open segments, but --buffers is {}: start with at least {}",
        disk.path().display(),
        open.len(),
        home.buffers,
        open.len()
    );
    let mut rows = Vec::new();
    for (slot, identity) in (0..).map(Slot).zip(open) {
        ensure!(
            identity.size <= home.segment_size,
            "flush folder {} holds a segment of {}, but --segment-size is {}",
            disk.path().display(),
            identity.size,
            home.segment_size
        );
        let bytes = disk.read_open(identity).with_context(|| format!("read open segment {}", identity.segment))?;
        memory.load(slot, &bytes)?;
        let row = SlotRow { identity: *identity, purpose: Purpose::Append, lender: identity.epoch, closed: None };
        table.save(slot, Some(&row))?;
        info!(segment = %identity.segment, epoch = %identity.epoch, "open segment loaded from disk");
        rows.push((slot, row));
    }
    Ok(rows)
}

fn list(disk: &Disk, promise: &Promise) -> anyhow::Result<Listing> {
    disk.list(promise).with_context(|| format!("list flush folder {}", disk.path().display()))
}
