//! `tailwind-sidecar run`: wires a sidecar together and watches over its parts.
//!
//! Called by `main`. Starts the append path on its own thread, the roles and the endpoints on tokio; the process ends if
//! any of them does.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::de::DeserializeOwned;
use tailwind_fabric::explain_bus_errors;
use tailwind_protocol::config::PrimaryRef;
use tailwind_protocol::layout::readable_size;
use tailwind_protocol::rpc::HEARTBEAT;
use tailwind_protocol::rpc::path::{POSITION, TERM};
use tailwind_protocol::rpc::{Empty, PositionReply, PositionRequest, Refusal, TermId, TermRequest};
use tailwind_protocol::socket::Role;
use tailwind_report::peer::{self, PeerNote};
use tailwind_report::report;
use tailwind_report::sidecar::SidecarReport;
use tailwind_report::{ROLE_PRIMARY, ROLE_READER, ROLE_STANDBY};
use tailwind_runtime::http::Server;
use tailwind_runtime::process::Signals;
use tailwind_runtime::{ensure_usage, usage};
use tokio::sync::watch;

use crate::access::Access;
use crate::control::contacts::Contacts;
use crate::control::desired::{DesiredState, READS_DISABLED};
use crate::control::follows::Follows;
use crate::control::log::LogView;
use crate::control::peers::Peers;
use crate::control::position::{self, PrimaryClient};
use crate::control::rates::Rates;
use crate::control::refusals::Refusals;
use crate::control::tenure::Tenure;
use crate::control::times::PromotionTimes;
use crate::control::waits::Waits;
use crate::control::{self, AppendLoopHandle, Context, Rules, status};
use crate::http::{self, Rights};
use crate::kubernetes;
use crate::options::{AllowedUid, BackupAddress, RunOptions, own_name, writable};
use crate::path::{
    Allowed, AppendLoop, COMMANDS_MAX, Command, Counters, Options as AppendLoopOptions, Waker, control_channels,
};
use crate::store::file::FileStore;
use crate::store::{Joined, Shape, Store};
use crate::thread::spawn_owned;
use crate::tls::PeerRole;

/// Longest path of a Unix socket: `sun_path` of unix(7), less the final zero.
const SOCKET_PATH_MAX: usize = 107;
/// What readers may ask a sidecar for, beside what anybody may.
const RIGHTS: Rights = Rights { readers: &[POSITION, peer::PATH], backups: &[] };
/// Instead of a page, while nobody turns the append path.
const HANGS: &str = "the append path hangs\n";

