//! Decides whether the other side of a handshake may speak: a chain to our CA, valid now, of our group and a right role.
//!
//! Called by rustls during the handshake, before a byte of HTTP; calls webpki for the chain and
//! [`identity`](super::identity) for the name. Host names are not looked at.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};
use tailwind_protocol::ids::GroupName;

use super::identity::{Identity, PeerRole};

/// The cryptography in use.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Admits some roles of one group.
#[derive(Debug)]
pub(super) struct Verifier {
    group: GroupName,
    roles: Vec<PeerRole>,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    pub(super) fn new(
        roots: &Arc<RootCertStore>,
        group: &GroupName,
        roles: &[PeerRole],
    ) -> Result<Verifier, VerifierBuilderError> {
        let provider = provider();
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(&provider));
        // A stranger is not told which CA would have let it in.
        let clients = builder.clear_root_hint_subjects().build()?;
        Ok(Verifier { group: group.clone(), roles: roles.to_vec(), roots: Arc::clone(roots), clients, provider })
    }

    /// What the other side will find when this process shows its own chain, as a server and as a client.
    pub(super) fn check_own(&self, chain: &[CertificateDer<'_>]) -> Result<Identity, String> {
        let (own, rest) = chain.split_first().ok_or("no certificate in it")?;
        let now = UnixTime::now();
        let explain = |error: Error| match error {
            Error::InvalidCertificate(problem) => readable(&problem),
            other => other.to_string(),
        };
        let identity = Identity::admit(own, &self.group, &self.roles).map_err(|error| error.to_string())?;
        self.check_server_chain(own, rest, now).map_err(explain)?;
        self.clients.verify_client_cert(own, rest, now).map_err(explain)?;
        Ok(identity)
    }

    /// When this certificate expires, in seconds since 1970: the error of a check whether it is valid at the end of all time
    /// says so.
    pub(super) fn expiry(&self, certificate: &CertificateDer<'_>) -> Option<u64> {
        let end = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
        match self.check_server_chain(certificate, &[], end) {
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
                Some(not_after.as_secs())
            }
            _ => None,
        }
    }

    fn check_server_chain(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)
    }

    fn check_identity(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        match Identity::admit(certificate, &self.group, &self.roles) {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_server_chain(end_entity, intermediates, now)?;
        self.check_identity(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.clients.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.clients.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.clients.supported_verify_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.clients.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.clients.verify_client_cert(end_entity, intermediates, now)?;
        self.check_identity(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.clients.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.clients.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.clients.supported_verify_schemes()
    }
}

/// A certificate's fault in words.
pub(super) fn readable(problem: &CertificateError) -> String {
    match problem {
        CertificateError::Other(OtherError(error)) => error.to_string(),
        // The latter where an issuer of the same name has another key, as after the CA was recreated.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "not issued by the CA in --tls-ca".to_owned()
        }
        other => other.to_string(),
    }
}
