//! Mutual TLS of the control RPC: the name in a certificate decides which peers may call, not the address.
//!
//! Loaded by `run` and `backup`, and again when its files change; [`http`](crate::http) accepts with it,
//! [`rpc`](crate::rpc) connects with it. The CA belongs to one group; a certificate names its owner by a URI, see [`identity`].

pub mod identity;
mod verifier;

use std::convert::Infallible;
use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use axum::http::Extensions;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tailwind_protocol::ids::GroupName;
use tailwind_runtime::http::{Handshake, Peer, Standing};
use tailwind_runtime::metrics::Snapshot;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use identity::{Identity, IdentityError, PeerRole};
use verifier::Verifier;

/// How often files are checked: kubelets update what they mount within about a minute, and certificates are renewed weeks
/// before they expire.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Where the TLS material lies. All three, or none: then control endpoints listen on loopback only.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TlsOptions {
    /// CA certificates of this group, PEM. Needed unless all traffic stays on this host's loopback
    #[arg(long, env = "TAILWIND_TLS_CA", value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    pub tls_ca: Option<PathBuf>,
    /// This process's certificate chain, PEM, with the URI tailwind://GROUP/ROLE/NAME, where ROLE is sidecar, backup or reader
    #[arg(long, env = "TAILWIND_TLS_CERT", value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM; only this process should be able to read it
    #[arg(long, env = "TAILWIND_TLS_KEY", value_name = "FILE", requires_all = ["tls_ca", "tls_cert"])]
    pub tls_key: Option<PathBuf>,
}

/// A process's TLS material, checked. Cheap to clone; clones see what is [reloaded](Tls::keep_fresh).
#[derive(Clone, Debug)]
pub struct Tls {
    source: Arc<Source>,
    material: Arc<RwLock<Arc<Material>>>,
    /// The files are not what is in use, and cannot be used.
    is_reload_failing: Arc<AtomicBool>,
}

/// Where the material comes from, and whose it must be.
#[derive(Debug)]
struct Source {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
    group: GroupName,
    role: PeerRole,
}

/// Content of the three files.
#[derive(PartialEq, Eq)]
struct Files {
    ca: Vec<u8>,
    cert: Vec<u8>,
    key: Vec<u8>,
}

/// Roles that may call a control endpoint. What each of them may ask for there is decided request by request.
const CALLERS: [PeerRole; 3] = [PeerRole::Sidecar, PeerRole::Reader, PeerRole::Backup];

/// Which role the server of a connection must have, and how that is checked.
#[derive(Clone, Debug)]
pub struct Guard {
    tls: Tls,
    server: PeerRole,
}

impl Guard {
    /// For the next connection that goes out.
    pub fn connector(&self) -> TlsConnector {
        TlsConnector::from(Arc::clone(&self.tls.now().clients[self.server as usize]))
    }
}

/// Accepts connections of callers. Each of their requests carries the caller's [`PeerRole`] as an extension.
impl Handshake for Tls {
    fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.now().server))
    }

    fn peer(&self, certificate: &CertificateDer<'_>) -> Peer {
        let role = Identity::admit(certificate, &self.source.group, &CALLERS).ok().map(|caller| caller.role);
        let mut extensions = Extensions::new();
        if let Some(role) = role {
            extensions.insert(role);
        }
        // Heartbeats between sidecars and backups continue, however many guests there are.
        let standing = if role == Some(PeerRole::Sidecar) { Standing::Authenticated } else { Standing::Guest };
        Peer { standing, extensions }
    }

    fn explain(&self, error: &io::Error) -> String {
        readable(error)
    }
}

struct Material {
    /// What it was made from.
    files: Files,
    identity: Identity,
    /// In seconds since 1970.
    expires: Option<u64>,
    /// For connections of [`CALLERS`].
    server: Arc<ServerConfig>,
    /// By the role that the server must have.
    clients: [Arc<ClientConfig>; 3],
}

