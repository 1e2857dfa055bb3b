//! RESP2, the protocol of Redis' clients: commands in, replies out.

mod inline;
mod parser;
mod reply;

pub use parser::{Parser, ProtocolError};
pub use reply::Reply;
