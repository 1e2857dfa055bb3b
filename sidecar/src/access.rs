//! Who may speak on the control RPC: by certificates where TLS is set up, and else by a token that the group shares.
//!
//! Loaded by `run` and `backup`; [`http`](crate::http) asks it of whoever comes, [`rpc`](crate::rpc) shows it to whomever it
//! asks. Without either there is no control RPC: that a caller comes over loopback says nothing about who it is.

pub mod token;

use tailwind_protocol::ids::GroupName;

use crate::http::Entry;
use crate::tls::{PeerRole, Tls, TlsOptions};

pub use token::{Token, TokenOptions};

/// A process's own means to be let in and to let others in. Cheap to clone; clones see what is reloaded.
#[derive(Clone, Debug)]
pub enum Access {
    /// Mutual TLS.
    Tls(Tls),
    /// A shared token, on loopback.
    Token(Token),
}

impl Access {
    /// Loads the TLS material if any is named, and else the token, which is made if it is not there. Keeps up with changes of
    /// the files from then on; called within the runtime.
    pub fn load(tls: TlsOptions, token: &TokenOptions, group: &GroupName, role: PeerRole) -> anyhow::Result<Access> {
        if let Some(loaded) = tls.load(group, role)? {
            tokio::spawn(loaded.clone().keep_fresh(tls, group.clone(), role));
            return Ok(Access::Tls(loaded));
        }
        let token = token.load(group)?;
        tokio::spawn(token.clone().keep_fresh(group.clone()));
        Ok(Access::Token(token))
    }

    /// The TLS material, if it is that.
    pub fn tls(&self) -> Option<&Tls> {
        match self {
            Access::Tls(tls) => Some(tls),
            Access::Token(_) => None,
        }
    }

    /// What an endpoint asks of whoever comes: to be a `peer` of this group.
    pub fn entry(&self, peer: PeerRole) -> Entry {
        match self {
            Access::Tls(tls) => Entry::Tls(tls.guard(peer)),
            Access::Token(token) => Entry::Token(token.clone()),
        }
    }
}
