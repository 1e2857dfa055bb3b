//! Asks callers without TLS for the group's control token, and proves to them that this server knows it.
//!
//! Around every route of an endpoint whose authentication is a [`Token`]: a request without the token is refused before its
//! body is read.

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tailwind_protocol::rpc::Refusal;
use tailwind_report::report;
use tailwind_runtime::http::{CheckRequest, Connection, Standing};

use super::response;
use crate::access::Token;

/// What anybody may ask: it changes nothing, and reveals neither records nor where members are.
pub(super) const OPEN: [&str; 4] = ["/healthz", "/readyz", "/metrics", report::PATH];
/// Where a caller asks for the proof that the server knows the token, before it shows its own.
pub(crate) const PROOF: &str = "/v1/proof";
/// Holds the caller's nonce.
pub(crate) const NONCE_HEADER: &str = "tailwind-nonce";

impl CheckRequest for Token {
    fn refuse(&self, request: &Request, connection: &Connection) -> Option<Response> {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let path = request.uri().path();
        if OPEN.contains(&path) {
            return None;
        }
        if path == PROOF {
            let proof = header(NONCE_HEADER).and_then(|nonce| self.proof(nonce, connection.local()));
            return Some(proof.map_or_else(
                || {
                    last(
                        StatusCode::BAD_REQUEST,
                        Refusal::BadRequest { why: format!("a {NONCE_HEADER} header is needed") },
                    )
                },
                IntoResponse::into_response,
            ));
        }
        if header(header::AUTHORIZATION.as_str()).is_some_and(|shown| self.admits(shown)) {
            connection.authenticate(Standing::Authenticated);
            return None;
        }
        let why = format!(
            "the control token is missing or wrong: use the one in {} here (--control-token), as every process of a group without \
             TLS must; by hand, send the header `Authorization: Bearer TOKEN`",
            self.path().display()
        );
        Some(last(StatusCode::UNAUTHORIZED, Refusal::Unauthorized { why }))
    }
}

/// The body is not read, so the connection cannot be used again.
fn last(status: StatusCode, refusal: Refusal) -> Response {
    ([(header::CONNECTION, "close")], response(status, refusal)).into_response()
}
