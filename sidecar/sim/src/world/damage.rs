//! What happens to a backup's folders while its process is down: files lost, put back from an older copy, rotten, or
//! somebody else's.
//!
//! Struck by [`faults`](super::faults): the process is killed, its folder or its table is changed, and it comes back. What
//! would leave nobody with the log is left out, as everywhere. Which of these faults strike is decided in
//! [`plan`](crate::plan).

use tailwind_protocol::backup::Slot;
use tailwind_protocol::ids::{LogId, SegmentId};
use tailwind_protocol::layout::{FOOTER_SIZE, SEGMENT_HEADER_SIZE, Sealed, SegmentIdentity};

use super::files::{Inode, Kind};
use super::{HostNo, World};
use crate::tally::Fault;
use crate::trace::tell;

impl World {
    /// Kills the process, damages what it leaves, and lets it come back. False where nothing was hit.
    pub(super) fn strike_folder(&mut self, fault: Fault, no: HostNo) -> bool {
        if !self.hosts[no.0].is_up() || !self.may_lose(no) {
            return false;
        }
        self.kill_host(no);
        self.plan_restart(no);
        let (name, what) = (self.hosts[no.0].name.clone(), self.damage(fault, no));
        tell!(self, "{name} dies; {fault}: {}", what.as_deref().unwrap_or("nothing is hit"));
        what.is_some()
    }

    fn damage(&mut self, fault: Fault, no: HostNo) -> Option<String> {
        let (random, host) = (&mut self.random, &mut self.hosts[no.0]);
        let segments = host.files.segments();
        match fault {
            Fault::FileLost => {
                let (name, _) = random.pick_one(&segments)?;
                host.files.lose(name);
                Some(name.clone())
            }
            Fault::FileStale => {
                // What was copied the last time is put back, if it is another file by now.
                let kept = host.kept.take();
                let stale = kept.filter(|(name, bytes)| {
                    segments.iter().any(|(own, node)| own == name && node.inode().bytes() != bytes)
                });
                let (name, node) = random.pick_one(&segments)?;
                host.kept = Some((name.clone(), node.inode().bytes().to_vec()));
                let (name, bytes) = stale?;
                host.files.put(&name, Inode::of(bytes));
                Some(name)
            }
            Fault::PromiseStale => {
                let now = host.files.bytes("promise")?;
                let stale = host.kept_promise.replace(now.clone()).filter(|before| *before != now)?;
                host.files.put("promise", Inode::of(stale));
                Some("the promise".to_owned())
            }
            Fault::PromiseRots => {
                // One of its two blocks, while the other one is sound: more is one fault too many.
                if host.files.sound_promises() < 2 {
                    return None;
                }
                let at = random.below(8192) as usize;
                host.files.flip("promise", at, random.below(8) as u8).then(|| format!("byte {at}"))
            }
            Fault::EndsRot => {
                let (name, node) = random.pick_one(&segments)?;
                let length = node.inode().bytes().len();
                let in_header = random.below(SEGMENT_HEADER_SIZE as u64) as usize;
                let in_footer = length.checked_sub(FOOTER_SIZE)? + random.below(FOOTER_SIZE as u64 - 4) as usize;
                let at = if random.one_in(2) { in_header } else { in_footer };
                host.files.flip(name, at, random.below(8) as u8).then(|| format!("{name}, byte {at}"))
            }
            Fault::StrangerInTheWay => {
                // Under the name of a segment that is still to come.
                let newest =
                    segments.iter().filter_map(|(_, node)| node.inode().identity()).map(|own| own.segment).max();
                let segment = SegmentId(newest.map_or(1, |newest| newest.0) + random.within(1, 4));
                let sealed = *random.pick(&[Sealed::Closed, Sealed::Open]);
                let temporary = random.one_in(4);
                let name = tailwind_backup::FileName { segment, sealed, temporary }.to_string();
                if host.files.bytes(&name).is_some() {
                    return None;
                }
                let of_another_log =
                    |own: SegmentIdentity| SegmentIdentity { log: LogId(own.log.0 ^ 1), segment, ..own };
                let model = segments.first().and_then(|(_, node)| node.inode().identity()).map(of_another_log);
                let stranger = match (random.below(3), model) {
                    (0, Some(identity)) => Inode::of(identity.header(tailwind_protocol::ids::Lsn(1)).to_vec()),
                    (0 | 1, _) => Inode::special(Kind::Fifo),
                    _ => Inode::of(b"somebody's notes".to_vec()),
                };
                host.files.put(&name, stranger);
                Some(name)
            }
            Fault::SlotLost => {
                let slots: Vec<Slot> = host.rows.keys().copied().collect();
                let slot = *random.pick_one(&slots)?;
                host.pool.forget(slot);
                Some(format!("buffer {}", slot.0))
            }
            Fault::TableZeroed => {
                let slots: Vec<Slot> = host.rows.keys().copied().collect();
                let slot = *random.pick_one(&slots)?;
                host.pool.zero_row(slot);
                Some(format!("entry of buffer {}", slot.0))
            }
            _ => None,
        }
    }
}
