//! The configuration of a group of three backups, led by sidecar `a`.

use tailwind_protocol::config::{Configuration, Kind, MemberRef, PrimaryRef};
use tailwind_protocol::ids::{BootId, Claim, Epoch, LogId, Version};

pub(crate) const BACKUPS: usize = 3;

pub(crate) fn configuration(epoch: u64) -> Configuration {
    let member = |n: usize| MemberRef {
        id: format!("b{n}").parse().unwrap(),
        boot: BootId(n as u128),
        control: format!("127.0.0.1:{n}"),
    };
    Configuration {
        log: LogId(1),
        kind: Kind::Log,
        epoch: Epoch(epoch),
        claim: Claim(epoch),
        earlier: Vec::new(),
        won: Epoch(0),
        cuts: Vec::new(),
        version: Version(epoch),
        primary: PrimaryRef { id: "a".parse().unwrap(), control: "127.0.0.1:9".into() },
        members: (0..BACKUPS).map(member).collect(),
    }
}
