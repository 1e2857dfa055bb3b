//! The limits of a backup that meets none but the number of its buffers: each test changes the one that it is about.

use tailwind_protocol::backup::Limits;
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::rpc::INVENTORY_MAX;

pub(crate) fn limits(slots: u32) -> Limits {
    Limits {
        slots,
        slot_size: SegmentSize::MIN.bytes(),
        unflushed_bytes_max: u64::MAX,
        flush_bytes_max: None,
        residents: 0,
        copies_max: INVENTORY_MAX,
    }
}
