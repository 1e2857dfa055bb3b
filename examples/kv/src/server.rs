//! Takes clients' connections, as many as there are places.
//!
//! Started by [`run`](crate::run).

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::connection::{self, Counted, Shared};
use crate::limits::{CLIENTS_MAX, DRAIN_PATIENCE, LARGE_COMMANDS_MAX};
use crate::resp::Reply;
use crate::server_state::StateWatch;
use crate::stats::{Stats, count};

/// How long no connections are taken after one could not be, as when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves clients until `stopping` says so; then commands under way are finished. Never returns earlier.
pub async fn serve(listener: TcpListener, state: StateWatch, stats: Arc<Stats>, mut stopping: watch::Receiver<bool>) {
    let shared = Shared { state, stats, large: Arc::new(Semaphore::new(LARGE_COMMANDS_MAX)) };
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next() => continue,
            stream = listener.accept() => stream,
        };
        match stream {
            Ok((stream, _)) if connections.len() >= CLIENTS_MAX => refuse(stream, &shared.stats),
            Ok((stream, _)) => {
                let (shared, stopping) = (shared.clone(), stopping.clone());
                connections.spawn(async move {
                    let _counted = Counted::new(&shared.stats);
                    if let Err(error) = connection::serve(stream, shared, stopping).await {
                        debug!(%error, "a client's connection ended");
                    }
                });
            }
            Err(error) => {
                debug!(%error, "accept a client");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(DRAIN_PATIENCE, all).await.is_err() {
        debug!("clients are cut off in the middle of their commands");
    }
}

/// Says so if the socket takes it at once, and closes.
fn refuse(mut stream: TcpStream, stats: &Stats) {
    count(&stats.refused);
    let mut text = Vec::new();
    Reply::error(format!("ERR max number of clients reached: {CLIENTS_MAX}")).encode(&mut text);
    tokio::spawn(async move {
        let _ = timeout(ACCEPT_PAUSE, stream.write_all(&text)).await;
    });
}
