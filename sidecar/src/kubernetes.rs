//! A group that is a `ReplicaGroup`: its config store in `status.log`, and the EndpointSlice that leads clients to its primary.
//!
//! Called by [`run`](crate::run), and by [`Store`](crate::store::Store). A build without the feature `kubernetes` has
//! `no_kubernetes.rs` in this place.

mod convert;
mod primary_address;
mod store;

use std::fmt;
use std::str::FromStr;

use tailwind_protocol::ids::GroupName;

pub use primary_address::PrimaryAddress;
pub use store::{KubernetesStore, join};

/// Names this writer in `metadata.managedFields`.
const FIELD_MANAGER: &str = "tailwind-sidecar";

/// Where a group is: `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPath {
    /// Its namespace.
    pub namespace: String,
    /// Its name, which is that of the group.
    pub name: GroupName,
}

impl FromStr for GroupPath {
    type Err = String;

    fn from_str(text: &str) -> Result<GroupPath, String> {
        let (namespace, name) = text.split_once('/').ok_or("must be NAMESPACE/NAME")?;
        if namespace.is_empty() {
            return Err("must be NAMESPACE/NAME".to_owned());
        }
        let name = name.parse().map_err(|error: tailwind_protocol::ids::BadName| error.to_string())?;
        Ok(GroupPath { namespace: namespace.to_owned(), name })
    }
}

impl fmt::Display for GroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
