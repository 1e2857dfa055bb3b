//! Between the types of `ReplicaGroup` and those of the protocol. Bytes of the API become checked types here.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize as _;
use tailwind_crds::view::{GroupView, Lenient, SpecView};
use tailwind_crds::{LogCut, LogKind, LogMember, LogPrimary, LogStatus, Transport};
use tailwind_protocol::config::{Configuration, Cut, Durability, Kind, MemberRef, PrimaryRef};
use tailwind_protocol::ids::{Claim, Epoch, Lsn, Version};
use tailwind_protocol::layout::SegmentSize;

use crate::control::desired::{DesiredState, Switchover};
use crate::fabric::FabricOption;
use crate::store::Shape;

pub(super) fn shape(spec: &SpecView) -> anyhow::Result<Shape> {
    let known = |why: String| anyhow::anyhow!(why);
    Ok(Shape {
        durability: match spec.durability.value("spec.durability").map_err(known)? {
            tailwind_crds::Durability::Memory => Durability::Memory,
            tailwind_crds::Durability::Battery => Durability::Battery,
            tailwind_crds::Durability::Flushed => Durability::Flushed,
        },
        segment_size: SegmentSize::new(spec.segment_size.value("spec.segmentSize").map_err(known)?.bytes())?,
        fabric: match spec.transport().map_err(known)? {
            Transport::Rdma => FabricOption::Verbs,
            Transport::Tcp => FabricOption::Tcp,
        },
    })
}

pub(super) fn desired(group: &GroupView) -> DesiredState {
    let status = group.status.as_ref();
    let backups = status.into_iter().flat_map(|status| &status.backups);
    let backups = backups.filter_map(|backup| Some((backup.name.parse().ok()?, backup.control.clone()?))).collect();
    let switchover = status.and_then(|status| status.switchover.as_ref()).and_then(Lenient::known);
    let switchover = switchover.and_then(|s| Some(Switchover { to: s.to.parse().ok()?, from: Epoch(s.from_epoch) }));
    let members = status.and_then(|status| status.members_wanted).unwrap_or(group.spec.backups()).max(1);
    DesiredState {
        kind: Some(if group.spec.has_table() { Kind::Table } else { Kind::Log }),
        members,
        min_in_sync: group.spec.min_in_sync().clamp(1, members),
        backups,
        fenced: group.spec.fenced,
        may_read: group.spec.may_read(),
        accept_loss: group.spec.accept_loss_up_to.as_deref().and_then(|word| word.parse().ok()),
        recover_from_disk: group.spec.recover_from_disk.as_deref().and_then(|word| word.parse().ok()),
        switchover,
    }
}

pub(super) fn configuration(group: &GroupView) -> Result<Option<Configuration>, String> {
    let Some(log) = group.status.as_ref().and_then(|status| status.log.as_ref()) else { return Ok(None) };
    let log = LogStatus::deserialize(log).map_err(|error| error.to_string());
    log.and_then(|log| parse(&log)).map(Some).map_err(|why| {
        format!(
            "status.log of the ReplicaGroup is damaged ({why}): if it was edited by hand, restore it; the API \
             server's audit log shows the previous content"
        )
    })
}

fn parse(log: &LogStatus) -> Result<Configuration, String> {
    fn text<T: FromStr<Err: fmt::Display>>(what: &str, value: &str) -> Result<T, String> {
        value.parse().map_err(|error| format!("{what}: {error}"))
    }
    let LogStatus { id, kind, epoch, claim, earlier_claims, won_epoch, cuts, version, primary, members } = log;
    let claimed =
        |claim: &String| u64::from_str_radix(claim, 16).map(Claim).map_err(|error| format!("claim `{claim}`: {error}"));
    let cut = |cut: &LogCut| Cut { epoch: Epoch(cut.epoch), last: Lsn(cut.last), ordered: cut.ordered.map(Lsn) };
    let member = |member: &LogMember| {
        Ok(MemberRef {
            id: text("members.name", &member.name)?,
            boot: text("members.boot", &member.boot)?,
            control: member.control.clone(),
        })
    };
    Ok(Configuration {
        log: text("id", id)?,
        kind: match kind {
            LogKind::Log => Kind::Log,
            LogKind::Table => Kind::Table,
        },
        epoch: Epoch(*epoch),
        claim: claimed(claim)?,
        earlier: earlier_claims.iter().map(claimed).collect::<Result<_, String>>()?,
        won: Epoch(*won_epoch),
        cuts: cuts.iter().map(cut).collect(),
        version: Version(*version),
        primary: PrimaryRef { id: text("primary.name", &primary.name)?, control: primary.control.clone() },
        members: members.iter().map(member).collect::<Result<_, String>>()?,
    })
}

pub(super) fn log_status(config: &Configuration) -> LogStatus {
    let Configuration { log, kind, epoch, claim, earlier, won, cuts, version, primary, members } = config;
    let hexadecimal = |claim: &Claim| format!("{:016x}", claim.0);
    let cut = |cut: &Cut| LogCut { epoch: cut.epoch.0, last: cut.last.0, ordered: cut.ordered.map(|lsn| lsn.0) };
    let member = |member: &MemberRef| LogMember {
        name: member.id.to_string(),
        boot: member.boot.to_string(),
        control: member.control.clone(),
    };
    LogStatus {
        id: log.to_string(),
        kind: match kind {
            Kind::Log => LogKind::Log,
            Kind::Table => LogKind::Table,
        },
        epoch: epoch.0,
        claim: hexadecimal(claim),
        earlier_claims: earlier.iter().map(hexadecimal).collect(),
        won_epoch: won.0,
        cuts: cuts.iter().map(cut).collect(),
        version: version.0,
        primary: LogPrimary { name: primary.id.to_string(), control: primary.control.clone() },
        members: members.iter().map(member).collect(),
    }
}
