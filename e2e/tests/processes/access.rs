//! Unauthorized callers of the control RPC and the data port: they learn nothing, change nothing and block nobody.
//!
//! The group speaks mutual TLS, or has a control token. The caller's TLS client accepts any server and shows any certificate.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use serde_json::Value;
use tailwind_e2e::certificates::Authority;
use tailwind_e2e::context::{TestContext, is_root};
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::group::{Group, Process, Setup};
use tailwind_e2e::processes::http::{self, HttpResponse};
use tailwind_e2e::processes::process::{as_nobody, run_to_end};
use tailwind_e2e::processes::steps::{OUTAGE, append, check_whole, primary};

use crate::silent_connections::SilentConnections;

on_every_fabric!(tls_group_survives_its_primary, unauthorized_callers_learn_and_change_nothing);

/// A group that speaks mutual TLS, and its folder of certificates.
pub(crate) fn tls_group(test: &TestContext, mut setup: Setup) -> (Group, tempfile::TempDir, Authority) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::generate().unwrap();
    authority.issue_group(folder.path(), 0..setup.sidecars, 0..setup.backups).unwrap();
    for name in (setup.sidecars - setup.readers..setup.sidecars).map(|number| format!("sidecar{number}")) {
        authority.issue(folder.path(), &name, &format!("tailwind://demo/reader/{name}")).unwrap();
    }
    setup.certificates = Some(folder.path().to_owned());
    (test.start_group(setup).unwrap(), folder, authority)
}

fn tls_group_survives_its_primary(fabric: &str) {
    let test = TestContext::start();
    let (group, _folder, _authority) = tls_group(&test, test.setup(fabric).unwrap());
    lose_the_primary_and_a_member(&test, group, |_| ());
}

/// The primary is killed, then a member. `during` starts what is to make that harder.
pub(crate) fn lose_the_primary_and_a_member<T>(test: &TestContext, mut group: Group, during: impl Fn(&Group) -> T) {
    let input = test.input();
    let end = append(&mut primary(&group).unwrap(), &input, 0, 2000).unwrap();
    let running = during(&group);
    group.kill_sidecar(0).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, end, 2000).unwrap();
    let victim = group.wait_for_full_set().unwrap()[0];
    group.kill_backup(victim).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, end, 2000).unwrap();
    group.wait_for_full_set().unwrap();
    drop(running);
    check_whole(&group, &input, end).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

/// Accepts every server.
#[derive(Debug)]
struct AcceptAnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A client that shows the certificate `NAME.pem` of a folder, or none.
fn client(shown: Option<(&Path, &str)>) -> Arc<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions().unwrap();
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyServer(provider)));
    Arc::new(match shown {
        None => builder.with_no_client_auth(),
        Some((folder, name)) => {
            let chain = vec![CertificateDer::from_pem_file(folder.join(format!("{name}.pem"))).unwrap()];
            let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

fn over_tls(config: &Arc<ClientConfig>, port: u16) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::clone(config), name).unwrap(), http::connect(port).unwrap())
}

/// Every control port.
fn control_ports(group: &Group) -> Vec<u16> {
    let backups = (0..group.backups()).map(Process::Backup);
    backups.chain((0..group.sidecars()).map(Process::Sidecar)).map(|process| group.port(process)).collect()
}

/// Every metric of a process, and every label, is on the page that is made from examples of them.
fn check_metrics_are_documented(served: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md");
    let page = fs::read_to_string(path).unwrap();
    let mut seen = 0;
    for line in served.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = line.split_once('{').unwrap_or_else(|| panic!("no labels: {line}"));
        let name = ["_bucket", "_sum", "_count"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
        let row = page.lines().find(|row| row.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("{path} has no {name}"));
        for label in labels.split(',').filter_map(|label| Some(label.split_once('=')?.0)) {
            let is_told = ["group", "sidecar", "member", "le"].contains(&label) || row.contains(&format!("`{label}`"));
            assert!(is_told, "{path} has no label {label} of {name}");
        }
        seen += 1;
    }
    assert!(seen > 20, "{served}");
}

