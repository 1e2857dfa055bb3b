//! The owner of a certificate: `tailwind://<group>/<role>/<name>`, where the role is `sidecar`, `backup` or `reader`.
//!
//! A URI among the certificate's subject alternative names, as SPIFFE does it; host names and addresses play no part,
//! because pods change theirs. Read by [`tls`](super) on both sides of every connection.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use tailwind_protocol::ids::{GroupName, SidecarId};

const SCHEME: &str = "tailwind://";

/// What a process does in its group. What each may ask for is in docs/security.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRole {
    /// Primary or standby: it may ask backups and listen to a primary.
    Sidecar,
    /// It lends memory, and copies segments from other backups.
    Backup,
    /// It reads the log, and changes nothing.
    Reader,
}

/// The owner of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its group.
    pub group: GroupName,
    /// Its role.
    pub role: PeerRole,
    /// Its name in the group.
    pub name: String,
}

/// Why a certificate is not the one that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Not a certificate.
    #[error("unreadable: {0}")]
    Unreadable(String),
    /// It names nobody of ours.
    #[error("names no tailwind identity; its subject alternative names need a URI like {wanted}NAME")]
    Nobody {
        /// The wanted prefix.
        wanted: String,
    },
    /// It names another owner.
    #[error("belongs to {found}, but group {group} and role {roles} are needed here")]
    SomebodyElse {
        /// The process that it names.
        found: String,
        /// The group needed.
        group: GroupName,
        /// The roles of which one is needed.
        roles: String,
    },
}

impl Identity {
    /// The identity of this group and one of these roles in the certificate; of the first of them, if it has several. Its
    /// chain is checked elsewhere.
    pub fn admit(
        certificate: &CertificateDer<'_>,
        group: &GroupName,
        roles: &[PeerRole],
    ) -> Result<Identity, IdentityError> {
        let parsed = webpki::EndEntityCert::try_from(certificate)
            .map_err(|error| IdentityError::Unreadable(error.to_string()))?;
        let ours: Vec<&str> = parsed.valid_uri_names().filter(|uri| uri.starts_with(SCHEME)).collect();
        let identities = ours.iter().filter_map(|uri| uri.parse::<Identity>().ok());
        let identities: Vec<Identity> = identities.filter(|identity| identity.group == *group).collect();
        if let Some(identity) = roles.iter().find_map(|role| identities.iter().find(|found| found.role == *role)) {
            return Ok(identity.clone());
        }
        let roles = roles.iter().map(PeerRole::to_string).collect::<Vec<_>>();
        match ours.as_slice() {
            [] => Err(IdentityError::Nobody { wanted: format!("{SCHEME}{group}/{}/", roles.join("|")) }),
            found => {
                let (found, roles) = (found.join(" and "), roles.join(" or "));
                Err(IdentityError::SomebodyElse { found, group: group.clone(), roles })
            }
        }
    }
}

impl FromStr for Identity {
    type Err = ();

    fn from_str(uri: &str) -> Result<Self, ()> {
        let mut parts = uri.strip_prefix(SCHEME).ok_or(())?.split('/');
        let (Some(group), Some(role), Some(name), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        let role = match role {
            "sidecar" => PeerRole::Sidecar,
            "backup" => PeerRole::Backup,
            "reader" => PeerRole::Reader,
            _ => return Err(()),
        };
        // Names of all of them follow one rule; this checks it.
        let name = name.parse::<SidecarId>().map_err(|_| ())?;
        Ok(Identity { group: group.parse().map_err(|_| ())?, role, name: name.into() })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.group, self.role, self.name)
    }
}

impl fmt::Display for PeerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PeerRole::Sidecar => "sidecar",
            PeerRole::Backup => "backup",
            PeerRole::Reader => "reader",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_its_uri() {
        for uri in ["tailwind://db/sidecar/app-0", "tailwind://db.east/backup/b1", "tailwind://db/reader/feed-0"] {
            assert_eq!(uri.parse::<Identity>().unwrap().to_string(), uri);
        }
        for bad in [
            "spiffe://db/backup/b0",
            "tailwind://db/backup",
            "tailwind://db/backup/",
            "tailwind://db/backup/b0/",
            "tailwind://DB/backup/b0",
            "tailwind:///backup/b0",
            "tailwind://db/operator/b0",
        ] {
            assert!(bad.parse::<Identity>().is_err(), "{bad}");
        }
    }
}
