//! The limit of descriptors: this process holds one of each file, so it takes all that it may have, and the program keeps its own.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors beside those of files: directories have two, and there are sockets, `/proc` and the listener.
const OTHERS: u64 = 1024;

/// What the limit was before it was raised: the program's.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit to the hard one. Returns what is missing for so many files, if anything is.
pub fn raise(files_max: usize) -> Option<Missing> {
    let before = getrlimit(Resource::Nofile);
    BEFORE.get_or_init(|| before);
    // Never refused: no more than the hard limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    Missing::find(before.maximum, files_max)
}

/// The program's limit.
pub(crate) fn before() -> Option<Rlimit> {
    BEFORE.get().copied()
}

/// Too few descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "at most {limit} descriptors (RLIMIT_NOFILE), and {needed} are needed for --files-max {files}: raise the hard limit, or give \
     --files-max {}",
    .limit.saturating_sub(OTHERS)
)]
pub struct Missing {
    limit: u64,
    needed: u64,
    files: usize,
}

impl Missing {
    fn find(limit: Option<u64>, files: usize) -> Option<Missing> {
        let needed = files as u64 + OTHERS;
        limit.filter(|limit| *limit < needed).map(|limit| Missing { limit, needed, files })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_is_explained() {
        assert_eq!(Missing::find(None, 20_000), None);
        assert_eq!(Missing::find(Some(1 << 20), 20_000), None);
        let missing = Missing::find(Some(4096), 20_000).unwrap().to_string();
        assert!(missing.contains("at most 4096") && missing.ends_with("give --files-max 3072"), "{missing}");
    }
}
