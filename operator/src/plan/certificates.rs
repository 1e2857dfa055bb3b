//! When certificates are made and renewed, in which order: no process may meet a certificate whose CA it does not trust yet.
//!
//! Called by [`plan`](super); carried out by [`apply`](crate::apply), which makes the keys.
//!
//! A CA is replaced in four steps, each only after kubelets have had time to bring the one before to every pod: the new CA
//! joins the bundle; leaves are issued by it; the old one leaves the bundle; its certificate is forgotten.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use strum::EnumIter;

use crate::observed::{Authority, CertificateFacts, Certificates, Leaf};

/// Kubelets bring a changed secret to pods within two minutes or so; sidecars and backups look again after that.
const SPREAD: SignedDuration = SignedDuration::from_mins(10);

/// The processes that a certificate is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumIter)]
pub enum CertificateRole {
    /// Sidecars of app pods.
    #[default]
    Sidecar,
    /// Backups.
    Backup,
    /// Sidecars that only read.
    Reader,
}

impl fmt::Display for CertificateRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateRole::Sidecar => f.write_str("sidecars'"),
            CertificateRole::Backup => f.write_str("backups'"),
            CertificateRole::Reader => f.write_str("readers'"),
        }
    }
}

/// Something to do about certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter)]
pub enum CertificateStep {
    /// The first CA is made.
    MakeAuthority,
    /// A new CA is made beside the old one.
    RenewAuthority,
    /// The old CA is no longer kept.
    ForgetPrevious,
    /// These get a certificate by the current CA.
    Issue(CertificateRole),
    /// These are told which CAs to trust.
    Bundle(CertificateRole),
}

impl fmt::Display for CertificateStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateStep::MakeAuthority => f.write_str("create a CA"),
            CertificateStep::RenewAuthority => f.write_str("create a new CA, and keep the old one as the previous"),
            CertificateStep::ForgetPrevious => f.write_str("forget the previous CA"),
            CertificateStep::Issue(role) => write!(f, "issue the {role} certificate, with the bundle of CAs"),
            CertificateStep::Bundle(role) => write!(f, "write the bundle of CAs for the {role} certificate"),
        }
    }
}

/// The steps that are due, in order.
pub(crate) fn steps(certificates: &Certificates, now: Timestamp) -> Vec<CertificateStep> {
    let leaves = [
        (CertificateRole::Sidecar, certificates.sidecar.as_ref()),
        (CertificateRole::Backup, certificates.backup.as_ref()),
        (CertificateRole::Reader, certificates.reader.as_ref()),
    ];
    let Some(authority) = &certificates.authority else {
        return [CertificateStep::MakeAuthority]
            .into_iter()
            .chain(leaves.map(|(role, _)| CertificateStep::Issue(role)))
            .collect();
    };
    match &authority.previous {
        None if is_due(&authority.current, now) => {
            let all = leaves.map(|(role, leaf)| {
                if is_usable(leaf, now) { CertificateStep::Bundle(role) } else { CertificateStep::Issue(role) }
            });
            [CertificateStep::RenewAuthority].into_iter().chain(all).collect()
        }
        None => leaves.into_iter().filter_map(|(role, leaf)| settled(authority, role, leaf, now)).collect(),
        Some(previous) => overlapping(authority, previous, leaves, now),
    }
}

/// One CA: each leaf is by it, trusts it, and is not about to run out.
fn settled(
    authority: &Authority,
    role: CertificateRole,
    leaf: Option<&Leaf>,
    now: Timestamp,
) -> Option<CertificateStep> {
    let current = &authority.current.fingerprint;
    let Some(leaf) = leaf else { return Some(CertificateStep::Issue(role)) };
    let due = leaf.certificate.as_ref().is_none_or(|certificate| is_due(certificate, now));
    if due || leaf.issuer.as_ref() != Some(current) {
        return Some(CertificateStep::Issue(role));
    }
    (leaf.bundle != [current.clone()]).then_some(CertificateStep::Bundle(role))
}

/// Two CAs.
fn overlapping(
    authority: &Authority,
    previous: &CertificateFacts,
    leaves: [(CertificateRole, Option<&Leaf>); 3],
    now: Timestamp,
) -> Vec<CertificateStep> {
    let both = [authority.current.fingerprint.clone(), previous.fingerprint.clone()];
    let has_spread =
        |leaf: &Leaf| leaf.bundle == both && leaf.written.is_some_and(|written| now.duration_since(written) >= SPREAD);
    let all_spread = leaves.iter().all(|(_, leaf)| leaf.is_some_and(has_spread));
    let is_new = |leaf: &Leaf| leaf.issuer.as_ref() == Some(&both[0]);
    if all_spread && leaves.iter().all(|(_, leaf)| leaf.is_some_and(is_new)) {
        return [CertificateStep::ForgetPrevious]
            .into_iter()
            .chain(leaves.map(|(role, _)| CertificateStep::Bundle(role)))
            .collect();
    }
    let step = |(role, leaf): (CertificateRole, Option<&Leaf>)| match leaf {
        Some(leaf) if is_usable(Some(leaf), now) => {
            if leaf.bundle != both || leaf.written.is_none() {
                Some(CertificateStep::Bundle(role))
            } else {
                (all_spread && !is_new(leaf)).then_some(CertificateStep::Issue(role))
            }
        }
        // Nobody can use what is there: nothing is lost if some do not trust the new CA yet.
        _ => Some(CertificateStep::Issue(role)),
    };
    leaves.into_iter().filter_map(step).collect()
}

/// The last third of its life.
fn is_due(certificate: &CertificateFacts, now: Timestamp) -> bool {
    let life = certificate.not_after.duration_since(certificate.not_before);
    certificate.not_after.duration_since(now) < life / 3
}

fn is_usable(leaf: Option<&Leaf>, now: Timestamp) -> bool {
    let certificate = leaf.filter(|leaf| leaf.issuer.is_some()).and_then(|leaf| leaf.certificate.as_ref());
    certificate.is_some_and(|certificate| certificate.not_after.duration_since(now) > SPREAD)
}
