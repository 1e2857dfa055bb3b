//! One HTTP request over a connection of its own, right or wrong.
//!
//! Used by the tests; the connection may be anything that carries bytes, so that TLS can be tried from outside.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An answer: status code and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// Such as 200.
    pub status: u16,
    /// As it came.
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// The body as JSON; `Null` if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Connects to a port of this host.
pub fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Asks with GET in plain HTTP.
pub fn get(port: u16, path: &str) -> io::Result<HttpResponse> {
    request(&mut connect(port)?, "GET", path, b"")
}

/// The same at any address, to which a connection takes no longer than an answer.
pub fn get_from(address: SocketAddr, path: &str) -> io::Result<HttpResponse> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    request(&mut stream, "GET", path, b"")
}

/// Asks over a connection and reads to its end.
pub fn request(stream: &mut (impl Read + Write), method: &str, path: &str, body: &[u8]) -> io::Result<HttpResponse> {
    request_with(stream, method, path, "", body)
}

/// The same with more headers, each with its line's end.
pub fn request_with(
    stream: &mut (impl Read + Write),
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> io::Result<HttpResponse> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         {headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    // A TLS peer may close without an alert once it has answered.
    match stream.read_to_end(&mut answer) {
        Err(error) if answer.is_empty() => return Err(error),
        _ => {}
    }
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or_else(broken)?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| broken())?;
    let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).ok_or_else(broken)?;
    Ok(HttpResponse { status, body: answer[end + 4..].to_vec() })
}
