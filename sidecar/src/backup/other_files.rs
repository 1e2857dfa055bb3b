//! Bytes of the files in the flush folder that are no segments of the log: counted at the start, and from time to time, because
//! an administrator may release files in quarantine.
//!
//! Started by [`run`](super::run); tells the [`actor`](super::actor).

use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tailwind_backup::FileName;
use tailwind_protocol::backup::Input;
use tokio::time::sleep;
use tracing::warn;

use super::actor::Handle;
use crate::logging::Repeats;
use crate::thread::result;

/// The folder is not listed again sooner.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// Nor before so many times as long as the last listing took: at most a twentieth of a core.
const PAUSE_FACTOR: u32 = 20;

/// Counts and tells, again and again.
pub(super) async fn watch(folder: PathBuf, actor: Handle) -> Infallible {
    let mut repeats = Repeats::default();
    let mut pause = PAUSE_MIN;
    loop {
        sleep(pause).await;
        let began = Instant::now();
        let listed = folder.clone();
        let counting = tokio::task::spawn_blocking(move || bytes(&listed));
        match result(counting.await).await {
            Ok(bytes) => actor.tell(Input::OtherFiles(bytes)),
            // The last count stays.
            Err(error) => {
                if repeats.is_due(error.to_string(), began) {
                    warn!(folder = %folder.display(), %error, "failed to list the flush folder");
                }
            }
        }
        pause = PAUSE_MIN.max(began.elapsed() * PAUSE_FACTOR);
    }
}

/// Bytes of all regular files that do not have a segment's name. Files that vanish during the count are left out.
pub(super) fn bytes(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().and_then(FileName::parse).is_some() {
            continue;
        }
        match entry.metadata() {
            Ok(metadata) if metadata.is_file() => bytes += metadata.len(),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_are_no_segments_count() {
        let folder = tempfile::tempdir().unwrap();
        let quarantined = "quarantined-0000000000000007.epoch-3.00000000000000af.closed";
        for (name, length) in
            [("promise", 3), ("ledger", 40), (quarantined, 500), ("segment-0000000000000001.closed", 9)]
        {
            fs::write(folder.path().join(name), vec![0; length]).unwrap();
        }
        fs::create_dir(folder.path().join("folder")).unwrap();
        assert_eq!(bytes(folder.path()).unwrap(), 543);
        assert!(bytes(&folder.path().join("nothing")).is_err());
    }
}
