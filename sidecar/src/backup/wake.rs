//! What a backup finds when it starts, and who it is by that: the same as before, or somebody new.
//!
//! Called by [`run`](super::run) before anything listens. See "Boot identity" in `docs/protocol.md`.
//!
//! A primary trusts a returned backup with its old records only if it shows the identity it had. So the identity is kept
//! 1. when the memory is still there: its table names the same backup, and the kernel has not booted since; or
//! 2. when everything that was acknowledged is on disk: after a shutdown that flushed everything, if nothing was lent
//!    since; or under durability `flushed`.
//!
//! Otherwise a new one is drawn. The promise is kept in any case: it is on disk, and without it nothing starts.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use tailwind_fabric::shm::{ShmReceiver, ShmSender};
use tailwind_fabric::{Answer, Opening, Pool, Receiver, Sender, SlotId, Writer};
use tailwind_protocol::backup::{Found, Promise, Slot, SlotRow};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{BootId, GroupName, MemberId};
use tailwind_protocol::layout::{SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::Purpose;
use tracing::{info, warn};

use super::disk::{Disk, Listing};
use super::promise::{PromiseFile, Standing};
use super::table::{Owner, SlotTable};

/// Where a backup lives.
#[derive(Clone, Debug)]
pub(super) struct Home {
    pub(super) group: GroupName,
    pub(super) member: MemberId,
    pub(super) pool: PathBuf,
    pub(super) flush_dir: PathBuf,
    pub(super) buffers: u32,
    pub(super) segment_size: SegmentSize,
    /// The running kernel's boot identity.
    pub(super) kernel: String,
}

/// A backup that knows who it is.
#[derive(Debug)]
pub(super) struct Woken {
    pub(super) disk: Arc<Disk>,
    pub(super) pool: Arc<Pool>,
    pub(super) table: SlotTable,
    pub(super) promise_file: PromiseFile,
    pub(super) standing: Standing,
    pub(super) found: Found,
    /// Segment files that are damaged or not of this log.
    pub(super) strange_files: u64,
}

/// The running kernel's boot identity (`random(4)`).
pub(super) fn kernel_boot_id() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(path).with_context(|| format!("read {path}"))?.trim().to_owned())
}

/// Opens both folders, finds out who this backup is, and collects what it holds.
pub(super) fn wake(home: &Home) -> anyhow::Result<Woken> {
    let disk = Arc::new(Disk::open(&home.flush_dir)?);
    let promised = PromiseFile::open(&disk.promise_path())?;
    if let Some((_, standing)) = &promised {
        home.check_owner("flush folder", &home.flush_dir, &standing.group, &standing.member)?;
    }
    make_pool_folder(home)?;
    let table = SlotTable::open(&home.pool)?;
    let memory = table.owner()?.filter(|owner| owner.kernel == home.kernel);
    if let Some(owner) = &memory {
        home.check_owner("pool", &home.pool, &owner.group, &owner.member)?;
    }
    match (promised, memory) {
        (Some((promise_file, standing)), Some(owner)) => {
            ensure!(
                owner.boot == standing.boot,
                "pool {} and flush folder {} are of different lives of this backup ({} and {}): give the folders that belong \
                 together, or remove the pool, which loses the records in it that are not flushed",
                home.pool.display(),
                home.flush_dir.display(),
                owner.boot,
                standing.boot
            );
            resume(home, disk, table, promise_file, standing)
        }
        (None, Some(_)) => bail!(
            "pool {} holds buffers of this backup, but flush folder {} holds no promise: without it nobody knows which epoch \
             may write; give the --flush-dir that belongs to the pool, or remove the pool to start anew",
            home.pool.display(),
            home.flush_dir.display()
        ),
        (None, None) if disk.holds_segments().context("list flush folder")? => bail!(
            "flush folder {} holds segments but no promise file: restore the file, or give an empty --flush-dir",
            home.flush_dir.display()
        ),
        (promised, None) => begin(home, disk, table, promised),
    }
}

