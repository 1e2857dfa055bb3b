//! A certificate authority for tests: issues right and wrong certificates into a folder.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, date_time_ymd};

/// A CA with a folder of files.
#[derive(Debug)]
pub(crate) struct Authority {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// Files of one certificate.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The CA to trust.
    pub(crate) ca: PathBuf,
    /// The certificate.
    pub(crate) cert: PathBuf,
    /// Its key.
    pub(crate) key: PathBuf,
}

impl Authority {
    /// A new CA.
    pub(crate) fn new() -> Authority {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(dir.path().join("ca.pem"), certificate.pem()).unwrap();
        Authority { dir, issuer: Issuer::new(params, key) }
    }

    /// The CA's own file.
    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A certificate that is valid now and names `uri`.
    pub(crate) fn issue(&self, uri: &str) -> Files {
        self.issue_with(uri, |_| {})
    }

    /// A certificate that ran out long ago.
    pub(crate) fn issue_expired(&self, uri: &str) -> Files {
        self.issue_with(uri, |params| {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        })
    }

    /// A certificate that expires as this year begins.
    pub(crate) fn issue_until(&self, uri: &str, year: i32) -> Files {
        self.issue_with(uri, |params| params.not_after = date_time_ymd(year, 1, 1))
    }

    fn issue_with(&self, uri: &str, change: impl FnOnce(&mut CertificateParams)) -> Files {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let number = std::fs::read_dir(self.dir.path()).unwrap().count();
        let file = |name: &str| self.dir.path().join(format!("{number}-{name}.pem"));
        let files = Files { ca: self.ca(), cert: file("cert"), key: file("key") };
        std::fs::write(&files.cert, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}
