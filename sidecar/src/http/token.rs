//! Asks callers without TLS for the group's control token, and proves to them that this server knows it.
//!
//! Around every route of an endpoint with [`Entry::Token`](super::Entry): a request without the token is refused before its
//! body is read.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tailwind_protocol::rpc::Refusal;

use super::hall::Place;
use crate::access::Token;

/// What anybody may ask: it changes nothing, and tells neither records nor where members are.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// Where a caller asks for the proof that the server knows the token, before it shows its own.
pub(crate) const PROOF: &str = "/v1/proof";
/// Holds the caller's nonce.
pub(crate) const NONCE_HEADER: &str = "tailwind-nonce";

/// Lets a request pass, or answers it.
pub(super) async fn check(State(token): State<Token>, request: Request, next: Next) -> Response {
    match answer(&token, &request) {
        Some(response) => response,
        None => next.run(request).await,
    }
}

/// What is said to a request that does not pass.
fn answer(token: &Token, request: &Request) -> Option<Response> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let place = request.extensions().get::<Arc<Place>>();
    let path = request.uri().path();
    if OPEN.contains(&path) {
        return None;
    }
    if path == PROOF {
        let proof = place.zip(header(NONCE_HEADER)).and_then(|(place, nonce)| token.proof(nonce, place.local));
        let without = || {
            let why = format!("a {NONCE_HEADER} header is needed");
            refuse(StatusCode::BAD_REQUEST, Refusal::BadRequest { why })
        };
        return Some(proof.map_or_else(without, IntoResponse::into_response));
    }
    if header(header::AUTHORIZATION.as_str()).is_some_and(|shown| token.admits(shown)) {
        if let Some(place) = place {
            place.admit();
        }
        return None;
    }
    let why = format!(
        "the control token is missing or wrong: use the one in {} here (--control-token), as every process of a group without \
         TLS must; by hand, send the header `Authorization: Bearer TOKEN`",
        token.path().display()
    );
    Some(refuse(StatusCode::UNAUTHORIZED, Refusal::Unauthorized { why }))
}

/// The body is not read, so the connection cannot be used again.
fn refuse(status: StatusCode, refusal: Refusal) -> Response {
    (status, [(header::CONNECTION, "close")], Json(refusal)).into_response()
}
