//! The control RPC's paths: JSON in, a question to the [`actor`], JSON out. And status, probes, metrics.
//!
//! Served by [`run`](super::run) through [`http`](crate::http). Bodies become checked types here and nowhere else.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request as HttpRequest, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tailwind_backup::{Disk, ReadError, Unchecked};
use tailwind_fabric::{ChannelAnswer, Grant, Offer, Pool, ReadGrant};
use tailwind_protocol::backup::{Input, Place, Request};
use tailwind_protocol::ids::MemberId;
use tailwind_protocol::rpc::{
    CloseRequest, ConnectReply, ConnectRequest, DamageReply, DropRequest, Empty, FenceRequest, FetchRequest,
    FlushReply, FlushRequest, Inventory, InventoryRequest, MirrorReply, MirrorRequest, OpenReply, OpenRequest,
    PullRequest, ReadConnectReply, ReadConnectRequest, Refusal, ShareReply, ShareRequest, SyncRequest, TrimRequest,
    path,
};
use tailwind_report::readiness::{Unready, UnreadyReason};
use tailwind_report::report;
use tokio::time::timeout;
use tracing::error;

use super::actor::{self, ActorReply, ActorStatus, ChannelRequest, Handle};
use super::memory::PoolBuffers;
use super::pull::Puller;
use super::quarantine::{Quarantine, Quarantined};
use super::scrub::Scrub;
use super::sending::{Content, Places, blocking};
use super::status::{self, About};
use crate::access::Access;
use crate::http::Rights;
use crate::rpc::{BUFFER_HEADER, FABRIC_HEADER, MEMBER_HEADER};
use crate::tls::PeerRole;

/// How often a fetch looks again when the copy moves from memory to disk under it.
const FETCH_LOOKS: usize = 4;
/// An actor that does not answer a probe within this time is not well.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// What the routes need.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) actor: Handle,
    pub(super) disk: Arc<Disk>,
    pub(super) pool: Arc<Pool>,
    pub(super) about: Arc<About>,
    pub(super) access: Access,
    pub(super) scrub: Arc<Scrub>,
    pub(super) quarantine: Arc<Quarantine>,
    pub(super) puller: Arc<Puller>,
    pub(super) places: Places,
}

/// What readers may ask for: what reading takes, and what shows that the backup lives; and other backups: what it takes to copy a
/// segment. Everything else is for sidecars alone.
pub(super) const RIGHTS: Rights = Rights {
    readers: &[path::READ_CONNECT, path::SHARE, path::FETCH, path::INVENTORY, path::HEARTBEATS],
    backups: &[path::READ_CONNECT, path::SHARE, path::FETCH],
};

/// All routes, for authenticated callers.
pub(super) fn control(service: Service) -> Router {
    Router::new()
        .route(path::FENCE, post(fence))
        .route(path::INVENTORY, post(inventory))
        .route(path::DAMAGE, post(damage))
        .route(path::CONNECT, post(connect))
        .route(path::OPEN, post(open))
        .route(path::MIRROR, post(mirror))
        .route(path::CLOSE, post(close))
        .route(path::FLUSH, post(flush))
        .route(path::SYNC, post(sync))
        .route(path::FETCH, post(fetch))
        .route(path::PULL, post(pull))
        .route(path::TRIM, post(trim))
        .route(path::DROP, post(drop_copies))
        .route(path::READ_CONNECT, post(read_connect))
        .route(path::SHARE, post(share))
        .route(path::HEARTBEATS, get(heartbeats))
        .route("/status", get(status))
        .with_state(service.clone())
        .layer(middleware::from_fn_with_state(service.clone(), for_this_backup))
        .merge(probes(service))
        .fallback(nothing_here)
}

/// What anybody may see.
pub(super) fn probes(service: Service) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route(report::PATH, get(report))
        .with_state(service)
}

/// Refuses what is for another backup, before anything else: the caller has an address that was another's, or will be. Each
/// answer says what this backup can take.
async fn for_this_backup(State(service): State<Service>, request: HttpRequest, next: Next) -> Response {
    let About { fabric, buffer_bytes, .. } = service.about.as_ref();
    let traits = [(FABRIC_HEADER, fabric.clone()), (BUFFER_HEADER, buffer_bytes.to_string())];
    (traits, answer(&service, request, next).await).into_response()
}

