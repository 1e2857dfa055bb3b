//! Counts what happened: faults of each kind, acks, failovers, outages. Added up over seeds for the summary.

use std::collections::BTreeMap;
use std::fmt;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $chance:literal $words:literal,)*) => {
        /// Everything that can go wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: [Fault; [$(Fault::$name),*].len()] = [$(Fault::$name),*];

            /// In how many of a thousand seeds it strikes.
            pub(crate) fn chance(self) -> u64 {
                match self { $(Fault::$name => $chance,)* }
            }

            /// For people.
            pub fn words(self) -> &'static str {
                match self { $(Fault::$name => $words,)* }
            }
        }
    };
}

faults! {
    /// SIGKILL of a sidecar; it comes back after a while.
    SidecarDies = 600 "sidecar process killed",
    /// SIGSTOP of a sidecar, and SIGCONT much later: a zombie.
    SidecarFreezes = 600 "sidecar frozen and resumed",
    /// A standby becomes a candidate although its primary is well.
    FalseAlarm = 400 "standby claims the epoch of a primary that is well",
    /// SIGKILL of a backup between any two outputs of its machine; its memory stays.
    BackupDies = 700 "backup process killed, memory kept",
    /// SIGSTOP of a backup: its memory can be written, its RPC is silent.
    BackupFreezes = 400 "backup process frozen and resumed",
    /// The host loses power: memory and unfsynced writes are gone.
    HostDies = 600 "backup host lost with its memory",
    /// All hosts lose power at one moment.
    Blackout = 250 "power lost everywhere at once",
    /// The host and its disk are gone; an empty backup takes the name.
    VolumeLost = 250 "backup replaced by an empty one",
    /// SIGTERM: everything is flushed, then the process ends.
    BackupStops = 300 "backup stopped cleanly",
    /// A link is cut both ways.
    Cut = 600 "link cut",
    /// A link is cut one way: requests arrive, answers do not, or the other way round.
    HalfCut = 400 "link cut one way",
    /// A control message gets lost.
    MessageLost = 500 "control message lost",
    /// A control message is delivered twice, the second time much later.
    MessageTwice = 500 "control message repeated",
    /// A control message takes long.
    MessageLate = 500 "control message late",
    /// The config store does not answer.
    StoreDown = 400 "config store down",
    /// The config store does what is asked, and the answer gets lost.
    StoreMute = 500 "config store: answer lost",
    /// A call to the config store takes long, and may be carried out after its caller has given up.
    StoreSlow = 500 "config store: call late",
    /// A read, or the content that comes with a conflict, is of the past.
    StoreStale = 400 "config store: stale answer",
    /// A swap is refused though nothing of the configuration has changed: somebody else wrote to the same object.
    StoreConflict = 300 "config store: refused for no reason",
    /// Watches lag behind.
    WatchStale = 400 "config store: watch late",
    /// The disk is full.
    DiskFull = 400 "disk full",
    /// The disk is slow.
    DiskSlow = 300 "disk slow",
    /// A write that was not fsynced is torn, or lost, when the host dies.
    TornWrite = 700 "unfsynced write torn or lost",
    /// A write takes fewer bytes than it was given.
    ShortWrite = 300 "write call cut short",
    /// A write, or an allocation, fails; some of it may be there.
    WriteFails = 200 "write call failed",
    /// An fsync fails and drops what it should have written: later ones say that all is well.
    SyncFails = 200 "fsync failed, dirty pages dropped",
    /// A rename fails.
    RenameFails = 200 "rename failed",
    /// A removal fails: the file stays.
    RemoveFails = 200 "removal failed",
    /// A read fails.
    ReadFails = 0 "read call failed",
    /// A segment's file is gone when the process starts again.
    FileLost = 0 "segment file lost",
    /// A segment's file is an older copy of itself when the process starts again.
    FileStale = 0 "segment file put back from an older copy",
    /// The notes of flushes are an older copy of themselves when the process starts again; so is the file of an open segment, or
    /// it is gone. Drawn apart.
    NotesStale = 0 "notes of flushes put back from an older copy, and an open segment's file lost or put back",
    /// The promise file is an older copy of itself when the process starts again.
    PromiseStale = 0 "promise put back from an older copy",
    /// A bit flips in one of the two blocks of the promise file.
    PromiseBitFlip = 300 "bit flipped in the promise file",
    /// A bit flips in a segment file's header or footer.
    EndsBitFlip = 0 "bit flipped in a segment file's header or footer",
    /// Somebody else's file, or a FIFO, has a segment's name.
    StrangerInTheWay = 300 "strange file under a segment's name",
    /// The file of a buffer in use is gone when the process starts again.
    SlotLost = 0 "file of a buffer in use lost",
    /// An entry of the slot table is zeros when the process starts again.
    TableZeroed = 0 "entry of the slot table zeroed",
    /// The pool has no memory to lend.
    NoBuffer = 300 "pool without memory",
    /// A bit flips in a closed segment, on disk or in memory.
    ClosedBitFlip = 300 "bit flipped in a closed segment",
    /// A bit flips in a buffer that is being written.
    OpenBitFlip = 150 "bit flipped in an open buffer",
    /// A clock runs fast or slow.
    ClockDrifts = 400 "clock fast or slow",
    /// Parts of a write are placed apart from each other.
    Torn = 700 "write placed in parts",
    /// A write completes before its bytes can be seen.
    EarlyCompletion = 500 "completion before visibility",
    /// A part of a write is placed again, later.
    PlacedTwice = 500 "placed twice",
    /// A part of a write is placed long after it was posted.
    PlacedLate = 500 "placed late",
    /// A sender dies or lets go while its writes are under way: some parts arrive, some never.
    PartialWrite = 800 "write cut off by the sender's end",
    /// The sender is never told that its write has failed.
    NoError = 400 "error completion never delivered",
    /// A key or queue pair number means something else than it did before.
    NumberReused = 1000 "key or queue pair number reused",
    /// A member says that records are trimmed which are not, or that it has promised a later epoch. Drawn apart.
    MemberLies = 0 "member lies",
    /// A member's folder comes back from before a failover, and those that have the newer log are late. Drawn apart.
    FolderStale = 0 "flush folder put back from an older copy",
    /// Two sidecars that are down start with each other's address. Drawn apart.
    AddressesChange = 0 "addresses of sidecars exchanged",
    /// The file of a closed segment cannot be written, though smaller writes pass: the disk is almost full. Drawn apart.
    ClosedFlushFails = 0 "flush of a closed segment failed",
    /// Everything is well, and then all members but one are replaced by empty ones at once, under a primary that lives.
    /// Strikes once, after the faults have stopped. Drawn apart.
    AllButOneEmptied = 0 "all members but one replaced by empty ones",
    /// Everything is well, and then all members but one are damaged at rest, the primary dies, and they return in any order.
    /// Strikes once, after the faults have stopped. Drawn apart.
    AllButOneDamaged = 0 "all members but one damaged, and the primary killed",
    /// Everything is well, and then one member is replaced by an empty one, all links to backups outside the set are slow, and
    /// the app appends without a pause. Strikes once, after the faults have stopped. Drawn apart.
    MemberEmptiedUnderLoad = 0 "member replaced by an empty one under load",
    /// Apps sync now and then. In the end all hosts lose power at once, most lose their disks too, and a person orders the
    /// recovery from the others. Strikes once, after the faults have stopped. Drawn apart.
    SyncedAndDark = 0 "power lost everywhere after a sync, and recovered from disk",
    /// A primary's queue pair fails at a post. Drawn apart.
    PostFails = 0 "post failed",
    /// A bit flips in the buffer of a resident. Drawn apart.
    ResidentRots = 0 "bit flipped in a resident",
    /// The file of a resident's buffer is gone. Drawn apart.
    ResidentLost = 0 "file of a resident's buffer lost",
    /// There is no memory for a segment that was read from disk to be a resident. Drawn apart.
    LoadRefused = 0 "load of a resident refused",
    /// A link between two backups is cut, over which one pulls from the other. Drawn apart.
    BackupsApart = 0 "link between backups cut",
    /// Somebody edits how many copies the group wants. Struck by [`desired`](crate::world), not by the plan.
    DesiredChanges = 0 "another number of copies wanted",
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// What happened in one seed, or in many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Seeds.
    pub seeds: u64,
    /// Virtual time, microseconds.
    pub simulated: u64,
    /// Events.
    pub events: u64,
    /// Faults by kind; those that never struck are not listed.
    pub faults: BTreeMap<Fault, u64>,
    /// Records that were acknowledged, and so checked to the end.
    pub acked: u64,
    /// Records that were read and compared.
    pub read: u64,
    /// Epochs that began after the first.
    pub failovers: u64,
    /// Changes of the member set.
    pub swaps: u64,
    /// Times that appends have paused for a newcomer.
    pub pauses: u64,
    /// Segments that backups have pulled.
    pub pulls: u64,
    /// Pulls that no source could serve.
    pub pulls_failed: u64,
    /// Segments read from disk to be residents.
    pub loads: u64,
    /// Segments fetched from residents, and read from them one-sidedly.
    pub from_residents: u64,
    /// Residents that did not verify when they were fetched.
    pub residents_corrupt: u64,
    /// Syncs answered.
    pub syncs: u64,
    /// Barriers passed.
    pub barriers: u64,
    /// Boards that were read and verified.
    pub boards_read: u64,
    /// Boards that did not verify: torn, or not written yet.
    pub boards_torn: u64,
    /// Boards of which the reader knew how old they were.
    pub boards_fresh: u64,
    /// Records handed out by followers, and compared.
    pub followed: u64,
    /// Promotions of sidecars that followed.
    pub turns: u64,
    /// Requests of tables that were carried out.
    pub applied: u64,
    /// Requests of which a condition did not hold.
    pub mismatches: u64,
    /// Of those, the ones that were told.
    pub mismatches_told: u64,
    /// Requests that a table had no room for.
    pub full: u64,
    /// Times that a request could not be placed.
    pub waits: u64,
    /// Logs folded at a win.
    pub folded: u64,
    /// Of those, the ones of which the winner had folded a part as a standby.
    pub warm: u64,
    /// Wins of standbys that had folded another log.
    pub warm_in_vain: u64,
    /// Gets that were answered with what a key has.
    pub gets: u64,
    /// Gets that could not be answered in their time.
    pub gets_unavailable: u64,
    /// Times that a record was asked for.
    pub records_fetched: u64,
    /// Records that came and were not what they should be.
    pub records_refused: u64,
    /// Times that a request waited for the sources of its copies.
    pub copies_fetched: u64,
    /// Requests whose sources could not be had in their time.
    pub copies_given_up: u64,
    /// Records that cleaners have had judged.
    pub judged: u64,
    /// Of those, the ones that were moved.
    pub moved: u64,
    /// Bytes of log that they took.
    pub moved_bytes: u64,
    /// Trims by cleaners.
    pub cleaned: u64,
    /// Longest time in which appends waited and none was acknowledged while faults struck, microseconds.
    pub outage_max: u64,
    /// Longest time from the end of the faults to the first new ack, microseconds.
    pub return_max: u64,
    /// Longest time from the loss of a member to the full size under load, microseconds.
    pub grown_max: u64,
    /// Seeds in which too few members kept their memory for the group to go on: nothing wrong was said.
    pub lost_for_good: u64,
    /// Seeds in which a flipped bit hit the only copy that could be had.
    pub rotten_for_good: u64,
    /// Seeds in which the group waits for a person, because every copy at hand was damaged.
    pub damaged_for_good: u64,
}

