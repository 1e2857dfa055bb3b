//! How many files are in quarantine, and which: counted in the flush folder on request, since an administrator may release any
//! of them at any time.
//!
//! Asked by [`routes`](super::routes). The files are named by [`tailwind_backup::quarantine`].

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tailwind_backup::quarantine;
use tailwind_protocol::ids::{Epoch, SegmentId};
use tokio::time::timeout;
use tracing::warn;

use crate::logging::Repeats;
use crate::thread::result;

/// The folder is not listed again sooner.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// Nor before so many times as long as the last listing took: at most a twentieth of a core, however many files there are.
/// The names of 200,000 segments take 0.1 s.
const PAUSE_FACTOR: u32 = 20;
/// A disk that takes longer is not waited for: probes have two seconds, and the rest of the page must be told.
const PATIENCE: Duration = Duration::from_secs(1);
/// Files that are named; all are counted.
const NAMED_MAX: usize = 100;

/// What is in quarantine.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Quarantined {
    /// How many files.
    pub(super) files: u64,
    /// Bytes of all of them.
    pub(super) bytes: u64,
    /// The files of the lowest segments.
    listed: Vec<ListedFile>,
}

/// One file.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ListedFile {
    name: String,
    segment: SegmentId,
    epoch: Epoch,
    bytes: u64,
}

/// Looks into the flush folder, not too often.
#[derive(Debug)]
pub(super) struct Quarantine {
    folder: PathBuf,
    /// What was found last; `None` where that cannot be told.
    found: Mutex<Option<Arc<Quarantined>>>,
    /// Locked during a listing: when the next one may start.
    refresh: Arc<tokio::sync::Mutex<Refresh>>,
}

#[derive(Debug, Default)]
struct Refresh {
    next: Option<Instant>,
    repeats: Repeats<String>,
}

impl Quarantine {
    pub(super) fn new(folder: PathBuf) -> Quarantine {
        Quarantine { folder, found: Mutex::default(), refresh: Arc::default() }
    }

    /// What is there, or was a few seconds ago; `None` if the disk does not tell.
    pub(super) async fn look(self: &Arc<Quarantine>) -> Option<Arc<Quarantined>> {
        // A listing that times out here still runs to its end, and holds `refresh` until then.
        let _ = timeout(PATIENCE, Arc::clone(self).refresh()).await;
        self.found().clone()
    }

    async fn refresh(self: Arc<Quarantine>) {
        let mut refresh = Arc::clone(&self.refresh).lock_owned().await;
        if refresh.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let listing = tokio::task::spawn_blocking(move || self.list(&mut refresh));
        result(listing.await).await;
    }

    fn list(&self, refresh: &mut Refresh) {
        let began = Instant::now();
        let found = list(&self.folder, NAMED_MAX).map_err(|error| {
            if refresh.repeats.is_due(error.to_string(), began) {
                warn!(folder = %self.folder.display(), %error, "failed to list the quarantine");
            }
        });
        *self.found() = found.ok().map(Arc::new);
        refresh.next = Some(Instant::now() + PAUSE_MIN.max(began.elapsed() * PAUSE_FACTOR));
    }

    fn found(&self) -> MutexGuard<'_, Option<Arc<Quarantined>>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts every file, and names those of the lowest segments: `named_max` at most.
fn list(folder: &Path, named_max: usize) -> io::Result<Quarantined> {
    let mut found = Quarantined::default();
    let mut named = BTreeMap::new();
    for file in quarantine::files(folder)? {
        let file = file?;
        found.files += 1;
        found.bytes += file.bytes;
        let name = file.name.to_string();
        named.insert((file.name.segment, file.name.epoch, name), file.bytes);
        if named.len() > named_max {
            named.pop_last();
        }
    }
    let entry = |((segment, epoch, name), bytes)| ListedFile { name, segment, epoch, bytes };
    found.listed = named.into_iter().map(entry).collect();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn put(folder: &Path, segment: u64, bytes: usize) {
        let name = format!("quarantined-{segment:016}.epoch-2.00000000000000af.open");
        fs::write(folder.join(name), vec![0; bytes]).unwrap();
    }

    #[test]
    fn all_files_are_counted_and_the_first_are_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(list(folder.path(), 2).unwrap(), Quarantined::default());
        fs::write(folder.path().join("segment-0000000000000001.open"), "no quarantine").unwrap();
        for (segment, bytes) in [(30, 3), (4, 40), (20, 200)] {
            put(folder.path(), segment, bytes);
        }
        let Quarantined { files, bytes, listed } = list(folder.path(), 2).unwrap();
        assert_eq!((files, bytes), (3, 243));
        let listed: Vec<_> = listed.iter().map(|entry| (entry.segment.0, entry.epoch.0, entry.bytes)).collect();
        assert_eq!(listed, [(4, 2, 40), (20, 2, 200)]);
    }

    #[tokio::test]
    async fn a_folder_listing_is_cached() {
        let folder = tempfile::tempdir().unwrap();
        let quarantine = Arc::new(Quarantine::new(folder.path().to_owned()));
        let files = async || quarantine.look().await.map(|found| found.files);
        assert_eq!(files().await, Some(0));
        put(folder.path(), 1, 1);
        assert_eq!(files().await, Some(0), "soon after");
        quarantine.refresh.lock().await.next = Some(Instant::now());
        assert_eq!(files().await, Some(1), "later");
        drop(folder);
        quarantine.refresh.lock().await.next = None;
        assert_eq!(files().await, None, "what cannot be read is not empty");
    }
}