async fn answer(service: &Service, request: HttpRequest, next: Next) -> Response {
    let wanted = request.headers().get(MEMBER_HEADER).and_then(|name| name.to_str().ok()).map(str::parse::<MemberId>);
    let found = &service.about.member;
    match wanted {
        Some(Ok(wanted)) if wanted != *found => {
            Refused(Refusal::OtherMember { found: found.clone(), wanted }).into_response()
        }
        Some(Err(error)) => Refused(Refusal::BadRequest { why: format!("{MEMBER_HEADER}: {error}") }).into_response(),
        _ => next.run(request).await,
    }
}

/// A refusal as an HTTP response.
struct Refused(Refusal);

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        Refused(refusal)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0)).into_response()
    }
}

/// A JSON body that is what it should be.
struct Decoded<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Decoded<T> {
    type Rejection = Refused;

    async fn from_request(request: HttpRequest, state: &S) -> Result<Decoded<T>, Refused> {
        let bad = |why: String| Refused(Refusal::BadRequest { why });
        let bytes = Bytes::from_request(request, state).await.map_err(|error| bad(error.to_string()))?;
        serde_json::from_slice(&bytes).map(Decoded).map_err(|error| bad(error.to_string()))
    }
}

type Replied<T> = Result<Json<T>, Refused>;

/// The role in the caller's certificate, if there is one.
type Caller = Option<Extension<PeerRole>>;

fn role(caller: Caller) -> Option<PeerRole> {
    caller.map(|Extension(role)| role)
}

impl Service {
    /// What the pages tell; `None` if the actor does not answer.
    async fn look(&self) -> Option<(ActorStatus, Option<Arc<Quarantined>>)> {
        let status = timeout(PROBE_TIMEOUT, self.actor.status()).await.ok()??;
        Some((status, self.quarantine.look().await))
    }

    async fn ask_inventory(&self, request: Request) -> Replied<Inventory> {
        match self.actor.ask(request, None).await? {
            ActorReply::Inventory(inventory) => Ok(Json(inventory)),
            other => Err(confused(&other)),
        }
    }

    async fn ask_done(&self, request: Request) -> Replied<Empty> {
        match self.actor.ask(request, None).await? {
            ActorReply::Done => Ok(Json(Empty {})),
            other => Err(confused(&other)),
        }
    }
}

async fn fence(State(service): State<Service>, Decoded(request): Decoded<FenceRequest>) -> Replied<Inventory> {
    service.ask_inventory(Request::Fence(request)).await
}

/// A page may have megabytes: those of readers are few at a time, and sent within a bound.
async fn inventory(
    State(service): State<Service>,
    caller: Caller,
    Decoded(request): Decoded<InventoryRequest>,
) -> Result<Response, Refused> {
    let place = service.places.inventory(role(caller)).await;
    let Json(inventory) = service.ask_inventory(Request::Inventory(request.after)).await?;
    let Some(place) = place else { return Ok(Json(inventory).into_response()) };
    let json = serde_json::to_vec(&inventory).map_err(|error| Refusal::Failed { why: error.to_string() })?;
    Ok(Content::Bytes(json.into()).send("application/json", place))
}

async fn damage(State(service): State<Service>, Decoded(Empty {}): Decoded<Empty>) -> Replied<DamageReply> {
    match service.actor.ask(Request::Damage, None).await? {
        ActorReply::Damage(corrupt) => Ok(Json(DamageReply { corrupt })),
        other => Err(confused(&other)),
    }
}

async fn connect(
    State(service): State<Service>,
    Decoded(request): Decoded<ConnectRequest<Offer>>,
) -> Replied<ConnectReply<ChannelAnswer, Grant>> {
    let end = ChannelRequest { offer: request.offer, board: request.board };
    match service.actor.ask(Request::Connect(request.caller), Some(end)).await? {
        ActorReply::Connecting(admission, board) => {
            let place = service.places.channel().await;
            let answer = actor::connect(admission, place).await?;
            Ok(Json(ConnectReply { boot: service.about.boot, answer, board }))
        }
        other => Err(confused(&other)),
    }
}