/// What every backup answers to an authorized request for its inventory: what it holds and has promised.
fn inventories(group: &Group, request: impl Fn(u16) -> HttpResponse) -> Vec<Value> {
    let inventory = |index| {
        let response = request(group.port(Process::Backup(index)));
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    };
    (0..group.backups()).map(inventory).collect()
}

/// Runs `attack`, which must change neither the backups' inventories nor the sidecar's status; the group continues.
fn check_unchanged(
    test: &TestContext,
    group: &Group,
    request: impl Fn(u16) -> HttpResponse,
    attack: impl FnOnce(&[Value]),
) {
    let input = test.input();
    let end = append(&mut primary(group).unwrap(), &input, 0, 2000).unwrap();
    let has_flushed = |group: &Group| inventories(group, &request) == inventories(group, &request);
    group.wait("every flush to be done", has_flushed).unwrap();
    let before = inventories(group, &request);
    let status = group.status(0);

    attack(&before);

    assert_eq!(inventories(group, &request), before);
    let after = group.status(0);
    for unchanged in ["role", "epoch", "set_version", "positions", "members"] {
        assert_eq!(after[unchanged], status[unchanged], "{unchanged}");
    }
    let end = append(&mut primary(group).unwrap(), &input, end, 500).unwrap();
    check_whole(group, &input, end).unwrap();
    group.check_logs(&[]).unwrap();
}

/// Requests that would change or reveal something if they were served.
fn requests(group: &Group) -> Vec<(&'static str, &'static str, String)> {
    let text = fs::read_to_string(group.newest_config().unwrap()).unwrap();
    let config: Value = text.split_once('\n').unwrap().1.parse().unwrap();
    let log = &config["configuration"]["log"];
    assert!(!log.is_null(), "{text}");
    let caller = serde_json::json!({ "caller": { "group": "demo", "log": log, "epoch": 1_000_000 } });
    vec![
        ("GET", "/status", String::new()),
        ("GET", "/metrics", String::new()),
        ("GET", "/v1/heartbeats", String::new()),
        ("POST", "/v1/inventory", "{}".to_owned()),
        ("POST", "/v1/fence", caller.to_string()),
    ]
}

fn unauthorized_callers_learn_and_change_nothing(fabric: &str) {
    let test = TestContext::start();
    let (group, folder, authority) = tls_group(&test, test.setup(fabric).unwrap());
    let folder = folder.path();
    let authorized = client(Some((folder, "sidecar0")));
    let inventory = |port| http::request(&mut over_tls(&authorized, port), "POST", "/v1/inventory", b"{}").unwrap();
    authority.issue(folder, "other-group", "tailwind://other/sidecar/sidecar0").unwrap();
    authority.issue(folder, "other-backup", "tailwind://other/backup/backup1").unwrap();
    authority.issue(folder, "nobody", "https://example.com/").unwrap();
    Authority::generate().unwrap().issue(folder, "other-ca", "tailwind://demo/sidecar/sidecar0").unwrap();
    check_unchanged(&test, &group, inventory, |_| {
        for (method, path, body) in requests(&group) {
            for port in control_ports(&group) {
                // Plain HTTP: not one byte of HTTP comes back.
                let mut stream = http::connect(port).unwrap();
                if let Ok(response) = http::request(&mut stream, method, path, body.as_bytes()) {
                    panic!("{method} {path} in plain HTTP: {response:?}");
                }
                for shown in [None, Some("other-group"), Some("nobody"), Some("other-ca"), Some("other-backup")] {
                    let config = client(shown.map(|name| (folder, name)));
                    if let Ok(response) = http::request(&mut over_tls(&config, port), method, path, body.as_bytes()) {
                        panic!("{method} {path} with the certificate {shown:?}: {response:?}");
                    }
                }
            }
        }
        for port in control_ports(&group) {
            assert_eq!(response_to(port, b"\x16\x03\x01garbage that begins like TLS\r\n\r\n"), "");
        }
        if fabric == "tcp" {
            send_to_the_data_ports(&group);
        }
    });
}

