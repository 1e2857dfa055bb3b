//! The scrub: reads this backup's own closed copies, one after the other and not fast, so that rot is found while another
//! member has a sound copy.
//!
//! Started by [`run`](super::run); asks the [`actor`](super::actor) what is closed and tells it what has rotted. The primary
//! then has that copy replaced. See "Scrub and repair" in `docs/protocol.md`.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tailwind_backup::{Disk, is_rot};
use tailwind_fabric::Pool;
use tailwind_protocol::backup::Input;
use tailwind_protocol::ids::SegmentId;
use tailwind_protocol::layout::SegmentIdentity;
use tokio::time::sleep;
use tracing::{error, warn};

use super::actor::{ClosedCopy, Handle};
use super::memory::PoolBuffers;
use crate::thread::result;

/// A small log is not read more often than this.
const PASS_MIN: Duration = Duration::from_secs(10);
/// How often it looks again when a copy moves from memory to disk under it.
const LOOKS: usize = 4;
/// Longest pause for one segment: one of 64 MiB at 1 KiB a second would be 18 hours, and then nothing is found in time.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// What has been scrubbed so far.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Scrubbed {
    /// Bytes in a second at most; 0 means that nothing is read.
    pub(super) rate: u64,
    /// Bytes read and found sound.
    pub(super) bytes: u64,
    /// Times that every closed copy was read.
    pub(super) passes: u64,
    /// Copies found corrupt, or gone.
    pub(super) corrupt: u64,
    /// The last of those passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last_pass: Option<ScrubPass>,
}

/// Every closed copy was read once.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct ScrubPass {
    /// When it ended, in seconds since 1970.
    pub(super) ended: u64,
    /// How many seconds it took.
    seconds: u64,
    /// Copies found sound.
    sound: u64,
    /// Copies found corrupt, or gone.
    corrupt: u64,
    /// Copies that could not be read, for a reason other than rot.
    unread: u64,
}

/// The result of scrubbing one copy.
enum ScrubResult {
    Sound(u64),
    Corrupt,
    Unread,
    /// Trimmed, dropped or replaced since.
    Gone,
}

/// The scrub and what it has done.
#[derive(Debug)]
pub(super) struct Scrub {
    so_far: Mutex<Scrubbed>,
}

impl Scrub {
    pub(super) fn new(rate: u64) -> Scrub {
        Scrub { so_far: Mutex::new(Scrubbed { rate, ..Scrubbed::default() }) }
    }

    /// What has been scrubbed so far.
    pub(super) fn so_far(&self) -> Scrubbed {
        self.lock().clone()
    }

    /// Reads for as long as the process lives.
    pub(super) async fn work(self: Arc<Scrub>, actor: Handle, disk: Arc<Disk>, pool: Arc<Pool>) -> Infallible {
        let rate = self.lock().rate;
        if rate == 0 {
            return std::future::pending().await;
        }
        loop {
            let begun = Instant::now();
            let mut pass = ScrubPass::default();
            // Segments that close during a pass are for the next one, or none would end.
            let newest = actor.newest_closed().await.unwrap_or(SegmentId(0));
            let mut at = SegmentId(0);
            while let Some(copy) = actor.closed_behind(at).await {
                let (_, SegmentIdentity { segment, .. }, closure) = copy;
                if segment > newest {
                    break;
                }
                let looked = Instant::now();
                let found = look(&actor, &disk, &pool, at, copy).await;
                self.count(&found, &mut pass);
                at = segment;
                // Time for the bytes that were read; less what reading them took.
                let paced = Duration::from_secs_f64(f64::from(closure.end.0) / rate as f64).min(PAUSE_MAX);
                sleep(paced.saturating_sub(looked.elapsed())).await;
            }
            sleep(PASS_MIN.saturating_sub(begun.elapsed())).await;
            let ended = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let mut so_far = self.lock();
            so_far.passes += 1;
            so_far.last_pass = Some(ScrubPass { ended, seconds: begun.elapsed().as_secs(), ..pass });
        }
    }

    fn count(&self, found: &ScrubResult, pass: &mut ScrubPass) {
        let mut so_far = self.lock();
        match found {
            ScrubResult::Sound(bytes) => {
                so_far.bytes += bytes;
                pass.sound += 1;
            }
            ScrubResult::Corrupt => {
                so_far.corrupt += 1;
                pass.corrupt += 1;
            }
            ScrubResult::Unread => pass.unread += 1,
            ScrubResult::Gone => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Scrubbed> {
        self.so_far.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the first closed copy behind `before`. What fails twice at one place is not on the move: it has rotted.
async fn look(actor: &Handle, disk: &Arc<Disk>, pool: &Arc<Pool>, before: SegmentId, copy: ClosedCopy) -> ScrubResult {
    let (mut place, identity, closure) = copy;
    let SegmentIdentity { segment, epoch, .. } = identity;
    let mut failed_at = None;
    for _ in 0..LOOKS {
        let (disk, pool) = (Arc::clone(disk), Arc::clone(pool));
        let read = move || tailwind_backup::scrub(&disk, &PoolBuffers(pool), place, &identity, &closure);
        let read = tokio::task::spawn_blocking(read).await;
        match result(read).await {
            Ok(bytes) => return ScrubResult::Sound(bytes),
            Err(why) if is_rot(&why) && failed_at == Some(place) => {
                error!(%segment, %epoch, ?place, ?why, "closed segment is corrupt: found by the scrub");
                actor.tell(Input::FoundCorrupt(identity, place));
                return ScrubResult::Corrupt;
            }
            Err(why) if is_rot(&why) => failed_at = Some(place),
            Err(why) => {
                warn!(%segment, %epoch, ?place, ?why, "failed to scrub a closed segment");
                return ScrubResult::Unread;
            }
        }
        match actor.closed_behind(before).await {
            Some((now, same, end)) if (same, end) == (identity, closure) => place = now,
            _ => return ScrubResult::Gone,
        }
    }
    ScrubResult::Gone
}
