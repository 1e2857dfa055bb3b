//! Certificates for groups that speak mutual TLS, made for each test.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};

/// A certificate authority.
pub(crate) struct Authority(Issuer<'static, KeyPair>, String);

impl Authority {
    pub(crate) fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority(Issuer::new(params, key), pem)
    }

    /// Writes `NAME.pem` and `NAME.key` for this identity.
    pub(crate) fn issue(&self, folder: &Path, name: &str, identity: &str) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.subject_alt_names = vec![SanType::URI(identity.try_into().unwrap())];
        let certificate = params.signed_by(&key, &self.0).unwrap();
        fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// Writes `ca.pem`, and what sidecars and backups of the group `demo` need.
    pub(crate) fn certify(&self, folder: &Path, sidecars: &[&str], backups: &[&str]) {
        fs::write(folder.join("ca.pem"), &self.1).unwrap();
        for (role, names) in [("sidecar", sidecars), ("backup", backups)] {
            names.iter().for_each(|name| self.issue(folder, name, &format!("tailwind://demo/{role}/{name}")));
        }
    }
}
