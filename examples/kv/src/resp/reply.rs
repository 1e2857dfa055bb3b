//! What a command is answered with, and its bytes.

use std::borrow::Cow;

use bytes::Bytes;

/// A reply in RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `OK` and the like.
    Simple(&'static str),
    /// An upper-case word that programs look at, then words for people.
    Error(Cow<'static, str>),
    /// A number.
    Integer(i64),
    /// Any bytes.
    Bulk(Bytes),
    /// No such thing.
    Nil,
    /// Several replies in one.
    Array(Vec<Reply>),
}

impl Reply {
    /// `+OK`.
    pub const OK: Reply = Reply::Simple("OK");

    /// An error.
    pub fn error(text: impl Into<Cow<'static, str>>) -> Reply {
        Reply::Error(text.into())
    }

    /// A text as bytes.
    pub fn text(text: impl Into<String>) -> Reply {
        Reply::Bulk(Bytes::from(text.into()))
    }

    /// A reply with a count.
    pub fn count(count: usize) -> Reply {
        Reply::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Yes or no as 1 or 0.
    pub fn flag(flag: bool) -> Reply {
        Reply::Integer(i64::from(flag))
    }

    /// Appends the bytes that come before an array's items.
    pub fn encode_array_head(length: usize, out: &mut Vec<u8>) {
        line(out, b'*', length.to_string().as_bytes());
    }

    /// Appends the reply's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Simple(text) => line(out, b'+', text.as_bytes()),
            Reply::Error(text) => {
                // What a client sent may be quoted in it: a line end would begin another reply.
                let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                line(out, b'-', clean.as_bytes());
            }
            Reply::Integer(number) => line(out, b':', number.to_string().as_bytes()),
            Reply::Bulk(bytes) => {
                line(out, b'$', bytes.len().to_string().as_bytes());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Nil => line(out, b'$', b"-1"),
            Reply::Array(items) => {
                Reply::encode_array_head(items.len(), out);
                items.iter().for_each(|item| item.encode(out));
            }
        }
    }
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_follow_resp() {
        let reply = Reply::Array(vec![
            Reply::OK,
            Reply::Integer(-7),
            Reply::text("a\r\nb"),
            Reply::Nil,
            Reply::Array(vec![]),
            Reply::error("ERR a\r\n+OK"),
        ]);
        let mut out = Vec::new();
        reply.encode(&mut out);
        assert_eq!(out, b"*6\r\n+OK\r\n:-7\r\n$4\r\na\r\nb\r\n$-1\r\n*0\r\n-ERR a  +OK\r\n");
    }
}
