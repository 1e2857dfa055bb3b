//! Strangers at the control RPC and at the data port: they learn nothing and change nothing, and hold nobody up.
//!
//! The group speaks mutual TLS, with certificates made here, or has a control token. The stranger's own TLS client checks
//! nothing and shows whatever certificate it is told to.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod certificates;
mod crowd;

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
use tailwind_e2e::group::{Group, Setup, Who};
use tailwind_e2e::http;
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::process::run_to_end;
use tailwind_e2e::scene::{Scene, is_root};
use tailwind_e2e::steps::{OUTAGE, append, check_logs, check_whole, primary};
use tailwind_e2e::workload::Numbered;

use certificates::Authority;
use crowd::Crowd;

on_every_fabric!(a_group_over_tls_survives_its_primary, strangers_learn_and_change_nothing);

/// A group that speaks mutual TLS, and its folder of certificates.
fn guarded(scene: &Scene, mut setup: Setup) -> (Group, tempfile::TempDir, Authority) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.certify(folder.path(), &["sidecar0", "sidecar1"], &["backup0", "backup1", "backup2", "backup3"]);
    setup.certificates = Some(folder.path().to_owned());
    (scene.start(setup).unwrap(), folder, authority)
}

fn input(scene: &Scene) -> Numbered {
    Numbered { seed: scene.seed(), length_max: 200 }
}

fn a_group_over_tls_survives_its_primary(fabric: &str) {
    let scene = Scene::begin();
    let input = input(&scene);
    let (mut group, _folder, _authority) = guarded(&scene, scene.setup(fabric).unwrap());
    let end = append(&mut primary(&group).unwrap(), &input, 0, 2000).unwrap();
    group.kill_sidecar(0).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, end, 2000).unwrap();
    let victim = group.wait_for_full_set().unwrap()[0];
    group.kill_backup(victim).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, end, 2000).unwrap();
    group.wait_for_full_set().unwrap();
    check_whole(&group, &input, end).unwrap();
    check_logs(&group, &OUTAGE).unwrap();
}

/// Believes every server.
#[derive(Debug)]
struct Gullible(Arc<CryptoProvider>);

impl ServerCertVerifier for Gullible {
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
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Gullible(provider)));
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

/// What every backup holds and has promised, as a sidecar's certificate may ask.
fn inventories(group: &Group, config: &Arc<ClientConfig>) -> Vec<Value> {
    let ask = |index| {
        let mut stream = over_tls(config, group.port(Who::Backup(index)));
        let reply = http::ask(&mut stream, "POST", "/v1/inventory", b"{}").unwrap();
        assert_eq!(reply.status, 200);
        reply.json()
    };
    (0..group.backups()).map(ask).collect()
}

/// Requests that would change something, or tell something, if they were heard.
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

fn strangers_learn_and_change_nothing(fabric: &str) {
    let scene = Scene::begin();
    let input = input(&scene);
    let (group, folder, authority) = guarded(&scene, scene.setup(fabric).unwrap());
    let end = append(&mut primary(&group).unwrap(), &input, 0, 2000).unwrap();
    let folder = folder.path();
    let known = client(Some((folder, "sidecar0")));
    let settled = |group: &Group| {
        let before = inventories(group, &known);
        before == inventories(group, &known)
    };
    group.wait("every flush to be done", settled).unwrap();
    let before = inventories(&group, &known);
    let status = group.status(0);

    authority.issue(folder, "other-group", "tailwind://other/sidecar/sidecar0");
    authority.issue(folder, "nobody", "https://example.com/");
    Authority::new().issue(folder, "other-ca", "tailwind://demo/sidecar/sidecar0");
    let ports: Vec<u16> =
        (0..group.backups()).map(|n| group.port(Who::Backup(n))).chain([group.port(Who::Sidecar(0))]).collect();
    for (method, path, body) in requests(&group) {
        for port in &ports {
            // Plain HTTP: not one byte of HTTP comes back.
            let mut stream = http::connect(*port).unwrap();
            if let Ok(reply) = http::ask(&mut stream, method, path, body.as_bytes()) {
                panic!("{method} {path} in plain HTTP: {reply:?}");
            }
            for shown in [None, Some("other-group"), Some("nobody"), Some("other-ca"), Some("backup1")] {
                let config = client(shown.map(|name| (folder, name)));
                if let Ok(reply) = http::ask(&mut over_tls(&config, *port), method, path, body.as_bytes()) {
                    panic!("{method} {path} with the certificate {shown:?}: {reply:?}");
                }
            }
        }
    }
    for port in &ports {
        assert_eq!(hang_up(*port, b"\x16\x03\x01garbage that begins like TLS\r\n\r\n"), "");
    }
    if fabric == "tcp" {
        knock_at_the_data_ports(&group);
    }

    assert_eq!(inventories(&group, &known), before);
    let after = group.status(0);
    for unchanged in ["role", "epoch", "version", "acked", "members"] {
        assert_eq!(after[unchanged], status[unchanged], "{unchanged}");
    }
    let end = append(&mut primary(&group).unwrap(), &input, end, 500).unwrap();
    check_whole(&group, &input, end).unwrap();
    check_logs(&group, &[]).unwrap();
}

