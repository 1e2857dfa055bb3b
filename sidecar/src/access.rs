//! Access to the control RPC: with TLS, for holders of certificates; without, for holders of a token that the group shares.
//!
//! Loaded by `run` and `backup`. [`http`](crate::http) demands it of callers, [`rpc`](crate::rpc) shows it to servers. Without
//! either there is no control RPC: a connection over loopback does not identify the caller.

pub mod token;

use std::convert::Infallible;
use std::sync::Arc;

use tailwind_protocol::ids::GroupName;
use tailwind_runtime::http::Authentication;
use tokio::task::JoinHandle;

use crate::tls::{CertificateState, PeerRole, Tls, TlsOptions};

pub use token::{Token, TokenOptions};

/// How a process authenticates itself and its callers. Cheap to clone; clones see what is reloaded.
#[derive(Clone, Debug)]
pub enum Access {
    /// Mutual TLS.
    Tls(Tls),
    /// A shared token, on loopback.
    Token(Token),
}

impl Access {
    /// Loads the TLS material if any is named, or else the token, which is made if it is missing. The task reloads files that
    /// change, and ends only by a panic: its owner ends the process then. Called within the runtime.
    pub fn load(
        tls: &TlsOptions,
        token: &TokenOptions,
        group: &GroupName,
        role: PeerRole,
    ) -> anyhow::Result<(Access, JoinHandle<Infallible>)> {
        if let Some(tls) = tls.load(group, role)? {
            let reload = tokio::spawn(tls.clone().keep_fresh());
            return Ok((Access::Tls(tls), reload));
        }
        let token = token.load(group)?;
        let reload = tokio::spawn(token.clone().keep_fresh());
        Ok((Access::Token(token), reload))
    }

    /// The TLS material, if it is that.
    pub fn tls(&self) -> Option<&Tls> {
        match self {
            Access::Tls(tls) => Some(tls),
            Access::Token(_) => None,
        }
    }

    /// What metrics say of the certificate; `None` if there is none.
    pub fn certificate(&self) -> Option<CertificateState> {
        self.tls().map(Tls::state)
    }

    /// What an endpoint demands of its callers: to be a sidecar or a reader of this group, or to know its token, which says
    /// nothing about roles.
    pub fn authentication(&self) -> Authentication {
        match self {
            Access::Tls(tls) => Authentication::Tls(Arc::new(tls.clone())),
            Access::Token(token) => Authentication::Request(Arc::new(token.clone())),
        }
    }
}
