//! Hundreds of connections to every port that send nothing, and are opened again as soon as the other end closes them.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections to each port: more than an endpoint has places for authorized and other callers together.
const PER_PORT: usize = 400;
/// How often closed connections are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Closed when dropped.
pub(crate) struct SilentConnections {
    closing: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl SilentConnections {
    /// Returns once they are open.
    pub(crate) fn open(ports: impl Iterator<Item = u16>) -> SilentConnections {
        // This end of each connection is an open file, too.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
        let closing = Arc::new(AtomicBool::new(false));
        let start = |port| {
            let closing = Arc::clone(&closing);
            let mut all: Vec<Option<TcpStream>> = (0..PER_PORT).map(|_| connect(port)).collect();
            std::thread::spawn(move || {
                while !closing.load(Ordering::Acquire) {
                    for stream in &mut all {
                        if stream.as_mut().is_none_or(has_ended) {
                            *stream = connect(port);
                        }
                    }
                    std::thread::sleep(POLL_INTERVAL);
                }
            })
        };
        SilentConnections { threads: ports.map(start).collect(), closing }
    }
}

impl Drop for SilentConnections {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// `None` if the port's process is dead.
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
