//! The group of the tests of a primary: `m1`, `m2`, … and what they are before they hold anything.

use tailwind_protocol::config::{Configuration, Kind, MemberRef, PrimaryRef};
use tailwind_protocol::ids::{BootId, Claim, Epoch, LogId, Lsn, Version};
use tailwind_protocol::rpc::Inventory;

pub(crate) fn member(number: usize) -> MemberRef {
    MemberRef {
        id: format!("m{number}").parse().expect("a name"),
        boot: BootId(number as u128),
        control: String::new(),
    }
}

pub(crate) fn config(members: usize) -> Configuration {
    Configuration {
        log: LogId(1),
        kind: Kind::Log,
        epoch: Epoch(1),
        claim: Claim(1),
        earlier: Vec::new(),
        won: Epoch(0),
        cuts: Vec::new(),
        version: Version(1),
        primary: PrimaryRef { id: "s1".parse().expect("a name"), control: String::new() },
        members: (1..=members).map(member).collect(),
    }
}

pub(crate) fn holds_nothing(member: &MemberRef) -> Inventory {
    Inventory {
        member: member.id.clone(),
        boot: member.boot,
        log: Some(LogId(1)),
        promised: Epoch(1),
        trimmed: Lsn(0),
        damage: Vec::new(),
        witness: true,
        synced: None,
        former: Vec::new(),
        copies: Vec::new(),
        more: false,
    }
}
