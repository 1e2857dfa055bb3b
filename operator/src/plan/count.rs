//! Numbers of things in sentences.
//!
//! Used by every module of [`plan`](super) whose decisions have sentences.

use std::fmt;

/// `1 backup`, `2 backups`, `2 copies`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) usize, pub(crate) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1.strip_suffix('y')) {
            (1, _) => write!(f, "1 {}", self.1),
            (n, Some(stem)) => write!(f, "{n} {stem}ies"),
            (n, None) => write!(f, "{n} {}s", self.1),
        }
    }
}