/// Without the key.
impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl TlsOptions {
    /// Loads the files, if any are named.
    pub fn load(&self, group: &GroupName, role: PeerRole) -> anyhow::Result<Option<Tls>> {
        let TlsOptions { tls_ca, tls_cert, tls_key } = self;
        match (tls_ca, tls_cert, tls_key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => Tls::load(ca, cert, key, group, role).map(Some),
            _ => bail!("--tls-ca, --tls-cert and --tls-key: give all three, or none"),
        }
    }
}

impl Tls {
    /// Reads and checks the three files: the certificate must come from the CA, be valid now, belong to the key, and name
    /// this group and role. Finding that out now is better than at the first failover.
    pub fn load(ca: &Path, cert: &Path, key: &Path, group: &GroupName, role: PeerRole) -> anyhow::Result<Tls> {
        let source = Source { ca: ca.into(), cert: cert.into(), key: key.into(), group: group.clone(), role };
        let material = Arc::new(Material::load(&source, source.read()?)?);
        let (material, is_reload_failing) = (Arc::new(RwLock::new(material)), Arc::default());
        Ok(Tls { source: Arc::new(source), material, is_reload_failing })
    }

    /// The identity of this process.
    pub fn identity(&self) -> Identity {
        self.now().identity.clone()
    }

    /// For connections to servers of this group that have this role.
    pub fn guard(&self, server: PeerRole) -> Guard {
        Guard { tls: self.clone(), server }
    }

    /// Rereads the files until the process ends, so that certificates can be renewed in a running process. Open connections stay; new
    /// ones use what is new. Files that cannot be used (half written, rotten, not valid yet) change nothing: they are tried again
    /// until they can, and each reason is logged once.
    pub async fn keep_fresh(self) -> Infallible {
        let mut last_error = String::new();
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            match self.reload() {
                Ok(reloaded) => {
                    if reloaded {
                        tracing::info!(certificate = %self.source.cert.display(), "certificate reloaded");
                    }
                    last_error.clear();
                }
                Err(error) if error.to_string() != last_error => {
                    last_error = error.to_string();
                    tracing::warn!(%error, "the new certificate cannot be used; the one in use stays, and the files are read again");
                }
                Err(_) => {}
            }
            self.is_reload_failing.store(!last_error.is_empty(), Ordering::Relaxed);
        }
    }

    /// Whether the files were others than those in use.
    fn reload(&self) -> anyhow::Result<bool> {
        let files = self.source.read()?;
        if files == self.now().files {
            return Ok(false);
        }
        let material = Material::load(&self.source, files)?;
        *self.material.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(material);
        Ok(true)
    }

    /// What metrics say of the certificate in use.
    pub fn state(&self) -> CertificateState {
        CertificateState { reload_fails: self.is_reload_failing.load(Ordering::Relaxed), expires: self.now().expires }
    }

    fn now(&self) -> Arc<Material> {
        Arc::clone(&self.material.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What metrics say of a process's certificate.
#[derive(Clone, Copy, Debug, Default)]
pub struct CertificateState {
    /// The files cannot be used now, and what was loaded before stays in use.
    pub reload_fails: bool,
    /// When the one in use expires, in seconds since 1970.
    pub expires: Option<u64>,
}

/// The metrics on the certificate, the same for sidecars and backups; left out without TLS.
pub fn measure(certificate: Option<CertificateState>, now: &mut Snapshot) {
    let Some(CertificateState { reload_fails, expires }) = certificate else { return };
    let help =
        "1 while the certificate files cannot be used, so that the earlier ones stay in use; absent without TLS.";
    now.gauge("tailwind_certificate_reload_failing", help, reload_fails.into());
    if let Some(expires) = expires {
        let help = "When the certificate that this process uses expires; absent without TLS.";
        now.gauge("tailwind_certificate_expiry_timestamp_seconds", help, expires);
    }
}

impl Source {
    fn read(&self) -> anyhow::Result<Files> {
        let Source { ca, cert, key, .. } = self;
        Ok(Files { ca: read("--tls-ca", ca)?, cert: read("--tls-cert", cert)?, key: read("--tls-key", key)? })
    }
}

impl Material {
    fn load(source: &Source, files: Files) -> anyhow::Result<Material> {
        let Source { ca, cert, key: key_file, group, role } = source;
        let roots = Arc::new(parse_roots(ca, &files.ca)?);
        let chain = parse_certificates("--tls-cert", cert, &files.cert)?;
        let key = parse_key(key_file, &files.key)?;

        let of_cert = |why: String| unusable("--tls-cert", cert, why);
        let of_key = |why: String| unusable("--tls-key", key_file, why);
        let verifier =
            |roles: &[PeerRole]| Verifier::new(&roots, group, roles).map_err(|error| of_cert(error.to_string()));
        let ours = verifier(&[*role])?;
        let identity = ours.check_own(&chain).map_err(of_cert)?;
        let expires = chain.first().and_then(|own| ours.expiry(own));

        let provider = verifier::provider();
        let versions = [&rustls::version::TLS13];
        let server = || {
            let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
            let builder = builder.with_protocol_versions(&versions).map_err(|error| of_key(error.to_string()))?;
            let builder = builder.with_client_cert_verifier(Arc::new(verifier(&CALLERS)?));
            let mut config = builder
                .with_single_cert(chain.clone(), key.clone_key())
                .map_err(|error| of_key(unusable_key(&error, cert)))?;
            // No resumption: every connection shows its certificate, so an expired one cannot live on in a ticket.
            config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            anyhow::Ok(Arc::new(config))
        };
        let client = |server: PeerRole| {
            let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
            let builder = builder.with_protocol_versions(&versions).map_err(|error| of_key(error.to_string()))?;
            let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier(&[server])?));
            let mut config = builder
                .with_client_auth_cert(chain.clone(), key.clone_key())
                .map_err(|error| of_key(unusable_key(&error, cert)))?;
            config.resumption = rustls::client::Resumption::disabled();
            config.enable_sni = false;
            anyhow::Ok(Arc::new(config))
        };
        // In the order of their discriminants.
        let clients = [client(PeerRole::Sidecar)?, client(PeerRole::Backup)?, client(PeerRole::Reader)?];
        Ok(Material { files, identity, expires, server: server()?, clients })
    }
}

