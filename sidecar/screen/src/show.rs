//! The loop of the screen: takes what comes in, draws, and listens for wishes.
//!
//! Called by `tailwind-sidecar top`, and by `./quickstart` on a thread beside its work.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use tailwind_report::rows::Tone;

use crate::model::{Model, Progress, Round};
use crate::poll::{Sidecars, watch};
use crate::terminal::{Screen, Wish};

/// How long a wish may take to be noticed, and news to be drawn.
const TURN: Duration = Duration::from_millis(50);
/// It is drawn at least so often: times pass, and terminals change their size.
const REDRAW: Duration = Duration::from_millis(500);

/// What the screen is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// A round of answers.
    Round(Round),
    /// Something happened that no report tells.
    Event(String, Tone),
    /// The progress of the job that runs at the same time.
    Progress(Progress),
}

/// Why the screen is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The user or the system asked for it.
    Wish(Wish),
    /// All senders of inputs are gone.
    Done,
}

/// Shows these sidecars until the user wishes to end, or every sender of `inputs` is gone. `interval`: between two rounds.
///
/// # Errors
/// The terminal does not obey. It is left as it was.
pub fn show(mut screen: Screen, sidecars: Sidecars, interval: Duration, inputs: &Receiver<Input>) -> io::Result<End> {
    let (rounds, answered) = mpsc::channel();
    let (ending, end) = mpsc::channel();
    let polling = thread::spawn(move || watch(sidecars, interval, &rounds, &end));
    let result = turn(&mut screen, &answered, inputs);
    drop(screen);
    drop((ending, answered));
    // It ends once the sidecar that it asks has answered, or its time is over.
    drop(polling);
    result
}

fn turn(screen: &mut Screen, answered: &Receiver<Input>, inputs: &Receiver<Input>) -> io::Result<End> {
    let began = Instant::now();
    let mut model = Model::default();
    let mut drawn: Option<Instant> = None;
    loop {
        let (mut news, mut done) = (false, false);
        for source in [answered, inputs] {
            loop {
                match source.try_recv() {
                    Ok(input) => (news, _) = (true, take(&mut model, began.elapsed(), input)),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        done = true;
                        break;
                    }
                }
            }
        }
        if news || drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW) {
            screen.draw(&model)?;
            drawn = Some(Instant::now());
        }
        if done {
            return Ok(End::Done);
        }
        if let Some(wish) = screen.wish(TURN)? {
            return Ok(End::Wish(wish));
        }
    }
}

fn take(model: &mut Model, at: Duration, input: Input) {
    match input {
        Input::Round(round) => model.take(at, round),
        Input::Event(text, tone) => model.event(at, text, tone),
        Input::Progress(progress) => model.progress = Some(progress),
    }
}

/// A sender that sends nothing and keeps the screen up: for callers that only watch.
pub fn nothing_to_tell() -> (Sender<Input>, Receiver<Input>) {
    mpsc::channel()
}
