use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::authority::{Authority, Files};
use super::*;

const BACKUP: &str = "tailwind://db/backup/b0";
const SIDECAR: &str = "tailwind://db/sidecar/app-0";

fn load(files: &Files, group: &str, role: PeerRole) -> anyhow::Result<Tls> {
    Tls::load(&files.ca, &files.cert, &files.key, &group.parse().unwrap(), role)
}

fn refused(files: &Files) -> String {
    load(files, "db", PeerRole::Backup).unwrap_err().to_string()
}

/// Connects, sends a byte each way, and returns what either side had to say against it.
async fn meet(connector: TlsConnector, acceptor: TlsAcceptor) -> (Result<(), String>, Result<(), String>) {
    let (near, far) = duplex(1 << 16);
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let client = async {
        let mut stream = connector.connect(name, near).await?;
        stream.write_all(b"?").await?;
        stream.read_u8().await.map(drop)
    };
    let server = async {
        let mut stream = acceptor.accept(far).await?;
        stream.read_u8().await?;
        stream.write_all(b"!").await?;
        stream.flush().await
    };
    let (client, server) = tokio::join!(client, server);
    (client.map_err(|error| readable(&error)), server.map_err(|error| readable(&error)))
}

#[tokio::test]
async fn a_sidecar_and_a_backup_of_one_group_connect() {
    let authority = Authority::new();
    let backup = load(&authority.issue(BACKUP), "db", PeerRole::Backup).unwrap();
    let sidecar = load(&authority.issue(SIDECAR), "db", PeerRole::Sidecar).unwrap();
    assert_eq!(backup.identity().to_string(), BACKUP);
    assert_eq!(meet(sidecar.guard(PeerRole::Backup).connector(), backup.acceptor()).await, (Ok(()), Ok(())));
}

#[tokio::test]
async fn a_standby_accepts_a_primary() {
    let authority = Authority::new();
    let standby = load(&authority.issue("tailwind://db/sidecar/app-1"), "db", PeerRole::Sidecar).unwrap();
    let primary = load(&authority.issue(SIDECAR), "db", PeerRole::Sidecar).unwrap();
    assert_eq!(meet(standby.guard(PeerRole::Sidecar).connector(), primary.acceptor()).await, (Ok(()), Ok(())));
}

#[tokio::test]
async fn a_client_of_the_wrong_group_or_role_is_refused() {
    let authority = Authority::new();
    let backup = load(&authority.issue(BACKUP), "db", PeerRole::Backup).unwrap();
    let stranger = load(&authority.issue("tailwind://other/sidecar/app-0"), "other", PeerRole::Sidecar).unwrap();
    let (client, server) = meet(stranger.guard(PeerRole::Backup).connector(), backup.acceptor()).await;
    assert!(client.unwrap_err().contains("certificate of the other side"), "the client looks first");
    assert!(server.is_err());

    let backup_of_other = load(&authority.issue("tailwind://other/backup/b1"), "other", PeerRole::Backup).unwrap();
    let (client, server) = meet(backup_of_other.guard(PeerRole::Backup).connector(), backup.acceptor()).await;
    assert!(client.is_err() && server.is_err(), "another group's backup");
}

#[tokio::test]
async fn a_backup_calls_another_one_of_its_group() {
    let authority = Authority::new();
    let [one, other] =
        [BACKUP, "tailwind://db/backup/b1"].map(|uri| load(&authority.issue(uri), "db", PeerRole::Backup).unwrap());
    assert_eq!(meet(other.guard(PeerRole::Backup).connector(), one.acceptor()).await, (Ok(()), Ok(())));
}

#[tokio::test]
async fn a_reader_calls_and_is_never_called() {
    let authority = Authority::new();
    let reader = load(&authority.issue("tailwind://db/reader/feed-0"), "db", PeerRole::Reader).unwrap();
    for (uri, role) in [(BACKUP, PeerRole::Backup), (SIDECAR, PeerRole::Sidecar)] {
        let server = load(&authority.issue(uri), "db", role).unwrap();
        assert_eq!(meet(reader.guard(role).connector(), server.acceptor()).await, (Ok(()), Ok(())));
        let (client, _) = meet(server.guard(role).connector(), reader.acceptor()).await;
        assert!(client.unwrap_err().contains("tailwind://db/reader/feed-0"), "it passes for a {role}");
    }
    let why = load(&authority.issue("tailwind://db/reader/feed-0"), "db", PeerRole::Sidecar).unwrap_err();
    assert!(why.to_string().contains("belongs to tailwind://db/reader/feed-0"), "{why}");
}

