//! The mirrors of a table's index: one thread for each term, which writes them into members' memory.
//!
//! Started by [`control`](crate::control) once a member has lent memory, and ended with the term, by dropping [`Mirroring`]. It
//! drives the machine [`Mirrors`](tailwind_protocol::table::mirror::Mirrors) beside the append path, by channels of its own: no
//! ack, fence or append waits for it. See "The mirror" in `docs/protocol.md`.
//!
//! # When it works, and when it sleeps
//!
//! While anything is under way or has changed it takes a turn every [`PAUSE`], less often while writes do not complete. When
//! nothing is left to do it sleeps until lines are refreshed, control has something to say, or the append path has acknowledged a
//! change. The append path rings the [`Bell`] with each acknowledgement, which costs it a load unless the thread sleeps. Before
//! it sleeps the thread waits for one pause in which nothing has changed: so a stream of acknowledgements wakes it once.
//!
//! # A channel that is lost
//!
//! What was posted by it may land later: over TCP while a thread of the backup has bytes that it has received, over RDMA while a
//! queue pair is there that the other side does not know to be dead. A line of the index that lands late would be older than
//! what is published, and nothing that this side sees tells when none can land any more; only in shared memory a write is over
//! when its post returns. So the same memory is not written again. Control asks for the next *lending* of every part, which
//! has another grant: what was lent before is out of reach of every earlier write (promise 5 of the
//! [fabric](tailwind_fabric::contract)), and the new memory is zero. Lendings are numbered, so that a request that comes late ends
//! no newer one. To the machine the old mirror has left, and a new one has come. In between, the board's line must not call
//! zeros live, so the new channel says *filling*, and control waits for that to complete before it asks for memory.
//!
//! The board is not lent again, because the append path writes it too. A late line of the board would say *live* of the new memory
//! while that is filled. So a member at which such a line was under way gets no other mirror in this epoch, unless its board has
//! been lent again, as after a restart. What its board says stays true of the memory that it had, and getters leave it when it
//! falls behind. A member that left the set and returned is treated in the same way.

mod channel;
mod shown;
mod thread;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use tailwind_fabric::{Channel, ChannelError, RemoteBuffer};
use tailwind_protocol::board::BoardIdentity;
use tailwind_protocol::board::mirror::PartSize;
use tailwind_protocol::table::acked::AckedView;
use tailwind_protocol::table::changed::ChangedLines;
use tailwind_protocol::table::mirror::{MIRRORS_MAX, MirrorId};
use tokio::sync::{mpsc, oneshot};

use crate::path::Counters;
use crate::thread::spawn_owned;
pub use shown::ShownMirrors;
use thread::MirrorThread;

/// Pause between two turns with something to do. What getters find published is as old as a round of a few of them.
pub const PAUSE: Duration = Duration::from_micros(100);
/// Commands, and reports, on their way: far more than one of each for every mirror.
const QUEUED_MAX: usize = 4 * MIRRORS_MAX;

/// What is mirrored.
#[derive(Clone, Debug)]
pub struct MirroredIndex {
    /// The index as it is acknowledged.
    pub view: Arc<AckedView>,
    /// What changes in it.
    pub changed: Arc<ChangedLines>,
    /// In what pieces members lend memory.
    pub part_size: PartSize,
    /// The boards of the epoch.
    pub board: BoardIdentity,
}

/// A member's memory for a mirror, all zero, and the way to it.
#[derive(Debug)]
pub struct MirrorMemory {
    /// A channel of the mirror's own.
    pub channel: Box<dyn Channel>,
    /// The member's board.
    pub board: RemoteBuffer,
    /// As many parts as the index takes.
    pub parts: Vec<RemoteBuffer>,
}

/// From control to the thread.
#[derive(Debug)]
enum Command {
    /// A new mirror.
    Lent(MirrorId, MirrorMemory),
    /// A mirror is over, of which control hears once more.
    Left(MirrorId),
}

/// From the thread to control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of which mirror.
    pub mirror: MirrorId,
    /// Its channel has failed, for this reason; `None`: control has ended it.
    pub lost: Option<ChannelError>,
    /// A line of the member's board has been posted by that channel, and its completion was not seen: it may land at any time.
    pub line_under_way: bool,
}

/// The mirrors of a term. Dropped, it ends the thread.
#[derive(Debug)]
pub struct Mirroring {
    commands: Option<SyncSender<Command>>,
    bell: Arc<Bell>,
    shown: Arc<ShownMirrors>,
}

/// What a thread has said and says, for its owner.
#[derive(Debug)]
pub struct FromThread {
    /// What has become of mirrors.
    pub reports: mpsc::Receiver<Report>,
    /// It has ended: with the term, or by a panic.
    pub ended: oneshot::Receiver<()>,
}

/// Starts the thread, without any mirror. It counts what it posts.
///
/// # Errors
/// The system starts no thread.
pub fn start(index: MirroredIndex, counters: &Arc<Counters>) -> io::Result<(Mirroring, FromThread)> {
    let (commands, inbox) = sync_channel(QUEUED_MAX);
    let (outbox, reports) = mpsc::channel(QUEUED_MAX);
    let (bell, shown) = (Arc::<Bell>::default(), Arc::<ShownMirrors>::default());
    let thread = MirrorThread::new(index, inbox, outbox, Arc::clone(&bell), Arc::clone(&shown), Arc::clone(counters));
    let ended = spawn_owned("mirror", move || thread.run())?;
    Ok((Mirroring { commands: Some(commands), bell, shown }, FromThread { reports, ended }))
}

impl Mirroring {
    /// For the append path, which rings it.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// How far the mirrors are.
    pub fn shown(&self) -> &Arc<ShownMirrors> {
        &self.shown
    }

    /// A member has lent memory for this mirror, which is a new one.
    pub fn lent(&self, mirror: MirrorId, memory: MirrorMemory) {
        self.send(Command::Lent(mirror, memory));
    }

    /// This mirror is over: nothing is written to it any more once the report has come.
    pub fn left(&self, mirror: MirrorId) {
        self.send(Command::Left(mirror));
    }

    fn send(&self, command: Command) {
        // A thread that is gone is its owner's to notice.
        let _ = self.commands.as_ref().is_some_and(|commands| commands.send(command).is_ok());
        self.bell.wake();
    }
}

impl Drop for Mirroring {
    fn drop(&mut self) {
        self.commands = None;
        self.bell.wake();
    }
}

/// Wakes the thread.
#[derive(Debug, Default)]
pub struct Bell {
    /// It sleeps, and wants to hear of acknowledgements.
    sleeps: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Bell {
    /// Something has been acknowledged, and its lines have been set. Costs a load, unless the thread sleeps.
    pub fn ring(&self) {
        // Together with the fence in `sleep`: either this load sees that the thread sleeps, or the thread sees the change.
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        // Before it has begun, it does not sleep.
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// The thread is this one.
    fn belongs_here(&self) {
        let _ = self.thread.set(std::thread::current());
    }

    /// Sleeps until it is rung or woken, or so long; not at all if by now there is something to do.
    fn sleep(&self, longest: Duration, rests: impl Fn() -> bool) {
        self.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if rests() {
            std::thread::park_timeout(longest);
        }
        self.sleeps.store(false, Ordering::Relaxed);
    }
}
