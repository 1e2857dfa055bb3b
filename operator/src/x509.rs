//! Reads of a certificate what has to be known to renew it: when it is valid, whose key is in it, who has signed it.
//!
//! Called by [`secrets`](crate::secrets) with what operators before have written, and with whatever people have put there.
//! webpki checks signatures and names; it does not tell dates, which are read here (RFC 5280, section 4.1).

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::observed::CertificateFacts;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// A certificate, parsed as far as is needed.
#[derive(Clone, Debug)]
pub struct Certificate {
    der: CertificateDer<'static>,
    facts: CertificateFacts,
    public_key: Vec<u8>,
}

impl Certificate {
    /// The certificates of a PEM text; those that cannot be read are left out.
    pub fn all(pem: &[u8]) -> Vec<Certificate> {
        CertificateDer::pem_slice_iter(pem).flatten().filter_map(Certificate::read).collect()
    }

    fn read(der: CertificateDer<'static>) -> Option<Certificate> {
        let (not_before, not_after, public_key) = fields(&der)?;
        let facts = CertificateFacts { fingerprint: fingerprint(&der), not_before, not_after };
        Some(Certificate { der, facts, public_key })
    }

    /// What is to be known of it.
    pub fn facts(&self) -> &CertificateFacts {
        &self.facts
    }

    /// Its key, as SubjectPublicKeyInfo.
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// Whether it names this URI.
    pub fn names(&self, uri: &str) -> bool {
        EndEntityCert::try_from(&self.der).is_ok_and(|parsed| parsed.valid_uri_names().any(|name| name == uri))
    }

    /// Whether `authority` has signed it, and both are valid at this time, for servers and for clients.
    pub fn is_signed_by(&self, authority: &Certificate, now: Timestamp) -> bool {
        let (Ok(parsed), Ok(anchor)) = (EndEntityCert::try_from(&self.der), anchor_from_trusted_cert(&authority.der))
        else {
            return false;
        };
        let seconds = u64::try_from(now.as_second()).unwrap_or(0);
        let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let algorithms = webpki::ALL_VERIFICATION_ALGS;
        // Nobody looks at the dates of the CA's own certificate but those who renew it.
        [KeyUsage::server_auth(), KeyUsage::client_auth()].into_iter().all(|usage| {
            parsed.verify_for_usage(algorithms, std::slice::from_ref(&anchor), &[], time, usage, None, None).is_ok()
        })
    }
}

/// Tells certificates apart: FNV-1a of all bytes. Who could forge it could write the secret that it is compared in.
fn fingerprint(der: &[u8]) -> String {
    let hash = der
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

/// Valid from, valid to, and the key.
fn fields(der: &[u8]) -> Option<(Timestamp, Timestamp, Vec<u8>)> {
    let (_, certificate, _) = element(der)?;
    let (_, mut tbs, _) = element(certificate)?;
    if tbs.first() == Some(&VERSION) {
        tbs = element(tbs)?.2;
    }
    // Serial number, signature algorithm, issuer.
    for _ in 0..3 {
        tbs = element(tbs)?.2;
    }
    let (tag, validity, rest) = element(tbs)?;
    if tag != SEQUENCE {
        return None;
    }
    let (not_before, after) = time(validity)?;
    let (not_after, _) = time(after)?;
    let (_, _, rest) = element(rest)?; // subject
    let length = rest.len() - element(rest)?.2.len();
    Some((not_before, not_after, rest[..length].to_vec()))
}

/// Tag, content and what follows of the first element.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let count = usize::from(first & 0x7f);
        if count > 4 || rest.len() < count {
            return None;
        }
        length = rest[..count].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        rest = &rest[count..];
    }
    (rest.len() >= length).then(|| (tag, &rest[..length], &rest[length..]))
}

fn time(bytes: &[u8]) -> Option<(Timestamp, &[u8])> {
    let (tag, text, rest) = element(bytes)?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, text) = match tag {
        UTC_TIME if text.len() == 12 => {
            let year: i16 = text[..2].parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &text[2..])
        }
        GENERALIZED_TIME if text.len() == 14 => (text[..4].parse().ok()?, &text[4..]),
        _ => return None,
    };
    let two = |at: usize| text[at..at + 2].parse::<i8>().ok();
    let civil = DateTime::new(year, two(0)?, two(2)?, two(4)?, two(6)?, two(8)?, 0).ok()?;
    Some((TimeZone::UTC.to_timestamp(civil).ok()?, rest))
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
    fn what_is_no_certificate_is_none() {
        assert!(Certificate::all(b"nothing").is_empty());
        let (certificate, _) = made(2020, 2030);
        for length in 0..certificate.der.len() {
            // Cut off anywhere, it must be refused, and nothing may panic.
            let _ = fields(&certificate.der[..length]);
        }
    }
}
