//! A tally of words that survives its process, its sidecar and its host: an app to copy, with the asynchronous client.
//!
//!     tally-async /run/tailwind/default.sock
//!
//! Reads words from its input, one in a line, and prints each word's count once the word is replicated. On a standby it
//! follows the log until it is its turn, and knows every count then. Its state is what the log says and nothing else, so it can
//! be killed at any time.

#![allow(clippy::print_stdout, reason = "this is what it does")]

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use tailwind_client::asynchronous::Client;
use tailwind_client::{Error, FollowEvent, History, Lsn};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::time::sleep;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(socket) = std::env::args().nth(1) else {
        println!("usage: tally-async SOCKET");
        std::process::exit(2);
    };
    let mut tally = Tally::connect(socket).await?;
    let mut lines = BufReader::new(stdin()).split(b'\n');
    while let Some(line) = lines.next_segment().await? {
        let word = String::from_utf8_lossy(&line).into_owned();
        tally.add(&word).await?;
        writeln!(io::stdout(), "{word} {}", tally.counts[&word])?;
    }
    Ok(())
}

struct Tally {
    socket: String,
    log: Client,
    /// Begins the records of this run: what nobody else writes.
    run: String,
    /// How many of them are in the log.
    own: u64,
    /// The first record that has not been counted.
    next: Lsn,
    /// The history of the records that have been counted: after a loss that an administrator has accepted there is another one,
    /// and the follow fails.
    history: History,
    counts: BTreeMap<String, u64>,
}

impl Tally {
    async fn connect(socket: String) -> Result<Tally, Error> {
        let run = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos().to_string();
        let log = connect(&socket).await?;
        let mut tally =
            Tally { socket, log, run, own: 0, next: Lsn(1), history: History::UNKNOWN, counts: BTreeMap::new() };
        tally.catch_up().await?;
        Ok(tally)
    }

    /// Appends a word. Where the outcome is unknown, the log tells whether it is there.
    async fn add(&mut self, word: &str) -> Result<(), Error> {
        let record = format!("{} {word}", self.run);
        let wanted = self.own + 1;
        while self.own < wanted {
            match self.log.append(record.as_bytes()).await {
                Ok(_) => {}
                Err(Error::Retry { after, .. }) => sleep(after).await,
                Err(error @ (Error::TooLarge { .. } | Error::Refused { .. })) => return Err(error),
                Err(_) => self.log = connect(&self.socket).await?,
            }
            self.catch_up().await?;
        }
        Ok(())
    }

    /// Follows the log until it is this app's turn, through all failures: at once if its sidecar is primary already. Then
    /// every record that is in the log has been counted.
    async fn catch_up(&mut self) -> Result<(), Error> {
        loop {
            match self.follow().await {
                Err(Error::Retry { after, .. }) => sleep(after).await,
                Err(Error::Disconnected { .. }) => self.log = connect(&self.socket).await?,
                done => return done,
            }
        }
    }

    async fn follow(&mut self) -> Result<(), Error> {
        let mut follow = self.log.follow((self.history, self.next)).await?;
        while let Some(event) = follow.next_event().await? {
            // It hears as well when it has caught up on a standby, and how far it is behind there. The turn is the last event.
            if let FollowEvent::Record(lsn, record) = event {
                self.next = lsn.next();
                let record = String::from_utf8_lossy(record);
                if let Some((run, word)) = record.split_once(' ') {
                    self.own += u64::from(run == self.run);
                    *self.counts.entry(word.to_owned()).or_default() += 1;
                }
            }
            self.history = follow.history();
        }
        Ok(())
    }
}

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether a sidecar may still come to listen there, or have room for another connection: one that is stopped has none.
fn may_come(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
    matches!(error.kind(), NotFound | ConnectionRefused | WouldBlock)
}

/// Waits until this sidecar is there, primary or not.
async fn connect(socket: &str) -> Result<Client, Error> {
    loop {
        match Client::connect(socket).await {
            Err(Error::Connect { source, .. }) if may_come(&source) => sleep(PAUSE).await,
            Err(Error::Disconnected { .. } | Error::Retry { .. }) => sleep(PAUSE).await,
            connected => return connected,
        }
    }
}
