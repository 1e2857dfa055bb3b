//! The four secrets of a group: what is in them, as facts for [`plan`](crate::plan), and how they are written.
//!
//! Read by [`observe`](crate::observe), written by [`apply`](crate::apply). They are fetched by name: the operator may neither
//! list nor watch secrets.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use rcgen::{KeyPair, PublicKeyData};
use serde_json::{Value, json};
use tailwind_crds::ReplicaGroup;
use tailwind_crds::names::{API_GROUP, ROLE_READER, backup_secret, ca_secret, reader_secret, sidecar_secret};

use crate::authority::{Pair, identity};
use crate::objects::{is_owned, metadata};
use crate::observed::{Authority, Certificates, Leaf};
use crate::plan::certificates::CertificateRole;
use crate::x509::Certificate;

const CA: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const PREVIOUS: &str = "previous.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// When a leaf's secret was last written.
fn annotation_written() -> String {
    format!("{API_GROUP}/written")
}

/// Name of the secret of a role.
pub(crate) fn secret_name(group: &str, role: CertificateRole) -> String {
    match role {
        CertificateRole::Sidecar => sidecar_secret(group),
        CertificateRole::Backup => backup_secret(group),
        CertificateRole::Reader => reader_secret(group),
    }
}

/// The role as certificates name it.
pub(crate) fn role_name(role: CertificateRole) -> &'static str {
    match role {
        CertificateRole::Sidecar => "sidecar",
        CertificateRole::Backup => "backup",
        CertificateRole::Reader => ROLE_READER,
    }
}

/// What the operator needs of the CA's secret to sign and to hand on.
#[derive(Clone, Debug)]
pub(crate) struct CaSecret {
    pub(crate) current: Pair,
    /// Certificate of the CA before.
    pub(crate) previous: Option<String>,
    /// Version of the secret that this was read from.
    pub(crate) resource_version: Option<String>,
}

impl CaSecret {
    pub(crate) fn read(secret: &Secret) -> Option<CaSecret> {
        let text = |key: &str| String::from_utf8(data(secret, key)?.to_vec()).ok();
        let current = Pair { certificate: text(CA)?, key: text(CA_KEY)? };
        Some(CaSecret { current, previous: text(PREVIOUS), resource_version: secret.metadata.resource_version.clone() })
    }

    /// The CAs that holders of leaf certificates trust.
    pub(crate) fn bundle(&self) -> String {
        [Some(self.current.certificate.as_str()), self.previous.as_deref()].into_iter().flatten().collect()
    }

    /// The secret. With a version, it replaces that version and no other.
    pub(crate) fn secret(&self, group: &ReplicaGroup) -> Value {
        let mut data = json!({CA: encode(&self.current.certificate), CA_KEY: encode(&self.current.key)});
        if let Some(previous) = &self.previous {
            data[PREVIOUS] = encode(previous);
        }
        let mut metadata = metadata(group, &ca_secret(&group.name_any()));
        if let Some(version) = &self.resource_version {
            metadata["resourceVersion"] = json!(version);
        }
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data})
    }
}

/// The secret of a role's certificate.
pub(crate) fn leaf(group: &ReplicaGroup, role: CertificateRole, pair: &Pair, bundle: &str, now: Timestamp) -> Value {
    let mut metadata = metadata(group, &secret_name(&group.name_any(), role));
    metadata["annotations"] = json!({annotation_written(): now.to_string()});
    let data = json!({CA: encode(bundle), CERTIFICATE: encode(&pair.certificate), KEY: encode(&pair.key)});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "data": data})
}

/// A merge patch that changes the bundle alone.
pub(crate) fn bundle_patch(bundle: &str, now: Timestamp) -> Value {
    json!({
        "metadata": {"annotations": {annotation_written(): now.to_string()}},
        "data": {CA: encode(bundle)},
    })
}

/// What is in the secrets: the CA's, then those of sidecars, backups and readers.
pub(crate) fn facts(group: &ReplicaGroup, secrets: [Option<&Secret>; 4], now: Timestamp) -> Certificates {
    let [authority, sidecar, backup, reader] = secrets;
    let not_owned = secrets.into_iter().flatten().filter(|secret| !is_owned(group, &secret.metadata));
    let leaf = |role, secret: Option<&Secret>| secret.map(|secret| leaf_facts(secret, &group.name_any(), role, now));
    Certificates {
        authority: authority.and_then(authority_facts),
        sidecar: leaf(CertificateRole::Sidecar, sidecar),
        backup: leaf(CertificateRole::Backup, backup),
        reader: leaf(CertificateRole::Reader, reader),
        not_owned: not_owned.map(|secret| format!("Secret {}", secret.name_any())).collect(),
    }
}

/// `None` if anything is missing or does not belong together: then it is recreated.
fn authority_facts(secret: &Secret) -> Option<Authority> {
    let kept = CaSecret::read(secret)?;
    let current = Certificate::all(kept.current.certificate.as_bytes()).into_iter().next()?;
    has_key(&current, kept.current.key.as_bytes()).then(|| Authority {
        current: current.facts().clone(),
        previous: kept.previous.and_then(|pem| Some(Certificate::all(pem.as_bytes()).first()?.facts().clone())),
    })
}

fn leaf_facts(secret: &Secret, group: &str, role: CertificateRole, now: Timestamp) -> Leaf {
    let bundle = Certificate::all(data(secret, CA).unwrap_or_default());
    let uri = identity(group, role_name(role));
    let certificate = Certificate::all(data(secret, CERTIFICATE).unwrap_or_default()).into_iter().next();
    let certificate = certificate.filter(|certificate| {
        certificate.names(&uri) && data(secret, KEY).is_some_and(|key| has_key(certificate, key))
    });
    let issuer =
        certificate.as_ref().and_then(|leaf| bundle.iter().find(|authority| leaf.is_signed_by(authority, now)));
    let written = secret.annotations().get(&annotation_written()).and_then(|text| text.parse().ok());
    Leaf {
        issuer: issuer.map(|authority| authority.facts().fingerprint.clone()),
        certificate: certificate.map(|certificate| certificate.facts().clone()),
        bundle: bundle.iter().map(|authority| authority.facts().fingerprint.clone()).collect(),
        written,
    }
}

fn has_key(certificate: &Certificate, pem: &[u8]) -> bool {
    let key = std::str::from_utf8(pem).ok().and_then(|pem| KeyPair::from_pem(pem).ok());
    key.is_some_and(|key| key.subject_public_key_info() == certificate.public_key())
}

fn data<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    let data: &BTreeMap<String, ByteString> = secret.data.as_ref()?;
    data.get(key).map(|bytes| bytes.0.as_slice())
}

/// Bytes as the API represents them: base64.
fn encode(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}
