//! The connections to the sidecar: a local table, which shows in any role what is acknowledged, and a client for the writes.
//!
//! [`run`] owns both. [`commands`](crate::commands) sends it requests if the [`State`] has a way. After a lost role or connection
//! both are made again, and the local table continues where it was.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use tailwind_client::asynchronous::{Client, LocalTable, Table};
use tailwind_client::{Ack, Apply, Change, Error, Lsn, Role, RoleInfo, Ticket};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::resp::Reply;

/// Between two attempts to connect.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);
/// Requests that wait; more wait at their clients.
const REQUESTS_MAX: usize = 1024;

/// What clients want.
pub(crate) enum Request {
    /// To look at the local table.
    Look(Box<dyn FnOnce(&LocalTable) + Send>),
    /// A change. When it is answered, the local table shows it.
    Apply(Apply, Answer),
}

type Outcome = Result<(), Error>;
type Answer = oneshot::Sender<Outcome>;

/// What this server is.
pub(crate) struct State {
    /// `primary`, `standby`, `reader`, or without the table `alone`.
    pub(crate) role: &'static str,
    /// It serves, or knows which server does.
    pub(crate) is_ready: bool,
    /// What clients are told that want more than that.
    pub(crate) why: String,
    requests: Option<mpsc::Sender<Request>>,
}

impl State {
    pub(crate) fn alone(why: &str) -> State {
        let why = format!("LOADING this server does not have the table: {why}");
        State { role: "alone", is_ready: false, why, requests: None }
    }

    /// Where requests go, those for writes at the primary only.
    pub(crate) fn way(&self, writes: bool) -> Result<mpsc::Sender<Request>, Reply> {
        let way = self.requests.as_ref().filter(|_| self.role == "primary" || !writes);
        way.cloned().ok_or_else(|| Reply::Error(self.why.clone()))
    }
}

/// Keeps the table and answers requests, through all failures. Returns what an administrator must look at.
pub(crate) async fn run(socket: &Path, state: &watch::Sender<State>) -> Outcome {
    let mut local = None;
    loop {
        let Err(error) = serve(socket, state, &mut local).await else { continue };
        if matches!(error, Error::WrongKind { .. } | Error::Refused { .. } | Error::Protocol { .. }) {
            return Err(error);
        }
        let now = State::alone(&error.to_string());
        if state.borrow().why != now.why {
            warn!(%error, "waiting for the sidecar");
        }
        state.send_replace(now);
        sleep(PAUSE).await;
    }
}

/// Connects, and answers requests until the connection or the role is lost.
async fn serve(socket: &Path, state: &watch::Sender<State>, local: &mut Option<LocalTable>) -> Outcome {
    let client = Client::connect(socket).await?;
    let local = match local {
        Some(local) => {
            local.continue_over(client)?;
            local
        }
        None => local.insert(LocalTable::over(client, b"")?),
    };
    let table = Table::over(Client::connect(socket).await?)?;
    let (way, mut requests) = mpsc::channel(REQUESTS_MAX);
    let (in_flight, unseen) = (HashMap::new(), Vec::new());
    let mut server = Server { state, local, table, way, leads: false, in_flight, unseen };
    loop {
        tokio::select! {
            change = server.local.next_change() => match change? {
                Some(Change::CaughtUp { .. }) if !server.leads => server.tell()?,
                Some(Change::Turn { .. }) => server.lead(socket).await?,
                _ => {}
            },
            ack = next_ack(&mut server.table) => match ack? {
                Some(ack) => server.on_ack(ack),
                // Until the table has been read, clients are told nothing.
                None if state.borrow().requests.is_none() => {}
                None => server.tell()?,
            },
            Some(request) = requests.recv() => server.on_request(request).await?,
        }
        let seen = server.local.seen();
        let due = server.unseen.extract_if(.., |(lsn, ..)| *lsn <= seen);
        // A client that has gone needs no answer.
        due.for_each(|(_, answer, outcome)| drop(answer.send(outcome)));
    }
}

struct Server<'a> {
    state: &'a watch::Sender<State>,
    local: &'a mut LocalTable,
    table: Table,
    way: mpsc::Sender<Request>,
    /// The turn has come, and every change before it.
    leads: bool,
    in_flight: HashMap<Ticket, Answer>,
    /// Answers that wait until the local table shows a record.
    unseen: Vec<(Lsn, Answer, Outcome)>,
}

impl Server<'_> {
    /// Writes go over a connection that begins as the primary's, so any change of its role is a loss.
    async fn lead(&mut self, socket: &Path) -> Outcome {
        (self.table, self.leads) = (Table::over(Client::connect(socket).await?)?, true);
        info!(keys = self.local.len(), "primary");
        self.tell()
    }

    /// Tells clients what this server is.
    fn tell(&mut self) -> Outcome {
        let RoleInfo { role, primary, .. } = self.table.client().role_info().clone();
        if self.leads && role != Role::Primary {
            return Err(Error::Disconnected { why: "the turn as primary is over".to_owned() });
        }
        let role = if self.leads {
            "primary"
        } else if role == Role::Reader {
            "reader"
        } else {
            "standby"
        };
        let whom = primary.as_deref().unwrap_or("which is not known yet");
        let why = format!("READONLY this server is a {role}, and takes no writes: go to the primary, {whom}");
        let (is_ready, requests) = (self.leads || primary.is_some(), Some(self.way.clone()));
        self.state.send_replace(State { role, is_ready, why, requests });
        Ok(())
    }

    async fn on_request(&mut self, request: Request) -> Outcome {
        match request {
            Request::Look(look) => look(self.local),
            Request::Apply(apply, answer) => match self.table.submit(apply).await {
                Ok(ticket) => drop(self.in_flight.insert(ticket, answer)),
                Err(error @ (Error::TooLarge { .. } | Error::Misuse(_))) => drop(answer.send(Err(error))),
                Err(error) => return Err(error),
            },
        }
        Ok(())
    }

    fn on_ack(&mut self, ack: Ack) {
        let Some(answer) = self.in_flight.remove(&ack.ticket) else { return };
        let shown = match &ack.outcome {
            Ok(lsn) => *lsn,
            Err(Error::Mismatch { revision: Some(revision), .. }) => revision.lsn(),
            Err(_) => Lsn(0),
        };
        self.unseen.push((shown, answer, ack.outcome.map(drop)));
    }
}

/// The next answer to a change, or if none is in flight, `None` after the next change of role.
async fn next_ack(table: &mut Table) -> Result<Option<Ack>, Error> {
    match table.client().next_ack().await? {
        Some(ack) => Ok(Some(ack)),
        None => table.client().next_role().await.map(|_| None),
    }
}
