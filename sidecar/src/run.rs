//! `tailwind-sidecar run`: wires a sidecar together and watches over its parts.
//!
//! Called by `main`. Starts the append path on its own thread, the roles and the endpoints on tokio; the process ends if
//! any of them does.

mod append_socket;
mod pages;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tailwind_fabric::explain_bus_errors;
use tailwind_protocol::config::PrimaryRef;
use tailwind_protocol::layout::readable_size;
use tailwind_protocol::socket::Role;
use tailwind_runtime::http::Server;
use tailwind_runtime::process::Signals;
use tailwind_runtime::{ensure_usage, usage};
use tokio::sync::watch;

use crate::access::Access;
use crate::control::desired::DesiredState;
use crate::control::log::LogView;
use crate::control::reads::follows::Follows;
use crate::control::reads::position::PrimaryClient;
use crate::control::roles::tenure::Tenure;
use crate::control::status::contacts::Contacts;
use crate::control::status::peers::Peers;
use crate::control::status::rates::Rates;
use crate::control::status::refusals::Refusals;
use crate::control::status::table::TableWork;
use crate::control::status::times::PromotionTimes;
use crate::control::status::waits::Waits;
use crate::control::{self, AppendLoopHandle, Context, Rules};
use crate::http;
use crate::kubernetes;
use crate::options::{AllowedUid, BackupAddress, RunOptions, own_name, writable};
use crate::path::{AppendLoop, COMMANDS_MAX, Command, Counters, Options as AppendLoopOptions, Waker, control_channels};
use crate::store::file::FileStore;
use crate::store::{Joined, Shape, Store};
use crate::thread::spawn_owned;
use crate::tls::PeerRole;
use append_socket::listen_on_socket;
use pages::{RIGHTS, probes, router};

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
        table,
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
    let joining = async {
        if let Some(path) = &replica_group {
            return kubernetes::join(path).await;
        }
        let is_given = config.is_some();
        let config = config.unwrap_or_else(|| PathBuf::from(format!("/var/lib/tailwind/{group}/config.json")));
        let min_in_sync = min_in_sync.unwrap_or(backups.div_ceil(2));
        let backups_known = backup.into_iter().map(|backup| (backup.name, backup.control)).collect();
        let open = if reader { FileStore::read_only } else { FileStore::new };
        // The folder of a file server that is gone does not answer.
        let of = group.clone();
        let file = tokio::task::spawn_blocking(move || open(&config, &of)).await.context("open the config store")?;
        let file = writable(file, is_given, "--config FILE")?;
        Ok(fixed(
            Store::File(file),
            Shape { durability, segment_size, fabric },
            DesiredState {
                kind: None,
                members: backups,
                min_in_sync,
                backups: backups_known,
                fenced: false,
                may_read: true,
                accept_loss,
                recover_from_disk,
                switchover: None,
            },
        ))
    };
    let Joined { store, shape, desired, watch_task } = tokio::select! {
        joined = joining => joined?,
        signal = signals.next() => {
            tracing::info!(signal, "ending");
            return Ok(());
        }
    };
    let Shape { durability, segment_size, fabric } = shape;
    let table = table.size(segment_size)?;
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
    let path_options = AppendLoopOptions {
        allowed,
        segment_size,
        table: table.is_some(),
        batch_memory,
        client_timeout,
        rings_max: rings,
        spin,
    };
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
            table,
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
        table: TableWork::default(),
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
        "--backup NAME=HOST:PORT is given for {} of the backups, of which --min-in-sync needs {min_in_sync}",
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

async fn serve_metrics(address: Option<std::net::SocketAddr>, context: Arc<Context>) -> anyhow::Result<()> {
    let Some(address) = address else { return std::future::pending().await };
    let listener = tailwind_runtime::http::listen(address).await?;
    Server::new(probes(&context)).serve(listener, std::future::pending()).await;
    bail!("the metrics endpoint has ended")
}