/// Runs a sidecar until it is told to end.
pub async fn run(options: RunOptions) -> anyhow::Result<()> {
    let group = options.group().clone();
    let RunOptions {
        replica_group,
        group: _,
        name,
        reader,
        socket,
        listen,
        advertise,
        port_file,
        metrics_listen,
        primary_service,
        config,
        backup,
        backups,
        min_in_sync,
        accept_loss,
        recover_from_disk,
        durability,
        segment_size,
        fabric,
        rdma,
        allow_uid,
        batch_memory,
        rings,
        client_timeout_ms,
        heartbeat_interval_ms,
        heartbeat_silence_ms,
        app_wait_ms,
        fence_wait_ms,
        open_timeout_ms,
        rpc_timeout_ms,
        spin_us,
        tls,
        token,
        log: _,
    } = options;
    let name = own_name(name)?;
    ensure_usage!(
        heartbeat_silence_ms > heartbeat_interval_ms.saturating_mul(2),
        "--heartbeat-silence-ms {heartbeat_silence_ms}: must be more than twice --heartbeat-interval-ms ({heartbeat_interval_ms})"
    );
    // A reader finds the members in the config store.
    if replica_group.is_none() && !reader {
        check_backups(&backup, backups, min_in_sync)?;
    }

    // From here on a request to end is no failure, however long a disk delays the start.
    let mut signals = Signals::new().context("install signal handlers")?;
    let role = if reader { PeerRole::Reader } else { PeerRole::Sidecar };
    let (access, reload) = Access::load(&tls, &token, &group, role)?;
    let Joined { store, shape, desired, watch_task } = match &replica_group {
        Some(path) => kubernetes::join(path).await?,
        None => {
            let is_given = config.is_some();
            let config = config.unwrap_or_else(|| PathBuf::from(format!("/var/lib/tailwind/{group}/config.json")));
            let min_in_sync = min_in_sync.unwrap_or(backups.div_ceil(2));
            let backups_known = backup.into_iter().map(|backup| (backup.name, backup.control)).collect();
            let file = if reader { FileStore::read_only(&config) } else { FileStore::new(&config) };
            let file = writable(file, is_given, "--config FILE")?;
            fixed(
                Store::File(file),
                Shape { durability, segment_size, fabric },
                DesiredState {
                    members: backups,
                    min_in_sync,
                    backups: backups_known,
                    fenced: false,
                    may_read: true,
                    accept_loss,
                    recover_from_disk,
                    switchover: None,
                },
            )
        }
    };
    let Shape { durability, segment_size, fabric } = shape;
    let batch_memory_min = AppendLoopOptions::batch_memory_min(segment_size) as u64;
    ensure_usage!(
        batch_memory >= batch_memory_min,
        "--batch-memory {}: must be at least {batch_memory_min} bytes, which the largest batch takes with segments of {segment_size}",
        readable_size(batch_memory)
    );
    let client_timeout = Duration::from_millis(client_timeout_ms);
    let is_given = socket.is_some();
    let socket = socket.unwrap_or_else(|| PathBuf::from(format!("/run/tailwind/{group}.sock")));
    let allowed = AllowedUid::all(&allow_uid);
    let (listener, bound) = writable(listen_on_socket(&socket, &allowed), is_given, "--socket PATH")?;
    explain_bus_errors("the folders that backups have their buffers in (--pool)")
        .context("install a signal handler")?;

    let endpoint = http::listen(listen, &access).await?;
    let address = endpoint.local_addr().context("read the control address")?;
    if let Some(port_file) = &port_file {
        crate::options::write_port_file(port_file, address)?;
    }
    let control = advertise.control(address);
    let Some(control) = control else {
        usage!(
            "--listen {address}: others cannot connect to that; say where they reach this sidecar with --advertise-ip"
        );
    };
    let fabric = crate::fabric::sidecar(fabric, &rdma, advertise.own_ip(address))?;
    let waker = Waker::new().context("create the append path's waker")?;
    let (commands, inbox) = std::sync::mpsc::sync_channel(COMMANDS_MAX);
    let (to_control, from_path) = control_channels();
    let shared = Arc::new(Counters::default());
    let batch_memory = usize::try_from(batch_memory).unwrap_or(usize::MAX);
    let spin = Duration::from_micros(spin_us);
    let path_options =
        AppendLoopOptions { allowed, segment_size, batch_memory, client_timeout, rings_max: rings, spin };
    let path =
        AppendLoop::new(path_options, name.to_string(), listener, inbox, to_control, Arc::clone(&shared), &waker)
            .context("set up the append path")?;
    let me = PrimaryRef { id: name.clone(), control };
    let (seen, configuration) = watch::channel(None);
    let watch_store = control::configuration::watch(store.clone(), seen);
    let primary_address = primary_service.filter(|_| !reader).and_then(|service| store.primary_address(service, &me));
    let context = Arc::new(Context {
        me,
        primary_address,
        store,
        sender: fabric.sender,
        reader: fabric.reader,
        access: access.clone(),
        desired,
        configuration,
        primary: PrimaryClient::default(),
        rules: Rules {
            durability,
            segment_size,
            heartbeat_silence: Duration::from_millis(heartbeat_silence_ms),
            app_wait: Duration::from_millis(app_wait_ms),
            fence_wait: Duration::from_millis(fence_wait_ms),
            open_timeout: Duration::from_millis(open_timeout_ms),
            rpc_timeout: Duration::from_millis(rpc_timeout_ms),
            client_timeout,
            reader,
        },
        path: AppendLoopHandle::new(commands, waker),
        shared,
        log: LogView::default(),
        follows: Follows::new().context("draw a random number")?,
        waits: Waits::default(),
        refusals: Refusals::default(),
        contacts: Contacts::default(),
        peers: Peers::default(),
        rates: Rates::default(),
        tenure: Tenure::default(),
        times: PromotionTimes::default(),
        group: group.clone(),
    });
    if reader {
        // Before any client is answered.
        context.path.send(Command::Wait { role: Role::Reader, epoch: 0, primary: String::new() });
    }
    tracing::info!(control = %address, socket = %socket.display(), "sidecar started");

    let mut path_end = spawn_owned("append-path", move || path.run())?;
    let interval = Duration::from_millis(heartbeat_interval_ms);
    let control_server = http::server(router(&context, interval), &access, RIGHTS);
    let guarded = control_server.serve(endpoint, std::future::pending());
    let open = serve_metrics(metrics_listen, Arc::clone(&context));
    let roles = control::run(Arc::clone(&context), from_path);
    let result = tokio::select! {
        result = roles => result,
        () = guarded => Err(anyhow::anyhow!("the control endpoint has ended")),
        result = open => result,
        Err(error) = reload => Err(error).context("reload certificates or token"),
        never = watch_store => match never {},
        _ = watch_task => Err(anyhow::anyhow!("the watch of the ReplicaGroup has ended")),
        end = &mut path_end => match end {
            Ok(Err(error)) => Err(error).context("run the append path"),
            _ => Err(anyhow::anyhow!("the append path has ended")),
        },
        signal = signals.next() => {
            tracing::info!(signal, "ending");
            context.path.send(Command::End);
            // Clients hear of it before the process goes.
            let _ = tokio::time::timeout(Duration::from_secs(1), path_end).await;
            Ok(())
        }
    };
    bound.remove();
    result
}

