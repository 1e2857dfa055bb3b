//! What a sidecar serves over HTTP: calls of the group's other processes, probes and pages.
//!
//! Served by [`run`](super::run), on the control endpoint and, without the calls, on the one for metrics; calls
//! [`control`](crate::control).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::de::DeserializeOwned;
use tailwind_protocol::rpc::HEARTBEAT;
use tailwind_protocol::rpc::path::{POSITION, TERM};
use tailwind_protocol::rpc::{Empty, PositionReply, PositionRequest, Refusal, TermId, TermRequest};
use tailwind_report::peer::{self, PeerNote};
use tailwind_report::report;
use tailwind_report::sidecar::SidecarReport;
use tailwind_report::{ROLE_PRIMARY, ROLE_READER, ROLE_STANDBY};

use crate::control::reads::position;
use crate::control::{Context, status};
use crate::http::Rights;
use crate::tls::PeerRole;

/// What readers may ask a sidecar for, beside what anybody may.
pub(super) const RIGHTS: Rights = Rights { readers: &[POSITION, peer::PATH], backups: &[] };
/// Instead of a page, while nobody turns the append path.
const HANGS: &str = "the append path hangs\n";

pub(super) fn router(context: &Arc<Context>, interval: Duration) -> Router {
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

pub(super) fn probes(context: &Arc<Context>) -> Router {
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
    let Some(readiness) = status::readiness(&context).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, HANGS.to_owned());
    };
    let is_ready = match readiness.role.as_str() {
        ROLE_PRIMARY | ROLE_STANDBY => true,
        ROLE_READER => context.may_read() && context.configuration.borrow().is_some(),
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
