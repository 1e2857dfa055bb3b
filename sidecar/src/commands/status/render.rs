//! A report as text: the verdict, then what it rests on, then a row for each part of the group.
//!
//! Called by [`status`](super). What the sidecar does not know has no line.

use std::fmt;

use tailwind_protocol::layout::readable_size;
use tailwind_report::report::Report;
use tailwind_report::rows::{bytes, count, followed, micros, rows};
use tailwind_report::sidecar::{AppendsReport, SidecarReport};
use tailwind_report::table::{MirrorState, RebuildReport, TableReport};
use tailwind_report::verdict::ago;

/// A report that is to be printed.
pub(super) struct Rendered<'a>(pub(super) &'a Report<SidecarReport>);

impl fmt::Display for Rendered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { group, name, content: report, .. } = self.0;
        writeln!(f, "{}\n", report.verdict)?;
        match &report.log {
            Some(log) => writeln!(f, "group      {group}, log {log}")?,
            None => writeln!(f, "group      {group}; no log is known yet")?,
        }
        write!(f, "sidecar    {name}: {}, epoch {}", report.role, report.epoch)?;
        if let Some(ms) = report.failover_ms.filter(|_| report.is_primary()) {
            write!(f, ", took over within {ms} ms")?;
        }
        writeln!(f)?;
        if let Some(primary) = report.primary.as_ref().filter(|primary| primary.name != *name) {
            let address = primary.address.as_ref().map_or_else(String::new, |address| format!(" at {address}"));
            let heard = primary
                .heard_ms_ago
                .map_or_else(|| "has not answered this sidecar yet".to_owned(), |ms| format!("answered {}", ago(ms)));
            writeln!(f, "primary    {}{address}, {heard}", primary.name)?;
        }
        if report.is_primary() {
            leading(f, report)?;
        }
        if let Some(kept) = &report.table {
            writeln!(f, "table      {}", of_table(kept))?;
            // Without any, the backups have no memory for them, which is how they are by default.
            if kept.mirrors.iter().any(|mirror| mirror.state != MirrorState::None) {
                let mirrors = kept.mirrors.iter().map(ToString::to_string).collect::<Vec<_>>();
                writeln!(f, "mirrors    {}", mirrors.join("; "))?;
            }
        }
        if let Some(follow) = &report.follow {
            let clients = report.clients.followers;
            writeln!(f, "followers  {clients}; the one furthest behind is {}", followed(follow))?;
        }
        table(f, name, report)
    }
}

/// What only a primary has to say.
fn leading(f: &mut fmt::Formatter<'_>, report: &SidecarReport) -> fmt::Result {
    let SidecarReport { durability, fabric, members_wanted, min_in_sync, set_version, .. } = report;
    write!(
        f,
        "promise    {durability} durability over {fabric}; {members_wanted} copies wanted, {min_in_sync} needed"
    )?;
    match set_version {
        Some(version) => writeln!(f, "; member set version {version}")?,
        None => writeln!(f)?,
    }
    if let Some(at) = &report.positions {
        let synced = report.synced.filter(|synced| *synced > 0);
        let synced = synced.map_or_else(String::new, |lsn| format!("; on disk at every member up to LSN {lsn}"));
        match at.acked {
            0 => writeln!(f, "log        empty")?,
            acked => writeln!(f, "log        LSN {} to {acked} can be read{synced}", at.first)?,
        }
    }
    if let Some(segments) = &report.segments {
        let (closed, open) = (count(segments.closed), segments.open);
        let (size, memory) = (readable_size(report.segment_bytes), bytes(segments.memory_bytes));
        writeln!(f, "segments   {closed} closed, {open} open, of {size}; {memory} of memory here")?;
    }
    if let Some(appends) = &report.appends {
        writeln!(f, "appends    {}", rates(appends))?;
    }
    let clients = &report.clients;
    // This command is one of them.
    let others = clients.connected.saturating_sub(1);
    write!(f, "clients    {others}; through shared memory: {}", clients.rings)?;
    match clients.syncing {
        0 => writeln!(f)?,
        syncing => writeln!(f, "; waiting for a sync: {syncing}")?,
    }
    if let Some(at) = &report.ladder {
        let (flushed, acked, completed) = (&at.flushed, &at.acked, &at.completed);
        write!(f, "positions  flushed {flushed} ≤ acked {acked} ≤ completed {completed} ")?;
        writeln!(f, "≤ posted {} ≤ appended {}", at.posted, at.appended)?;
    }
    Ok(())
}

/// What is in the table, and what is done to it.
fn of_table(table: &TableReport) -> String {
    let (keys_max, memory) = (count(table.keys_max), bytes(table.memory_bytes));
    if let Some(RebuildReport { folded, segments }) = table.rebuild {
        return format!("rebuilding its index: {} of {} segments", count(folded), count(segments));
    }
    let (Some(keys), Some(live), Some(log)) = (table.keys, table.live_bytes, table.log_bytes) else {
        let warm = table.warm.map_or_else(String::new, |last| format!("; index warm up to LSN {last}"));
        return format!("of up to {keys_max} keys, in {memory} of log{warm}");
    };
    let (keys, live, live_max, log) = (count(keys), bytes(live), bytes(table.live_bytes_max), bytes(log));
    let cleaner = table.cleaner.map_or_else(String::new, |cleaner| format!("; {cleaner}"));
    format!("{keys} of {keys_max} keys, {live} of {live_max} live; {log} of {memory} of log{cleaner}")
}

fn rates(appends: &AppendsReport) -> String {
    let mut text = match appends.records_per_second {
        none if none < 0.05 => "none now".to_owned(),
        few if few < 10.0 => format!("{few:.1} records/s"),
        many => format!("{} records/s, {}/s", count(many as u64), bytes(appends.bytes_per_second as u64)),
    };
    let times = [("p50", appends.p50_us), ("p99", appends.p99_us), ("p99.9", appends.p999_us)];
    let times = times.into_iter().filter_map(|(name, us)| Some(format!("{name} {}", micros(us?))));
    let times = times.collect::<Vec<_>>().join(", ");
    if !times.is_empty() {
        text += &format!("; acknowledged within {times}");
    }
    if appends.pending > 0 {
        text += &format!("; {} wait for their ack", count(appends.pending));
    }
    text
}

fn table(f: &mut fmt::Formatter<'_>, name: &str, report: &SidecarReport) -> fmt::Result {
    let title = ["NAME", "PART", "STATE", "BEHIND", "ADDRESS"].map(str::to_owned);
    let others = rows(report).into_iter().filter(|row| row.name != name);
    let rows = others.map(|row| [row.name, row.part.to_owned(), row.state, row.behind, row.address]);
    let rows: Vec<[String; 5]> = std::iter::once(title).chain(rows).collect();
    if rows.len() == 1 {
        return Ok(());
    }
    // A column in which nobody has anything to say is left out.
    let columns: Vec<usize> =
        (0..rows[0].len()).filter(|at| rows[1..].iter().any(|row| !row[*at].is_empty())).collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
    writeln!(f)?;
    for row in &rows {
        let cells = columns.iter().map(|at| format!("{:width$}", row[*at], width = width(*at)));
        writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
