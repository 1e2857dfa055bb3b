//! Where a run is shown: the group on a terminal, or lines; and how its report is printed.

use std::cell::Cell;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Signal, kill_current_process_group};
use tailwind_e2e::processes::group::Group;
use tailwind_e2e::workload::percentile;
use tailwind_report::rows::Tone;
use tailwind_screen::model::Progress;
use tailwind_screen::poll::Sidecars;
use tailwind_screen::show::{self, End};
use tailwind_screen::terminal::{self, Screen, Wish};

/// Between two rounds of questions to the sidecars, for the screen: a failover takes less than a second.
const SCREEN_INTERVAL: Duration = Duration::from_millis(100);
/// A sidecar that takes longer to answer, because it is frozen, is shown as one that does not.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Where the run is shown.
pub(crate) enum Show {
    /// Lines, and a bar where there is a terminal.
    Lines(ProgressBar),
    /// The group.
    Screen(Drawing),
}

/// A thread that draws the group. The screen is left when this is dropped.
pub(crate) struct Drawing {
    told: Option<Sender<show::Input>>,
    thread: Option<JoinHandle<()>>,
    what: &'static str,
    total: u64,
    /// When it was told how far the run is.
    progress: Cell<Instant>,
}

impl Show {
    /// On a terminal, unless that cannot be drawn on.
    pub(crate) fn begin(group: &Group, plain: bool, what: &'static str, total: u64) -> Show {
        let screen = if plain || !terminal::is_usable() { None } else { Screen::enter().ok() };
        let Some(screen) = screen else { return Show::Lines(progress_bar(total, what)) };
        let (told, inputs) = mpsc::channel();
        let sockets = (0..group.setup().sidecars).map(|index| group.socket(index)).collect();
        let thread = thread::spawn(move || {
            // The terminal is as it was after this.
            match show::show(screen, Sidecars::new(sockets, ANSWER_TIMEOUT), SCREEN_INTERVAL, &inputs) {
                Ok(End::Wish(Wish::Interrupt)) => {
                    // The script that started this ends as well, and cleans up.
                    let _ = kill_current_process_group(Signal::INT);
                    std::process::exit(128 + Signal::INT.as_raw());
                }
                Ok(End::Wish(Wish::Signal(signal))) => std::process::exit(128 + signal),
                // A user who leaves with `q` gets the report at the end.
                Ok(End::Wish(Wish::Quit) | End::Done) | Err(_) => {}
            }
        });
        Show::Screen(Drawing {
            told: Some(told),
            thread: Some(thread),
            what,
            total,
            progress: Cell::new(Instant::now()),
        })
    }

    pub(crate) fn progress(&self, done: u64) {
        match self {
            Show::Lines(bar) => bar.set_position(done),
            Show::Screen(drawing) => drawing.progress(done),
        }
    }

    pub(crate) fn tell(&self, tone: Tone, text: String) {
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
    pub(crate) fn end(self) {
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
            self.tell(show::Input::Progress(Progress { what: self.what.to_owned(), done, total: self.total }));
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

/// A row of the report.
pub(crate) fn row(what: &str, value: impl std::fmt::Display) {
    println!("  {what:<36}{value}");
}

pub(crate) fn quantiles(sorted: &[u64]) -> String {
    let at = |share| Duration::from_nanos(percentile(sorted, share));
    format!("p50 {:.1?}, p99 {:.1?}, p99.9 {:.1?}", at(0.5), at(0.99), at(0.999))
}

pub(crate) fn progress_bar(total: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:10} {bar:30} {pos}/{len} {per_sec} {eta}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_message(what)
}