/// A backup may copy from other backups; sidecars have nothing for it.
#[test]
fn a_backups_certificate_only_copies() {
    let test = TestContext::start();
    let (group, folder, _authority) = tls_group(&test, test.setup("shm").unwrap());
    let folder = folder.path();
    let authorized = client(Some((folder, "sidecar0")));
    let inventory = |port| http::request(&mut over_tls(&authorized, port), "POST", "/v1/inventory", b"{}").unwrap();
    let backup = client(Some((folder, "backup1")));
    check_unchanged(&test, &group, inventory, |before| {
        for port in control_ports(&group) {
            for (method, path, body) in attacks(&group, &before[0]) {
                if path != "/v1/fetch" {
                    let response = http::request(&mut over_tls(&backup, port), method, path, body.as_bytes()).unwrap();
                    assert_eq!(response.status, 403, "{method} {path} at port {port}");
                }
            }
        }
    });
}

/// A reader learns what reading takes, and what anybody may see.
#[test]
fn a_readers_certificate_changes_nothing() {
    let test = TestContext::start();
    let (group, folder, authority) = tls_group(&test, test.setup("shm").unwrap());
    let folder = folder.path();
    let authorized = client(Some((folder, "sidecar0")));
    let inventory = |port| http::request(&mut over_tls(&authorized, port), "POST", "/v1/inventory", b"{}").unwrap();
    authority.issue(folder, "feed", "tailwind://demo/reader/feed").unwrap();
    let reader = client(Some((folder, "feed")));
    let status = |method: &str, path: &str, body: &str, port| {
        http::request(&mut over_tls(&reader, port), method, path, body.as_bytes()).unwrap().status
    };
    check_unchanged(&test, &group, inventory, |before| {
        for port in control_ports(&group) {
            let metrics = http::request(&mut over_tls(&reader, port), "GET", "/metrics", b"").unwrap();
            assert_eq!(metrics.status, 200);
            check_metrics_are_documented(&String::from_utf8(metrics.body).unwrap());
            for (method, path, body) in attacks(&group, &before[0]) {
                let is_reading = ["/v1/heartbeats", "/v1/inventory", "/v1/fetch"].contains(&path);
                if !is_reading {
                    assert_eq!(status(method, path, &body, port), 403, "{method} {path} at port {port}");
                }
            }
        }
        for index in 0..group.backups() {
            assert_eq!(status("POST", "/v1/inventory", "{}", group.port(Process::Backup(index))), 200);
        }
        for index in 0..group.sidecars() {
            let port = group.port(Process::Sidecar(index));
            assert_eq!(status("GET", "/v1/heartbeats", "", port), 403);
            assert_eq!(status("POST", "/v1/inventory", "{}", port), 403);
        }
    });
}

/// Sends bytes and reads to the end of the connection; what came back, as text. A TLS alert reveals nothing.
fn response_to(port: u16, bytes: &[u8]) -> String {
    let mut stream = http::connect(port).unwrap();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let is_alert = answer.len() <= 7 && answer.first() == Some(&0x15);
    if is_alert { String::new() } else { String::from_utf8_lossy(&answer).into_owned() }
}

/// Data ports have no TLS: the secret of each lending protects them.
fn send_to_the_data_ports(group: &Group) {
    for index in 0..group.backups() {
        let log = group.log(&format!("backup{index}"));
        let line = log.lines().find(|line| line.contains("listening for records")).unwrap();
        let port: u16 = line.rsplit_once(':').unwrap().1.trim().parse().unwrap();
        let wrong_secret = b"TWDATA1\n\x01\x00ffffffffffffffffffffffffffffffff";
        // What a write to the first buffer would look like.
        let write = [&wrong_secret[..], &[0; 24], &[0xAA; 4096]].concat();
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], wrong_secret, &write, &[0; 64], &[0xFF; 4096]] {
            assert_eq!(response_to(port, bytes), "", "an answer at the data port");
        }
    }
}

