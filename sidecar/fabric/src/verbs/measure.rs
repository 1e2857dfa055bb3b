//! What the preflight measures: whether a device really writes and reads, how fast, and how soon the loss of the peer is noticed.
//!
//! Called by `tailwind-sidecar doctor`. Everything goes through the two halves of this fabric,
//! as records do.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Tuning;
use super::reading::VerbsReader;
use super::receiver::VerbsReceiver;
use super::select::SelectedPort;
use super::sender::VerbsSender;
use crate::buffer::SharedBuffer;
use crate::contract::{Channel, Receiver, RemoteBuffer, Sender};
use crate::error::{ChannelError, FabricError, ReadError};
use crate::message::{ChannelAnswer, Endpoint, ReaderId, SlotId, Writer};
use crate::pool::Pool;
use crate::reading::{ReadChannel, Readable, Reader, Sharer};

/// Writes that are timed.
const WRITES: usize = 1000;
/// Lendings that are timed.
const LENDINGS: usize = 8;
/// Bytes of a timed write: a small record with its header and checksum.
const WRITE_SIZE: u32 = 128;
/// Times that a whole slot is read.
const READS: usize = 8;
/// Bytes of a read: as many as a backup asks for that copies a segment from another one.
const READ_SIZE: u32 = 1 << 20;
/// Reads on their way.
const READS_ON_WAY: u32 = 2;
/// Within this time everything has happened, or something is wrong.
const DEADLINE: Duration = Duration::from_secs(10);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// What was measured.
#[derive(Debug)]
pub struct Measurements {
    /// Zeroed memory of one slot, registered and its key made: the median.
    pub lending: Duration,
    /// The same slot's deregistration: the median.
    pub ending: Duration,
    /// From the post of a small write to its completion, one at a time, looped back by the device: the median.
    pub write: Duration,
    /// From the post of the first read to the last byte of a whole slot: the median. Or why the device does not read what it
    /// has written.
    pub read: Result<Duration, FabricError>,
    /// Time from the post of an unanswered write to the error.
    pub black_hole: Duration,
    /// Bytes that the device takes with a work request itself.
    pub inline_max: u32,
    /// `ibv_query_qp_data_in_order(3)`.
    pub in_order: bool,
}

/// Lends slots of `pool`, writes to one of them through the device, reads it, and writes into nothing. The pool's first slot is
/// lost.
pub fn measure(pool: &Arc<Pool>, selected: &SelectedPort, tuning: Tuning) -> Result<Measurements, FabricError> {
    let mut receiver = VerbsReceiver::open(Arc::clone(pool), selected, tuning)?;
    let sender = VerbsSender::open(selected, tuning)?;
    let (mut lendings, mut endings) = (Vec::new(), Vec::new());
    for _ in 0..LENDINGS {
        let start = Instant::now();
        receiver.lend(Writer(1), SlotId(0))?;
        lendings.push(start.elapsed());
        let start = Instant::now();
        receiver.end_lending(SlotId(0));
        endings.push(start.elapsed());
    }
    let remote = sender.attach(&receiver.lend(Writer(1), SlotId(0))?)?;
    let (mut fresh, local) = sender.allocate(WRITE_SIZE)?;
    fresh.tail_mut().fill(0xa5);
    fresh.publish(WRITE_SIZE);

    let opening = sender.begin()?;
    let answer = receiver.accept(Writer(1), &opening.offer())?.complete()?;
    let mut channel = opening.connect(&answer, LOOPBACK)?;
    let mut writes = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        writes.push(time(&mut *channel, &remote, &local).map_err(failed("write through the device to itself"))?);
    }
    let read = VerbsReader::open(selected, tuning).and_then(|reader| read(&mut receiver, &reader, local.published()));
    let ChannelAnswer::Verbs { endpoint, in_order } = answer else { unreachable!("this receiver answers for verbs") };

    // A number that the device has not given out lately: packets for it are dropped.
    let unused = Endpoint { queue_pair: (endpoint.queue_pair + 0x10_0000) & 0x00ff_ffff, ..endpoint };
    let mut lost = sender.begin()?.connect(&ChannelAnswer::Verbs { endpoint: unused, in_order }, LOOPBACK)?;
    let start = Instant::now();
    let black_hole = match time(&mut *lost, &remote, &local) {
        Err(Some(_)) => start.elapsed(),
        Ok(_) => return Err(failed::<ChannelError>("write to an unused queue pair")(None)),
        Err(None) => return Err(failed::<ChannelError>("see a write to an unused queue pair fail")(None)),
    };
    receiver.revoke_below(Writer(2))?;
    let inline_max = sender.inline_max()?;
    let (lending, ending, write) = (median(lendings), median(endings), median(writes));
    Ok(Measurements { lending, ending, write, read, black_hole, inline_max, in_order })
}

/// The time that reading the whole first slot takes, which begins with `written`.
fn read(receiver: &mut VerbsReceiver, reader: &VerbsReader, written: &[u8]) -> Result<Duration, FabricError> {
    let opening = reader.begin(READS_ON_WAY * READ_SIZE)?;
    let answer = receiver.admit(ReaderId(1), &opening.offer())?.complete()?;
    let mut channel = opening.connect(&answer, LOOPBACK)?;
    let share = receiver.share(SlotId(0))?.expect("its memory was lent");
    let readable = reader.attach(&share)?;
    let action = "read through the device from itself";
    read_bytes(&mut *channel, &readable, written.len() as u32).map_err(failed(action))?;
    if channel.landed(0..written.len() as u32) != written {
        return Err(failed(action)(Some("it is not what was written")));
    }
    let mut reads = Vec::with_capacity(READS);
    for _ in 0..READS {
        reads.push(read_bytes(&mut *channel, &readable, readable.len()).map_err(failed(action))?);
    }
    Ok(median(reads))
}

/// From the post of the first read to the completion of the last one; `None` for a completion that never comes.
fn read_bytes(channel: &mut dyn ReadChannel, from: &Readable, length: u32) -> Result<Duration, Option<ReadError>> {
    let start = Instant::now();
    let (mut posted, mut completed) = (0, 0);
    while completed < length.div_ceil(READ_SIZE) {
        let at = posted * READ_SIZE;
        if at < length && posted < completed + READS_ON_WAY {
            channel.read(from, at..length.min(at + READ_SIZE), posted % READS_ON_WAY * READ_SIZE).map_err(Some)?;
            posted += 1;
        }
        completed += channel.poll().map_err(Some)?;
        if start.elapsed() > DEADLINE {
            return Err(None);
        }
        std::hint::spin_loop();
    }
    Ok(start.elapsed())
}

/// From the post to the completion; `None` for an error that never comes.
fn time(
    channel: &mut dyn Channel,
    remote: &RemoteBuffer,
    local: &SharedBuffer,
) -> Result<Duration, Option<ChannelError>> {
    let start = Instant::now();
    channel.post(remote, local, 0..WRITE_SIZE).map_err(Some)?;
    while channel.poll().map_err(Some)? == 0 {
        if start.elapsed() > DEADLINE {
            return Err(None);
        }
        std::hint::spin_loop();
    }
    Ok(start.elapsed())
}

fn failed<E: Display>(action: &'static str) -> impl FnOnce(Option<E>) -> FabricError {
    move |error| {
        let why = error.map_or_else(|| format!("nothing happened within {DEADLINE:?}"), |error| error.to_string());
        FabricError::io(action)(std::io::Error::other(why))
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
