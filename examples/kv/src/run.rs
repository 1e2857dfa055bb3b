//! Puts the parts together: listens, takes turns, serves clients and probes, and ends in good order on SIGTERM.
//!
//! Called by `main`. A part that ends by itself ends the process.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tailwind_runtime::http::listen;
use tailwind_runtime::process::Signals;
use tokio::sync::watch;
use tracing::info;

use crate::options::ServeOptions;
use crate::server_state::ServerState;
use crate::stats::Stats;
use crate::{http, server, turns};

/// Runs until a signal ends it.
pub async fn run(options: ServeOptions) -> Result<()> {
    let mut signals = Signals::new().context("catch signals")?;
    let clients = listen(options.listen).await.context("--listen")?;
    let probes = match options.metrics_listen {
        Some(address) => Some(listen(address).await.context("--metrics-listen")?),
        None => None,
    };
    info!(address = %clients.local_addr()?, socket = %options.socket.display(), "listening");

    let stats = Arc::new(Stats::default());
    let (state, watched) = watch::channel(ServerState::Alone { why: "starting".to_owned() });
    let (stop, stopping) = watch::channel(false);
    let (probed, counted) = (watched.clone(), Arc::clone(&stats));
    let mut probes = tokio::spawn(async move {
        match probes {
            Some(listener) => http::serve(listener, probed, counted).await,
            None => std::future::pending().await,
        }
    });
    let mut turns = tokio::spawn(turns::run(options, state, Arc::clone(&stats)));
    let mut server = tokio::spawn(server::serve(clients, watched, stats, stopping));
    tokio::select! {
        ended = &mut turns => return ended.context("take turns")?,
        ended = &mut probes => {
            ended.context("serve probes")?;
            bail!("the probes' server has ended by itself");
        }
        ended = &mut server => {
            ended.context("serve clients")?;
            bail!("the server has ended by itself");
        }
        signal = signals.next() => info!(signal, "ending: commands under way are finished"),
    }
    stop.send_replace(true);
    server.await.context("serve clients")
}
