//! Whether a backup copies a segment from another one by itself. Nothing here changes anything.
//!
//! Part of [`Backup`]; asked before a [`Pull`](crate::pull::Pull) begins.

use crate::rpc::{PullRequest, PullSource, Refusal, SOURCE_ADDRESSES_MAX, SOURCES_MAX};

use super::{Backup, Stage};

impl Backup {
    /// Refuses what a close would refuse, and what makes no sense; true if the segment is here already, closed as wanted.
    ///
    /// A pull that comes late must not bring back what was trimmed since. An open that comes late brings nothing back, and a
    /// close that comes late finds no image; a pull is both.
    pub fn admit_pull(&self, request: &PullRequest) -> Result<bool, Refusal> {
        self.admit(&request.caller)?;
        let segment = request.identity.segment;
        let bad = |why: String| Err(Refusal::BadRequest { why: format!("segment {segment}: {why}") });
        if !request.closure.fits(request.identity.size) {
            return bad(format!("no segment of {} ends at byte {}", request.identity.size, request.closure.end));
        }
        if request.sources.len() > SOURCES_MAX {
            return bad(format!("{} sources: at most {SOURCES_MAX} are tried", request.sources.len()));
        }
        let odd = |source: &&PullSource| source.member == self.member || source.control.len() > SOURCE_ADDRESSES_MAX;
        if let Some(source) = request.sources.iter().find(odd) {
            let addresses = source.control.len();
            return bad(format!(
                "backup {} cannot be asked at {addresses} addresses by {}",
                source.member, self.member
            ));
        }
        if request.closure.last < self.promise.trimmed {
            let why = format!("its records are trimmed here, up to LSN {}", self.promise.trimmed);
            return Err(Refusal::NoSuchCopy { segment, why });
        }
        let here = self.copies.get(&segment).filter(|copy| copy.stage == Stage::Closed);
        Ok(here.is_some_and(|copy| copy.identity == request.identity && copy.closure == request.closure))
    }
}
