//! Asks a backup over the control RPC, and listens to the heartbeats of a backup or a primary.
//!
//! Called by `control`; speaks HTTP/1.1 with kept-alive connections, by [`tls`] or with the group's token
//! ([`access`](crate::access)). The messages are [`tailwind_protocol::rpc`]. A backup is known by its name: `dial` looks for it
//! at every address that is known at the moment, each request names the backup that it is for, and any other one refuses it. A
//! request whose bytes may have been sent is never sent again by itself, unless it was refused so: its caller knows what may be
//! repeated.

mod dial;

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap};
use hyper::{Method, Request, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tailwind_protocol::config::PrimaryRef;
use tailwind_protocol::ids::{Epoch, MemberId};
use tailwind_protocol::inventory::{Reading, Unbelievable};
use tailwind_protocol::rpc::{
    COPY_JSON_SIZE_MAX, FenceRequest, FetchRequest, INVENTORY_PAGE_MAX, Inventory, Refusal, TermRequest, is_followed,
    path,
};
use tailwind_runtime::http::IDLE_TIMEOUT;
use tokio::time::timeout;

use crate::access::Access;
use crate::tls::{self, PeerRole};
use dial::{Dialer, Link};

/// Largest page of an inventory: twice what one has. It is held twice for a moment, as it comes and in one piece.
const INVENTORY_SIZE_MAX: usize = 4 << 20;
const _: () = assert!(2 * INVENTORY_PAGE_MAX * COPY_JSON_SIZE_MAX + (1 << 19) <= INVENTORY_SIZE_MAX);
/// Largest reply of any other kind, but for segments: three times a list of damage. Backups and readers ask backups too, and have
/// little memory of their own.
const REPLY_SIZE_MAX: usize = 1 << 20;
/// A refusal is some hundred bytes; room for a long explanation where little else is expected.
const REFUSAL_SIZE_MAX: usize = 16 << 10;
/// Connections kept for later. Few requests to one backup are under way at a time.
const IDLE_MAX: usize = 4;
/// How long a segment may be on its way: 64 MiB at about 1 MiB a second, for as long as a backup sends one.
const FETCH_TIME_MAX: Duration = Duration::from_secs(60);
/// Idle connections are not used for longer than this: the server ends them soon after, and a request that meets the end
/// on its way would not be repeated.
const IDLE_TIME_MAX: Duration = Duration::from_secs(IDLE_TIMEOUT.as_secs() / 2);

/// Names the backup that a request is for. Another one refuses it before it looks at anything else.
pub const MEMBER_HEADER: &str = "tailwind-member";
/// In each answer of a backup: the fabric that brings it records.
pub const FABRIC_HEADER: &str = "tailwind-fabric";
/// In each answer of a backup: the size of its buffers, bytes.
pub const BUFFER_HEADER: &str = "tailwind-buffer-bytes";

/// Why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The backup said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No usable answer: the request may or may not have been carried out.
    #[error("{0}")]
    Unreachable(String),
    /// Other backups answer where this one should be: their addresses and names. Nothing has been done.
    #[error("{}", named_otherwise(.0))]
    OtherNames(Vec<(String, MemberId)>),
}

fn named_otherwise(others: &[(String, MemberId)]) -> String {
    let named = others.iter().map(|(address, found)| format!("the backup at {address} is named {found}"));
    named.collect::<Vec<_>>().join("; ")
}

/// What a backup says of itself in each answer: what a sidecar must know before it claims an epoch that this backup could not
/// serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupTraits {
    /// The fabric that brings it records, as [`FabricKind`](tailwind_fabric::FabricKind) names it.
    pub fabric: String,
    /// The size of its buffers, bytes.
    pub buffer_bytes: u32,
}

impl BackupTraits {
    fn of(headers: &HeaderMap) -> Option<BackupTraits> {
        let text = |name| headers.get(name)?.to_str().ok();
        Some(BackupTraits { fabric: text(FABRIC_HEADER)?.to_owned(), buffer_bytes: text(BUFFER_HEADER)?.parse().ok()? })
    }
}

/// Why a backup is not fenced, or why what it says it holds is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// The call did not succeed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The answer is not believed.
    #[error(transparent)]
    Unbelievable(#[from] Unbelievable),
}

/// Asks one backup. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct BackupClient(Arc<Client>);

