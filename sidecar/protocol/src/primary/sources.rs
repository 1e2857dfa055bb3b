//! Where a member copies a closed segment from: other members, in an order that spreads the load and avoids rot.
//!
//! Part of [`Primary`]: names the sources of every image when it is handed out, not when it is wanted, because the holders of
//! segments change while it waits in its lane. See "Pull" in `docs/protocol.md`.

use crate::config::MemberRef;
use crate::ids::SegmentId;

use super::seats::Member;
use super::{Output, Primary, Seat};

impl Primary {
    /// Hands out those of the outputs from `start` on that may start now.
    pub(super) fn hand_out(&mut self, out: &mut Vec<Output>, start: usize) {
        self.lanes.pass(out, start);
        for output in &mut out[start..] {
            if let Output::Install(seat, identity, _, sources) | Output::Repair(seat, identity, _, sources) = output {
                *sources = self.sources(*seat, identity.segment);
            }
        }
    }

    /// Members of the set, which hold every closed segment, but for the one that lacks it, lost ones, and those that have
    /// reported their copy as corrupt. Each segment and seat begins with another one. Members with other corrupt copies come
    /// last: what has rotted their disks may not be known in full yet.
    fn sources(&self, seat: Seat, segment: SegmentId) -> Vec<MemberRef> {
        let sound = |member: &&Member| {
            member.in_set() && !member.is_lost() && member.seat != seat && !member.damage.has(segment)
        };
        let mut members: Vec<&Member> = self.members.iter().flatten().filter(sound).collect();
        if !members.is_empty() {
            let first = (segment.0 as usize).wrapping_add(usize::from(seat.index)) % members.len();
            members.rotate_left(first);
        }
        members.sort_by_key(|member| member.damage.count() > 0);
        members.into_iter().map(|member| member.reference.clone()).collect()
    }
}
