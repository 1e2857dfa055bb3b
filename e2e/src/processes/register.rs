//! One value over a plain log, which clients get and set at any sidecar: what tests in a cluster run in pods that only read.
//!
//! Run by `loader register`. A thread follows the log until its turn; then clients append over its connection. After any failure
//! it follows again, from the first record on: the log is short.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{sleep, spawn};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tailwind_client::blocking::Client;
use tailwind_client::{FollowEvent, Lsn, Role};

/// How often it looks whether it has its turn still, and tries to connect.
const LOOK: Duration = Duration::from_millis(20);
/// How long an append may take.
const APPEND_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Register {
    value: Option<Vec<u8>>,
    /// At its turn.
    leads: Option<Client>,
}

type Shared = Arc<Mutex<Register>>;

/// Answers `GET key` and `SET key VALUE`, in lines, once it has followed the log up to its end.
pub fn serve(socket: &Path, listen: &str) -> Result<()> {
    let shared = Shared::default();
    let (ready, is_ready) = channel();
    {
        let (socket, shared) = (socket.to_owned(), Arc::clone(&shared));
        spawn(move || {
            loop {
                // It ends with a failure, as those of the sidecar are.
                let _failed = follow(&socket, &shared, &ready).and_then(|client| lead(client, &shared));
                lock(&shared).leads = None;
                sleep(LOOK);
            }
        });
    }
    is_ready.recv().context("it has stopped to follow")?;
    drop(is_ready);
    for stream in TcpListener::bind(listen).with_context(|| format!("listen on {listen}"))?.incoming() {
        let (stream, shared) = (stream.context("accept a client")?, Arc::clone(&shared));
        // The client has gone, or is done.
        spawn(move || drop(answer(stream, &shared)));
    }
    Ok(())
}

/// Follows until its turn; the client that may append then.
fn follow(socket: &Path, shared: &Shared, ready: &Sender<()>) -> Result<Client> {
    let mut client = Client::connect(socket)?;
    let mut follow = client.follow(Lsn(1))?;
    let (mut value, mut is_whole, mut is_turn) = (None, false, false);
    while !is_turn {
        match follow.next_event()? {
            Some(FollowEvent::Record(_, record)) => value = Some(record.to_vec()),
            Some(FollowEvent::CaughtUp { .. }) => is_whole = true,
            Some(FollowEvent::Turn { .. }) => is_turn = true,
            Some(FollowEvent::Lag { .. }) => {}
            None => bail!("the sidecar has ended the follow"),
        }
        if is_whole || is_turn {
            lock(shared).value.clone_from(&value);
            // Nobody waits for it any more after the first time.
            let _ = ready.send(());
        }
    }
    drop(follow);
    Ok(client)
}

/// Returns after the turn.
fn lead(mut client: Client, shared: &Shared) -> Result<()> {
    client.set_timeout(Some(APPEND_TIMEOUT))?;
    lock(shared).leads = Some(client);
    loop {
        sleep(LOOK);
        let mut register = lock(shared);
        let Some(client) = &mut register.leads else { return Ok(()) };
        client.pump()?;
        if client.role_info().role != Role::Primary {
            return Ok(());
        }
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> Result<()> {
    for line in BufReader::new(stream.try_clone()?).lines() {
        let line = line?;
        let mut register = lock(shared);
        let answer = match (line.split(' ').collect::<Vec<_>>().as_slice(), &mut register.leads) {
            (["GET", "key"], _) => match &register.value {
                Some(value) => format!("${}\r\n{}", value.len(), String::from_utf8_lossy(value)),
                None => "$-1".to_owned(),
            },
            (["SET", "key", _], None) => "-READONLY this is not the primary".to_owned(),
            (["SET", "key", value], Some(client)) => match client.append(value.as_bytes()) {
                Ok(_) => {
                    register.value = Some(value.as_bytes().to_vec());
                    "+OK".to_owned()
                }
                Err(error) => {
                    register.leads = None;
                    format!("-UNKNOWNOUTCOME {error}")
                }
            },
            _ => "-ERR it is GET key, or SET key VALUE".to_owned(),
        };
        drop(register);
        stream.write_all(format!("{answer}\r\n").as_bytes())?;
    }
    Ok(())
}

fn lock(shared: &Shared) -> MutexGuard<'_, Register> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
