//! What inventories take of a sidecar's memory: as much as docs/architecture.md says, however much a member says that it holds.

use tailwind_protocol::ids::{BootId, Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::inventory::Reading;
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::{COPY_SIZE, CopyReport, CopyState, INVENTORY_MAX, INVENTORY_PAGE_MAX, Inventory};

const LOG: LogId = LogId(1);
const MIB: u64 = 1 << 20;
/// Bytes of a page beside the inventory that it goes into.
const PAGE: u64 = (INVENTORY_PAGE_MAX * COPY_SIZE) as u64;
/// Bytes of the largest inventory.
const WHOLE: u64 = (INVENTORY_MAX * COPY_SIZE) as u64;

fn copy(segment: u64) -> CopyReport {
    let (epoch, generation, size) = (Epoch(2), Generation(segment), SegmentSize::MIN);
    let identity = SegmentIdentity { log: LOG, segment: SegmentId(segment), epoch, generation, size };
    let closure = Closure { first: Lsn(segment), last: Lsn(segment), end: Offset(112), chain: Chain(1) };
    CopyReport { identity, state: CopyState::Closed, closure, acked: Offset(0) }
}

/// Reads page after page of a member that never says that one is the last, or at the largest number of copies.
fn read(member: &str, is_endless: bool) -> Option<Inventory> {
    let mut reading = Reading::new(LOG, Epoch(3), Epoch(2));
    loop {
        let after = reading.after().map_or(0, |segment| segment.0);
        let last = after + INVENTORY_PAGE_MAX as u64;
        let mut copies = Vec::with_capacity(INVENTORY_PAGE_MAX);
        copies.extend((after + 1..=last).map(copy));
        let page = Inventory {
            member: member.parse().unwrap(),
            boot: BootId(1),
            log: Some(LOG),
            promised: Epoch(3),
            trimmed: Lsn(0),
            damage: vec![],
            witness: true,
            synced: None,
            former: Vec::new(),
            copies,
            more: is_endless || last < INVENTORY_MAX as u64,
        };
        match reading.take(page) {
            Ok(None) => {}
            Ok(whole) => return whole,
            Err(_) => return None,
        }
    }
}

#[test]
fn a_member_that_lies_takes_no_more_memory_than_one_that_does_not() {
    for is_endless in [false, true] {
        let counted = allocation_counter::measure(|| assert_eq!(read("m1", is_endless).is_none(), is_endless));
        assert!(counted.bytes_max <= WHOLE + 2 * PAGE, "endless: {is_endless}, {counted:?}");
    }
}

/// The longest log there can be, of three members and of eight.
#[test]
fn a_promotion_takes_a_bounded_amount_of_memory_for_each_segment() {
    for (members, most) in [(3, 80 * MIB), (8, 160 * MIB)] {
        let counted = allocation_counter::measure(|| {
            let inventories: Vec<Inventory> =
                (0..members).map(|nth| read(&format!("m{nth}"), false).unwrap()).collect();
            let reference = Reference::assemble(&inventories, &[]).unwrap();
            assert!(inventories.iter().all(|inventory| reference.plan_for(inventory).is_empty()));
        });
        println!("{members} members: {} bytes for each segment", counted.bytes_max / INVENTORY_MAX as u64);
        assert!(counted.bytes_max <= most, "{members} members: {counted:?}");
    }
}