/// Sends bytes and hears the other side out; what could be read as text. A TLS alert is no news to a stranger.
fn hang_up(port: u16, bytes: &[u8]) -> String {
    let mut stream = http::connect(port).unwrap();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let is_alert = answer.len() <= 7 && answer.first() == Some(&0x15);
    if is_alert { String::new() } else { String::from_utf8_lossy(&answer).into_owned() }
}

/// Records come in where no TLS is: there the secret of each lending is what a stranger has not got.
fn knock_at_the_data_ports(group: &Group) {
    for index in 0..group.backups() {
        let log = group.log(&format!("backup{index}"));
        let line = log.lines().find(|line| line.contains("listening for records")).unwrap();
        let port: u16 = line.rsplit_once(':').unwrap().1.trim().parse().unwrap();
        let wrong_secret = b"TWDATA1\n\x01\x00ffffffffffffffffffffffffffffffff";
        // What a write to the first buffer would look like.
        let write = [&wrong_secret[..], &[0; 24], &[0xAA; 4096]].concat();
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], wrong_secret, &write, &[0; 64], &[0xFF; 4096]] {
            assert_eq!(hang_up(port, bytes), "", "an answer at the data port");
        }
    }
}

/// What a holder of the token is told by every backup of what it holds and has promised.
fn inventories_by_token(group: &Group, authorization: &str) -> Vec<Value> {
    let ask = |index| {
        let mut stream = http::connect(group.port(Who::Backup(index))).unwrap();
        let reply = http::ask_with(&mut stream, "POST", "/v1/inventory", authorization, b"{}").unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    };
    (0..group.backups()).map(ask).collect()
}

/// Requests of somebody who knows all but the token: every closed segment dropped, every one ended at its beginning, all
/// epochs spent.
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
fn loopback_alone_is_no_authority() {
    let scene = Scene::begin();
    let input = input(&scene);
    let group = scene.group("shm").unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, 0, 2000).unwrap();
    let token = fs::read_to_string(group.token_file()).unwrap();
    let authorization = format!("authorization: Bearer {}\r\n", token.trim());
    let settled = |group: &Group| {
        let before = inventories_by_token(group, &authorization);
        before == inventories_by_token(group, &authorization)
    };
    group.wait("every flush to be done", settled).unwrap();
    let before = inventories_by_token(&group, &authorization);
    let status = group.status(0);
    let member = group.wait_for_full_set().unwrap()[0];

    let wrong = format!("authorization: Bearer {}\r\n", "0".repeat(64));
    let ports: Vec<u16> = (0..group.backups())
        .map(|index| group.port(Who::Backup(index)))
        .chain((0..group.sidecars()).map(|index| group.port(Who::Sidecar(index))))
        .collect();
    for (method, path, body) in attacks(&group, &before[member]) {
        for (port, shown) in ports.iter().flat_map(|port| [(*port, ""), (*port, wrong.as_str())]) {
            let mut stream = http::connect(port).unwrap();
            let reply = http::ask_with(&mut stream, method, path, shown, body.as_bytes()).unwrap();
            assert_eq!(reply.status, 401, "{method} {path}: {reply:?}");
            let why = reply.json()["why"].as_str().unwrap_or_default().to_owned();
            assert!(why.contains(group.token_file().to_str().unwrap()), "{method} {path}: {reply:?}");
        }
    }
    for port in &ports {
        assert_eq!(http::get(*port, "/healthz").unwrap().status, 200);
        assert_eq!(http::get(*port, "/metrics").unwrap().status, 200);
    }

    assert_eq!(inventories_by_token(&group, &authorization), before);
    let after = group.status(0);
    for unchanged in ["role", "epoch", "version", "acked", "members"] {
        assert_eq!(after[unchanged], status[unchanged], "{unchanged}");
    }
    let end = append(&mut primary(&group).unwrap(), &input, end, 500).unwrap();
    check_whole(&group, &input, end).unwrap();
    check_logs(&group, &[]).unwrap();
}

