//! `tailwind-kv`, a key-value store that speaks RESP: a service to copy, for a group that keeps a table.
//!
//! [`commands`] serves each client ([`resp`] reads and writes its bytes), [`table`] holds the connections to the sidecar. The
//! state is what the table says and nothing else, so the process can be killed at any time.

mod commands;
mod resp;
mod table;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::{Router, http::StatusCode, routing::get};
use clap::Parser;
use commands::Clients;
use tailwind_runtime::http::{Server, listen};
use tailwind_runtime::logging::LogOptions;
use tailwind_runtime::process::{self, Signals};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tracing::{Span, info};

use crate::table::State;

/// Clients at a time; more wait until there is a place. A command and its replies take up to 256 KiB: together 256 MiB.
const CLIENTS_MAX: usize = 1024;

/// A key-value store that speaks RESP, the protocol of Redis, and keeps its keys in a Tailwind table.
#[derive(Clone, Debug, Parser)]
#[command(name = "tailwind-kv", version, about, max_term_width = 100)]
struct Options {
    /// Where clients connect. There are no passwords: everybody who can reach it can read and write
    #[arg(long, env = "TAILWIND_KV_LISTEN", default_value = "127.0.0.1:6379", value_name = "IP:PORT")]
    listen: SocketAddr,
    /// The sidecar's append socket
    #[arg(long, env = "TAILWIND_SOCKET", default_value = "/run/tailwind/default.sock", value_name = "PATH")]
    socket: PathBuf,
    /// Serve /healthz and /readyz here, if anywhere
    #[arg(long, env = "TAILWIND_KV_PROBES_LISTEN", value_name = "IP:PORT")]
    probes_listen: Option<SocketAddr>,
    #[command(flatten)]
    log: LogOptions,
}

fn main() -> ExitCode {
    let options = Options::parse();
    process::run(&options.log.clone(), Span::none, run(options))
}

/// Runs until a signal ends it, or an error that only an administrator can resolve.
async fn run(options: Options) -> Result<()> {
    let mut signals = Signals::new().context("catch signals")?;
    let listener = listen(options.listen).await.context("--listen")?;
    info!(address = %listener.local_addr()?, socket = %options.socket.display(), "listening");
    let (told, state) = watch::channel(State::alone("it has just started"));
    if let Some(address) = options.probes_listen {
        let (probes, state) = (listen(address).await.context("--probes-listen")?, state.clone());
        let ready = get(async move || {
            let State { role, is_ready, why, .. } = &*state.borrow();
            let (status, text) =
                if *is_ready { (StatusCode::OK, *role) } else { (StatusCode::SERVICE_UNAVAILABLE, &**why) };
            (status, format!("{text}\n"))
        });
        let router = Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", ready);
        tokio::spawn(async move { Server::new(router).serve(probes, std::future::pending()).await });
    }
    tokio::spawn(take_clients(listener, Clients { state }));
    tokio::select! {
        ended = table::run(&options.socket, &told) => ended.context("keep the table"),
        _ = signals.next() => Ok(()),
    }
}

async fn take_clients(listener: TcpListener, clients: Clients) {
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let clients = clients.clone();
                tokio::spawn(async move {
                    drop(clients.serve(stream).await);
                    drop(place);
                });
            }
            // As when the process has no more file descriptors.
            Err(_) => tokio::time::sleep(table::PAUSE).await,
        }
    }
}
