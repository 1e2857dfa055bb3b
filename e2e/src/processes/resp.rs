//! A client that speaks RESP: of the example app, and of Redis.
//!
//! Used by [`kv`](super::kv) and [`redis`](super::redis), and by their tests and benchmarks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespValue {
    /// `+`
    Simple(String),
    /// `-`
    Error(String),
    /// `:`
    Integer(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `$-1`
    Nil,
    /// `*`
    Array(Vec<RespValue>),
}

impl RespValue {
    /// A text as bytes.
    pub fn text(text: &str) -> RespValue {
        RespValue::Bulk(text.as_bytes().to_vec())
    }

    /// True for an error that begins with this word.
    pub fn is_error(&self, word: &str) -> bool {
        matches!(self, RespValue::Error(text) if text.split(' ').next() == Some(word))
    }
}

/// A connection that speaks RESP.
#[derive(Debug)]
pub struct RespClient {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl RespClient {
    /// Connects to a port on loopback. Waits no longer than this for any reply.
    pub fn connect(port: u16, answer_timeout: Duration) -> Result<RespClient> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(answer_timeout))?;
        stream.set_nodelay(true)?;
        Ok(RespClient { reader: BufReader::new(stream.try_clone()?), stream })
    }

    /// Sends a command without waiting for its reply.
    pub fn send(&mut self, words: &[&str]) -> Result<()> {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.send_bytes(bytes.as_bytes())
    }

    /// Sends any bytes.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// The next reply.
    pub fn reply(&mut self) -> Result<RespValue> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").context("the connection has ended")?;
        let (kind, rest) = line.split_at_checked(1).context("an empty line")?;
        Ok(match kind {
            "+" => RespValue::Simple(rest.to_owned()),
            "-" => RespValue::Error(rest.to_owned()),
            ":" => RespValue::Integer(rest.parse()?),
            "$" if rest == "-1" => RespValue::Nil,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>()? + 2];
                self.reader.read_exact(&mut bytes)?;
                ensure!(bytes.ends_with(b"\r\n"), "a bulk that does not end where it should");
                bytes.truncate(bytes.len() - 2);
                RespValue::Bulk(bytes)
            }
            "*" => RespValue::Array((0..rest.parse::<usize>()?).map(|_| self.reply()).collect::<Result<_>>()?),
            other => bail!("a reply of kind {other:?}"),
        })
    }

    /// Sends a command and waits for its reply.
    pub fn ask(&mut self, words: &[&str]) -> Result<RespValue> {
        self.send(words)?;
        self.reply()
    }

    /// True once the server has closed the connection.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.reader.fill_buf(), Ok([]))
    }
}
