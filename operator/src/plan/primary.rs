//! Who is primary, and whether it is there: the log names a pod and an address, and a pod of the same name may be another.
//!
//! Called by [`plan`](super).

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tailwind_crds::LogPrimary;

use crate::observed::{Observed, is_running};

/// Who is primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Primary {
    /// There has never been one.
    Never,
    /// This pod is.
    Here { pod: String, ip: String },
    /// This pod was, and is gone.
    Gone(String),
}

/// Looks for it.
pub(crate) fn primary(observed: &Observed) -> Primary {
    let Some(LogPrimary { name, control }) = observed.log().map(|log| &log.primary) else { return Primary::Never };
    let pod = observed.app.iter().find(|pod| pod.name_any() == *name && is_running(pod));
    let ip = pod.and_then(|pod| pod.status.as_ref()?.pod_ip.clone());
    // An IPv6 address has many texts. A host that is no address is one that this cannot compare.
    let host = control.parse::<SocketAddr>().map(|address| address.ip().to_canonical());
    match ip {
        Some(ip) if host.is_err() || ip.parse::<IpAddr>().ok() == host.ok() => Primary::Here { pod: name.clone(), ip },
        _ => Primary::Gone(name.clone()),
    }
}

/// The app's pods that could take over: they run on nodes that are heard, and are not the primary.
pub(crate) fn standbys(observed: &Observed, primary: &Primary) -> usize {
    let is_primary = |pod: &Pod| matches!(primary, Primary::Here { pod: name, .. } if pod.name_any() == *name);
    let able = observed.app.iter().filter(|pod| is_running(pod) && pod.metadata.deletion_timestamp.is_none());
    able.filter(|pod| !is_primary(pod) && observed.silent_node(pod).is_none()).count()
}

impl Primary {
    /// Its pod is there.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self, Primary::Here { .. })
    }
}
