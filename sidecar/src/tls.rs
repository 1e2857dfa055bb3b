//! Mutual TLS of the control RPC: the name in a certificate decides who may call, not the address.
//!
//! Loaded by `run` and `backup`, and again when its files change; [`http`](crate::http) accepts with it,
//! [`rpc`](crate::rpc) connects with it. The CA belongs to one group; a certificate names its owner by a URI, see [`identity`].

pub mod identity;
mod verifier;

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tailwind_protocol::ids::GroupName;
use tailwind_runtime::http::Handshake;
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
    /// This process's certificate chain, PEM, with the URI tailwind://GROUP/sidecar/NAME or tailwind://GROUP/backup/NAME
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

/// Which role the peer of a connection must have, and how that is checked.
#[derive(Clone, Debug)]
pub struct Guard {
    tls: Tls,
    peer: PeerRole,
}

impl Handshake for Guard {
    fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.tls.now().servers[self.peer as usize]))
    }

    fn explain(&self, error: &io::Error) -> String {
        readable(error)
    }
}

impl Guard {
    /// For the next connection that goes out.
    pub fn connector(&self) -> TlsConnector {
        TlsConnector::from(Arc::clone(&self.tls.now().clients[self.peer as usize]))
    }
}

#[derive(Debug)]
struct Material {
    identity: Identity,
    /// By the role that the other side must have.
    servers: [Arc<ServerConfig>; 2],
    clients: [Arc<ClientConfig>; 2],
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
        let material = Arc::new(Material::load(&source)?);
        Ok(Tls { source: Arc::new(source), material: Arc::new(RwLock::new(material)) })
    }

    /// Who this process is.
    pub fn identity(&self) -> Identity {
        self.now().identity.clone()
    }

    /// For connections with peers of this group that have the role `peer`.
    pub fn guard(&self, peer: PeerRole) -> Guard {
        Guard { tls: self.clone(), peer }
    }

    /// Rereads the files until the process ends, so that certificates can be renewed in a running process. Open connections stay; new
    /// ones use what is new. Files that cannot be used change nothing and are reported once.
    pub async fn keep_fresh(self) -> Infallible {
        let Source { ca, cert, key, .. } = &*self.source;
        let read = || [ca, cert, key].map(|path| std::fs::read(path).ok());
        let mut known = read();
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let now = read();
            if now == known {
                continue;
            }
            known = now;
            match Material::load(&self.source) {
                Ok(material) => {
                    tracing::info!(certificate = %cert.display(), "certificate reloaded");
                    *self.material.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(material);
                }
                Err(error) => tracing::warn!(%error, "the new certificate cannot be used; the old one stays"),
            }
        }
    }

    fn now(&self) -> Arc<Material> {
        Arc::clone(&self.material.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Material {
    fn load(Source { ca, cert, key: key_file, group, role }: &Source) -> anyhow::Result<Material> {
        let roots = Arc::new(read_roots(ca)?);
        let chain = read_certificates("--tls-cert", cert)?;
        let key = read_key(key_file)?;

        let of_cert = |why: String| unusable("--tls-cert", cert, why);
        let of_key = |why: String| unusable("--tls-key", key_file, why);
        let verifier = |role| Verifier::new(&roots, group, role).map_err(|error| of_cert(error.to_string()));
        let ours = verifier(*role)?;
        let identity = ours.check_own(&chain).map_err(of_cert)?;

        let provider = verifier::provider();
        let versions = [&rustls::version::TLS13];
        let server = |peer: PeerRole| {
            let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
            let builder = builder.with_protocol_versions(&versions).map_err(|error| of_key(error.to_string()))?;
            let builder = builder.with_client_cert_verifier(Arc::new(verifier(peer)?));
            let mut config = builder
                .with_single_cert(chain.clone(), key.clone_key())
                .map_err(|error| of_key(unusable_key(&error, cert)))?;
            // No resumption: every connection shows its certificate, so an expired one cannot live on in a ticket.
            config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            anyhow::Ok(Arc::new(config))
        };
        let client = |peer: PeerRole| {
            let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
            let builder = builder.with_protocol_versions(&versions).map_err(|error| of_key(error.to_string()))?;
            let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier(peer)?));
            let mut config = builder
                .with_client_auth_cert(chain.clone(), key.clone_key())
                .map_err(|error| of_key(unusable_key(&error, cert)))?;
            config.resumption = rustls::client::Resumption::disabled();
            config.enable_sni = false;
            anyhow::Ok(Arc::new(config))
        };
        let servers = [server(PeerRole::Sidecar)?, server(PeerRole::Backup)?];
        let clients = [client(PeerRole::Sidecar)?, client(PeerRole::Backup)?];
        Ok(Material { identity, servers, clients })
    }
}

/// For the person who provided the file.
fn unusable(flag: &str, path: &Path, why: impl Display) -> anyhow::Error {
    anyhow!("{flag} {}: {why}", path.display())
}

fn read(flag: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| anyhow!("read {flag} {}: {error}", path.display()))
}

fn read_certificates(flag: &str, path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let bytes = read(flag, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| unusable(flag, path, format_args!("not PEM: {error}")))?;
    ensure!(!found.is_empty(), unusable(flag, path, "no PEM certificate in it (BEGIN CERTIFICATE)"));
    Ok(found)
}

fn read_roots(path: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates("--tls-ca", path)? {
        let refused = |error| unusable("--tls-ca", path, format_args!("not a CA certificate: {error}"));
        roots.add(certificate).map_err(refused)?;
    }
    Ok(roots)
}

fn read_key(path: &Path) -> anyhow::Result<PrivateKeyDer<'static>> {
    let bytes = read("--tls-key", path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
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
        return error.to_string();
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