async fn open(State(service): State<Service>, Decoded(request): Decoded<OpenRequest>) -> Replied<OpenReply<Grant>> {
    match service.actor.ask(Request::Open(request), None).await? {
        ActorReply::Opened(grant, board) => Ok(Json(OpenReply { grant, board })),
        other => Err(confused(&other)),
    }
}

async fn mirror(
    State(service): State<Service>,
    Decoded(request): Decoded<MirrorRequest>,
) -> Replied<MirrorReply<Grant>> {
    Ok(Json(service.actor.mirror(request).await?))
}

async fn close(State(service): State<Service>, Decoded(request): Decoded<CloseRequest>) -> Replied<Empty> {
    service.ask_done(Request::Close(request)).await
}

async fn flush(State(service): State<Service>, Decoded(request): Decoded<FlushRequest>) -> Replied<FlushReply> {
    match service.actor.ask(Request::Flush(request), None).await? {
        ActorReply::Flushed(end) => Ok(Json(FlushReply { end })),
        other => Err(confused(&other)),
    }
}

async fn sync(State(service): State<Service>, Decoded(request): Decoded<SyncRequest>) -> Replied<Empty> {
    service.ask_done(Request::Sync(request)).await
}

async fn pull(State(service): State<Service>, Decoded(request): Decoded<PullRequest>) -> Replied<Empty> {
    service.puller.pull(&service.actor, request).await?;
    Ok(Json(Empty {}))
}

async fn trim(State(service): State<Service>, Decoded(request): Decoded<TrimRequest>) -> Replied<Empty> {
    service.ask_done(Request::Trim(request)).await
}

async fn drop_copies(State(service): State<Service>, Decoded(request): Decoded<DropRequest>) -> Replied<Empty> {
    service.ask_done(Request::Drop(request)).await
}

async fn read_connect(
    State(service): State<Service>,
    caller: Caller,
    Decoded(request): Decoded<ReadConnectRequest<Offer>>,
) -> Replied<ReadConnectReply<ChannelAnswer>> {
    let role = role(caller);
    let place = service.places.read_channel(role).await;
    let answer = service.actor.read_connect(request, role == Some(PeerRole::Reader), place).await?;
    Ok(Json(ReadConnectReply { boot: service.about.boot, answer }))
}

async fn share(
    State(service): State<Service>,
    Decoded(request): Decoded<ShareRequest>,
) -> Replied<ShareReply<ReadGrant>> {
    Ok(Json(service.actor.share(request).await?))
}

/// Sends a closed segment, or a range of it. It may move from its buffer to its file while it is being read: then look again. For
/// readers it is never checked here, which would take its whole length in memory, and a scan: they check it themselves. For other
/// backups it is checked, and then read once more: how long its bytes stay in memory is not up to them.
async fn fetch(
    State(service): State<Service>,
    caller: Caller,
    Decoded(request): Decoded<FetchRequest>,
) -> Result<Response, Refused> {
    let role = role(caller);
    let place = service.places.fetch(role).await;
    let check = request.check && role != Some(PeerRole::Reader);
    let sends_checked = !matches!(role, Some(PeerRole::Reader | PeerRole::Backup));
    let mut failed_at = None;
    for _ in 0..FETCH_LOOKS {
        let answer = service.actor.ask(Request::Fetch(request.clone()), None).await?;
        let ActorReply::Fetch(place_of_copy, identity, closure) = answer else { return Err(confused(&answer)) };
        let (disk, buffers) = (Arc::clone(&service.disk), PoolBuffers(Arc::clone(&service.pool)));
        let range = request.bytes();
        let checking = if check && !sends_checked { Some(service.places.check().await) } else { None };
        let look = move || {
            let _checking = checking;
            if check {
                let bytes = tailwind_backup::fetch(&disk, &buffers, place_of_copy, &identity, &closure)?;
                if sends_checked {
                    let bytes = Bytes::from(bytes);
                    return Ok(Content::Bytes(bytes.slice(range.start as usize..range.end as usize)));
                }
            }
            let copy = Unchecked::open(&disk, place_of_copy, &identity, &closure)?;
            Ok(Content::unchecked(copy.only(range), buffers))
        };
        match blocking(look).await {
            Ok(segment) => return Ok(segment.send("application/octet-stream", place)),
            // A cache: the machine forgets it, and the file is next.
            Err(_) if matches!(place_of_copy, Place::Both(_)) => {
                service.actor.tell(Input::FoundCorrupt(identity, place_of_copy));
            }
            Err(ReadError::Io(error)) => {
                let why = format!("read segment {} from {}: {error}", identity.segment, service.disk.path().display());
                return Err(Refusal::Failed { why }.into());
            }
            // Twice at the same place: it is not moving.
            Err(ReadError::Corrupt | ReadError::Missing) if failed_at == Some(place_of_copy) => {
                error!(segment = %identity.segment, epoch = %identity.epoch, place = ?place_of_copy, "closed segment is corrupt");
                service.actor.tell(Input::FoundCorrupt(identity, place_of_copy));
                return Err(Refusal::Corrupt { segment: identity.segment }.into());
            }
            Err(ReadError::Corrupt | ReadError::Missing) => failed_at = Some(place_of_copy),
        }
    }
    let why = format!("segment {} moved repeatedly during the read", request.identity.segment);
    Err(Refusal::RetryLater { after_ms: 10, why }.into())
}

