//! Histories: what an LSN names for good.
//!
//! A log has one history through all failovers: an LSN that was read once names the same record from then on. Only an
//! administrator's order may [cut](Cut) the log, and then other records come behind the cut. So a position is a history and an
//! LSN. Clients keep both, and name them when they continue; called by the [`follower`](crate::follower) and by the primary's
//! reader.

use std::fmt;
use std::str::FromStr;

use crate::config::Cut;
use crate::ids::{LogId, Lsn};
use crate::planted::{self, Bug};

/// A history of a log, as clients keep it. The upper half is from the log's identity, which is random; the lower half is one more
/// than the epoch that the last cut began. Written as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct History(pub u64);

/// Why a reader that has read part of a log gets nothing more of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Parted {
    /// A cut after this record has taken some of what was read.
    #[error("the log was cut after record {0}")]
    Cut(Lsn),
    /// What was read is of another log than this one.
    #[error("the group has another log now, {0}")]
    OtherLog(LogId),
    /// The history began with a cut that is not known here, or not yet.
    #[error("the log was cut, and it is not known here where")]
    NotKnown,
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for History {
    type Err = String;

    fn from_str(text: &str) -> Result<History, String> {
        let history = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16).map(History);
        history.ok_or_else(|| "a history has 16 hexadecimal digits".to_owned())
    }
}

impl History {
    /// The history of a client that has read nothing, or does not say.
    pub const UNKNOWN: History = History(0);

    /// The history of a log with these cuts. All cuts from epoch 2³² - 2 on begin the same history, so a client that has read
    /// between two of them is not told. A log gets there only by accepted losses that skip epochs which members say they have
    /// promised.
    pub fn of(log: LogId, cuts: &[Cut]) -> History {
        let epoch = cuts.last().map_or(0, |cut| cut.epoch.0);
        History((log.0 as u64) << 32 | epoch.saturating_add(1).min(u64::from(u32::MAX)))
    }

    /// The last record that is the same in this log, with these cuts. `None`: it has not been cut since.
    pub fn shared_up_to(self, log: LogId, cuts: &[Cut]) -> Option<Lsn> {
        cuts.iter().filter(|cut| History::of(log, &[**cut]).0 > self.0).map(|cut| cut.last).min()
    }

    /// Moves on to the history of this log, with these cuts, if the records before `next` are the same there.
    pub fn go_on(&mut self, next: Lsn, log: LogId, cuts: &[Cut]) -> Result<(), Parted> {
        let now = History::of(log, cuts);
        if *self != History::UNKNOWN {
            if self.0 >> 32 != now.0 >> 32 {
                return Err(Parted::OtherLog(log));
            }
            if self.0 > now.0 {
                return Err(Parted::NotKnown);
            }
            let taken = self.shared_up_to(log, cuts).filter(|last| next.prev() > *last);
            if let Some(last) = taken.filter(|_| !planted::has(Bug::CutIgnored)) {
                return Err(Parted::Cut(last));
            }
        }
        *self = now;
        Ok(())
    }
}