struct Client {
    dialer: Dialer,
    /// The backup that requests are for; none if it is no backup.
    member: Option<MemberId>,
    addresses: Addresses,
    idle: Mutex<Vec<Idle>>,
    peer: Mutex<Option<IpAddr>>,
    traits: Mutex<Option<BackupTraits>>,
    /// The name of the process that it asks, if it is no backup: for people.
    label: Option<String>,
}

/// Where the other side may be, as far as is known now; the likeliest first.
type Addresses = Box<dyn Fn() -> Vec<String> + Send + Sync>;

struct Idle {
    link: Link,
    since: Instant,
}

/// Heartbeats, on a connection of their own.
pub struct Heartbeats {
    _link: Link,
    response: Response<Incoming>,
    whom: String,
}

impl Heartbeats {
    /// Returns when there is another, with what it says: whether readers look at the other side's board. An error for people when
    /// there is none any more. Loses nothing if it is not waited for to the end.
    pub async fn next(&mut self) -> Result<bool, String> {
        match self.response.body_mut().frame().await {
            Some(Ok(frame)) => Ok(frame.data_ref().is_some_and(|heartbeats| is_followed(heartbeats))),
            Some(Err(error)) if has_ended(&error) => Err(format!("{} closed its connection", self.whom)),
            Some(Err(error)) => Err(format!("{}: connection lost: {}", self.whom, causes(&error))),
            None => Err(format!("{} closed its connection", self.whom)),
        }
    }
}

impl BackupClient {
    /// A client of the endpoint at `control` (`host:port`), which must be of the role `expected`. Connects when first asked.
    pub fn new(control: impl Into<String>, access: &Access, expected: PeerRole) -> BackupClient {
        let control = control.into();
        BackupClient::with(access, expected, None, None, Box::new(move || vec![control.clone()]))
    }

    /// A client of the sidecar that the config store names as primary.
    pub fn of_primary(primary: &PrimaryRef, access: &Access) -> BackupClient {
        let (control, label) = (primary.control.clone(), Some(primary.id.to_string()));
        BackupClient::with(access, PeerRole::Sidecar, None, label, Box::new(move || vec![control.clone()]))
    }

    /// A client of the backup of this name, wherever it is: the addresses (`host:port`, the likeliest first) are looked up
    /// whenever a connection is made. A server with another name is skipped.
    pub fn of_member(
        member: MemberId,
        access: &Access,
        addresses: impl Fn() -> Vec<String> + Send + Sync + 'static,
    ) -> BackupClient {
        BackupClient::with(access, PeerRole::Backup, Some(member), None, Box::new(addresses))
    }

    fn with(
        access: &Access,
        expected: PeerRole,
        member: Option<MemberId>,
        label: Option<String>,
        addresses: Addresses,
    ) -> BackupClient {
        let (dialer, idle, peer, traits) =
            (Dialer::new(access, expected), Mutex::default(), Mutex::default(), Mutex::default());
        BackupClient(Arc::new(Client { dialer, member, addresses, idle, peer, traits, label }))
    }

    /// The process that it asks, for people: a name, and where it may be.
    pub fn whom(&self) -> String {
        let addresses = (self.0.addresses)().join(" or ");
        let name = self.0.member.as_ref().map(MemberId::as_str).or(self.0.label.as_deref());
        match name {
            Some(name) => format!("{name} ({addresses})"),
            None => addresses,
        }
    }

    /// An error with the address alone, where the name stands before it.
    pub fn at_address(&self, error: &CallError) -> String {
        error.to_string().replacen(&self.whom(), &(self.0.addresses)().join(" or "), 1)
    }

    /// An error without the words that name the backup again, for a line that begins with its name and address.
    pub fn what_came_back(&self, error: &CallError) -> String {
        if let CallError::OtherNames(others) = error
            && let [(_, found)] = others.as_slice()
        {
            return format!("the backup there is named {found}");
        }
        self.without_name(&error.to_string())
    }

    /// A text of this client's without the words at its beginning that name the other side.
    pub fn without_name(&self, text: &str) -> String {
        let without = |prefix: &str| {
            let rest = text.strip_prefix(prefix)?;
            rest.strip_prefix(": ").or_else(|| rest.strip_prefix(' '))
        };
        let addresses = (self.0.addresses)();
        let known = addresses.iter().map(|address| format!("connect to {address}")).chain([self.whom()]);
        known.into_iter().find_map(|prefix| without(&prefix)).unwrap_or(text).to_owned()
    }

