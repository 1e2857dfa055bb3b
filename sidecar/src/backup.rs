//! The backup daemon: lends memory to one group's log, keeps closed segments on disk, refuses fenced primaries.
//!
//! Called by `main`. In the order in which a start meets them: [`options`], `start_signals`, `memory` (the pool, the fabric),
//! `room` (waits for memory where there is none), `bandwidth`, `flush_bound` (how much the disk may hold), `memory_bound` (how
//! many segments the memory has room for), `flusher` and `actor` (the two threads that work), `scrub` (finds rot), `pull` (copies
//! segments from other backups), `residents` (reads segments
//! back into memory), `mirror` (lends memory for a table's), `quarantine` (what is set aside), `other_files` (what else fills the
//! folder), `routes`, `sending`, `heartbeats` and `status` (what others see). What is decided is decided by
//! [`tailwind_protocol::backup`], carried out by [`tailwind_backup`]; the bytes come in through `tailwind_fabric`.

mod actor;
mod bandwidth;
mod flush_bound;
mod flusher;
mod heartbeats;
mod memory;
mod memory_bound;
mod mirror;
pub mod options;
mod other_files;
mod pull;
mod quarantine;
mod residents;
mod room;
mod routes;
mod scrub;
mod sending;
mod start_signals;
mod status;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tailwind_backup::{BackupConfig, Daemon, OsFolder, start};
use tailwind_fabric::{FabricKind, explain_bus_errors};
use tailwind_protocol::backup::{FLUSH_SEGMENTS_MIN, Input, Limits};
use tailwind_protocol::layout::{SegmentSize, readable_size};
use tailwind_report::readiness::{Unready, UnreadyReason};
use tailwind_runtime::ensure_usage;
use tailwind_runtime::http::Server;
use tailwind_runtime::process::Signals;
use tokio::net::TcpListener;
use tokio::signal::unix::SignalKind;
use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

use crate::access::Access;
use crate::http;
use crate::options::{own_name, write_port_file};
use crate::preflight::obstacle;
use crate::tls::PeerRole;

use actor::{Actor, Handle};
use flush_bound::{FlushBound, flush_bound};
use flusher::FlusherThread;
use heartbeats::Heartbeats;
use memory::{Lent, PoolBuffers, PoolMemory};
use memory_bound::{memory_bound, too_little_memory};
pub use options::BackupOptions;
use options::default_flush_dir;
use pull::Puller;
use quarantine::Quarantine;
use routes::Service;
use scrub::Scrub;
use sending::Places;
use start_signals::StartSignals;
use status::About;
pub use status::example as example_metrics;

/// Power is about to go (`init(1)`, `signal(7)`): Linux calls it SIGPWR.
const SIGPWR: i32 = 30;

