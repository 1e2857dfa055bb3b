//! `status`: what a sidecar tells of itself, as a table for people or as its JSON.
//!
//! The JSON comes from [`control::status`](crate::control::status). Fields that another version does not tell are left
//! out of the table, so that old and new understand each other.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{HumanBytes, HumanCount};
use serde::Deserialize;
use tailwind_protocol::layout::readable_size;

use super::target::Sockets;
use super::tell;

/// Show the status of a sidecar and its group.
#[derive(Args, Clone, Debug)]
pub struct StatusOptions {
    /// Print the sidecars' JSON, one line each: for scripts
    #[arg(long)]
    json: bool,
    /// Which sidecars: every given socket is queried, primary or not.
    #[command(flatten)]
    sockets: Sockets,
}

/// The sidecar's JSON, as far as it is known here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SidecarStatus {
    group: String,
    sidecar: String,
    fabric: String,
    durability: String,
    segment_size: u64,
    backups_wanted: u8,
    min_in_sync: u8,
    closed_segments: u64,
    memory_bytes: u64,
    role: Option<String>,
    epoch: u64,
    primary: String,
    version: u64,
    acked: u64,
    first: u64,
    positions: Option<PositionStatus>,
    members: Vec<MemberStatus>,
    clients: u64,
    /// Clients that append through shared memory.
    rings: u64,
    /// Appends of all clients that wait for their ack.
    pending: Option<u64>,
    /// What keeps it from becoming primary.
    waiting: Option<WaitStatus>,
    /// What appends wait for.
    appends_wait: Option<WaitStatus>,
    /// Members that lend no buffer for appends.
    refusals: Vec<RefusalStatus>,
    /// Clients that read what members hold.
    followers: u64,
    /// How far the one of them is that is furthest behind.
    follow: Option<FollowStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FollowStatus {
    from: String,
    lsn: u64,
    lag_ms: Option<u64>,
    stale: bool,
}