impl Home {
    fn check_owner(
        &self,
        what: &str,
        dir: &std::path::Path,
        group: &GroupName,
        member: &MemberId,
    ) -> anyhow::Result<()> {
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

    fn open_pool(&self) -> anyhow::Result<Arc<Pool>> {
        Ok(Pool::open(&self.pool, self.buffers, self.segment_size.bytes())?)
    }
}

/// The memory is still there.
fn resume(
    home: &Home,
    disk: Arc<Disk>,
    mut table: SlotTable,
    promise_file: PromiseFile,
    standing: Standing,
) -> anyhow::Result<Woken> {
    let pool = home.open_pool()?;
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
    let (boot, epoch) = (standing.boot, standing.promise.epoch);
    info!(%boot, %epoch, slots = rows.len(), files = listing.closed.len(), "memory survived");
    Ok(woken(disk, pool, table, promise_file, standing, rows, listing))
}

/// The memory is new.
fn begin(
    home: &Home,
    disk: Arc<Disk>,
    mut table: SlotTable,
    promised: Option<(PromiseFile, Standing)>,
) -> anyhow::Result<Woken> {
    // Nobody's table first: from here until the last line of this function, a crash means starting over.
    table.clear(home.buffers)?;
    remove_slots(home)?;
    let (promise_file, standing) = match promised {
        Some((mut file, standing)) => {
            let keep = keeps_identity(&standing);
            let boot = if keep { standing.boot } else { new_boot_id()? };
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
            let boot = new_boot_id()?;
            let standing = Standing { group, member, boot, promise: Promise::default(), complete: false };
            info!(%boot, "new backup");
            (PromiseFile::create(&disk.promise_path(), &standing)?, standing)
        }
    };
    let pool = home.open_pool()?;
    let listing = list(&disk, &standing.promise)?;
    let rows = load(home, &disk, &pool, &table, &listing.open)?;
    table.claim(&Owner {
        group: home.group.clone(),
        member: home.member.clone(),
        boot: standing.boot,
        kernel: home.kernel.clone(),
    })?;
    Ok(woken(disk, pool, table, promise_file, standing, rows, listing))
}

fn woken(
    disk: Arc<Disk>,
    pool: Arc<Pool>,
    table: SlotTable,
    promise_file: PromiseFile,
    standing: Standing,
    rows: Vec<(Slot, SlotRow)>,
    listing: Listing,
) -> Woken {
    let found = Found { promise: standing.promise.clone(), rows, files: listing.closed };
    Woken { disk, pool, table, promise_file, standing, found, strange_files: listing.strange }
}

/// True when the disk alone holds whatever this backup has acknowledged.
fn keeps_identity(standing: &Standing) -> bool {
    standing.complete || standing.promise.durability == Durability::Flushed
}

/// Puts open segments from disk back into buffers, where they are scanned like buffers that survived.
fn load(
    home: &Home,
    disk: &Disk,
    pool: &Arc<Pool>,
    table: &SlotTable,
    open: &[SegmentIdentity],
) -> anyhow::Result<Vec<(Slot, SlotRow)>> {
    if open.is_empty() {
        return Ok(Vec::new());
    }
    ensure!(
        open.len() <= home.buffers as usize,
        "flush folder {} holds {} open segments, but --buffers is {}: start with at least {}",
        home.flush_dir.display(),
        open.len(),
        home.buffers,
        open.len()
    );
    // A lending to ourselves, written like any primary would. The receiver that is made later ends it.
    let mut receiver = ShmReceiver::new(Arc::clone(pool))?;
    let mut rows = Vec::new();
    for (slot, identity) in (0..).map(Slot).zip(open) {
        ensure!(
            identity.size <= home.segment_size,
            "flush folder {} holds a segment of {}, but --segment-size is {}",
            home.flush_dir.display(),
            identity.size,
            home.segment_size
        );
        let bytes = disk.read_open(identity).with_context(|| format!("read open segment {}", identity.segment))?;
        let length = bytes.len() as u32;
        let remote = ShmSender.attach(&receiver.lend(Writer(0), SlotId(slot.0))?)?;
        let (mut local, shared) = ShmSender.allocate(length)?;
        local.tail_mut()[..bytes.len()].copy_from_slice(&bytes);
        local.publish(length);
        let mut channel = Box::new(ShmSender).connect(&Answer::Shm, IpAddr::V4(Ipv4Addr::LOCALHOST))?;
        channel.post(&remote, &shared, 0..length).context("write to an own buffer")?;
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

/// For its owner alone, like the pool itself wants it.
fn make_pool_folder(home: &Home) -> anyhow::Result<()> {
    match DirBuilder::new().mode(0o700).create(&home.pool) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error).with_context(|| {
            format!("create pool folder {}: give --pool a folder whose parent this user may write", home.pool.display())
        }),
        _ => Ok(()),
    }
}

/// Removes the buffers of an earlier life, whose bytes mean nothing any more.
fn remove_slots(home: &Home) -> anyhow::Result<()> {
    let context = || format!("empty pool folder {}", home.pool.display());
    for entry in fs::read_dir(&home.pool).with_context(context)? {
        let path = entry.with_context(context)?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("slot-")) {
            fs::remove_file(&path).with_context(context)?;
        }
    }
    Ok(())
}