/// The error for the user who provided the file.
fn unusable(flag: &str, path: &Path, why: impl Display) -> anyhow::Error {
    anyhow!("{flag} {}: {why}", path.display())
}

fn read(flag: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| anyhow!("read {flag} {}: {error}", path.display()))
}

fn parse_certificates(flag: &str, path: &Path, bytes: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let found = found.map_err(|error| unusable(flag, path, format_args!("not PEM: {error}")))?;
    ensure!(!found.is_empty(), unusable(flag, path, "no PEM certificate in it (BEGIN CERTIFICATE)"));
    Ok(found)
}

fn parse_roots(path: &Path, bytes: &[u8]) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in parse_certificates("--tls-ca", path, bytes)? {
        let refused = |error| unusable("--tls-ca", path, format_args!("not a CA certificate: {error}"));
        roots.add(certificate).map_err(refused)?;
    }
    Ok(roots)
}

fn parse_key(path: &Path, bytes: &[u8]) -> anyhow::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| {
        unusable("--tls-key", path, format_args!("no PEM private key in it (PKCS#8, PKCS#1 or SEC1): {error}"))
    })
}

fn unusable_key(error: &rustls::Error, cert: &Path) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => format!("does not belong to the certificate in {}", cert.display()),
        other => other.to_string(),
    }
}

/// Why a handshake failed, for people: says what is wrong with the certificate instead of an alert's number.
pub fn readable(error: &io::Error) -> String {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => "it closed the connection".to_owned(),
            _ => error.to_string(),
        };
    };
    match tls {
        rustls::Error::InvalidCertificate(problem) => {
            format!("certificate of the other side: {}", verifier::readable(problem))
        }
        rustls::Error::AlertReceived(alert) => format!(
            "the other side refused this side's certificate or handshake ({alert:?}): check group, role, CA and expiry"
        ),
        other => other.to_string(),
    }
}

#[cfg(test)]
#[path = "../tests/support/authority.rs"]
pub(crate) mod authority;
#[cfg(test)]
mod tests;