/// Runs a backup until it is told to end. An error is something that an administrator must fix before the next start.
pub async fn run(options: BackupOptions) -> anyhow::Result<()> {
    let BackupOptions {
        group,
        name,
        listen,
        advertise,
        port_file,
        metrics_listen,
        tls,
        token,
        fabric,
        rdma,
        data,
        pool,
        buffers,
        resident,
        mirror,
        segment_size,
        flush_dir,
        flush_bandwidth,
        flush_bytes,
        ephemeral_storage,
        scrub_rate,
        hold_up,
        heartbeat_interval_ms,
        log: _,
    } = options;
    let name = own_name(name)?;
    let residents = residents::count(resident, segment_size)?;
    let buffers = residents::beside(buffers, residents)?;
    let parts = mirror::parts(mirror, segment_size)?;

    // Signals first: from here on a shutdown is an orderly one, and SIGPWR no longer kills.
    let signals = Signals::new()?.and("SIGPWR", SignalKind::from_raw(SIGPWR))?;
    let mut signals = StartSignals::new(signals, Duration::from_secs(hold_up));
    let (access, reload) = Access::load(&tls, &token, &group, PeerRole::Backup)?;
    let listener = http::listen(listen, &access).await?;
    let address = listener.local_addr().context("read the control address")?;
    let metrics_listener = match metrics_listen {
        Some(address) => Some(tailwind_runtime::http::listen(address).await?),
        None => None,
    };

    let home = BackupConfig {
        pool: pool.unwrap_or_else(|| PathBuf::from(format!("/dev/shm/tailwind-{group}-{name}"))),
        group,
        member: name,
        buffers,
        segment_size,
        kernel: memory::kernel_boot_id()?,
    };
    let flush_dir = flush_dir.unwrap_or_else(|| default_flush_dir(&home.group, &home.member));
    explain_bus_errors(&format!("pool folder {}", home.pool.display())).context("install a signal handler")?;
    let fresh = memory::fresh_boot_id()?;
    let own_ip = advertise.own_ip(address);
    let (config, dir, rdma_options, tls) = (home.clone(), flush_dir.clone(), rdma.clone(), access.tls().cloned());
    let begin = move || {
        let folder = OsFolder::open(&dir)?;
        let mut memory = PoolMemory::new(config.pool.clone(), buffers, segment_size).with_parts(parts);
        let started = start(&config, Box::new(folder), &mut memory, fresh)?;
        let pool = Arc::clone(memory.pool()?);
        let receiver = crate::fabric::receiver(fabric, &rdma_options, &pool, &data, address, own_ip, tls.as_ref())?;
        Ok((started, pool, receiver))
    };
    let listeners = room::Listeners { control: &listener, metrics: metrics_listener.as_ref() };
    let Some((mut started, pool, receiver)) = room::begin_with_room(begin, listeners, &access, &mut signals).await?
    else {
        return Ok(());
    };

    let fabric_kind = receiver.kind();
    let dir = flush_dir.clone();
    let measure = move || flush_bandwidth.map_or_else(|| bandwidth::measure(&dir, segment_size, hold_up), Ok);
    let bandwidth = signals.step(measure).await?;
    let unflushed_bytes_max = bandwidth.saturating_mul(hold_up);
    ensure_usage!(
        unflushed_bytes_max >= u64::from(segment_size.bytes()),
        "flush bandwidth {} a second × hold-up time {hold_up} s is less than one buffer of {segment_size}, so no buffer \
         could be lent: use a faster --flush-dir, a longer --hold-up or a smaller --segment-size",
        readable_size(bandwidth)
    );

    let dir = flush_dir.clone();
    let look = move || {
        let bound = flush_bound(&dir, flush_bytes, ephemeral_storage.filter(|bytes| *bytes > 0), segment_size)
            .with_context(|| format!("bound the flush folder {}", dir.display()))?;
        let other_bytes = other_files::bytes(&dir).with_context(|| format!("list flush folder {}", dir.display()))?;
        Ok((bound, other_bytes))
    };
    let (bound, other_bytes) = signals.step(look).await?;
    started.found.other_bytes = other_bytes;
    // A segment that is being loaded is in memory twice.
    let memory_bound = memory_bound(&home.pool, buffers + u32::from(residents > 0), segment_size, parts)
        .with_context(|| format!("look at pool folder {}", home.pool.display()))?;
    let limits = Limits {
        slots: buffers,
        slot_size: segment_size.bytes(),
        unflushed_bytes_max,
        flush_bytes_max: Some(bound.bytes),
        residents,
        copies_max: usize::try_from(memory_bound.segments).unwrap_or(usize::MAX),
    };
    let (boot, unexpected_files) = (started.member_state.boot, started.unexpected_files);
    let (daemon, flusher) = Daemon::new(started, limits);
    let disk = Arc::clone(daemon.disk());
    let (handle, inbox) = actor::inbox();
    let answers = handle.clone();
    let flusher = FlusherThread::start(flusher, PoolBuffers(Arc::clone(&pool)), move |input| answers.tell(input))?;
    let lent = Lent::new(receiver, Arc::clone(&pool));
    let interval = Duration::from_millis(heartbeat_interval_ms) * crate::fabric::heartbeat_factor(fabric_kind);
    let heartbeats = Heartbeats { interval, followed: lent.watch_followed() };
    let actor = Actor { daemon, lent, flusher };
    let finished = actor::start(actor, inbox)?;
    // The start is done when the actor answers.
    let status = handle.status().await.context("the backup thread ended during start")?;
    warn_of_full_folder(bound, status.counts.flush_bytes, &flush_dir);

    let over_verbs = fabric_kind == FabricKind::Verbs;
    let obstacle = over_verbs.then(|| obstacle(segment_size)).flatten();
    let obstacle = obstacle.or_else(|| too_little_room(bound, segment_size));
    let obstacle = obstacle.or_else(|| too_little_memory(memory_bound));
    if let Some(Unready { why, .. }) = &obstacle {
        error!(%why, "this backup cannot lend");
    }
    let BackupConfig { group, member, .. } = home;
    let about = About {
        group,
        member,
        boot,
        control: advertise.control(address).unwrap_or_else(|| address.to_string()),
        fabric: fabric_kind.to_string(),
        tls: access.tls().is_some(),
        buffers,
        buffer_bytes: segment_size.bytes(),
        mirror_parts: parts.count,
        mirror_part_bytes: parts.size,
        unflushed_bytes_max,
        flush_bytes_per_second: bandwidth,
        flush_bound: bound,
        memory_bound,
        unexpected_files,
        obstacle,
        heartbeats,
    };
    info!(%boot, %address, fabric = %fabric_kind, buffers, %segment_size, unflushed_bytes_max, flush_bytes_max = bound.bytes,
        flush_bytes_from = %bound.from, segments_max = memory_bound.segments, segments_from = %memory_bound.from, "ready");

    let scrub = Arc::new(Scrub::new(scrub_rate));
    let scrubbing = Arc::clone(&scrub).work(handle.clone(), Arc::clone(&disk), Arc::clone(&pool));
    let loading = residents::load(handle.clone(), Arc::clone(&disk), residents);
    let counting = other_files::watch(flush_dir.clone(), handle.clone());
    let quarantine = Arc::new(Quarantine::new(flush_dir));
    let puller = Puller::new(&about, access.clone(), move || crate::fabric::reader(fabric, &rdma, own_ip))?;
    let service = Service {
        actor: handle.clone(),
        disk,
        pool,
        about: Arc::new(about),
        access: access.clone(),
        scrub,
        quarantine,
        puller: Arc::new(puller),
        places: Places::new(),
    };
    if let Some(path) = &port_file {
        write_port_file(path, address)?;
    }
    let ended = attend(handle, finished, &mut signals, Duration::from_secs(hold_up));
    tokio::select! {
        result = serve_until(ended, listener, metrics_listener, service, &access) => result,
        never = scrubbing => match never {},
        never = loading => match never {},
        never = counting => match never {},
        Err(error) = reload => Err(error).context("reload certificates or token"),
    }
}