/// Requests of a caller that knows everything but the token: every closed segment dropped, every one ended at its beginning,
/// all epochs spent.
fn attacks(group: &Group, inventory: &Value) -> Vec<(&'static str, &'static str, String)> {
    let caller = |epoch: u64| serde_json::json!({ "group": "demo", "log": inventory["log"], "epoch": epoch });
    let copy = inventory["copies"][0].clone();
    let promised = inventory["promised"].as_u64().unwrap();
    let text = |value: Value| value.to_string();
    let mut attacks = requests(group);
    attacks.extend([
        ("POST", "/v1/fence", text(serde_json::json!({ "caller": caller(u64::MAX) }))),
        ("POST", "/v1/drop", text(serde_json::json!({ "caller": caller(promised), "copies": inventory["copies"] }))),
        ("POST", "/v1/trim", text(serde_json::json!({ "caller": caller(promised), "below": u64::MAX }))),
        (
            "POST",
            "/v1/close",
            text(serde_json::json!({
                "caller": caller(promised), "identity": copy["identity"], "closure": copy["closure"]
            })),
        ),
        (
            "POST",
            "/v1/fetch",
            text(serde_json::json!({
                "group": "demo", "identity": copy["identity"], "closure": copy["closure"]
            })),
        ),
        ("GET", "/no/such/path", String::new()),
    ]);
    attacks.retain(|(_, path, _)| *path != "/metrics");
    attacks
}

#[test]
fn callers_without_the_token_are_refused() {
    let test = TestContext::start();
    let group = test.group("shm").unwrap();
    let token = fs::read_to_string(group.token_file()).unwrap();
    let authorization = |token: &str| format!("authorization: Bearer {token}\r\n");
    let send = |port, method, path, headers: &str, body: &str| {
        http::request_with(&mut http::connect(port).unwrap(), method, path, headers, body.as_bytes()).unwrap()
    };
    let inventory = |port| send(port, "POST", "/v1/inventory", &authorization(token.trim()), "{}");
    let member = group.wait_for_full_set().unwrap()[0];
    check_unchanged(&test, &group, inventory, |before| {
        for (method, path, body) in attacks(&group, &before[member]) {
            for headers in [String::new(), authorization(&"0".repeat(64))] {
                for port in control_ports(&group) {
                    let response = send(port, method, path, &headers, &body);
                    assert_eq!(response.status, 401, "{method} {path}: {response:?}");
                    let why = response.json()["why"].as_str().unwrap_or_default().to_owned();
                    assert!(why.contains(group.token_file().to_str().unwrap()), "{method} {path}: {response:?}");
                }
            }
        }
        for port in control_ports(&group) {
            for path in ["/healthz", "/metrics", "/report"] {
                assert_eq!(http::get(port, path).unwrap().status, 200, "{path}");
            }
        }
    });
}

#[test]
fn only_the_owner_can_read_the_token() {
    if !is_root("access: only_the_owner_can_read_the_token") {
        return;
    }
    let test = TestContext::start();
    let mut setup = test.setup("shm").unwrap();
    (setup.backups, setup.copies, setup.sidecars) = (1, 1, 1);
    let group = test.start_group(setup).unwrap();
    let file = group.token_file();
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    // The folder is open to all.
    fs::set_permissions(group.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    let ended = run_to_end(&mut as_nobody(Command::new("cat").arg(&file))).unwrap();
    assert!(ended.code != Some(0) && ended.out.is_empty(), "{ended:?}");
    let ended = run_to_end(&mut as_nobody(&group.sidecar_command(0))).unwrap();
    let words = format!("read control token file {}: Permission denied", file.display());
    assert!(ended.code == Some(1) && ended.errors.contains(&words), "{ended:?}");
    group.check_logs(&[]).unwrap();
}

/// Calls end before a handshake that does not come is given up (5 s): a caller that waits for that fails.
fn setup_with_short_calls(test: &TestContext) -> Setup {
    let mut setup = test.setup("shm").unwrap();
    setup.sidecar_options.push(("--rpc-timeout-ms", "3000".to_owned()));
    setup
}

/// As many silent connections as possible to every control port but the primary's.
fn silent_connections(group: &Group) -> SilentConnections {
    let primary = group.port(Process::Sidecar(0));
    SilentConnections::open(control_ports(group).into_iter().filter(|port| *port != primary))
}

#[test]
fn connections_without_certificates_do_not_block_a_failover() {
    let test = TestContext::start();
    let (group, _folder, _authority) = tls_group(&test, setup_with_short_calls(&test));
    lose_the_primary_and_a_member(&test, group, silent_connections);
}

#[test]
fn connections_without_the_token_do_not_block_a_failover() {
    let test = TestContext::start();
    let group = test.start_group(setup_with_short_calls(&test)).unwrap();
    lose_the_primary_and_a_member(&test, group, silent_connections);
}