    /// What the backup said of itself in its last answer. `None` before it has answered, or if it says nothing of the kind.
    pub fn traits(&self) -> Option<BackupTraits> {
        self.0.traits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The address that the last connection reached; the data channel of a backup that listens on every address goes
    /// there too. `None` before the first connection.
    pub fn peer_ip(&self) -> Option<IpAddr> {
        *self.0.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts `request` as JSON to `path` and reads the JSON reply.
    pub async fn call<Req, Rep>(&self, path: &str, request: &Req, timeout: Duration) -> Result<Rep, CallError>
    where
        Req: Serialize + ?Sized,
        Rep: DeserializeOwned,
    {
        let limit = match path {
            path::FENCE | path::INVENTORY => INVENTORY_SIZE_MAX,
            _ => REPLY_SIZE_MAX,
        };
        let body = self.post(path, request, limit, timeout).await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.unreachable(&format!("{path}: reply not understood: {error}")))
    }

    /// Fences the backup and reads what it holds, page by page; each page's request is the fence again, and only the first does
    /// anything. `timeout` is for one page.
    pub async fn fence(
        &self,
        request: &FenceRequest,
        newest: Epoch,
        timeout: Duration,
    ) -> Result<Inventory, FenceError> {
        let mut reading = Reading::new(request.caller.log, request.caller.epoch, newest);
        loop {
            let request = FenceRequest { after: reading.after(), ..request.clone() };
            let page = self.call(path::FENCE, &request, timeout).await?;
            if let Some(mut whole) = reading.take(page)? {
                whole.damage.iter_mut().for_each(|why| *why = printable(why));
                return Ok(whole);
            }
        }
    }

    /// Fetches the bytes of a closed segment, and hands them on as they come. As many as the request says; whether they are
    /// right is for the caller to find out. Gives up when nothing has come for as long as `silence_max`: how long a whole segment
    /// takes is a matter of the network.
    pub async fn fetch(
        &self,
        request: &FetchRequest,
        silence_max: Duration,
        each: impl FnMut(&[u8]),
    ) -> Result<(), CallError> {
        let too_long = |_| Err(self.unreachable(&format!("not done within {FETCH_TIME_MAX:?}")));
        timeout(FETCH_TIME_MAX, self.receive_segment(request, silence_max, each)).await.unwrap_or_else(too_long)
    }

    async fn receive_segment(
        &self,
        request: &FetchRequest,
        silence_max: Duration,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), CallError> {
        let silent = |_| self.unreachable(&format!("silent for {silence_max:?}"));
        let wanted = request.bytes().len();
        let body = self.encode(request)?;
        let request = || (Method::POST, body.clone());
        let asked = self.ask(path::FETCH, request, true, REFUSAL_SIZE_MAX);
        let (link, response) = timeout(silence_max, asked).await.map_err(silent)??;
        let mut body = response.into_body();
        let mut received = 0;
        while let Some(frame) = timeout(silence_max, body.frame()).await.map_err(silent)? {
            let frame = frame.map_err(|error| self.unreachable(&broken_off(&causes(&error))))?;
            let Ok(piece) = frame.into_data() else { continue };
            received += piece.len();
            if received > wanted {
                break;
            }
            each(&piece);
        }
        if received != wanted {
            return Err(self.unreachable(&format!("{received} bytes instead of {wanted}")));
        }
        self.keep(link);
        Ok(())
    }

    /// Listens to heartbeats, and passes on what each says (see [`Heartbeats::next`]). Returns when they end, or nothing is heard
    /// for so long, with the reason.
    pub async fn watch_heartbeats(&self, silence_max: Duration, mut on_heartbeat: impl FnMut(bool) + Send) -> String {
        let silent = || format!("{}: silent for {silence_max:?}", self.whom());
        let Ok(opened) = timeout(silence_max, self.heartbeats()).await else { return silent() };
        let mut heartbeats = match opened {
            Ok(heartbeats) => heartbeats,
            Err(error) => return error.to_string(),
        };
        loop {
            match timeout(silence_max, heartbeats.next()).await {
                Ok(Ok(followed)) => on_heartbeat(followed),
                Ok(Err(why)) => return why,
                Err(_) => return silent(),
            }
        }
    }

    /// Returns once the other side has answered at all.
    pub async fn answers(&self, patience: Duration) -> Result<(), CallError> {
        self.begins(self.heartbeats(), patience).await
    }

    /// Asks for heartbeats.
    pub async fn heartbeats(&self) -> Result<Heartbeats, CallError> {
        let request = || (Method::GET, Bytes::new());
        let (link, response) = self.ask(path::HEARTBEATS, request, false, REPLY_SIZE_MAX).await?;
        Ok(Heartbeats { _link: link, response, whom: self.whom() })
    }

    /// Asks a sidecar for the heartbeats of a term: refused unless it leads that, or is about to.
    pub async fn heartbeats_of(&self, term: &TermRequest) -> Result<Heartbeats, CallError> {
        let body = self.encode(term)?;
        let (link, response) = self.ask(path::TERM, || (Method::POST, body.clone()), false, REPLY_SIZE_MAX).await?;
        Ok(Heartbeats { _link: link, response, whom: self.whom() })
    }

    /// Returns once the other side has answered that it leads this term.
    pub async fn leads(&self, term: &TermRequest, patience: Duration) -> Result<(), CallError> {
        self.begins(self.heartbeats_of(term), patience).await
    }

    async fn begins(
        &self,
        heartbeats: impl Future<Output = Result<Heartbeats, CallError>>,
        patience: Duration,
    ) -> Result<(), CallError> {
        let silent = |_| self.unreachable(&format!("silent for {patience:?}"));
        timeout(patience, heartbeats).await.map_err(silent)?.map(|_| ())
    }

    async fn post<Req>(&self, path: &str, request: &Req, limit: usize, time: Duration) -> Result<Bytes, CallError>
    where
        Req: Serialize + ?Sized,
    {
        let body = self.encode(request)?;
        match timeout(time, self.exchange(path, body, limit)).await {
            Ok(result) => result,
            Err(_) => Err(self.unreachable(&format!("no answer within {time:?}"))),
        }
    }

    fn encode<Req: Serialize + ?Sized>(&self, request: &Req) -> Result<Bytes, CallError> {
        let body = serde_json::to_vec(request).map_err(|error| self.unreachable(&error.to_string()))?;
        Ok(body.into())
    }

    async fn exchange(&self, path: &str, body: Bytes, limit: usize) -> Result<Bytes, CallError> {
        let request = || (Method::POST, body.clone());
        let limit = limit.max(REFUSAL_SIZE_MAX);
        let (link, response) = self.ask(path, request, true, limit).await?;
        let body = self.body(response, limit).await?;
        self.keep(link);
        Ok(body)
    }

    /// Sends to the server with the right name: a reply that is not a refusal. `reuse` allows an idle connection.
    async fn ask(
        &self,
        path: &str,
        request: impl Fn() -> (Method, Bytes),
        reuse: bool,
        limit: usize,
    ) -> Result<(Link, Response<Incoming>), CallError> {
        // Servers that replied with another name.
        let mut others: Vec<(String, MemberId)> = Vec::new();
        loop {
            let (method, body) = request();
            let (link, response) = match self.send(path, method, body, reuse, &others).await {
                Ok(answered) => answered,
                // None of the remaining addresses answers: report what the others have said.
                Err(error) if others.is_empty() => return Err(error),
                Err(_) => return Err(CallError::OtherNames(others)),
            };
            if response.status().is_success() {
                // Not of a refusal: another backup may have refused.
                if let Some(traits) = BackupTraits::of(response.headers()) {
                    *self.0.traits.lock().unwrap_or_else(PoisonError::into_inner) = Some(traits);
                }
                *self.0.peer.lock().unwrap_or_else(PoisonError::into_inner) = Some(link.peer.ip());
                return Ok((link, response));
            }
            let status = response.status();
            let body = self.body(response, limit).await?;
            match self.refusal(path, status, &body) {
                CallError::Refused(Refusal::OtherMember { found, .. }) => others.push((link.address.clone(), found)),
                refusal => {
                    self.keep(link);
                    return Err(refusal);
                }
            }
        }
    }

    /// Sends over an idle connection, or over a new one. A request is sent again only if a connection had ended before any of
    /// it was written.
    async fn send(
        &self,
        path: &str,
        method: Method,
        body: Bytes,
        reuse: bool,
        others: &[(String, MemberId)],
    ) -> Result<(Link, Response<Incoming>), CallError> {
        loop {
            let kept = if reuse { self.idle() } else { None };
            let (mut link, fresh) = match kept {
                Some(link) => (link, false),
                None => (self.connect(others).await?, true),
            };
            if let Err(error) = link.sender.ready().await {
                match fresh {
                    true => return Err(self.unreachable(&causes(&error))),
                    false => continue,
                }
            }
            let request = self.request(method.clone(), path, body.clone(), &link);
            match link.sender.try_send_request(request).await {
                Ok(response) => return Ok((link, response)),
                Err(mut error) => match error.take_message() {
                    Some(_) if !fresh => {}
                    _ => return Err(self.unreachable(&causes(&error.into_error()))),
                },
            }
        }
    }

    async fn connect(&self, others: &[(String, MemberId)]) -> Result<Link, CallError> {
        let mut addresses = (self.0.addresses)();
        addresses.retain(|address| !others.iter().any(|(other, _)| other == address));
        self.0.dialer.dial(&addresses).await.map_err(CallError::Unreachable)
    }

    fn request(&self, method: Method, path: &str, body: Bytes, link: &Link) -> Request<Full<Bytes>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &link.address)
            .header(CONTENT_TYPE, "application/json");
        if let Some(bearer) = self.0.dialer.bearer() {
            request = request.header(AUTHORIZATION, bearer);
        }
        if let Some(member) = &self.0.member {
            request = request.header(MEMBER_HEADER, member.as_str());
        }
        request
            .body(Full::new(body))
            .expect("paths are constants, names are checked, and the host has been connected to")
    }

    async fn body(&self, response: Response<Incoming>, limit: usize) -> Result<Bytes, CallError> {
        let collected = Limited::new(response.into_body(), limit).collect().await;
        let collected = collected.map_err(|error| self.unreachable(&no_body(error.as_ref(), limit)))?;
        Ok(collected.to_bytes())
    }

    fn idle(&self) -> Option<Link> {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|kept| kept.since.elapsed() < IDLE_TIME_MAX && !kept.link.sender.is_closed());
        idle.pop().map(|kept| kept.link)
    }

    fn keep(&self, link: Link) {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !link.sender.is_closed() {
            idle.push(Idle { link, since: Instant::now() });
        }
    }

    fn refusal(&self, path: &str, status: hyper::StatusCode, body: &[u8]) -> CallError {
        match serde_json::from_slice::<Refusal>(body) {
            Ok(refusal) => CallError::Refused(refusal.map_words(printable)),
            Err(_) => self.unreachable(&format!("{path}: answered {status}, which is no answer of a backup")),
        }
    }

    fn unreachable(&self, why: &str) -> CallError {
        CallError::Unreachable(format!("{}: {why}", self.whom()))
    }
}

