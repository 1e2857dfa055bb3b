//! Makes keys and certificates: a CA for each group, and by it one certificate for its sidecars and one for its backups.
//!
//! Called by [`apply`](crate::apply) and by the webhook. What peers check of them is in `sidecar/src/tls`.

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};

/// A CA is renewed in the last third of its life, a good year before it ends.
const AUTHORITY_DAYS: i64 = 3 * 365 + 180;
/// A certificate is renewed a month before it ends.
const LEAF_DAYS: i64 = 90;
/// Clocks differ.
const EARLIER: Duration = Duration::minutes(5);

/// A certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pair { .. }")
    }
}

pub(crate) fn authority(name: &str, now: Timestamp) -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = authority_params(name);
    (params.not_before, params.not_after) = life(now, AUTHORITY_DAYS);
    let certificate = params.self_signed(&key)?.pem();
    Ok(Pair { certificate, key: key.serialize_pem() })
}

/// A certificate by the CA of this name and key.
pub(crate) fn leaf(
    authority: &str,
    authority_key: &str,
    names: Vec<SanType>,
    now: Timestamp,
) -> Result<Pair, rcgen::Error> {
    let issuer = Issuer::new(authority_params(authority), KeyPair::from_pem(authority_key)?);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = life(now, LEAF_DAYS);
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Ok(Pair { certificate, key: key.serialize_pem() })
}

/// Name of the CA of a group, in its certificate.
pub(crate) fn name(namespace: &str, group: &str) -> String {
    format!("Tailwind group {namespace}/{group}")
}

/// The URI that names every sidecar or backup of a group.
pub(crate) fn identity(group: &str, role: &str) -> String {
    format!("tailwind://{group}/{role}/any")
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn life(now: Timestamp, days: i64) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::from_unix_timestamp(now.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    (now - EARLIER, now + Duration::days(days))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::Certificate;

    #[test]
    fn a_leaf_is_signed_by_its_own_ca_only() {
        let now = Timestamp::now();
        let make = || authority(&name("shop", "orders"), now).unwrap();
        let (ours, other) = (make(), make());
        let uri = identity("orders", "backup");
        let names = vec![SanType::URI(uri.as_str().try_into().unwrap())];
        let leaf = leaf(&name("shop", "orders"), &ours.key, names, now).unwrap();

        let read = |pem: &str| Certificate::all(pem.as_bytes()).remove(0);
        let certificate = read(&leaf.certificate);
        assert!(certificate.names(&uri) && !certificate.names("tailwind://orders/sidecar/any"));
        assert!(certificate.is_signed_by(&read(&ours.certificate), now));
        assert!(!certificate.is_signed_by(&read(&other.certificate), now));
        assert!(!certificate.is_signed_by(
            &read(&ours.certificate),
            certificate.facts().not_after + jiff::SignedDuration::from_secs(1)
        ));
        assert!(certificate.facts().not_after < read(&ours.certificate).facts().not_after);
    }
}