/// By their certificates, not by what they say.
#[test]
fn requests_carry_the_role_of_their_caller() {
    let authority = Authority::new();
    let backup = load(&authority.issue(BACKUP), "db", PeerRole::Backup).unwrap();
    for (uri, role, standing) in [
        (SIDECAR, Some(PeerRole::Sidecar), Standing::Authenticated),
        ("tailwind://db/reader/feed-0", Some(PeerRole::Reader), Standing::Guest),
        (BACKUP, Some(PeerRole::Backup), Standing::Guest),
        ("tailwind://other/backup/b1", None, Standing::Guest),
        ("tailwind://other/sidecar/app-0", None, Standing::Guest),
    ] {
        let files = authority.issue(uri);
        let chain = parse_certificates("--tls-cert", &files.cert, &std::fs::read(&files.cert).unwrap()).unwrap();
        let peer = backup.peer(&chain[0]);
        assert_eq!((peer.extensions.get::<PeerRole>().copied(), peer.standing), (role, standing), "{uri}");
    }
}

#[tokio::test]
async fn a_server_of_the_wrong_role_is_refused() {
    let authority = Authority::new();
    let impostor = load(&authority.issue("tailwind://db/sidecar/evil"), "db", PeerRole::Sidecar).unwrap();
    let sidecar = load(&authority.issue(SIDECAR), "db", PeerRole::Sidecar).unwrap();
    let (client, server) = meet(sidecar.guard(PeerRole::Backup).connector(), impostor.acceptor()).await;
    let why = client.unwrap_err();
    assert!(why.contains("tailwind://db/sidecar/evil") && why.contains("role backup"), "{why}");
    assert!(server.is_err());
}

#[tokio::test]
async fn a_client_of_another_ca_is_refused() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let backup = load(&ours.issue(BACKUP), "db", PeerRole::Backup).unwrap();
    // It trusts both CAs, and the backup only one.
    let (files, both) = (theirs.issue(SIDECAR), theirs.path().join("both.pem"));
    std::fs::write(&both, [ours.ca(), theirs.ca()].map(|ca| std::fs::read_to_string(ca).unwrap()).concat()).unwrap();
    let sidecar = load(&Files { ca: both, ..files }, "db", PeerRole::Sidecar).unwrap();
    let (_, server) = meet(sidecar.guard(PeerRole::Backup).connector(), backup.acceptor()).await;
    let why = server.unwrap_err();
    assert!(why.contains("not issued by the CA"), "{why}");
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let authority = Authority::new();
    let files = authority.issue(BACKUP);
    let backup = load(&files, "db", PeerRole::Backup).unwrap();
    let roots = Arc::new(parse_roots(&files.ca, &std::fs::read(&files.ca).unwrap()).unwrap());
    let verifier = Verifier::new(&roots, &"db".parse().unwrap(), &[PeerRole::Backup]).unwrap();
    let builder = ClientConfig::builder_with_provider(verifier::provider());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let connector = TlsConnector::from(Arc::new(builder.with_no_client_auth()));
    let (client, server) = meet(connector, backup.acceptor()).await;
    assert!(client.is_err());
    assert_eq!(server.unwrap_err(), "peer sent no certificates");
}