impl fmt::Debug for BackupClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BackupClient").field(&self.whom()).finish()
    }
}

/// What others say, as a terminal and a log may show it.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// An error in our words: hyper speaks of chunks and messages, and tells the interesting part in the cause.
fn causes(error: &hyper::Error) -> String {
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    match (io, error.source()) {
        _ if has_ended(error) => "it closed the connection".to_owned(),
        (Some(io), _) => tls::readable(io),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// True where the other side has ended the connection, in any part of a message.
fn has_ended(error: &hyper::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    let gone = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof];
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    // What TLS has to say of a certificate comes as an error of the connection, too.
    let is_gone =
        io.is_some_and(|io| gone.contains(&io.kind()) && io.get_ref().is_none_or(|inner| !inner.is::<rustls::Error>()));
    is_gone || io.is_none() && (error.is_closed() || error.is_canceled() || error.is_incomplete_message())
}

/// Why the whole body of an answer has not come, of which so many bytes are taken.
fn no_body(error: &(dyn std::error::Error + 'static), limit: usize) -> String {
    match error.is::<LengthLimitError>() {
        true => format!("its answer is larger than {limit} bytes"),
        false => broken_off(&error.to_string()),
    }
}

fn broken_off(why: &str) -> String {
    format!("its answer broke off: {why}")
}

#[cfg(test)]
mod tests;
