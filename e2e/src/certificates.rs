//! Certificates for groups that speak mutual TLS, made for each test.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub pem: String,
}

impl Authority {
    /// An authority with a key of its own.
    pub fn generate() -> Result<Authority> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key)?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), pem })
    }

    /// A certificate for this name, and its key.
    pub fn sign(&self, name: SanType) -> Result<(rcgen::Certificate, KeyPair)> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        Ok((params.signed_by(&key, &self.issuer)?, key))
    }

    /// Writes `NAME.pem` and `NAME.key` for this identity.
    pub fn issue(&self, folder: &Path, name: &str, identity: &str) -> Result<()> {
        let (certificate, key) = self.sign(SanType::URI(identity.try_into()?))?;
        fs::write(folder.join(format!("{name}.pem")), certificate.pem()).context("write a certificate")?;
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).context("write a key")
    }

    /// Writes `ca.pem`, and what the sidecars and backups of these numbers need in the group `demo`: `sidecar1` and so on.
    pub fn issue_group(&self, folder: &Path, sidecars: Range<usize>, backups: Range<usize>) -> Result<()> {
        fs::write(folder.join("ca.pem"), &self.pem).context("write the authority's certificate")?;
        for (role, numbers) in [("sidecar", sidecars), ("backup", backups)] {
            for name in numbers.map(|number| format!("{role}{number}")) {
                self.issue(folder, &name, &format!("tailwind://demo/{role}/{name}"))?;
            }
        }
        Ok(())
    }
}
