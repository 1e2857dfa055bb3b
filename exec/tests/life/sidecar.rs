//! A sidecar that keeps its log in memory and does what a test tells it: it takes appends, and stops to.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use tailwind_protocol::socket::{
    Batch, ErrorCode, FRAME_BODY_MAX, Request, Response, Role, VERSION, Welcome, decode_request, put_batch_record,
};

/// The epoch that it leads until it loses it.
const EPOCH: u64 = 3;

static LOGS: AtomicU64 = AtomicU64::new(1);

/// It listens as long as the test's process lives.
pub(crate) struct Sidecar {
    socket: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
}

struct State {
    log: Vec<Vec<u8>>,
    /// The first record that a follow gets.
    first: u64,
    epoch: u64,
    /// The upper half is the log's.
    history: u64,
    role: Role,
    /// Appends go into the log, and are not acknowledged.
    acks_held: bool,
    /// Barriers are taken, and not answered.
    barriers_held: bool,
    barriers: u64,
    turn: Option<Instant>,
    /// The connections that are told of changes of the role.
    connections: Vec<UnixStream>,
}

impl Sidecar {
    /// One that is primary.
    pub(crate) fn start(folder: &Path) -> Sidecar {
        let socket = folder.join("append.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let state = State {
            log: Vec::new(),
            first: 1,
            epoch: EPOCH,
            history: (LOGS.fetch_add(1, Ordering::Relaxed) << 32) | 1,
            role: Role::Primary,
            acks_held: false,
            barriers_held: false,
            barriers: 0,
            turn: None,
            connections: Vec::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state) });
        let accepting = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.unwrap(), accepting.clone());
                shared.lock().connections.push(stream.try_clone().unwrap());
                thread::spawn(move || shared.serve(stream));
            }
        });
        Sidecar { socket, shared }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The records of the log, also those that were trimmed.
    pub(crate) fn log(&self) -> Vec<Vec<u8>> {
        self.shared.lock().log.clone()
    }

    /// Somebody else appends a record.
    pub(crate) fn append_of_another(&self) {
        self.shared.lock().log.push(b"foreign".to_vec());
    }

    /// Appends are not acknowledged any more.
    pub(crate) fn hold_acks(&self) {
        self.shared.lock().acks_held = true;
    }

    /// Barriers do not pass any more: the sidecar is cut off from its backups, and does not know yet what that means.
    pub(crate) fn hold_barriers(&self) {
        self.shared.lock().barriers_held = true;
    }

    /// Barriers that have passed.
    pub(crate) fn barriers(&self) -> u64 {
        self.shared.lock().barriers
    }

    /// When the turn was given.
    pub(crate) fn turn(&self) -> Option<Instant> {
        self.shared.lock().turn
    }

    /// Another sidecar leads the next epoch.
    pub(crate) fn lose_role(&self) {
        let mut state = self.shared.lock();
        (state.role, state.epoch) = (Role::Standby, EPOCH + 1);
        let role = Response::Role { role: Role::Standby, epoch: EPOCH + 1, last: 0, primary: "other" };
        for mut stream in state.connections.drain(..) {
            // A client that has gone needs no news.
            let _ = send(&mut stream, 0, &role);
        }
    }

    /// The role was another's for a while, and is this sidecar's again. Nobody tells the connections.
    pub(crate) fn lead_later_epoch(&self) {
        self.shared.lock().epoch += 2;
    }

    /// Ends all connections, as the death of the process does.
    pub(crate) fn hang_up(&self) {
        for stream in self.shared.lock().connections.drain(..) {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn serve(&self, mut stream: UnixStream) {
        let mut bytes = Vec::new();
        let mut chunk = [0; 64 << 10];
        while let Ok(size @ 1..) = stream.read(&mut chunk) {
            bytes.extend_from_slice(&chunk[..size]);
            let mut start = 0;
            while let Some(decoded) = decode_request(&bytes[start..], VERSION, FRAME_BODY_MAX).unwrap() {
                start += decoded.size;
                if self.answer(&mut stream, decoded.request, &decoded.frame).is_err() {
                    return;
                }
            }
            bytes.drain(..start);
        }
    }

    fn answer(&self, stream: &mut UnixStream, request: u64, frame: &Request<'_>) -> std::io::Result<()> {
        let mut state = self.lock();
        let last = state.log.len() as u64;
        let refusal = Response::Error {
            code: ErrorCode::NotPrimary,
            fatal: false,
            retry_after_ms: 0,
            message: "another sidecar is primary",
        };
        match frame {
            Request::Hello { .. } => {
                let welcome = Welcome {
                    version: VERSION,
                    role: state.role,
                    ring: false,
                    table: false,
                    record_size_max: 1 << 20,
                    batch_size_max: 4 << 20,
                    batch_records_max: 65_536,
                    inflight_max: 8192,
                    record_cost: 32,
                    batch_cost: 8,
                    epoch: state.epoch,
                    first: state.first,
                    last,
                    primary: "this",
                };
                send(stream, request, &Response::Welcome(welcome))
            }
            Request::Follow { from, .. } => {
                send(stream, request, &Response::History { history: state.history })?;
                for lsn in (*from).max(state.first)..=last {
                    let mut bytes = Vec::new();
                    put_batch_record(&mut bytes, &state.log[lsn as usize - 1]);
                    send(stream, request, &Response::Records { first: lsn, records: Batch::new(1, &bytes).unwrap() })?;
                }
                if state.role != Role::Primary {
                    return send(stream, request, &Response::End { next: last + 1, tailing: true });
                }
                state.turn.get_or_insert_with(Instant::now);
                send(stream, request, &Response::Turn { epoch: state.epoch, next: last + 1 })
            }
            Request::Append { .. } | Request::Batch(_) | Request::Barrier if state.role != Role::Primary => {
                send(stream, request, &refusal)
            }
            Request::Append { payload } => {
                state.log.push(payload.to_vec());
                self.acknowledge(stream, request, &state)
            }
            Request::Batch(batch) => {
                state.log.extend(batch.iter().map(<[u8]>::to_vec));
                self.acknowledge(stream, request, &state)
            }
            Request::Barrier if state.barriers_held => Ok(()),
            Request::Barrier => {
                state.barriers += 1;
                send(stream, request, &Response::BarrierPassed { epoch: state.epoch, last })
            }
            // A follow is left before its connection.
            Request::Stop => Ok(()),
            Request::Trim { below } => {
                state.first = state.first.max(*below);
                send(stream, request, &Response::Trimmed { first: state.first })
            }
            other => panic!("nothing for this sidecar: {other:?}"),
        }
    }

    fn acknowledge(&self, stream: &mut UnixStream, request: u64, state: &State) -> std::io::Result<()> {
        if state.acks_held {
            return Ok(());
        }
        send(stream, request, &Response::Ack { lsn: state.log.len() as u64 })
    }
}

fn send(stream: &mut UnixStream, request: u64, frame: &Response<'_>) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    frame.encode(request, &mut bytes);
    stream.write_all(&bytes)
}
