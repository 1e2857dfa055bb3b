//! Steps that many tests take: append and wait, read everything back, look through the logs.

use std::time::Instant;

use anyhow::{Result, ensure};
use tailwind_client::Lsn;
use tailwind_client::blocking::Client;

use super::app::is_outage;
use super::checker::{Comparison, compare};
use super::group::Group;
use super::observer::TIMEOUT;
use crate::workload::Input;

/// Words of the warnings that processes rightly write when others die.
pub const OUTAGE: [&str; 11] = [
    "primary is gone",
    "no heartbeat",
    "member lost",
    "member failed",
    "too few members are left",
    "waiting",
    "stepped down",
    // A backup that has been started again under its address knows nothing of what an earlier one lent.
    "the receiver refused the secret",
    // Another sidecar has fenced the member while this one was frozen between a grant and its use.
    "the lending is over",
    // A backup with many connections closes those that are idle; what was about to use one is repeated.
    "it closed the connection",
    // A member has died while a promotion repaired it.
    "failed to repair a member",
];

/// A member that was away, or that a busy machine kept from answering in time, may have what was never acknowledged.
pub const UNACKNOWLEDGED: &str = "not part of the log: quarantined";

/// A client of the primary. One that steps down as it is asked is not waited for: the next primary may be another.
pub fn primary(group: &Group) -> Result<Client> {
    let give_up = Instant::now() + TIMEOUT;
    loop {
        match group.client(group.wait_for_primary()?, false) {
            Err(error) if is_outage(&error) && Instant::now() < give_up => {}
            result => return result,
        }
    }
}

/// Waits until a sidecar is a standby and knows the primary.
pub fn wait_for_standby(group: &Group, index: usize, primary: usize) -> Result<()> {
    group.wait("a standby that knows its primary", |group| is_standby(group, index, primary)).map(|_| ())
}

/// Whether a sidecar stands by for this primary.
pub fn is_standby(group: &Group, index: usize, primary: usize) -> bool {
    let status = group.status(index);
    status["role"] == "standby" && status["primary"]["name"] == *format!("sidecar{primary}")
}

/// Submits the records after `last`; the number of the last one. They are on their way, acks are not waited for.
pub fn submit(client: &mut Client, input: &impl Input, last: u64, count: u64) -> Result<u64> {
    for number in last + 1..=last + count {
        client.submit(&input.record(number))?;
    }
    client.pump()?;
    Ok(last + count)
}

/// Appends the records after `last` and waits until all are acknowledged; the number of the last one.
pub fn append(client: &mut Client, input: &impl Input, last: u64, count: u64) -> Result<u64> {
    let end = submit(client, input, last, count)?;
    let acked = client.flush()?;
    ensure!(acked == Some(Lsn(end)), "{acked:?} is acknowledged instead of {end}");
    Ok(end)
}

/// Compares the log from record `first` on with the input, as [`compare`] does; again if the primary changes during that.
pub fn read_back(group: &Group, input: &impl Input, first: u64, acked: u64) -> Result<Comparison> {
    let give_up = Instant::now() + TIMEOUT;
    loop {
        match primary(group).and_then(|mut client| compare(&mut client, input, first, acked, |_| {})) {
            Err(error) if is_outage(&error) && Instant::now() < give_up => {}
            result => return result,
        }
    }
}

/// The log holds the input's records up to `acked`: each once, in order, no others.
pub fn check_whole(group: &Group, input: &impl Input, acked: u64) -> Result<()> {
    let result = read_back(group, input, 1, acked)?;
    ensure!(result == Comparison { read: acked, lost: 0, duplicated: 0 }, "records 1 to {acked}: {result:?}");
    Ok(())
}