impl Tally {
    /// Counts a fault.
    pub(crate) fn count(&mut self, fault: Fault) {
        *self.faults.entry(fault).or_default() += 1;
    }

    /// Adds another seed's.
    pub fn add(&mut self, other: &Tally) {
        self.seeds += other.seeds;
        self.simulated += other.simulated;
        self.events += other.events;
        other.faults.iter().for_each(|(fault, count)| *self.faults.entry(*fault).or_default() += count);
        self.acked += other.acked;
        self.read += other.read;
        self.failovers += other.failovers;
        self.swaps += other.swaps;
        self.pauses += other.pauses;
        self.pulls += other.pulls;
        self.pulls_failed += other.pulls_failed;
        self.loads += other.loads;
        self.from_residents += other.from_residents;
        self.residents_corrupt += other.residents_corrupt;
        self.syncs += other.syncs;
        self.barriers += other.barriers;
        self.boards_read += other.boards_read;
        self.boards_torn += other.boards_torn;
        self.boards_fresh += other.boards_fresh;
        self.followed += other.followed;
        self.turns += other.turns;
        self.applied += other.applied;
        self.mismatches += other.mismatches;
        self.mismatches_told += other.mismatches_told;
        self.gets += other.gets;
        self.gets_unavailable += other.gets_unavailable;
        self.records_fetched += other.records_fetched;
        self.records_refused += other.records_refused;
        self.copies_fetched += other.copies_fetched;
        self.copies_given_up += other.copies_given_up;
        self.full += other.full;
        self.waits += other.waits;
        self.folded += other.folded;
        self.warm += other.warm;
        self.warm_in_vain += other.warm_in_vain;
        self.judged += other.judged;
        self.moved += other.moved;
        self.moved_bytes += other.moved_bytes;
        self.cleaned += other.cleaned;
        self.outage_max = self.outage_max.max(other.outage_max);
        self.return_max = self.return_max.max(other.return_max);
        self.grown_max = self.grown_max.max(other.grown_max);
        self.lost_for_good += other.lost_for_good;
        self.rotten_for_good += other.rotten_for_good;
        self.damaged_for_good += other.damaged_for_good;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated as f64 / 3.6e9;
        let seconds = |micros: u64| micros as f64 / 1e6;
        writeln!(f, "{} seeds, {hours:.1} simulated hours, {} events", self.seeds, self.events)?;
        writeln!(f, "{} records acknowledged and checked, {} read back and compared", self.acked, self.read)?;
        writeln!(
            f,
            "{} failovers, {} changes of the member set, {} pauses for newcomers, {} syncs, {} barriers",
            self.failovers, self.swaps, self.pauses, self.syncs, self.barriers
        )?;
        writeln!(f, "{} segments pulled, {} pulls that no source could serve", self.pulls, self.pulls_failed)?;
        writeln!(
            f,
            "{} residents loaded, {} read instead of their files, {} that did not verify",
            self.loads, self.from_residents, self.residents_corrupt
        )?;
        writeln!(
            f,
            "{} boards read, {} of them of a known age; {} torn or not written yet",
            self.boards_read, self.boards_fresh, self.boards_torn
        )?;
        writeln!(f, "{} records handed out by followers, {} of them promoted", self.followed, self.turns)?;
        writeln!(
            f,
            "{} requests of tables applied, {} mismatches, {} of them told, {} without room",
            self.applied, self.mismatches, self.mismatches_told, self.full
        )?;
        writeln!(
            f,
            "{} logs of tables folded, {} of them ahead; {} others were folded ahead in vain",
            self.folded, self.warm, self.warm_in_vain
        )?;
        writeln!(
            f,
            "{} gets of tables answered, {} given up; {} records fetched, {} refused; {} copies waited, {} given up",
            self.gets,
            self.gets_unavailable,
            self.records_fetched,
            self.records_refused,
            self.copies_fetched,
            self.copies_given_up
        )?;
        writeln!(
            f,
            "{} records of tables judged by cleaners, {} of them moved with {} bytes, {} trims",
            self.judged, self.moved, self.moved_bytes, self.cleaned
        )?;
        writeln!(
            f,
            "longest outage {:.1} s while faults struck; back after {:.1} s at most once they stopped; full size under load \
             after {:.1} s at most",
            seconds(self.outage_max),
            seconds(self.return_max),
            seconds(self.grown_max)
        )?;
        writeln!(
            f,
            "{} seeds in which too few members kept their memory, {} in which a flipped bit hit the only copy at hand, {} in which \
             every copy at hand was damaged and the group waits",
            self.lost_for_good, self.rotten_for_good, self.damaged_for_good
        )?;
        writeln!(f, "faults:")?;
        for fault in Fault::ALL {
            let count = self.faults.get(&fault).unwrap_or(&0);
            writeln!(f, "  {count:>10}  {fault}")?;
        }
        Ok(())
    }
}
