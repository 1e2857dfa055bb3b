//! How a trace says things.
//!
//! Used by everything of the model that tells what happens.

use tailwind_protocol::backup::Request;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::layout::Closure;
use tailwind_protocol::rpc::Inventory;

/// `records 1 to 2, up to 168`.
pub(super) fn closure(closure: &Closure) -> String {
    match closure.records() {
        0 => format!("no records, up to {}", closure.end),
        1 => format!("record {}, up to {}", closure.last, closure.end),
        _ => format!("records {} to {}, up to {}", closure.first, closure.last, closure.end),
    }
}

/// `epoch 1, version 2, set m1 m2`.
pub(super) fn configuration(config: &Configuration) -> String {
    let members: Vec<&str> = config.members.iter().map(|member| member.id.as_str()).collect();
    format!("epoch {}, version {}, set {}", config.epoch, config.version, members.join(" "))
}

/// `segment 1 open, record 1, up to 120; segment 2 open, no records, up to 0`.
pub(super) fn inventory(inventory: &Inventory) -> String {
    let copy = |copy: &tailwind_protocol::rpc::CopyReport| {
        format!("segment {} {:?}, {}", copy.identity.segment, copy.state, closure(&copy.closure)).to_lowercase()
    };
    let copies: Vec<String> = inventory.copies.iter().map(copy).collect();
    if copies.is_empty() { "holds nothing".to_owned() } else { copies.join("; ") }
}

/// What is asked of a backup: `open of segment 1 under epoch 1`.
pub(super) fn request(request: &Request) -> String {
    let of = |name: &str, segment, epoch| format!("{name} of segment {segment} under epoch {epoch}");
    match request {
        Request::Fence(fence) => format!("fence by epoch {}", fence.caller.epoch),
        Request::Inventory(_) => "inventory".to_owned(),
        Request::Damage => "damage".to_owned(),
        Request::Connect(caller) => format!("connect under epoch {}", caller.epoch),
        Request::Open(open) => of("open", open.identity.segment, open.caller.epoch),
        Request::Close(close) => of("close", close.identity.segment, close.caller.epoch),
        Request::Sync(sync) => of("sync", sync.point.before, sync.caller.epoch),
        Request::Flush(flush) => of("flush", flush.identity.segment, flush.caller.epoch),
        Request::Fetch(fetch) => format!("fetch of segment {}", fetch.identity.segment),
        Request::Trim(trim) => format!("trim below {} under epoch {}", trim.below, trim.caller.epoch),
        Request::Drop(drop) => format!("drop of {} copies under epoch {}", drop.copies.len(), drop.caller.epoch),
    }
}