/// A group whose options are all that it wants.
fn fixed(store: Store, shape: Shape, desired: DesiredState) -> Joined {
    let (told, desired) = watch::channel(desired);
    // No change arrives; the channel stays open while there is a listener.
    Joined { store, shape, desired, watch_task: tokio::spawn(async move { told.closed().await }) }
}

fn check_backups(listed: &[BackupAddress], backups: u8, min_in_sync: Option<u8>) -> anyhow::Result<()> {
    let min_in_sync = min_in_sync.unwrap_or(backups.div_ceil(2));
    ensure_usage!(min_in_sync <= backups, "--min-in-sync {min_in_sync}: must be 1 to --backups ({backups})");
    ensure_usage!(
        listed.len() >= usize::from(min_in_sync),
        "{} backups are listed (--backup NAME=HOST:PORT), but --min-in-sync needs {min_in_sync}",
        listed.len()
    );
    let mut names: Vec<_> = listed.iter().map(|backup| &backup.name).collect();
    names.sort_unstable();
    names.dedup();
    ensure_usage!(
        names.len() == listed.len(),
        "two backups have the same name (--backup NAME=HOST:PORT): names are unique in a group"
    );
    Ok(())
}

/// Binds the append socket: mode 0660, or 0666 where other users are allowed, which are then checked by their number. A socket
/// file without a listener is left over from a dead process.
fn listen_on_socket(path: &Path, allowed: &Allowed) -> anyhow::Result<(UnixListener, BoundSocket)> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_MAX {
        usage!(
            "socket path {} has {length} bytes: the limit is {SOCKET_PATH_MAX}; choose a shorter --socket",
            path.display()
        );
    }
    if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        usage!(
            "--socket {} is a folder: give the path of a socket in it, such as {}",
            path.display(),
            path.join("append.sock").display()
        );
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).with_context(|| format!("create folder {}", folder.display()))?;
    }
    if UnixStream::connect(path).is_ok() {
        bail!("socket {} is in use by another process: stop it, or choose another --socket", path.display());
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
            bail!("{} exists and is not a socket: choose another --socket, or move that file away", path.display());
        }
        Ok(_) => std::fs::remove_file(path).with_context(|| format!("remove the stale socket {}", path.display()))?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("bind socket {}", path.display()))?;
    let mode = if *allowed == Allowed::Own { 0o660 } else { 0o666 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .with_context(|| format!("set the mode of socket {}", path.display()))?;
    listener.set_nonblocking(true).context("make the socket non-blocking")?;
    let bound = BoundSocket::at(path).with_context(|| format!("look at socket {}", path.display()))?;
    Ok((listener, bound))
}

/// The name that the append socket was bound to, and what it stood for then.
struct BoundSocket {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl BoundSocket {
    fn at(path: &Path) -> std::io::Result<BoundSocket> {
        Ok(BoundSocket { path: path.to_owned(), file: BoundSocket::file(path)? })
    }

    fn file(path: &Path) -> std::io::Result<(u64, u64)> {
        let found = std::fs::symlink_metadata(path)?;
        Ok((found.dev(), found.ino()))
    }

