//! Reads closed segments from disk into buffers that are to spare: after a reboot, and when a resident was given up.
//!
//! Started by [`run`](super::run); asks the [`actor`](super::actor) which copy is next, and hands it the bytes. One at a time,
//! and at most half of the time, so that the disk has time for flushes. See "Residents" in `docs/protocol.md`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwind_backup::{Disk, is_rot};
use tailwind_protocol::backup::{Input, Place};
use tailwind_protocol::layout::{SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::BUFFERS_MAX;
use tailwind_runtime::ensure_usage;
use tokio::time::sleep;
use tracing::{error, warn};

use super::actor::Handle;
use super::sending::blocking;

/// Pause when there is nothing to load, or no slot to spare.
const PAUSE: Duration = Duration::from_secs(1);
/// Pause after a read that failed, and when the pool had no memory: neither is over at once.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(30);

/// How many segments fit into so many bytes.
pub(super) fn count(bytes: u64, segment_size: SegmentSize) -> anyhow::Result<u32> {
    let segment = u64::from(segment_size.bytes());
    ensure_usage!(
        bytes == 0 || bytes >= segment,
        "--resident has no room for one segment of {segment_size}: give at least that, or 0"
    );
    Ok(u32::try_from(bytes / segment).unwrap_or(u32::MAX))
}

/// All buffers of the pool.
pub(super) fn beside(buffers: u32, residents: u32) -> anyhow::Result<u32> {
    let all = buffers.saturating_add(residents);
    ensure_usage!(
        all <= BUFFERS_MAX,
        "--buffers {buffers} and the {residents} of --resident are more than {BUFFERS_MAX} buffers: use larger segments \
         (--segment-size) or less memory"
    );
    Ok(all)
}

/// Loads for as long as the process lives.
pub(super) async fn load(actor: Handle, disk: Arc<Disk>, residents: u32) -> Infallible {
    if residents == 0 {
        return std::future::pending().await;
    }
    loop {
        let pause = load_next(&actor, &disk).await;
        sleep(pause).await;
    }
}

/// Loads the copy that is next, if any. Returns how long to wait before another one.
async fn load_next(actor: &Handle, disk: &Arc<Disk>) -> Duration {
    let Some((identity, closure)) = actor.loadable().await else { return PAUSE };
    let SegmentIdentity { segment, epoch, .. } = identity;
    let begun = Instant::now();
    let from = Arc::clone(disk);
    let read = move || {
        let bytes = from.read_closed(&identity, &closure);
        // It is about to be in a buffer.
        from.forget_cached(segment);
        bytes
    };
    let failed = match blocking(read).await {
        Ok(bytes) => match actor.load(identity, closure, bytes).await {
            true => return begun.elapsed(),
            false => None,
        },
        Err(why) => Some(why),
    };
    // Another answer now: it was trimmed, dropped or replaced during the read, or the slot was lent.
    if actor.loadable().await != Some((identity, closure)) {
        return PAUSE;
    }
    match failed {
        Some(why) if is_rot(&why) => {
            error!(%segment, %epoch, ?why, "closed segment is corrupt: found when it was read into memory");
            actor.tell(Input::FoundCorrupt(identity, Place::Disk));
            PAUSE
        }
        Some(why) => {
            warn!(%segment, %epoch, ?why, "failed to read a closed segment into memory");
            PAUSE_AFTER_FAILURE
        }
        // The pool has no memory for it.
        None => PAUSE_AFTER_FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residents_are_whole_segments_beside_the_buffers() {
        let size = SegmentSize::MIN;
        let segment = u64::from(size.bytes());
        assert_eq!([0, segment, 3 * segment - 1].map(|bytes| count(bytes, size).unwrap()), [0, 1, 2]);
        let too_small = count(segment - 1, size).unwrap_err().to_string();
        assert!(too_small.contains("no room for one segment of"), "{too_small}");
        assert_eq!(beside(16, 4).unwrap(), 20);
        let too_many = beside(BUFFERS_MAX, 1).unwrap_err().to_string();
        assert!(too_many.contains("larger segments"), "{too_many}");
    }
}