impl fmt::Display for FollowStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at LSN {}", self.lsn)?;
        match self.from.as_str() {
            "" => f.write_str(", looking for a backup to read from")?,
            from => write!(f, ", reading from {from}")?,
        }
        match self.lag_ms {
            Some(lag) => write!(f, "; {lag} ms behind at most")?,
            None => f.write_str("; how far behind is not known")?,
        }
        if self.stale { f.write_str(": stale") } else { Ok(()) }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RefusalStatus {
    member: String,
    why: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WaitStatus {
    why: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PositionStatus {
    flushed: String,
    acked: String,
    completed: String,
    posted: String,
    appended: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MemberStatus {
    name: String,
    control: String,
    state: String,
    completed: String,
}

impl SidecarStatus {
    /// Reads the sidecar's JSON.
    fn parse(json: &str) -> anyhow::Result<SidecarStatus> {
        serde_json::from_str(json)
            .context("parse the sidecar's status (is it another version? use --json to see it unparsed)")
    }
}

/// Asks and prints.
pub fn run(options: &StatusOptions) -> anyhow::Result<()> {
    let sockets = options.sockets.paths();
    let mut failed = 0;
    for (place, socket) in sockets.iter().enumerate() {
        match report(options, socket) {
            Ok(text) => {
                let gap = if place > 0 && !options.json { "\n" } else { "" };
                write!(io::stdout().lock(), "{gap}{text}").context("write to standard output")?;
            }
            Err(error) if sockets.len() == 1 => return Err(error),
            Err(error) => {
                failed += 1;
                tell(format_args!("status: {}: {}", socket.display(), tailwind_runtime::logging::explain(&error)));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} sidecars did not answer", sockets.len());
    }
    Ok(())
}

fn report(options: &StatusOptions, socket: &Path) -> anyhow::Result<String> {
    let mut client = options.sockets.connect_to(socket)?;
    let json = client.status().context("ask for the status")?;
    if options.json {
        return Ok(json + "\n");
    }
    Ok(SidecarStatus::parse(&json)?.to_string())
}

impl fmt::Display for SidecarStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "group      {}", self.group)?;
        let Some(role) = &self.role else {
            return writeln!(
                f,
                "sidecar    {}; its append path does not answer: it hangs or is overloaded",
                self.sidecar
            );
        };
        write!(f, "sidecar    {}: {role}, epoch {}", self.sidecar, self.epoch)?;
        match self.primary.as_str() {
            "" => writeln!(f, "; the primary is unknown")?,
            primary if primary == self.sidecar => writeln!(f)?,
            primary => writeln!(f, "; primary is {primary}")?,
        }
        if let Some(WaitStatus { why }) = &self.waiting {
            writeln!(f, "waiting    {why}")?;
        }
        if let Some(WaitStatus { why }) = &self.appends_wait {
            writeln!(f, "waiting    appends wait: {why}")?;
        }
        for RefusalStatus { member, why } in &self.refusals {
            writeln!(f, "refused    {member} lends no buffer: {why}")?;
        }
        let (backups, needed) = (self.backups_wanted, self.min_in_sync);
        writeln!(f, "backups    {backups} wanted, {needed} needed to go on; member set version {}", self.version)?;
        writeln!(f, "promise    {} durability over {}", self.durability, self.fabric)?;
        if self.acked == 0 {
            writeln!(f, "log        no record is known to be acknowledged")?;
        } else {
            writeln!(f, "log        LSN {} to {} can be read", self.first, self.acked)?;
        }
        let (closed, size) = (HumanCount(self.closed_segments), readable_size(self.segment_size));
        writeln!(f, "segments   {closed} closed, of {size}; {} of memory here", HumanBytes(self.memory_bytes))?;
        writeln!(
            f,
            "clients    {}; through shared memory: {}; appends in flight: {}",
            self.clients,
            self.rings,
            HumanCount(self.pending.unwrap_or_default())
        )?;
        if let Some(follow) = &self.follow {
            writeln!(f, "followers  {}; the slowest is {follow}", self.followers)?;
        }
        if let Some(at) = &self.positions {
            let (flushed, acked, completed) = (&at.flushed, &at.acked, &at.completed);
            write!(f, "positions  flushed {flushed} ≤ acked {acked} ≤ completed {completed} ")?;
            writeln!(f, "≤ posted {} ≤ appended {}", at.posted, at.appended)?;
        }
        if self.members.is_empty() {
            return Ok(());
        }
        let width = |cell: fn(&MemberStatus) -> &str, title: &str| {
            self.members.iter().map(|member| cell(member).len()).chain([title.len()]).max().unwrap_or_default()
        };
        let name = width(|member| &member.name, "MEMBER");
        let state = width(|member| &member.state, "STATE");
        let completed = width(|member| &member.completed, "COMPLETED");
        writeln!(f, "\n{:name$}  {:state$}  {:completed$}  CONTROL", "MEMBER", "STATE", "COMPLETED")?;
        for member in &self.members {
            let MemberStatus { name: who, state: how, completed: far, control } = member;
            writeln!(f, "{who:name$}  {how:state$}  {far:completed$}  {control}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_primary_shows_its_log_and_its_members() {
        let json = r#"{"group":"db","sidecar":"db-0","fabric":"shm","durability":"memory","segment_size":8388608,
            "backups_wanted":3,"min_in_sync":2,"closed_segments":1234,"memory_bytes":50331648,"role":"primary","epoch":3,
            "primary":"db-0","version":7,"acked":42,"first":1,"positions":{"flushed":"1:0","acked":"2:8",
            "completed":"2:8","posted":"2:16","appended":"2:16"},"members":[{"name":"b0","control":"10.0.0.1:7420",
            "state":"in set","completed":"2:8"},{"name":"backup-1","control":"10.0.0.2:7420","state":"catching up",
            "completed":"1:0"}],"clients":2,"rings":1,"pending":1,"from a later version":true}"#;
        let expected = "\
group      db
sidecar    db-0: primary, epoch 3
backups    3 wanted, 2 needed to go on; member set version 7
promise    memory durability over shm
log        LSN 1 to 42 can be read
segments   1,234 closed, of 8 MiB; 48.00 MiB of memory here
clients    2; through shared memory: 1; appends in flight: 1
positions  flushed 1:0 ≤ acked 2:8 ≤ completed 2:8 ≤ posted 2:16 ≤ appended 2:16

MEMBER    STATE        COMPLETED  CONTROL
b0        in set       2:8        10.0.0.1:7420
backup-1  catching up  1:0        10.0.0.2:7420
";
        assert_eq!(SidecarStatus::parse(json).unwrap().to_string(), expected);
    }

    #[test]
    fn a_candidate_shows_what_it_waits_for() {
        let json = r#"{"group":"db","sidecar":"db-0","role":"recovering","epoch":4,
            "waiting":{"for":"members","why":"1 of 2 members answer; missing: b1"}}"#;
        let text = SidecarStatus::parse(json).unwrap().to_string();
        let expected = "sidecar    db-0: recovering, epoch 4; the primary is unknown\n\
                        waiting    1 of 2 members answer; missing: b1\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn a_reader_shows_how_far_it_follows() {
        let text = |follow: &str| {
            let json = format!(r#"{{"group":"db","sidecar":"db-0","role":"reader","followers":2,"follow":{follow}}}"#);
            SidecarStatus::parse(&json).unwrap().to_string()
        };
        let current = text(r#"{"from":"b1","lsn":42,"lagMs":75,"stale":false}"#);
        let line = "\nfollowers  2; the slowest is at LSN 42, reading from b1; 75 ms behind at most\n";
        assert!(current.contains(line), "{current}");
        let lost = text(r#"{"from":"","lsn":42,"stale":true}"#);
        let line = "at LSN 42, looking for a backup to read from; how far behind is not known: stale\n";
        assert!(lost.contains(line), "{lost}");
    }

    #[test]
    fn members_that_lend_nothing_are_shown() {
        let json = r#"{"group":"db","sidecar":"db-0","role":"primary","epoch":4,
            "appends_wait":{"for":"room","why":"b1: its flush folder is full"},
            "refusals":[{"member":"b1","why":"its flush folder is full"}]}"#;
        let text = SidecarStatus::parse(json).unwrap().to_string();
        assert!(text.contains("\nwaiting    appends wait: b1: its flush folder is full\n"), "{text}");
        assert!(text.contains("\nrefused    b1 lends no buffer: its flush folder is full\n"), "{text}");
    }

    #[test]
    fn a_stuck_append_path_and_a_bad_reply_are_reported() {
        let hung = SidecarStatus::parse(r#"{"group":"db","sidecar":"db-0"}"#).unwrap().to_string();
        assert!(hung.contains("its append path does not answer"), "{hung}");
        assert!(SidecarStatus::parse("<html>").unwrap_err().to_string().contains("--json"));
    }
}
