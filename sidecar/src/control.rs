//! What a sidecar does beside the append path: the roles, the clients that read, and what is told of the group.
//!
//! Started by [`run`](crate::run) on the tokio runtime; enters three rooms:
//!
//! - [`roles`] moves the sidecar from role to role, and carries out what the machines of each want;
//! - [`reads`] serves clients that read or follow, in any role, and positions of the log;
//! - [`status`] tells how the sidecar and its group are.
//!
//! What they share: the [`Context`], with the way to the append path ([`handle`]); what the group wants ([`desired`]) and what
//! the config store shows ([`configuration`]); the [`log`] of the term, which [`roles`] fill and [`reads`] read; and
//! [`sources`], which fetch its closed segments from members. For a group that keeps a table, [`warm`] and [`rebuild`] make
//! the index before a term begins, [`gets`] and [`getting`] bring what is read of it, [`clean`] keeps the log short, and
//! [`mirrors`] keeps the index in members' memory.

mod clean;
pub mod configuration;
mod context;
pub mod desired;
mod gets;
mod getting;
mod handle;
pub mod log;
mod mirrors;
pub mod reads;
mod rebuild;
pub mod roles;
pub mod sources;
pub mod status;
mod warm;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::path::{ClientRequest, Command, ControlReceivers};
use crate::thread::result;
use reads::position;
use status::{contacts, peers};

pub use context::{Context, Rules};
pub use handle::AppendLoopHandle;

/// Runs the roles and serves clients. Returns only with an error that an administrator must see to.
pub async fn run(context: Arc<Context>, from_path: ControlReceivers) -> anyhow::Result<()> {
    let ControlReceivers { outputs, requests } = from_path;
    tokio::select! {
        end = roles::run(&context, outputs) => end,
        () = serve_clients(&context, requests) => Err(anyhow::anyhow!("the append path has ended")),
        // What is told of the group beside what the roles know.
        never = contacts::watch(&context) => match never {},
        never = peers::tell(&context) => match never {},
        never = getting::tell_configurations(&context) => match never {},
        never = context.rates.watch(&context.shared) => match never {},
    }
}

/// Reads and questions for the status are served in every role, each in a task of its own: at most as many as there are clients,
/// a few questions of each, and what gets, copies and the getter need at the same time.
async fn serve_clients(context: &Arc<Context>, mut requests: mpsc::Receiver<ClientRequest>) {
    let mut tasks = JoinSet::new();
    loop {
        let request = tokio::select! {
            request = requests.recv() => request,
            Some(served) = tasks.join_next() => {
                result(served).await;
                continue;
            }
        };
        let Some(request) = request else { return };
        let context = Arc::clone(context);
        match request {
            ClientRequest::Read(connection, request) => drop(tasks.spawn(reads::serve(context, connection, request))),
            ClientRequest::Position(client, request) => {
                tasks.spawn(async move {
                    let position = position::ask(Arc::clone(&context)).await;
                    context.path.send(Command::AnswerPosition(client, request, position));
                });
            }
            ClientRequest::Record(epoch, number, wanted) => {
                tasks.spawn(async move {
                    let value = gets::fetch(&context, &wanted).await;
                    context.path.send(Command::Record(epoch, number, value));
                });
            }
            ClientRequest::Sources(epoch, number, wanted) => {
                tasks.spawn(async move {
                    let values = gets::fetch_all(&context, wanted).await;
                    context.path.send(Command::Sources(epoch, number, values));
                });
            }
            ClientRequest::Getter(request) => drop(tasks.spawn(getting::serve(context, request))),
            ClientRequest::Status(client, request) => {
                tasks.spawn(async move {
                    let json = status::json(&context).await;
                    context.path.send(Command::Answer(client, request, json));
                });
            }
        }
    }
}

/// A random number below `bound`; 0 where the system has no randomness to give.
fn random_below(bound: u64) -> u64 {
    getrandom::u64().unwrap_or(0) % bound
}
