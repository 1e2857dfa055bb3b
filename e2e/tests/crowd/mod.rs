//! A crowd: hundreds of connections to every port that say nothing, and that come again as soon as they are sent away.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections to each port: more than an endpoint has places for guests and strangers together.
const EACH: usize = 400;
/// How often the crowd looks who of it was sent away.
const PACE: Duration = Duration::from_millis(20);

/// Dispersed when told to.
pub(crate) struct Crowd {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// Returns once it is there.
    pub(crate) fn gather(ports: &[u16]) -> Crowd {
        // Its own ends of the connections are files, too.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let start = |port: &u16| {
            let (port, over) = (*port, Arc::clone(&over));
            let mut all: Vec<Option<TcpStream>> = (0..EACH).map(|_| connect(port)).collect();
            std::thread::spawn(move || {
                while !over.load(Ordering::Acquire) {
                    for stream in &mut all {
                        if stream.as_mut().is_none_or(has_ended) {
                            *stream = connect(port);
                        }
                    }
                    std::thread::sleep(PACE);
                }
            })
        };
        Crowd { threads: ports.iter().map(start).collect(), over }
    }

    pub(crate) fn disperse(self) {
        self.over.store(true, Ordering::Release);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Nothing if nobody listens: the port's process is dead.
fn connect(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

fn has_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}