#[test]
fn the_token_is_its_users_alone() {
    if !is_root("strangers: the_token_is_its_users_alone") {
        return;
    }
    let scene = Scene::begin();
    let mut setup = scene.setup("shm").unwrap();
    (setup.backups, setup.copies, setup.sidecars) = (1, 1, 1);
    let group = scene.start(setup).unwrap();
    let file = group.token_file();
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    // As far as the folder goes, anybody may.
    fs::set_permissions(group.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "cat"]).arg(&file).current_dir("/");
    let ended = run_to_end(&mut nobody).unwrap();
    assert!(ended.code != Some(0) && ended.out.is_empty(), "{ended:?}");
    let sidecar = group.sidecar_command(0);
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    nobody.arg(sidecar.get_program()).args(sidecar.get_args()).current_dir("/");
    let ended = run_to_end(&mut nobody).unwrap();
    let words = format!("read control token file {}: Permission denied", file.display());
    assert!(ended.code == Some(1) && ended.errors.contains(&words), "{ended:?}");
    check_logs(&group, &[]).unwrap();
}

/// Somebody holds as many connections to every control port as it can, and says nothing: the standby takes over all the same,
/// and a backup that dies is replaced.
fn a_crowd_at_the_doors_holds_nobody_up(scene: &Scene, mut group: Group) {
    let input = input(scene);
    let end = append(&mut primary(&group).unwrap(), &input, 0, 500).unwrap();
    let ports: Vec<u16> =
        (0..group.backups()).map(|index| group.port(Who::Backup(index))).chain([group.port(Who::Sidecar(1))]).collect();
    let crowd = Crowd::gather(&ports);
    group.kill_sidecar(0).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, end, 500).unwrap();
    let victim = group.wait_for_full_set().unwrap()[0];
    group.kill_backup(victim).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, end, 500).unwrap();
    group.wait_for_full_set().unwrap();
    crowd.disperse();
    check_whole(&group, &input, end).unwrap();
    check_logs(&group, &OUTAGE).unwrap();
}

/// Calls end before a handshake that does not come is given up (5 s): who has to wait for that gets nowhere.
fn in_a_hurry(scene: &Scene) -> Setup {
    let mut setup = scene.setup("shm").unwrap();
    setup.sidecar_options.push(("--rpc-timeout-ms", "3000".to_owned()));
    setup
}

#[test]
fn a_crowd_without_certificates_holds_nobody_up() {
    let scene = Scene::begin();
    let (group, _folder, _authority) = guarded(&scene, in_a_hurry(&scene));
    a_crowd_at_the_doors_holds_nobody_up(&scene, group);
}

#[test]
fn a_crowd_without_the_token_holds_nobody_up() {
    let scene = Scene::begin();
    let group = scene.start(in_a_hurry(&scene)).unwrap();
    a_crowd_at_the_doors_holds_nobody_up(&scene, group);
}