fn new_boot_id() -> anyhow::Result<BootId> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("draw a boot identity: {error}"))?;
    Ok(BootId(u128::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::Epoch;

    use super::*;

    fn home(dir: &tempfile::TempDir) -> Home {
        Home {
            group: "db".parse().unwrap(),
            member: "b0".parse().unwrap(),
            pool: dir.path().join("pool"),
            flush_dir: dir.path().join("flush"),
            buffers: 2,
            segment_size: SegmentSize::MIN,
            kernel: "this boot".to_owned(),
        }
    }

    /// Wakes, says who it is, and changes what it has promised.
    fn live(home: &Home, change: impl FnOnce(&mut Standing)) -> BootId {
        let mut woken = wake(home).unwrap();
        let boot = woken.standing.boot;
        change(&mut woken.standing);
        woken.promise_file.write(&woken.standing).unwrap();
        boot
    }

    fn nothing(_: &mut Standing) {}

    #[test]
    fn memory_that_survives_keeps_the_identity() {
        let dir = tempfile::tempdir().unwrap();
        let born = live(&home(&dir), |standing| standing.promise.epoch = Epoch(5));
        assert_eq!(live(&home(&dir), nothing), born);
        assert_eq!(wake(&home(&dir)).unwrap().standing.promise.epoch, Epoch(5));
    }

    #[test]
    fn memory_from_before_a_reboot_is_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        let born = live(&home(&dir), |standing| standing.promise.epoch = Epoch(5));
        fs::write(dir.path().join("pool/slot-0000.buf"), "of any size").unwrap();
        let rebooted = Home { kernel: "another boot".to_owned(), ..home(&dir) };
        let woken = wake(&rebooted).unwrap();
        assert_ne!(woken.standing.boot, born);
        assert_eq!(woken.standing.promise.epoch, Epoch(5));
    }

    /// For each: whether the shutdown was complete, the durability, and whether the identity outlives the memory.
    #[test]
    fn the_identity_outlives_the_memory_only_if_the_disk_has_it_all() {
        for (complete, durability, keeps) in [
            (false, Durability::Memory, false),
            (false, Durability::Battery, false),
            (false, Durability::Flushed, true),
            (true, Durability::Memory, true),
            (true, Durability::Battery, true),
            (true, Durability::Flushed, true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let born = live(&home(&dir), |standing| {
                standing.complete = complete;
                standing.promise.durability = durability;
            });
            fs::remove_dir_all(dir.path().join("pool")).unwrap();
            assert_eq!(live(&home(&dir), nothing) == born, keeps, "complete {complete}, {durability}");
        }
    }

    #[test]
    fn folders_of_somebody_else_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        live(&home(&dir), nothing);
        let error = wake(&Home { member: "b1".parse().unwrap(), ..home(&dir) }).unwrap_err().to_string();
        assert!(error.contains("belongs to backup b0 of group db"), "{error}");
        let elsewhere = Home { flush_dir: dir.path().join("elsewhere"), ..home(&dir) };
        let error = wake(&elsewhere).unwrap_err().to_string();
        assert!(error.contains("holds no promise"), "{error}");
        assert!(!elsewhere.flush_dir.join("promise").exists(), "nothing was reset");
    }

    #[test]
    fn segments_without_a_promise_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        live(&home(&dir), nothing);
        fs::remove_dir_all(dir.path().join("pool")).unwrap();
        fs::remove_file(dir.path().join("flush/promise")).unwrap();
        fs::write(dir.path().join("flush/segment-0000000000000001.closed"), "").unwrap();
        let error = wake(&home(&dir)).unwrap_err().to_string();
        assert!(error.contains("holds segments but no promise file"), "{error}");
    }
}
