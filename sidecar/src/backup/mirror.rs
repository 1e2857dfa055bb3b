//! The memory of a table's mirror: parts, lent to the promised epoch one by one, shared with readers, given back after a fence.
//!
//! Held by [`Lent`](super::memory::Lent), for which the [`actor`](super::actor) asks. No machine takes part: what is in a mirror
//! is derived, belongs to one epoch, and is no evidence of anything. See "The mirror" in `docs/protocol.md`.

use tailwind_fabric::{FabricError, Grant, Parts, Pool, ReadGrant, Receiver, Sharer, Writer};
use tailwind_protocol::board::mirror::PartSize;
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::layout::{SegmentSize, readable_size};
use tailwind_protocol::rpc::{PARTS_MAX, Refusal, SHARES_MAX};
use tailwind_runtime::ensure_usage;
use tracing::warn;

/// The parts that so many bytes take.
pub(super) fn parts(bytes: u64, segment_size: SegmentSize) -> anyhow::Result<Parts> {
    let size = PartSize::beside(segment_size).bytes();
    let (count, most) = (bytes.div_ceil(size.into()), u64::from(PARTS_MAX) * u64::from(size));
    ensure_usage!(
        count <= u64::from(PARTS_MAX),
        "--mirror {} is more than the mirror of the largest table takes: give at most {}",
        readable_size(bytes),
        readable_size(most)
    );
    Ok(Parts { count: count as u32, size })
}

/// Which epoch each part is lent to.
#[derive(Debug)]
pub(super) struct MirrorParts {
    parts: Vec<Part>,
    /// There was no memory for a part when one was last asked for.
    lacks_memory: bool,
}

#[derive(Debug)]
enum Part {
    /// Without memory.
    Free,
    /// The grant is kept because a repeated request gets the same one.
    Lent(Lending, Grant),
    /// Revoked. Its memory has not been given back yet.
    Over,
}

/// A lending of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lending {
    /// To this epoch.
    pub(super) epoch: Epoch,
    /// Within the epoch: an epoch that has lost a channel asks for other memory under a higher number.
    pub(super) number: u32,
}

impl MirrorParts {
    pub(super) fn new(pool: &Pool) -> MirrorParts {
        let parts = (0..pool.parts().count).map(|_| Part::Free).collect();
        MirrorParts { parts, lacks_memory: false }
    }

    /// Lends a part, all zero, to the primary of the promised epoch. `None` beyond the last one, and without memory for it: then
    /// getters go to another member. Refuses what is asked for too late.
    pub(super) fn lend(
        &mut self,
        receiver: &mut dyn Receiver,
        pool: &Pool,
        lending: Lending,
        nth: u32,
    ) -> Result<Option<Grant>, Refusal> {
        let Some((slot, part)) = pool.part(nth).zip(self.parts.get_mut(nth as usize)) else { return Ok(None) };
        match part {
            Part::Lent(present, grant) if *present == lending => return Ok(Some(grant.clone())),
            Part::Lent(present, _) if *present > lending => {
                let Lending { number, .. } = present;
                return Err(Refusal::Failed { why: format!("lending {number} of this part has been asked for since") });
            }
            _ => {}
        }
        match receiver.lend(Writer(lending.epoch.0), slot) {
            Ok(grant) => {
                (*part, self.lacks_memory) = (Part::Lent(lending, grant.clone()), false);
                Ok(Some(grant))
            }
            Err(error) => {
                // The lending before may have ended.
                if matches!(part, Part::Lent(..)) {
                    *part = Part::Over;
                }
                // Asked for again and again.
                if !std::mem::replace(&mut self.lacks_memory, true) {
                    let Lending { epoch, .. } = lending;
                    warn!(%epoch, part = nth, %error, "no memory is lent for a mirror: tables cannot be read here");
                }
                Ok(None)
            }
        }
    }

    /// Shares parts of this epoch's mirror in their order: from this one on, up to the first that is not lent, and [`SHARES_MAX`]
    /// at most.
    pub(super) fn share(
        &self,
        sharer: &mut dyn Sharer,
        pool: &Pool,
        epoch: Epoch,
        first: u32,
    ) -> Result<Vec<ReadGrant>, FabricError> {
        let numbers = (first..).zip(self.parts.iter().skip(first as usize));
        let lent = numbers.take_while(|(_, part)| matches!(part, Part::Lent(of, _) if of.epoch == epoch));
        let slots = lent.filter_map(|(nth, _)| pool.part(nth)).take(SHARES_MAX);
        let shared: Result<Vec<_>, _> = slots.map(|slot| sharer.share(slot)).collect();
        Ok(shared?.into_iter().map_while(|grant| grant).collect())
    }

    /// What is lent to earlier epochs than this one is about to be revoked.
    pub(super) fn end_below(&mut self, epoch: Epoch) {
        for part in &mut self.parts {
            if matches!(part, Part::Lent(of, _) if of.epoch < epoch) {
                *part = Part::Over;
            }
        }
    }

    /// True while parts that are over have memory.
    pub(super) fn is_to_free(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Over))
    }

    /// Gives the memory of one part back that is over, if there is any. One at a time, and not at the fence: it takes as long as
    /// the part is large.
    pub(super) fn free_one(&mut self, receiver: &mut dyn Receiver, pool: &Pool) -> Result<(), FabricError> {
        let over = (0..).zip(&mut self.parts).find(|(_, part)| matches!(part, Part::Over));
        if let Some((nth, part)) = over
            && let Some(slot) = pool.part(nth)
        {
            receiver.release(slot)?;
            *part = Part::Free;
        }
        Ok(())
    }

    /// How many are lent.
    pub(super) fn lent(&self) -> u32 {
        self.parts.iter().filter(|part| matches!(part, Part::Lent(..))).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_lent_in_parts_of_a_segment_or_8_mib() {
        let of =
            |bytes: u64, segment: SegmentSize| parts(bytes, segment).map(|Parts { count, size }| (count, size >> 20));
        assert_eq!(of(0, SegmentSize::MIN).unwrap(), (0, 8));
        assert_eq!(of(1, SegmentSize::MIN).unwrap(), (1, 8));
        assert_eq!(of(16 << 20, SegmentSize::MIN).unwrap(), (2, 8));
        assert_eq!(of((64 << 20) + 1, SegmentSize::MAX).unwrap(), (2, 64));
        assert_eq!(of(1 << 30, SegmentSize::MIN).unwrap(), (128, 8));
        let too_much = of((1 << 30) + 1, SegmentSize::MIN).unwrap_err().to_string();
        assert!(too_much.contains("give at most 1 GiB"), "{too_much}");
    }
}
