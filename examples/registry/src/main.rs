//! A registry of devices that survives its process, its sidecar and its host: an app to copy, for a group that keeps a table.
//!
//!     registry /run/tailwind/default.sock
//!     registry watch /run/tailwind/default.sock
//!
//! The first reads commands, one in a line, and answers each once it is replicated. On a standby it follows the table until it is
//! its turn. The second prints what changes, at any sidecar. Their state is what the table says and nothing else, so they can be
//! killed at any time.

#![allow(clippy::print_stdout, reason = "this is what it does")]

mod device;
mod registry;

use std::io::{self, BufRead, Write};
use std::time::Duration;

use device::{Device, id};
use registry::{Registry, follow, next_change};
use tailwind_client::{Change, Error};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [socket] => serve(socket),
        ["watch", socket] => watch(socket),
        _ => {
            println!("usage: registry [watch] SOCKET");
            std::process::exit(2);
        }
    }
}

/// Answers commands until there are no more.
fn serve(socket: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut registry = Registry::connect(socket)?;
    for line in io::stdin().lock().split(b'\n') {
        let answer = match answer(&mut registry, &String::from_utf8_lossy(&line?)) {
            Err(error @ (Error::TableFull { .. } | Error::TooLarge { .. })) => format!("refused: {error}"),
            answer => answer?,
        };
        writeln!(io::stdout(), "{answer}")?;
    }
    Ok(())
}

fn answer(registry: &mut Registry, line: &str) -> Result<String, Error> {
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    let number = words.get(1).and_then(|word| word.parse().ok());
    Ok(match (&words[..], number) {
        (["register", id, state], _) => {
            let word = if registry.register(id, state)? { "registered" } else { "known" };
            format!("{word} {id}")
        }
        (["report", id, state], _) => match registry.report(id, state)? {
            Some(reports) => format!("reported {id} {reports}"),
            None => format!("unknown {id}"),
        },
        (["list"], _) => {
            let devices = registry.list()?;
            let lines: String = devices.iter().map(|(id, device)| show(id, device) + "\n").collect();
            format!("{lines}devices {}", devices.len())
        }
        (["expire", _], Some(seconds)) => {
            let swept = registry.expire(Duration::from_secs(seconds))?;
            let word = |expired| if expired { "expired" } else { "reported" };
            let lines: String = swept.iter().map(|(id, expired)| format!("{} {id}\n", word(*expired))).collect();
            format!("{lines}swept {}", swept.len())
        }
        _ => "commands: register ID STATE, report ID STATE, list, expire SECONDS".to_owned(),
    })
}

/// Prints what changes until it is killed.
fn watch(socket: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut devices = follow(socket)?;
    loop {
        match next_change(&mut devices, socket)? {
            Change::Put { key, entry } => {
                if let Some(device) = Device::from_value(&entry.value) {
                    writeln!(io::stdout(), "{}", show(&id(&key), &device))?;
                }
            }
            Change::Deleted { key } => writeln!(io::stdout(), "gone {}", id(&key))?,
            // Everything is here; changes follow.
            Change::CaughtUp { .. } | Change::Turn { .. } => writeln!(io::stdout(), "devices {}", devices.len())?,
            Change::Lag { .. } => {}
        }
    }
}

fn show(id: &str, device: &Device) -> String {
    format!("device {id} {} {}", device.reports, device.state)
}
