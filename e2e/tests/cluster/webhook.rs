//! An admission webhook for one test: labels every object.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use rcgen::SanType;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use tailwind_e2e::certificates::Authority;

/// Serves until the test ends.
pub(crate) struct Webhook {
    pub(crate) port: u16,
    /// The certificate authority, as a `caBundle` has it.
    pub(crate) authority: String,
}

/// A JSON patch that adds the labels `webhook: was-here`, in base64.
const PATCH: &str = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2xhYmVscyIsInZhbHVlIjp7IndlYmhvb2siOiJ3YXMtaGVyZSJ9fV0=";

impl Webhook {
    pub(crate) fn start(address: &str, name: &str) -> Webhook {
        let authority = Authority::generate().unwrap();
        let (certificate, key) = authority.sign(SanType::DnsName(name.try_into().unwrap())).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(vec![certificate.der().clone()], key).unwrap());
        let listener = TcpListener::bind(address).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, config) = (stream.unwrap(), Arc::clone(&config));
                std::thread::spawn(move || {
                    let connection = ServerConnection::new(config).unwrap();
                    // The caller notices a failure.
                    let _ = serve(StreamOwned::new(connection, stream));
                });
            }
        });
        Webhook { port, authority: base64(authority.pem.as_bytes()) }
    }
}

/// One request, one answer.
fn serve(mut stream: StreamOwned<ServerConnection, TcpStream>) -> std::io::Result<()> {
    let mut request = Vec::new();
    let review: Value = loop {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes)?;
        request.extend_from_slice(&bytes[..count]);
        let body = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| &request[at + 4..]);
        // JSON says itself where it ends.
        if let Some(Ok(review)) = body.map(serde_json::from_slice) {
            break review;
        }
        if count == 0 {
            return Ok(());
        }
    };
    let response = json!({"uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch", "patch": PATCH});
    let body =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}).to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length:";
    write!(stream, "{head} {}\r\n\r\n{body}", body.len())?;
    stream.flush()
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let number = chunk.iter().chain(&[0; 3]).take(3).fold(0, |number, byte| number << 8 | usize::from(*byte));
        for place in 0..4 {
            let letter = if place <= chunk.len() { LETTERS[number >> (18 - 6 * place) & 63] } else { b'=' };
            text.push(char::from(letter));
        }
    }
    text
}
