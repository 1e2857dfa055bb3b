//! The webhook's certificate: kept in a secret of the operator's namespace, served by every replica, trusted by API servers.
//!
//! Run by [`webhook`](super) on every replica. The first replica creates it, by a write that names the version that it has
//! read; the others take what is there. The configuration is written before the certificate is served, and for a while trusts
//! both the new CA and the one before.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use rcgen::SanType;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::json;
use tracing::{info, warn};

use crate::apply::MANAGER;
use crate::authority::{self, Pair};
use crate::health::Readiness;
use crate::x509::Certificate;

/// How often secret and configuration are looked at.
const LOOK: Duration = Duration::from_secs(60);
/// After a look that failed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Names that the certificate is for.
const ANNOTATION_NAMES: &str = "replication.tailwind.dev/names";
/// Common name of the CA of the webhook.
const AUTHORITY: &str = "Tailwind webhook";

/// The certificate that is served now.
#[derive(Debug, Default)]
pub struct ServingCertificate(RwLock<Option<Arc<CertifiedKey>>>);

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Makes it, and renews it in time.
pub struct CertificateRotator {
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    secret: String,
    configuration: String,
    names: Vec<String>,
    certificate: Arc<ServingCertificate>,
    readiness: Arc<Readiness>,
}

/// What the secret holds.
struct Material {
    authority: Pair,
    /// Certificate of the CA before.
    previous: Option<String>,
    leaf: Pair,
}

