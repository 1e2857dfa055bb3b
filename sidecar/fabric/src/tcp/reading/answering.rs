//! One thread for each read channel: takes requests from the socket and answers them with bytes of shared slots.
//!
//! Started by [`shares`](super::shares) when the acceptor has received a reader's secret. Plain blocking calls, as in
//! [`connection_reader`](crate::tcp::connection_reader): a reader that stops keeps this thread and no other.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use super::shares::{SharedSlot, Shares};
use crate::reading::READS_MAX;
use crate::tcp::PIECE_SIZE;
use crate::tcp::wire::{ANSWER_SIZE, HEADER_SIZE, Header, READY, answer};

/// Serves a connection that has presented a reader's secret, until either side ends it or the reader breaks a rule.
pub(super) fn serve(shares: &Shares, stream: &TcpStream) {
    // Every failure has the same result: a closed connection. The reader knows why, or must not know.
    let _ = answer_requests(shares, stream);
    let _ = stream.shutdown(Shutdown::Both);
}

fn answer_requests(shares: &Shares, mut stream: &TcpStream) -> io::Result<()> {
    stream.write_all(&READY)?;
    let mut requests = BufReader::with_capacity(READS_MAX * HEADER_SIZE, stream);
    let mut buffer = vec![0; ANSWER_SIZE + PIECE_SIZE];
    let mut header = [0; HEADER_SIZE];
    // The share of the last request: the next one nearly always names the same.
    let mut last: Option<Arc<SharedSlot>> = None;
    for sequence in (1..=u32::MAX).cycle() {
        requests.read_exact(&mut header)?;
        let request = Header::decode(&header).filter(|request| request.sequence == sequence);
        let request = request.ok_or(io::ErrorKind::InvalidData)?;
        let share = last.take().filter(|share| share.key() == request.key).or_else(|| shares.find(request.key));
        let share = share.filter(|share| share.holds(request.offset, request.length));
        let share = last.insert(share.ok_or(io::ErrorKind::InvalidData)?);
        send(share, &request, stream, &mut buffer)?;
    }
    Ok(())
}

/// Sends what a request asks for, piece by piece: the lock of the share is never held while the network is waited for.
fn send(share: &SharedSlot, request: &Header, mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    buffer[..ANSWER_SIZE].copy_from_slice(&answer(request.sequence, request.length));
    let (mut offset, end) = (request.offset, request.offset + request.length);
    let mut from = ANSWER_SIZE;
    while offset < end {
        let count = ((end - offset) as usize).min(buffer.len() - from);
        if !share.read(offset, &mut buffer[from..from + count]) {
            return Err(io::ErrorKind::NotFound.into());
        }
        stream.write_all(&buffer[..from + count])?;
        offset += count as u32;
        from = 0;
    }
    Ok(())
}
