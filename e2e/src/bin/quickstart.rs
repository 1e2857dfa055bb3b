//! The main job, shown: a file's lines through a primary that is killed, a standby that takes over, a backup that dies and
//! a spare that fills its place; then everything is read back and compared.
//!
//! Started by the `quickstart` script, which builds first. On a terminal the group is drawn while that happens, as `tailwind-sidecar
//! top` draws it; elsewhere lines say what happens. The report at the end is the same.
#![allow(clippy::print_stdout, reason = "a program that reports to people")]

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Signal, kill_current_process_group};
use tailwind_e2e::processes::{
    app::App,
    checker::compare,
    group::{Group, Setup},
    process::program,
};
use tailwind_e2e::workload::{Input, percentile};
use tailwind_report::rows::Tone;
use tailwind_screen::model::Progress;
use tailwind_screen::show::{self, End};
use tailwind_screen::terminal::{self, Screen, Wish};

/// Kill a primary and a backup in mid-stream, and lose nothing.
#[derive(Parser)]
#[command(name = "quickstart", max_term_width = 100)]
struct Options {
    /// File whose lines are appended, one record each, again and again up to --records
    #[arg(long, default_value = "/var/lib/dpkg/status", overrides_with = "file")]
    file: PathBuf,
    /// Records at least; the file is repeated as often as needed
    #[arg(long, default_value_t = 1_000_000, overrides_with = "records")]
    records: u64,
    /// How bytes reach the backups: shm (memory of this host), tcp or verbs (RDMA)
    #[arg(long, default_value = "shm", value_parser = ["shm", "tcp", "verbs"])]
    fabric: String,
    /// Copies of each record; one more backup is started as a spare
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    backups: u8,
    /// The sidecar program; found beside this one if not given
    #[arg(long)]
    program: Option<PathBuf>,
    /// How long a process may be silent until it counts as dead, in milliseconds: as the sidecars' own default when not given.
    /// Emulated machines are slow and want seconds
    #[arg(long)]
    silence_ms: Option<u64>,
    /// Say in lines what happens, also on a terminal that could show the group
    #[arg(long)]
    plain: bool,
    /// Folder in memory for the backups' buffers
    #[arg(long, default_value = "/dev/shm")]
    memory: PathBuf,
}

/// Records in flight: enough to keep the pipe full, few enough for latencies to mean something.
const WINDOW: u64 = 2048;
/// Between two rounds of questions to the sidecars, for the screen: a failover takes less than a second.
const SCREEN_INTERVAL: Duration = Duration::from_millis(100);
/// Of so many records one is appended alone, for the latency that a waiting app sees.
const ONE_BY_ONE_IN: u64 = 50;

struct Lines {
    lines: Vec<Vec<u8>>,
}

impl Input for Lines {
    fn record(&self, number: u64) -> Vec<u8> {
        self.lines[((number - 1) % self.lines.len() as u64) as usize].clone()
    }
}

fn main() -> Result<()> {
    let Options { file, records, fabric, backups, program: given, silence_ms, plain, memory } = Options::parse();
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
    let copies = usize::from(backups);

    let mut setup = Setup::new(given.map_or_else(program, Ok)?, &fabric);
    setup.backups = copies + 1;
    setup.copies = copies;
    setup.segment_size = "8MiB".to_owned();
    setup.buffers = 8;
    setup.memory = memory;
    if let Some(silence) = silence_ms {
        let timeouts = [("--heartbeat-silence-ms", silence), ("--fence-wait-ms", silence / 2)];
        setup.sidecar_options = timeouts.map(|(flag, value)| (flag, value.to_string())).to_vec();
    }
    println!("starting 1 primary, 1 standby, {copies} backups and 1 spare over {fabric}");
    let mut group = Group::start(setup)?;
    group.wait("every backup to be in the set", |group| group.members().len() == copies)?;

    let show = Show::begin(&group, plain, total);
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
    let row = |what: &str, value: String| println!("  {what:<36}{value}");
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

/// Where the run is shown.
enum Show {
    /// Lines, and a bar where there is a terminal.
    Lines(ProgressBar),
    /// The group.
    Screen(Drawing),
}

/// A thread that draws the group. The screen is left when this is dropped.
struct Drawing {
    told: Option<Sender<show::Input>>,
    thread: Option<JoinHandle<()>>,
    total: u64,
    /// When it was told how far the run is.
    progress: Cell<Instant>,
}

impl Show {
    /// On a terminal, unless that cannot be drawn on.
    fn begin(group: &Group, plain: bool, total: u64) -> Show {
        let screen = if plain || !terminal::is_usable() { None } else { Screen::enter().ok() };
        let Some(screen) = screen else { return Show::Lines(progress_bar(total, "append")) };
        let (told, inputs) = mpsc::channel();
        let sockets = (0..group.setup().sidecars).map(|index| group.socket(index)).collect();
        let thread = thread::spawn(move || {
            // The terminal is as it was after this.
            match show::show(screen, sockets, SCREEN_INTERVAL, &inputs) {
                Ok(End::Wish(Wish::Interrupt)) => {
                    // The script that started this ends as well, and cleans up.
                    let _ = kill_current_process_group(Signal::INT);
                    std::process::exit(128 + Signal::INT.as_raw());
                }
                Ok(End::Wish(Wish::Signal(signal))) => std::process::exit(128 + signal),
                // Whoever leaves with `q` gets the report at the end.
                Ok(End::Wish(Wish::Quit) | End::Done) | Err(_) => {}
            }
        });
        Show::Screen(Drawing { told: Some(told), thread: Some(thread), total, progress: Cell::new(Instant::now()) })
    }

    fn progress(&self, done: u64) {
        match self {
            Show::Lines(bar) => bar.set_position(done),
            Show::Screen(drawing) => drawing.progress(done),
        }
    }

    fn tell(&self, tone: Tone, text: String) {
        match self {
            Show::Lines(bar) => bar.suspend(|| println!("{text}")),
            Show::Screen(drawing) => {
                if !drawing.tell(show::Input::Event(text.clone(), tone)) {
                    println!("{text}");
                }
            }
        }
    }

    /// What was shown is over.
    fn end(self) {
        if let Show::Lines(bar) = &self {
            bar.finish_and_clear();
        }
    }
}

impl Drawing {
    /// False if nobody looks any more.
    fn tell(&self, input: show::Input) -> bool {
        self.told.as_ref().is_some_and(|told| told.send(input).is_ok())
    }

    /// Acks come far more often than anybody looks.
    fn progress(&self, done: u64) {
        if self.progress.get().elapsed() >= SCREEN_INTERVAL || done >= self.total {
            self.progress.set(Instant::now());
            self.tell(show::Input::Progress(Progress { what: "append".to_owned(), done, total: self.total }));
        }
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        self.told = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            drop(thread.join());
        }
    }
}

/// The same app with a wider window.
fn resume<'a>(app: App<'a, Lines>, input: &'a Lines) -> App<'a, Lines> {
    let mut wide = App::new(input, WINDOW);
    wide.progress = app.progress;
    wide
}

fn quantiles(sorted: &[u64]) -> String {
    let at = |share| Duration::from_nanos(percentile(sorted, share));
    format!("p50 {:.1?}, p99 {:.1?}, p99.9 {:.1?}", at(0.5), at(0.99), at(0.999))
}

fn progress_bar(total: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:10} {bar:30} {pos}/{len} {per_sec} {eta}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_message(what)
}
