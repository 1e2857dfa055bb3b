//! Everything that can go wrong, and in how many seeds.

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
    /// Apps sync now and then. In the end all hosts lose power at once, most lose their disks too, and an administrator orders
    /// the recovery from the others. Strikes once, after the faults have stopped. Drawn apart.
    SyncedAndDark = 0 "power lost everywhere after a sync, and recovered from disk",
    /// A primary's queue pair fails at a post. Drawn apart.
    PostFails = 0 "post failed",
    /// A bit flips in the buffer of a resident. Drawn apart.
    ResidentRots = 0 "bit flipped in a resident",
    /// The file of a resident's buffer is gone. Drawn apart.
    ResidentLost = 0 "file of a resident's buffer lost",
    /// There is no memory for a segment that was read from disk to be a resident. Drawn apart.
    LoadRefused = 0 "load of a resident refused",
    /// Nothing comes through a mirror's channel for a while, or it breaks. Drawn apart.
    MirrorCut = 0 "channel of a mirror cut",
    /// A bit flips in a mirror, or in what a board says of one. Drawn apart.
    MirrorRots = 0 "bit flipped in a mirror",
    /// An entry of a mirror becomes zeros: its key reads as absent until the line is written again. Drawn apart.
    MirrorEntryLost = 0 "entry of a mirror zeroed",
    /// What a getter reads through is no longer shared, while it is lent. Drawn apart.
    ShareEnds = 0 "share ended early",
    /// A member gives a getter false bytes: something in a board, in an entry or in a record is not what was written. Drawn
    /// apart.
    ReadIsFalse = 0 "getter read false bytes",
    /// A member shares another segment than it was asked for. Drawn apart.
    ShareIsFalse = 0 "another segment shared",
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