async fn heartbeats(State(service): State<Service>) -> Response {
    Body::from_stream(service.about.heartbeats.stream()).into_response()
}

async fn status(State(service): State<Service>) -> Response {
    let Some((report, quarantine)) = service.look().await else { return unwell() };
    let (scrubbed, pulled) = (service.scrub.so_far(), service.puller.so_far());
    pretty(&status::page(&service.about, &report, &scrubbed, &pulled, quarantine.as_deref()))
}

async fn metrics(State(service): State<Service>) -> Response {
    let Some((report, quarantine)) = service.look().await else { return unwell() };
    let (scrubbed, pulled) = (service.scrub.so_far(), service.puller.so_far());
    let certificate = service.access.certificate();
    status::metrics(&service.about, &report, &scrubbed, &pulled, quarantine.as_deref(), certificate).into_response()
}

async fn report(State(service): State<Service>) -> Response {
    let Some((actor, quarantine)) = service.look().await else { return unwell() };
    Json(status::report(&service.about, &actor, quarantine.as_deref())).into_response()
}

/// The actor answers.
async fn healthz(State(service): State<Service>) -> Response {
    match timeout(PROBE_TIMEOUT, service.actor.status()).await {
        Ok(Some(_)) => "ok\n".into_response(),
        _ => unwell(),
    }
}

/// It listens only once the start is done, so alive is ready, unless something keeps the fabric from lending.
async fn readyz(State(service): State<Service>) -> Response {
    match timeout(PROBE_TIMEOUT, service.actor.status()).await {
        Ok(Some(ActorStatus { problem, no_room, .. })) => {
            let failed = problem.map(|why| Unready { reason: UnreadyReason::FabricFailed, why });
            let failed = failed.or(no_room.map(|why| Unready { reason: UnreadyReason::NoRoom, why }));
            match failed.as_ref().or(service.about.obstacle.as_ref()) {
                None => "ok\n".into_response(),
                Some(unready) => unavailable(unready),
            }
        }
        _ => unwell(),
    }
}

async fn nothing_here() -> Response {
    let why = "no such path: the control RPC is under /v1/, see docs/protocol.md".to_owned();
    (StatusCode::NOT_FOUND, Json(Refusal::BadRequest { why })).into_response()
}

fn unwell() -> Response {
    let why = "the backup thread does not answer".to_owned();
    unavailable(&Unready { reason: UnreadyReason::Unresponsive, why })
}

fn unavailable(unready: &Unready) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, unready.to_string()).into_response()
}

fn pretty(value: &impl Serialize) -> Response {
    let json = serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}

/// The machine's reply does not fit the request: a bug, reported instead of hidden.
fn confused(answer: &ActorReply) -> Refused {
    error!(?answer, "internal error: unexpected kind of reply");
    Refused(Refusal::Failed { why: "internal error: wrong kind of reply".to_owned() })
}