/// A secret whose files come one after the other, and a certificate whose time has not come: each is tried again.
#[test]
fn a_reload_that_fails_is_tried_again() {
    let authority = Authority::new();
    let (files, next) = (authority.issue(BACKUP), authority.issue(BACKUP));
    let backup = load(&files, "db", PeerRole::Backup).unwrap();
    let before = backup.now();
    assert!(!backup.reload().unwrap(), "nothing has changed");
    let (whole, key) = (std::fs::read(&next.cert).unwrap(), std::fs::read(&next.key).unwrap());
    for (cert, why) in
        [(&whole[..], "does not belong"), (&whole[..whole.len() / 2], "not PEM"), (b"", "no PEM certificate")]
    {
        std::fs::write(&files.cert, cert).unwrap();
        for _ in 0..2 {
            let error = backup.reload().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
    std::fs::write(&files.cert, whole).unwrap();
    std::fs::remove_file(&files.key).unwrap();
    assert!(backup.reload().unwrap_err().to_string().starts_with("read --tls-key"));
    assert!(Arc::ptr_eq(&backup.now(), &before), "what is in use stays");
    std::fs::write(&files.key, key).unwrap();
    assert!(backup.reload().unwrap() && !backup.reload().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_failing_reload_is_a_metric() {
    let authority = Authority::new();
    let files = authority.issue(BACKUP);
    let backup = load(&files, "db", PeerRole::Backup).unwrap();
    let renewal = tokio::spawn(backup.clone().keep_fresh());
    let shows = |value: u64| {
        let mut snapshot = Snapshot::new([]);
        measure(Some(backup.state()), &mut snapshot);
        snapshot.text().contains(&format!("\ntailwind_certificate_reload_failing {value}\n"))
    };
    let whole = std::fs::read(&files.cert).unwrap();
    for (content, failing) in [(&whole[..], 0), (b"rotten", 1), (&whole[..], 0)] {
        std::fs::write(&files.cert, content).unwrap();
        tokio::time::sleep(3 * RELOAD_INTERVAL).await;
        assert!(shows(failing), "{failing}");
    }
    renewal.abort();
}

#[test]
fn the_end_of_the_certificate_in_use_is_a_metric() {
    let authority = Authority::new();
    let (files, next) = (authority.issue_until(BACKUP, 2100), authority.issue_until(BACKUP, 2200));
    let backup = load(&files, "db", PeerRole::Backup).unwrap();
    let shows = |seconds: u64| {
        let mut snapshot = Snapshot::new([]);
        measure(Some(backup.state()), &mut snapshot);
        snapshot.text().contains(&format!("\ntailwind_certificate_expiry_timestamp_seconds {seconds}\n"))
    };
    assert!(shows(4_102_444_800), "2100-01-01");
    std::fs::copy(&next.cert, &files.cert).unwrap();
    assert!(backup.reload().is_err() && shows(4_102_444_800), "its key is missing, and the former is in use");
    std::fs::copy(&next.key, &files.key).unwrap();
    assert!(backup.reload().unwrap() && shows(7_258_118_400), "2200-01-01");
}

/// A certificate is renewed, and its CA with it, while the processes live.
#[tokio::test(start_paused = true)]
async fn renewed_files_apply_to_the_next_connection() {
    let (old, new) = (Authority::new(), Authority::new());
    let (files, next) = (old.issue(BACKUP), new.issue(BACKUP));
    let backup = load(&files, "db", PeerRole::Backup).unwrap();
    let renewal = tokio::spawn(backup.clone().keep_fresh());
    let sidecar = load(&new.issue(SIDECAR), "db", PeerRole::Sidecar).unwrap();
    let meets = async || meet(sidecar.guard(PeerRole::Backup).connector(), backup.acceptor()).await == (Ok(()), Ok(()));
    assert!(!meets().await, "another CA's");

    // The key comes late: until then there is nothing to be used, and the old ones stay.
    std::fs::copy(&next.cert, &files.cert).unwrap();
    tokio::time::sleep(3 * RELOAD_INTERVAL).await;
    let old_sidecar = load(&old.issue(SIDECAR), "db", PeerRole::Sidecar).unwrap();
    assert_eq!(meet(old_sidecar.guard(PeerRole::Backup).connector(), backup.acceptor()).await, (Ok(()), Ok(())));
    std::fs::copy(&next.key, &files.key).unwrap();
    std::fs::copy(&next.ca, &files.ca).unwrap();
    tokio::time::sleep(3 * RELOAD_INTERVAL).await;
    assert!(meets().await, "renewed");
    renewal.abort();
}

#[test]
fn wrong_material_is_explained() {
    let (authority, other) = (Authority::new(), Authority::new());
    let good = authority.issue(BACKUP);

    let why = refused(&Files { cert: authority.path().join("missing.pem"), ..good.clone() });
    assert!(why.starts_with("read --tls-cert ") && why.contains("missing.pem"), "{why}");
    let garbage = authority.path().join("garbage");
    std::fs::write(&garbage, "hello").unwrap();
    let why = refused(&Files { ca: garbage.clone(), ..good.clone() });
    assert!(why.contains("--tls-ca") && why.contains("no PEM certificate"), "{why}");
    let why = refused(&Files { key: garbage, ..good.clone() });
    assert!(why.contains("--tls-key") && why.contains("no PEM private key"), "{why}");
    let why = refused(&Files { key: authority.issue(BACKUP).key, ..good.clone() });
    assert!(why.contains("does not belong to the certificate in"), "{why}");
    let why = refused(&Files { ca: other.ca(), ..good });
    assert!(why.contains("not issued by the CA"), "{why}");

    let why = refused(&authority.issue_expired(BACKUP));
    assert!(why.contains("expired"), "{why}");
    let why = refused(&authority.issue("tailwind://other/backup/b0"));
    assert!(why.contains("belongs to tailwind://other/backup/b0, but group db"), "{why}");
    let why = refused(&authority.issue(SIDECAR));
    assert!(why.contains("role backup"), "{why}");
    let why = refused(&authority.issue("spiffe://db/backup/b0"));
    assert!(why.contains("tailwind://db/backup/NAME"), "{why}");
}

#[test]
fn all_three_files_or_none() {
    let group = "db".parse().unwrap();
    assert!(TlsOptions::default().load(&group, PeerRole::Backup).unwrap().is_none());
    let options = TlsOptions { tls_ca: Some("ca.pem".into()), ..TlsOptions::default() };
    assert!(options.load(&group, PeerRole::Backup).unwrap_err().to_string().contains("give all three"));
}
