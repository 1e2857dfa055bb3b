//! A tally of words that survives its process, its sidecar and its host: an app to copy, with the asynchronous client.
//!
//!     tally-async /run/tailwind/append.sock
//!
//! Reads words from its input, one in a line, and prints each word's count once the word is replicated. On a standby it waits
//! for its turn. Its state is what the log says and nothing else, so it can be killed at any time.

#![allow(clippy::print_stdout, reason = "this is what it does")]

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use tailwind_client::asynchronous::Client;
use tailwind_client::{Error, Lsn, Options};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::time::sleep;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let Some(socket) = std::env::args().nth(1) else {
        println!("usage: tally-async SOCKET");
        std::process::exit(2);
    };
    let mut tally = Tally::connect(socket).await?;
    let mut lines = BufReader::new(stdin()).lines();
    while let Ok(Some(word)) = lines.next_line().await {
        tally.add(&word).await?;
        println!("{word} {}", tally.counts[&word]);
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
    /// The first record that has not been read.
    next: Lsn,
    counts: BTreeMap<String, u64>,
}

impl Tally {
    async fn connect(socket: String) -> Result<Tally, Error> {
        let run = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos().to_string();
        let log = connect(&socket).await?;
        let next = log.welcome().first;
        let mut tally = Tally { socket, log, run, own: 0, next, counts: BTreeMap::new() };
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

    /// Reads on to the end, through changes of the primary. What has been read stays, whatever dies.
    async fn catch_up(&mut self) -> Result<(), Error> {
        loop {
            match self.read().await {
                Err(Error::Retry { after, .. }) => sleep(after).await,
                Err(Error::NotPrimary { .. } | Error::Disconnected { .. }) => self.log = connect(&self.socket).await?,
                done => return done,
            }
        }
    }

    async fn read(&mut self) -> Result<(), Error> {
        let mut records = self.log.read(self.next, 0).await?;
        while let Some((lsn, record)) = records.next_record().await? {
            self.next = lsn.next();
            let record = String::from_utf8_lossy(record);
            let Some((run, word)) = record.split_once(' ') else { continue };
            self.own += u64::from(run == self.run);
            *self.counts.entry(word.to_owned()).or_default() += 1;
        }
        Ok(())
    }
}

/// Waits until this sidecar is there, and primary.
async fn connect(socket: &str) -> Result<Client, Error> {
    loop {
        match Client::connect_with(socket, &Options { hold: true, ..Options::default() }).await {
            Err(Error::Connect { .. } | Error::Disconnected { .. } | Error::Retry { .. }) => {
                sleep(Duration::from_millis(100)).await;
            }
            connected => return connected,
        }
    }
}