impl CertificateRotator {
    /// Nothing is asked yet.
    pub fn new(
        client: Client,
        namespace: &str,
        service: &str,
        configuration: &str,
        more_names: &[String],
        certificate: Arc<ServingCertificate>,
        readiness: Arc<Readiness>,
    ) -> CertificateRotator {
        let mut names = vec![format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")];
        names.extend(more_names.iter().cloned());
        readiness.set_unready("webhook", "no certificate yet");
        CertificateRotator {
            secrets: Api::namespaced(client.clone(), namespace),
            configurations: Api::all(client),
            secret: format!("{service}-tls"),
            configuration: configuration.to_owned(),
            names,
            certificate,
            readiness,
        }
    }

    /// Runs until the process ends.
    pub async fn run(self) -> Infallible {
        loop {
            let wait = match self.look().await {
                Ok(()) => {
                    self.readiness.set_ready("webhook");
                    LOOK
                }
                Err(error) => {
                    match is_conflict(&error) {
                        true => {
                            info!(error = format!("{error:#}"), "webhook's certificate: will retry")
                        }
                        false => warn!(error = format!("{error:#}"), "failed to renew the webhook's certificate"),
                    }
                    if self.certificate.0.read().unwrap_or_else(PoisonError::into_inner).is_none() {
                        self.readiness.set_unready("webhook", format!("{error:#}"));
                    }
                    LOOK_AGAIN
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn look(&self) -> anyhow::Result<()> {
        let now = Timestamp::now();
        let found = self.secrets.get_opt(&self.secret).await.with_context(|| format!("read secret {}", self.secret))?;
        let kept = found.as_ref().and_then(|secret| self.read(secret, now));
        let material = match kept {
            Some(material) if !is_due(&material.leaf, now) => material,
            kept => self.renew(found, kept, now).await?,
        };
        self.write_bundle(&material).await?;
        self.show(&material.leaf)
    }

    /// None where anything is missing, or is for other names.
    fn read(&self, secret: &Secret, now: Timestamp) -> Option<Material> {
        let text = |key: &str| String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok();
        let material = Material {
            authority: Pair { certificate: text("ca.crt")?, key: text("ca.key")? },
            previous: text("previous.crt"),
            leaf: Pair { certificate: text("tls.crt")?, key: text("tls.key")? },
        };
        let one = |pem: &str| Certificate::all(pem.as_bytes()).into_iter().next();
        let (authority, leaf) = (one(&material.authority.certificate)?, one(&material.leaf.certificate)?);
        let ours = secret.annotations().get(ANNOTATION_NAMES) == Some(&self.names.join(","));
        (ours && leaf.is_signed_by(&authority, now)).then_some(material)
    }

    async fn renew(&self, found: Option<Secret>, kept: Option<Material>, now: Timestamp) -> anyhow::Result<Material> {
        let (authority, previous) = match kept {
            Some(kept) if !is_due(&kept.authority, now) => (kept.authority, kept.previous),
            kept => (authority::authority(AUTHORITY, now)?, kept.map(|kept| kept.authority.certificate)),
        };
        let names: Result<Vec<SanType>, rcgen::Error> = self.names.iter().map(|name| alternative(name)).collect();
        let leaf = authority::leaf(AUTHORITY, &authority.key, names?, now)?;
        let material = Material { authority, previous, leaf };
        let mut data = BTreeMap::from([
            ("ca.crt", &material.authority.certificate),
            ("ca.key", &material.authority.key),
            ("tls.crt", &material.leaf.certificate),
            ("tls.key", &material.leaf.key),
        ]);
        if let Some(previous) = &material.previous {
            data.insert("previous.crt", previous);
        }
        let bytes = |text: &String| ByteString(text.as_bytes().to_vec());
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(self.secret.clone()),
                annotations: Some(BTreeMap::from([(ANNOTATION_NAMES.to_owned(), self.names.join(","))])),
                resource_version: found.as_ref().and_then(|secret| secret.metadata.resource_version.clone()),
                ..ObjectMeta::default()
            },
            type_: Some(
                found
                    .as_ref()
                    .and_then(|secret| secret.type_.clone())
                    .unwrap_or_else(|| "kubernetes.io/tls".to_owned()),
            ),
            data: Some(data.into_iter().map(|(key, text)| (key.to_owned(), bytes(text))).collect()),
            ..Secret::default()
        };
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let written = match found {
            Some(_) => self.secrets.replace(&self.secret, &params, &secret).await,
            None => self.secrets.create(&params, &secret).await,
        };
        written.with_context(|| format!("write secret {}", self.secret))?;
        info!(secret = self.secret, names = ?self.names, "webhook's certificate issued");
        Ok(material)
    }

    /// Tells API servers which CAs to trust.
    async fn write_bundle(&self, material: &Material) -> anyhow::Result<()> {
        let doing = || format!("MutatingWebhookConfiguration {}", self.configuration);
        let configuration = self.configurations.get(&self.configuration).await.with_context(doing)?;
        let parts = [Some(material.authority.certificate.as_str()), material.previous.as_deref()];
        let bundle: String = parts.into_iter().flatten().collect();
        let bundle = ByteString(bundle.into_bytes());
        let hooks = configuration.webhooks.unwrap_or_default();
        ensure!(!hooks.is_empty(), "{}: it has no webhooks", doing());
        let old = hooks.iter().enumerate().filter(|(_, hook)| hook.client_config.ca_bundle.as_ref() != Some(&bundle));
        let operations: Vec<_> = old
            .flat_map(|(index, hook)| {
                // If their order is changed in between, nothing is changed.
                let same = json!({"op": "test", "path": format!("/webhooks/{index}/name"), "value": hook.name});
                let path = format!("/webhooks/{index}/clientConfig/caBundle");
                [same, json!({"op": "add", "path": path, "value": bundle})]
            })
            .collect();
        if operations.is_empty() {
            return Ok(());
        }
        let patch: json_patch::Patch = serde_json::from_value(json!(operations))?;
        let params = PatchParams::default();
        self.configurations.patch(&self.configuration, &params, &Patch::Json::<()>(patch)).await.with_context(doing)?;
        info!(configuration = self.configuration, "API servers trust the webhook");
        Ok(())
    }

    fn show(&self, leaf: &Pair) -> anyhow::Result<()> {
        let chain: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).map_err(|error| anyhow!("tls.key: {error}"))?;
        let provider = rustls::crypto::ring::default_provider();
        let chain = chain.map_err(|error| anyhow!("tls.crt: {error}"))?;
        let certified = CertifiedKey::from_der(chain, key, &provider).context("tls.crt and tls.key")?;
        *self.certificate.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(certified));
        Ok(())
    }
}

fn alternative(name: &str) -> Result<SanType, rcgen::Error> {
    Ok(match name.parse() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) => SanType::DnsName(name.try_into()?),
    })
}

/// Another replica was faster: what it has written is read at the next look.
fn is_conflict(error: &anyhow::Error) -> bool {
    let answer = error.downcast_ref::<kube::Error>();
    answer.is_some_and(|answer| matches!(answer, kube::Error::Api(status) if status.code == 409))
}

/// The last third of its life.
fn is_due(pair: &Pair, now: Timestamp) -> bool {
    let certificate = Certificate::all(pair.certificate.as_bytes()).into_iter().next();
    certificate.is_none_or(|certificate| {
        let facts = certificate.facts();
        let left: SignedDuration = facts.not_after.duration_since(now);
        left < facts.not_after.duration_since(facts.not_before) / 3
    })
}
