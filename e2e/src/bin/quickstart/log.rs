//! A file's lines through a primary that is killed, a standby that takes over, a backup that dies and a spare that fills its
//! place; then everything is read back and compared.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tailwind_e2e::processes::{app::App, checker::compare, group::Group};
use tailwind_e2e::workload::Input;
use tailwind_report::rows::Tone;

use crate::Options;
use crate::show::{Show, progress_bar, quantiles, row};

/// Records in flight: enough to keep the pipe full, few enough for latencies to mean something.
const WINDOW: u64 = 2048;
/// One record in so many is appended alone, for the latency that a waiting app sees.
const ONE_BY_ONE_IN: u64 = 50;

struct Lines {
    lines: Vec<Vec<u8>>,
}

impl Input for Lines {
    fn record(&self, number: u64) -> Vec<u8> {
        self.lines[((number - 1) % self.lines.len() as u64) as usize].clone()
    }
}

pub(crate) fn run(options: Options) -> Result<()> {
    let setup = options.setup(options.silence_ms)?;
    let Options { file, records, fabric, plain, .. } = options;
    let copies = setup.copies;
    let bytes = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    let mut lines: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    lines.pop_if(|last| last.is_empty());
    ensure!(!lines.is_empty(), "{} has no lines", file.display());
    let limit = 1 << 20;
    ensure!(
        lines.iter().all(|line| line.len() <= limit),
        "{}: a line is longer than a record may be ({limit} bytes)",
        file.display()
    );
    let rounds = records.div_ceil(lines.len() as u64).max(1);
    let input = Lines { lines };
    let one_by_one_count = records.div_ceil(ONE_BY_ONE_IN);
    let total = rounds * input.lines.len() as u64 + one_by_one_count;

    println!("starting 1 primary, 1 standby, {copies} backups and 1 spare over {fabric}");
    let mut group = Group::start(setup)?;
    group.wait("every backup to be in the set", |group| group.members().len() == copies)?;

    let show = Show::begin(&group, plain, "append", total);
    let started = Instant::now();
    let mut app = App::new(&input, 1);
    app.append_until(&group, one_by_one_count, |acked| show.progress(acked))?;
    let mut one_by_one = std::mem::take(&mut app.progress.latencies);

    // Before anything is killed: what the path can do.
    app = resume(app, &input);
    let pipelined = one_by_one_count + (total - one_by_one_count) * 2 / 5;
    let cpu_before = group.cpu_of_backups();
    let streaming = Instant::now();
    app.append_until(&group, pipelined, |acked| show.progress(acked))?;
    let rate = (pipelined - one_by_one_count) as f64 / streaming.elapsed().as_secs_f64();
    let streamed = streaming.elapsed();
    let cpu = group.cpu_of_backups().saturating_sub(cpu_before);
    let mut latencies = app.progress.latencies.clone();

    show.tell(Tone::Passing, format!("killing the primary (SIGKILL) after record {}", app.progress.acked));
    let killed = Instant::now();
    group.kill_sidecar(0)?;
    let next = app.progress.acked + 1;
    app.append_until(&group, next, |acked| show.progress(acked))?;
    let failover = killed.elapsed();
    show.tell(Tone::Well, format!("the standby took over: first ack after {failover:.1?}"));
    let second = pipelined + (total - one_by_one_count) * 3 / 10;
    app.append_until(&group, second, |acked| show.progress(acked))?;

    let victim = group.members().first().cloned().context("a member to kill")?;
    let index = group.backup_named(&victim).context("a backup of that name")?;
    show.tell(Tone::Passing, format!("killing {victim} (SIGKILL) after record {}", app.progress.acked));
    let killed = Instant::now();
    group.kill_backup(index)?;
    let next = app.progress.acked + 1;
    app.append_until(&group, next, |acked| show.progress(acked))?;
    let backup_outage = killed.elapsed();
    app.append_until(&group, total, |acked| show.progress(acked))?;
    let took = started.elapsed();
    // With a single copy no member is left to copy from, and the spare cannot be filled.
    let refilled = group.wait("the spare to be filled", |group| {
        let members = group.members();
        members.len() == copies && !members.contains(&victim)
    })?;

    let acked = app.progress.acked;
    let found = app.progress.found;
    drop(app);
    show.end();
    let progress = progress_bar(acked, "read back");
    let reading = Instant::now();
    let primary = group.primary().context("a primary to read from")?;
    let mut client = group.client(primary, true)?;
    let result = compare(&mut client, &input, 1, acked, |read| progress.set_position(read))?;
    progress.finish_and_clear();
    let read_rate = result.read as f64 / reading.elapsed().as_secs_f64();

    one_by_one.sort_unstable();
    latencies.sort_unstable();
    println!("\nreport ({fabric}, {copies} copies, {} in {} rounds)", file.display(), rounds);
    row("records acknowledged", format!("{acked} ({found} of them learnt from the log after a failover)"));
    row("records lost", result.lost.to_string());
    row("records duplicated", result.duplicated.to_string());
    row("failover, kill to first ack", format!("{failover:.1?}"));
    row("backup lost, kill to next ack", format!("{backup_outage:.1?}"));
    row("spare filled after the last append", format!("{refilled:.1?}"));
    row("append rate, pipelined", format!("{rate:.0} records/s over {streamed:.1?} ({WINDOW} in flight)"));
    row("append latency, pipelined", quantiles(&latencies));
    row("append latency, one at a time", quantiles(&one_by_one));
    row("read-back rate", format!("{read_rate:.0} records/s"));
    let share = cpu.as_secs_f64() / streamed.as_secs_f64() * 100.0;
    row(
        "CPU time of all backups, pipelined",
        format!(
            "{cpu:.2?}, {share:.0} % of one core: lending, closing and flushing{}",
            if fabric == "tcp" { ", and copying from TCP" } else { "" }
        ),
    );
    row("whole run", format!("{took:.1?}"));
    ensure!(
        result.lost == 0 && result.duplicated == 0 && result.read == acked,
        "the log is not what was acknowledged: {result:?}"
    );
    Ok(())
}

/// The same app with a wider window.
fn resume<'a>(app: App<'a, Lines>, input: &'a Lines) -> App<'a, Lines> {
    let mut wide = App::new(input, WINDOW);
    wide.progress = app.progress;
    wide
}
