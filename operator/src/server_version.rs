//! What the API server is, and so what it can do. Detected once at the start, and passed as a value from then on.
//!
//! Kubernetes 1.30 and later is what this is made for. Older servers get less, and [`ServerVersion::shortfalls`] says what.

use std::fmt;

use k8s_openapi::apimachinery::pkg::version::Info;
use serde::{Deserialize, Serialize};

/// Major and minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerVersion {
    major: u32,
    minor: u32,
}

impl ServerVersion {
    /// What this is made for.
    pub const TARGET: ServerVersion = ServerVersion::of(1, 30);

    const fn of(major: u32, minor: u32) -> ServerVersion {
        ServerVersion { major, minor }
    }

    /// An init container with `restartPolicy: Always` starts before the app and stops after it.
    pub fn has_native_sidecars(self) -> bool {
        self >= ServerVersion::of(1, 29)
    }

    /// `policy/v1`; before it `policy/v1beta1`, which differs in nothing that is used here.
    pub fn has_policy_v1(self) -> bool {
        self >= ServerVersion::of(1, 21)
    }

    /// A budget says which pods that are not ready may be evicted. Before, it does as by `IfHealthyBudget`.
    pub fn has_eviction_policy(self) -> bool {
        self >= ServerVersion::of(1, 27)
    }

    /// `discovery.k8s.io/v1`; before it `v1beta1`, which differs in nothing that is used here.
    pub fn has_discovery_v1(self) -> bool {
        self >= ServerVersion::of(1, 21)
    }

    /// Pods name a ResourceClaimTemplate as they do today; served without a feature gate from 1.34 on.
    pub fn has_resource_claims(self) -> bool {
        self >= ServerVersion::of(1, 31)
    }

    /// What is missing, a sentence each.
    pub fn shortfalls(self) -> Vec<&'static str> {
        let all = [
            (self >= ServerVersion::of(1, 30), "nothing keeps kubectl delete from deleting a group with its log"),
            (self.has_native_sidecars(), "sidecars are plain containers: they start and stop with the app's"),
            (self >= ServerVersion::of(1, 25), "the API server does not check the rules of specs; the operator does"),
            (self.has_resource_claims(), "rdma.resourceClaimTemplateName cannot be used"),
        ];
        all.into_iter().filter(|(has, _)| !has).map(|(_, sentence)| sentence).collect()
    }
}

impl TryFrom<String> for ServerVersion {
    type Error = String;

    /// `1.30`; servers of some makers say `1.30+`.
    fn try_from(text: String) -> Result<ServerVersion, String> {
        let digits = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        let parts = text.split_once('.').and_then(|(major, minor)| Some((digits(major)?, digits(minor)?)));
        let (major, minor) = parts.ok_or_else(|| format!("server version {text}: must be like 1.30"))?;
        Ok(ServerVersion { major, minor })
    }
}

impl TryFrom<&Info> for ServerVersion {
    type Error = String;

    fn try_from(info: &Info) -> Result<ServerVersion, String> {
        ServerVersion::try_from(format!("{}.{}", info.major, info.minor))
    }
}

impl std::str::FromStr for ServerVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerVersion, String> {
        ServerVersion::try_from(text.to_owned())
    }
}

impl From<ServerVersion> for String {
    fn from(version: ServerVersion) -> String {
        version.to_string()
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_suffixes_of_versions_are_ignored() {
        let version = |text: &str| text.parse::<ServerVersion>().map(|version| version.to_string());
        assert_eq!(version("1.30"), Ok("1.30".to_owned()));
        assert_eq!(version("1.28+"), Ok("1.28".to_owned()));
        assert!(version("one").is_err());
    }

    #[test]
    fn old_servers_have_shortfalls() {
        assert_eq!(ServerVersion::of(1, 34).shortfalls(), Vec::<&str>::new());
        assert_eq!(ServerVersion::of(1, 20).shortfalls().len(), 4);
        assert!(ServerVersion::of(1, 9) < ServerVersion::TARGET);
    }
}
