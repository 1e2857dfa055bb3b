//! Reads what the renewal of a certificate needs to know: when it is valid, whose key it has, and which CA has signed it.
//!
//! Called by [`secrets`](crate::secrets) with what earlier operators have written, or with anything that people have put there.
//! webpki checks signatures and names; it does not show dates.

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use crate::digest::sha256;
use crate::observed::CertificateFacts;

/// A certificate, parsed as far as is needed.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    der: CertificateDer<'static>,
    facts: CertificateFacts,
    public_key: Vec<u8>,
}

impl Certificate {
    /// The certificates of a PEM text; those that cannot be read are left out.
    pub(crate) fn all(pem: &[u8]) -> Vec<Certificate> {
        CertificateDer::pem_slice_iter(pem).flatten().filter_map(Certificate::read).collect()
    }

    fn read(der: CertificateDer<'static>) -> Option<Certificate> {
        let (rest, parsed) = X509Certificate::from_der(&der).ok()?;
        let time = |at: ASN1Time| Timestamp::from_second(at.timestamp()).ok();
        let (not_before, not_after) = (time(parsed.validity().not_before)?, time(parsed.validity().not_after)?);
        let public_key = parsed.public_key().raw.to_vec();
        let facts = CertificateFacts { fingerprint: sha256(&der), not_before, not_after };
        rest.is_empty().then_some(Certificate { der: der.clone(), facts, public_key })
    }

    /// The facts about it that the planner uses.
    pub(crate) fn facts(&self) -> &CertificateFacts {
        &self.facts
    }

    /// Its key, as SubjectPublicKeyInfo.
    pub(crate) fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// Whether it names this URI.
    pub(crate) fn names(&self, uri: &str) -> bool {
        EndEntityCert::try_from(&self.der).is_ok_and(|parsed| parsed.valid_uri_names().any(|name| name == uri))
    }

    /// Whether `authority` has signed it, and both are valid at this time, for servers and for clients.
    pub(crate) fn is_signed_by(&self, authority: &Certificate, now: Timestamp) -> bool {
        let (Ok(parsed), Ok(anchor)) = (EndEntityCert::try_from(&self.der), anchor_from_trusted_cert(&authority.der))
        else {
            return false;
        };
        let seconds = u64::try_from(now.as_second()).unwrap_or(0);
        let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let algorithms = webpki::ALL_VERIFICATION_ALGS;
        // Only the renewal looks at the dates of the CA's own certificate.
        [KeyUsage::server_auth(), KeyUsage::client_auth()].into_iter().all(|usage| {
            parsed.verify_for_usage(algorithms, std::slice::from_ref(&anchor), &[], time, usage, None, None).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, PublicKeyData, date_time_ymd};

    fn made(from: i32, to: i32) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 2), date_time_ymd(to, 3, 4));
        let pem = params.self_signed(&key).unwrap().pem();
        (Certificate::all(pem.as_bytes()).remove(0), key)
    }

    #[test]
    fn dates_and_key_are_read() {
        // 2060 is written in another way than 2020.
        let (certificate, key) = made(2020, 2060);
        assert_eq!(certificate.facts().not_before.to_string(), "2020-01-02T00:00:00Z");
        assert_eq!(certificate.facts().not_after.to_string(), "2060-03-04T00:00:00Z");
        assert_eq!(certificate.public_key(), key.subject_public_key_info());
    }

    #[test]
    fn malformed_certificates_are_rejected() {
        assert!(Certificate::all(b"nothing").is_empty());
        let (certificate, _) = made(2020, 2030);
        for length in 0..certificate.der.len() {
            let cut_off = CertificateDer::from(certificate.der[..length].to_vec());
            assert!(Certificate::read(cut_off).is_none(), "{length}");
        }
    }
}