    /// Takes the name away, unless another process has bound it since.
    fn remove(self) {
        if BoundSocket::file(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

async fn serve_metrics(address: Option<std::net::SocketAddr>, context: Arc<Context>) -> anyhow::Result<()> {
    let Some(address) = address else { return std::future::pending().await };
    let listener = tailwind_runtime::http::listen(address).await?;
    Server::new(probes(&context)).serve(listener, std::future::pending()).await;
    bail!("the metrics endpoint has ended")
}

fn router(context: &Arc<Context>, interval: Duration) -> Router {
    let heartbeats = post(move |State(context): State<Arc<Context>>, body: Bytes| async move {
        let asked: TermRequest = parse(&body).map_err(refuse)?;
        context.tenure.check(&context, &asked).map_err(refuse)?;
        Ok::<_, Response>(heartbeats(context, asked.term, interval))
    });
    Router::new()
        .route(TERM, heartbeats)
        .route(POSITION, post(answer_position))
        .route(peer::PATH, post(take_note))
        .route("/status", get(status_page))
        .with_state(Arc::clone(context))
        .merge(probes(context))
}

fn probes(context: &Arc<Context>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .route(report::PATH, get(report_page))
        .with_state(Arc::clone(context))
}

/// A newline every interval, for as long as the append path turns: a primary that hangs falls silent. They end with the term.
fn heartbeats(context: Arc<Context>, term: TermId, interval: Duration) -> axum::body::Body {
    let beats = futures_util::stream::unfold((context, u64::MAX), move |(context, seen)| async move {
        loop {
            tokio::time::sleep(interval).await;
            if !context.tenure.is_of(term) {
                return None;
            }
            let turns = context.shared.turns.load(std::sync::atomic::Ordering::Relaxed);
            if turns != seen {
                return Some((
                    Ok::<_, std::convert::Infallible>(bytes::Bytes::from_static(HEARTBEAT)),
                    (context, turns),
                ));
            }
        }
    });
    axum::body::Body::from_stream(beats)
}

async fn answer_position(State(context): State<Arc<Context>>, body: Bytes) -> Result<Json<PositionReply>, Response> {
    let request: PositionRequest = parse(&body).map_err(refuse)?;
    position::answer(&context, &request).await.map(Json).map_err(refuse)
}

async fn take_note(
    State(context): State<Arc<Context>>,
    caller: Option<Extension<PeerRole>>,
    body: Bytes,
) -> Result<Json<Empty>, Response> {
    let note: PeerNote = parse(&body).map_err(refuse)?;
    let reads_only = caller.is_some_and(|Extension(role)| role == PeerRole::Reader);
    context.peers.hear(note, context.group.as_str(), reads_only).map(|()| Json(Empty {})).map_err(refuse)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::BadRequest { why: error.to_string() })
}

fn refuse(refusal: Refusal) -> Response {
    let code = StatusCode::from_u16(refusal.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, Json(refusal)).into_response()
}

async fn healthz(State(context): State<Arc<Context>>) -> impl IntoResponse {
    match status::describe(&context).await {
        Some(_) => (StatusCode::OK, "ok\n"),
        None => (StatusCode::SERVICE_UNAVAILABLE, HANGS),
    }
}

/// Ready: an app that connects now is served, by a primary or, where it waits, by a standby that knows its primary. A primary
/// whose appends wait is ready as well: its app can read and trim, which may be what ends the wait, and no other pod could
/// append. Services and rollouts must not turn away from it. A sidecar that only reads is ready once it knows the members, while
/// it may read.
async fn readyz(State(context): State<Arc<Context>>) -> impl IntoResponse {
    // What is there can be read all the same.
    if context.desired().fenced && !context.rules.reader {
        return (StatusCode::SERVICE_UNAVAILABLE, "fenced: nobody may append\n".to_owned());
    }
    if !context.may_read() {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{READS_DISABLED}\n"));
    }
    let Some(readiness) = status::readiness(&context).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, HANGS.to_owned());
    };
    let is_ready = match readiness.role.as_str() {
        ROLE_PRIMARY | ROLE_STANDBY => true,
        ROLE_READER => context.configuration.borrow().is_some(),
        _ => false,
    };
    let code = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, readiness.to_string())
}

async fn metrics_page(State(context): State<Arc<Context>>) -> impl IntoResponse {
    status::metrics(&context).await
}

/// For the operator, and for anybody: without addresses.
async fn report_page(State(context): State<Arc<Context>>) -> impl IntoResponse {
    let report = status::report(&context).await.map(|report| report.map(SidecarReport::without_addresses));
    report.map(Json).ok_or((StatusCode::SERVICE_UNAVAILABLE, HANGS))
}

async fn status_page(State(context): State<Arc<Context>>) -> impl IntoResponse {
    status::report(&context).await.map(Json).ok_or((StatusCode::SERVICE_UNAVAILABLE, HANGS))
}