/// With more in the folder than it may hold, appends wait until the log is trimmed.
fn warn_of_full_folder(FlushBound { bytes: max, from }: FlushBound, holds: u64, folder: &Path) {
    if holds > max {
        let folder = folder.display();
        warn!(holds, max, %from, %folder, "flush folder beyond its bound: no buffers are lent until the log is trimmed");
    }
}

/// With less room than a log needs this backup would be recruited, and dropped again at its first segment.
fn too_little_room(FlushBound { bytes, from }: FlushBound, segment_size: SegmentSize) -> Option<Unready> {
    let needed = FLUSH_SEGMENTS_MIN * u64::from(segment_size.bytes());
    let (has, needs) = (readable_size(bytes), readable_size(needed));
    let why =
        format!("the flush folder may hold {has} by {from}, and a log needs {needs} at least: give it a larger volume");
    (bytes < needed).then_some(Unready { reason: UnreadyReason::NoRoom, why })
}

/// Serves while `ended` has not come to its end.
async fn serve_until(
    ended: impl Future<Output = anyhow::Result<()>>,
    listener: TcpListener,
    metrics_listener: Option<TcpListener>,
    service: Service,
    access: &Access,
) -> anyhow::Result<()> {
    let (stop, stopped) = watch::channel(());
    let until_stopped = |mut stopped: watch::Receiver<()>| async move {
        // An error means that the sender is gone, which is the signal.
        let _ = stopped.changed().await;
    };
    let mut servers = tokio::task::JoinSet::new();
    let control = http::server(routes::control(service.clone()), access, routes::RIGHTS);
    servers.spawn(control.serve(listener, until_stopped(stopped.clone())));
    if let Some(listener) = metrics_listener {
        servers.spawn(Server::new(routes::probes(service)).serve(listener, until_stopped(stopped)));
    }
    let result = tokio::select! {
        result = ended => result,
        Some(server) = servers.join_next() => {
            server.context("an HTTP server has panicked")?;
            bail!("an HTTP server has ended");
        }
    };
    drop(stop);
    while servers.join_next().await.is_some() {}
    result
}

/// Waits for the end: ordered by a signal, or because the actor is gone.
async fn attend(
    handle: Handle,
    mut finished: oneshot::Receiver<()>,
    signals: &mut StartSignals,
    hold_up: Duration,
) -> anyhow::Result<()> {
    tokio::select! {
        result = &mut finished => {
            result.context("the backup thread has panicked")?;
            bail!("the backup thread has ended");
        }
        name = signals.next() => info!(signal = name, "shutting down: flushing memory"),
    }
    handle.tell(Input::Shutdown);
    tokio::select! {
        result = finished => result.context("the backup thread has panicked"),
        name = signals.next() => {
            warn!(signal = name, "second signal");
            bail!("ended by a second signal before the flush was complete: unflushed segments are only in the pool");
        }
        () = tokio::time::sleep(hold_up) => bail!(
            "flushing took longer than --hold-up ({hold_up:?}): unflushed segments are only in the pool"
        ),
    }
}
