//! Sleeping on everything at once: clients, the listener, data channels, and control.
//!
//! Used by [`AppendLoop`](super::AppendLoop) when there is nothing to do.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

/// Wakes the path. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// An eventfd.
    pub fn new() -> io::Result<Waker> {
        Ok(Waker(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Ends the path's sleep, or its next one.
    pub fn wake(&self) {
        // A full counter means that it is readable already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// What became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Listener,
    Client(usize),
    /// A channel or the waker: the next turn looks at them anyway.
    Other,
}

const LISTENER: u64 = u64::MAX;
const WAKER: u64 = u64::MAX - 1;
const CHANNEL: u64 = u64::MAX - 2;

/// Events taken from the kernel at once.
pub(super) const EVENTS: usize = 32;

pub(super) struct Sleeper {
    epoll: OwnedFd,
    waker: Waker,
}

impl Sleeper {
    pub(super) fn new(waker: &Waker, listener: &UnixListener) -> io::Result<Sleeper> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*waker.0, epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        let sleeper = Sleeper { epoll, waker: waker.clone() };
        sleeper.watch_listener(listener)?;
        Ok(sleeper)
    }

    pub(super) fn watch_listener(&self, listener: &UnixListener) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?)
    }

    pub(super) fn watch_client(&self, fd: BorrowedFd<'_>, slot: usize) -> io::Result<()> {
        // Edge-triggered: a client that is not read from for want of room would end every sleep at once. It stays busy meanwhile, so
        // that every turn looks at it; and one falls idle only after a read has found its socket empty.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(slot as u64), flags)?)
    }

    /// A closed channel leaves the set by itself. `room`: its socket is watched for room as well.
    pub(super) fn watch_channel(&self, fd: BorrowedFd<'_>, room: bool) {
        let mut flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if room {
            // Edge-triggered: a socket with room would end every sleep at once. Nothing is missed, since a turn polls every channel
            // between two sleeps, and one that finds its socket full is told of room.
            flags |= epoll::EventFlags::OUT | epoll::EventFlags::ET;
        }
        if let Err(error) = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(CHANNEL), flags) {
            // The tick still polls it, only later.
            tracing::warn!(%error, "failed to watch a data channel");
        }
    }

    pub(super) fn forget(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd.as_fd());
    }

    /// Sleeps until something is ready, or for `longest`; puts what is ready into `ready`.
    pub(super) fn sleep(&mut self, longest: Duration, ready: &mut Vec<Token>) -> io::Result<()> {
        ready.clear();
        let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        let mut space = [const { MaybeUninit::uninit() }; EVENTS];
        let events = match epoll::wait(&self.epoll, &mut space[..], Some(&longest)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for event in events {
            ready.push(match event.data.u64() {
                LISTENER => Token::Listener,
                WAKER => {
                    let _ = rustix::io::read(&*self.waker.0, &mut [0_u8; 8]);
                    Token::Other
                }
                CHANNEL => Token::Other,
                slot => Token::Client(slot as usize),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use rustix::net::sockopt;
    use tailwind_fabric::tcp::TcpSender;
    use tailwind_fabric::{Grant, Sender};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SIZE: u32 = 8 << 20;

    /// Otherwise each part would wait for the next tick. The receiver acknowledges the whole write alone.
    #[test]
    fn room_for_what_is_unsent_ends_a_sleep() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let receiver = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 42]).unwrap();
            stream.write_all(&[0; 8]).unwrap();
            let mut write = vec![0; 24 + SIZE as usize];
            stream.read_exact(&mut write).unwrap();
            stream.write_all(&1_u64.to_le_bytes()).unwrap();
            // Until the sender is gone.
            let _ = stream.read(&mut [0]);
        });
        let answer = serde_json::json!({"fabric": "tcp", "address": address, "secret": "0".repeat(32)});
        let answer = serde_json::from_value(answer).unwrap();
        let sender = TcpSender::default();
        let mut channel = sender.begin().unwrap().connect(&answer, address.ip()).unwrap();
        sockopt::set_socket_send_buffer_size(channel.readiness().unwrap(), 16 << 10).unwrap();

        let dir = tempfile::tempdir().unwrap();
        let clients = UnixListener::bind(dir.path().join("socket")).unwrap();
        let mut sleeper = Sleeper::new(&Waker::new().unwrap(), &clients).unwrap();
        sleeper.watch_channel(channel.readiness().unwrap(), channel.waits_for_room());

        let remote = sender.attach(&Grant::Tcp { key: 1, length: SIZE }).unwrap();
        let (mut writer, local) = sender.allocate(SIZE).unwrap();
        writer.publish(SIZE);
        channel.post(&remote, &local, 0..SIZE).unwrap();
        let mut ready = Vec::new();
        while channel.poll().unwrap() == 0 {
            assert!(!channel.arm());
            sleeper.sleep(LONG, &mut ready).unwrap();
            assert!(!ready.is_empty(), "nothing has ended the sleep");
        }
        drop(channel);
        receiver.join().unwrap();
    }
}
