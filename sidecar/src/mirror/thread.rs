//! The thread's loop: carries out what the machine [`Mirrors`] wants.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use tailwind_fabric::ChannelError;
use tailwind_protocol::config::Time;
use tailwind_protocol::table::mirror::{Input, MIRRORS_MAX, MirrorId, Mirrors, Output, REFRESH_MS};
use tokio::sync::mpsc;

use crate::path::Counters;

use super::channel::{LINE_BYTES, MirrorChannel};
use super::{Bell, Command, MirroredIndex, PAUSE, Report, ShownMirrors};

/// The longest pause between two turns while writes do not complete: a member that hangs keeps no processor busy.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Passes over all channels in one turn, as long as each has something to do: a mirror in shared memory is filled quickly, and
/// not without pauses.
const PASSES_MAX: usize = 8;
/// How long it sleeps at most while mirrors are refreshed: the machine counts in milliseconds.
const REFRESH: Duration = Duration::from_millis(REFRESH_MS + 1);
/// How long it sleeps at most while there is none, so that a mirror that is lost for long is shown as such.
const IDLE: Duration = Duration::from_secs(1);

pub(super) struct MirrorThread {
    index: MirroredIndex,
    machine: Mirrors,
    /// Of the mirrors that are not lost.
    channels: Vec<MirrorChannel>,
    commands: Receiver<Command>,
    reports: mpsc::Sender<Report>,
    bell: Arc<Bell>,
    shown: Arc<ShownMirrors>,
    counters: Arc<Counters>,
    began: Instant,
    outputs: Vec<Output>,
    /// The next pause while writes do not complete.
    pause: Duration,
}

/// Control has ended the term.
struct Over;

impl MirrorThread {
    pub(super) fn new(
        index: MirroredIndex,
        commands: Receiver<Command>,
        reports: mpsc::Sender<Report>,
        bell: Arc<Bell>,
        shown: Arc<ShownMirrors>,
        counters: Arc<Counters>,
    ) -> MirrorThread {
        let machine = Mirrors::new(Arc::clone(&index.view), Arc::clone(&index.changed), index.part_size);
        let channels = Vec::with_capacity(MIRRORS_MAX);
        let (began, outputs) = (Instant::now(), Vec::new());
        MirrorThread {
            index,
            machine,
            channels,
            commands,
            reports,
            bell,
            shown,
            counters,
            began,
            outputs,
            pause: PAUSE,
        }
    }

    /// Takes turns until the term is over. What is under way then lands or does not: the next epoch's memory is another.
    pub(super) fn run(mut self) {
        self.bell.belongs_here();
        while let Ok(moved) = self.turn() {
            self.rest(moved);
        }
    }

    /// Takes one turn; whether anything has happened.
    fn turn(&mut self) -> Result<bool, Over> {
        let mut moved = false;
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.on_command(command),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(Over),
            }
            moved = true;
        }
        for _ in 0..PASSES_MAX {
            if !self.pass() {
                break;
            }
            moved = true;
        }
        self.shown.show(&self.machine, self.now());
        Ok(moved)
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Lent(mirror, memory) => {
                self.channels.push(MirrorChannel::new(mirror, memory));
                self.step(Input::Lent(mirror));
                // Before anything of it lands: from now on the cleaner waits for it.
                self.shown.show(&self.machine, self.now());
            }
            Command::Left(mirror) => {
                self.step(Input::Left(mirror));
                // One whose channel is lost has been reported.
                if let Some(channel) = self.take(mirror) {
                    self.report(mirror, None, channel.line_under_way());
                }
            }
        }
    }

    /// Collects what has completed, has the machine look at what has changed, and posts what it wants. Returns true if anything
    /// was.
    fn pass(&mut self) -> bool {
        let mut moved = false;
        let mut failed: Option<(MirrorId, ChannelError)> = None;
        let mut lines: u64 = 0;
        for at in 0..self.channels.len() {
            let mirror = self.channels[at].mirror();
            match self.channels[at].poll() {
                Ok(0) => {}
                Ok(writes) => {
                    self.step(Input::Written(mirror, writes));
                    moved = true;
                }
                Err(why) => failed = Some((mirror, why)),
            }
        }
        self.step(Input::Tick);
        for channel in &mut self.channels {
            match channel.post(&self.index) {
                Ok(posted) => lines += u64::from(posted),
                Err(why) => failed = Some((channel.mirror(), why)),
            }
        }
        if lines > 0 {
            self.counters.posted_mirror_bytes.fetch_add(lines * LINE_BYTES, Ordering::Relaxed);
            moved = true;
        }
        // Others that have failed are found by the next pass.
        if let Some((mirror, why)) = failed {
            self.lose(mirror, why);
            moved = true;
        }
        moved
    }

    fn lose(&mut self, mirror: MirrorId, why: ChannelError) {
        if let Some(channel) = self.take(mirror) {
            self.step(Input::Lost(mirror));
            self.report(mirror, Some(why), channel.line_under_way());
        }
    }

    fn take(&mut self, mirror: MirrorId) -> Option<MirrorChannel> {
        let at = self.channels.iter().position(|channel| channel.mirror() == mirror)?;
        Some(self.channels.swap_remove(at))
    }

    fn step(&mut self, input: Input) {
        let now = self.now();
        self.machine.step(now, input, &mut self.outputs);
        for output in self.outputs.drain(..) {
            let (Output::Write(mirror, _) | Output::Publish(mirror, _)) = output;
            let channel = self.channels.iter_mut().find(|channel| channel.mirror() == mirror);
            channel.expect("the machine writes to mirrors with a channel").want(output);
        }
    }

    /// Sleeps as long as can be.
    fn rest(&mut self, moved: bool) {
        if moved {
            self.pause = PAUSE;
        }
        if moved || !self.machine.rests() {
            std::thread::park_timeout(self.pause);
            // What is still to be looked at takes its turns; what is under way takes its time.
            if self.channels.iter().any(MirrorChannel::is_busy) {
                self.pause = (2 * self.pause).min(PAUSE_MAX);
            }
        } else if self.channels.is_empty() {
            std::thread::park_timeout(IDLE);
        } else {
            self.bell.sleep(REFRESH, || self.machine.rests());
        }
    }

    fn report(&self, mirror: MirrorId, lost: Option<ChannelError>, line_under_way: bool) {
        // Control has gone with its term.
        let _ = self.reports.blocking_send(Report { mirror, lost, line_under_way });
    }

    fn now(&self) -> Time {
        Time(self.began.elapsed().as_millis() as u64)
    }
}
