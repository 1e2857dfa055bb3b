//! Which sidecar is primary, whether it is there, and which could take its place. The log names a pod and an address, and a pod
//! of the same name may be another one. A pod that the API shows as running may be long gone, so both rest on what sidecars
//! report.
//!
//! Called by [`plan`](super).

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tailwind_crds::LogPrimary;
use tailwind_crds::names::ROLE_STANDBY;
use tailwind_report::sidecar::{SidecarReport, Takeover};

use super::trouble::NoReport;
use crate::observed::{Observed, has_sidecar, is_running};
use crate::planted::{self, Bug};

/// The primary.
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
    let pod = observed.app.iter().find(|pod| pod.name_any() == *name && is_running(pod) && !is_lost(observed, pod));
    let ip = pod.and_then(|pod| pod.status.as_ref()?.pod_ip.clone());
    // An IPv6 address has many texts. A host that is no address is one that this cannot compare.
    let host = control.parse::<SocketAddr>().map(|address| address.ip().to_canonical());
    match ip {
        Some(ip) if host.is_err() || ip.parse::<IpAddr>().ok() == host.ok() => Primary::Here { pod: name.clone(), ip },
        _ => Primary::Gone(name.clone()),
    }
}

/// Whether a pod is being deleted on a node that is silent, and its sidecar is so as well. Kubernetes shows it as running until
/// the node is heard again, which may be never.
fn is_lost(observed: &Observed, pod: &Pod) -> bool {
    let is_silent = || matches!(observed.sidecars.get(&pod.name_any()), Some(Err(_)));
    let ends = pod.metadata.deletion_timestamp.is_some() && observed.silent_node(pod).is_some();
    ends && is_silent() && !planted::has(Bug::LostPrimaryLeads)
}

/// Whether the sidecar that is named as primary works as one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Leading<'a> {
    /// Nobody is named, or its pod is gone.
    Nobody,
    /// It reports that it is primary.
    Primary(&'a SidecarReport),
    /// It reports this role.
    Other(&'a str),
    /// Nobody knows.
    Unknown(NoReport),
}

/// Asks for the role of the pod that the log names.
pub(crate) fn leading<'a>(observed: &'a Observed, primary: &Primary) -> Leading<'a> {
    let (Some(log), Primary::Here { pod, .. }) = (observed.log(), primary) else { return Leading::Nobody };
    match observed.sidecars.get(pod) {
        None => Leading::Unknown(NoReport::NotAsked),
        Some(Err(why)) => Leading::Unknown(NoReport::Unreadable(why.clone())),
        // A candidate does not know the epoch that it has just claimed.
        Some(Ok(report)) if !report.is_primary() && report.role != ROLE_STANDBY => Leading::Other(&report.role),
        Some(Ok(report)) if report.epoch < log.epoch => Leading::Unknown(NoReport::Outdated(log.epoch)),
        Some(Ok(report)) if report.is_primary() => Leading::Primary(report),
        Some(Ok(report)) => Leading::Other(&report.role),
    }
}

/// Whether a pod of the app could take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standby {
    /// One reports that it stands by.
    Able,
    /// Nobody knows of this one.
    Unknown(String, NoReport),
    /// This one could not, for this reason.
    Unable(String, String),
    /// There is no other pod that runs on a node that is heard.
    Missing,
}

/// Looks for one: one that is able, or else one that may be.
pub(crate) fn standby(observed: &Observed, primary: &Primary) -> Standby {
    let is_primary = |pod: &Pod| matches!(primary, Primary::Here { pod: name, .. } if pod.name_any() == *name);
    let others = observed.app.iter().filter(|pod| is_running(pod) && pod.metadata.deletion_timestamp.is_none());
    let others = others.filter(|pod| !is_primary(pod) && has_sidecar(pod) && observed.silent_node(pod).is_none());
    let mut found = Standby::Missing;
    for name in others.map(ResourceExt::name_any) {
        let one = match observed.sidecars.get(&name) {
            None => Standby::Unknown(name, NoReport::NotAsked),
            Some(Err(why)) => Standby::Unknown(name, NoReport::Unreadable(why.clone())),
            Some(Ok(SidecarReport { waiting: Some(waiting), .. })) => Standby::Unable(name, waiting.why.clone()),
            Some(Ok(SidecarReport { takeover: Some(Takeover { ready: false, why_not }), .. })) => {
                Standby::Unable(name, why_not.clone().unwrap_or_else(|| "it does not say why".to_owned()))
            }
            Some(Ok(report)) if report.role == ROLE_STANDBY => return Standby::Able,
            Some(Ok(report)) => Standby::Unable(name, format!("it is {}", report.role)),
        };
        if !matches!(found, Standby::Unknown(..)) {
            found = one;
        }
    }
    found
}

impl Primary {
    /// Its pod is there.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self, Primary::Here { .. })
    }
}
