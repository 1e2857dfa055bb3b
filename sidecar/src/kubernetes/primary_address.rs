//! Says in the group's EndpointSlice that this sidecar is primary, so that the service `GROUP-primary` leads here.
//!
//! Used by [`control`](crate::control) where there is such a service (`--primary-service`): written when a term begins, kept so while
//! it lasts, taken out when it ends. The operator makes the slice and its ports. Nothing of the append path waits for it. The
//! slice records the epoch of the primary that it names, and each write replaces only what was seen, so that a late write of an
//! earlier primary never replaces its successor. <https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/>

use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tailwind_crds::names::{ANNOTATION_TERM, DISCOVERY_GROUP};
use tailwind_protocol::config::{Configuration, PrimaryRef};
use tailwind_protocol::ids::{Epoch, LogId};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::logging::Repeats;

use super::FIELD_MANAGER;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause after a request has failed.
const AGAIN: Duration = Duration::from_millis(500);
/// The same error is logged at most this often.
const LOG_AGAIN: Duration = Duration::from_secs(60);
/// A term that has ended takes its address out within this time, or leaves it to its successor and the operator.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(10);

/// A log and an epoch: `LOG/EPOCH`. Terms of different logs have no order: a group that was recreated begins with epoch 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SliceTerm(LogId, Epoch);

impl SliceTerm {
    /// The one that this configuration begins or continues.
    fn of(config: &Configuration) -> SliceTerm {
        SliceTerm(config.log, config.epoch)
    }

    /// The term whose primary has written the addresses, if one has.
    fn written_in(slice: &DynamicObject) -> Option<SliceTerm> {
        let (log, epoch) = slice.annotations().get(ANNOTATION_TERM)?.split_once('/')?;
        Some(SliceTerm(log.parse().ok()?, Epoch(epoch.parse().ok()?)))
    }

    fn is_before(self, other: SliceTerm) -> bool {
        self.0 == other.0 && self.1 < other.1
    }
}

impl fmt::Display for SliceTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0, self.1)
    }
}

/// Writes one sidecar's address.
pub struct PrimaryAddress {
    client: Client,
    namespace: String,
    service: String,
    pod: String,
    address: IpAddr,
    api: OnceCell<Api<DynamicObject>>,
}

impl PrimaryAddress {
    /// For this sidecar, whose name is that of its pod. `None` where its control address is none of a pod, but a name.
    pub fn new(client: Client, namespace: String, service: String, me: &PrimaryRef) -> Option<PrimaryAddress> {
        let address = me.control.parse::<SocketAddr>().ok()?.ip();
        Some(PrimaryAddress { client, namespace, service, pod: me.id.to_string(), address, api: OnceCell::new() })
    }

    /// Keeps the slice leading here, in the term of this configuration, unless it names a primary of a later one. Does not
    /// return.
    pub async fn publish(&self, config: &Configuration) -> Infallible {
        let term = SliceTerm::of(config);
        let mut logged = Repeats::every(LOG_AGAIN);
        loop {
            let Err(why) = self.keep_leading_here(term).await;
            if logged.is_due(why.clone(), Instant::now()) {
                tracing::warn!(%why, "failed to write the primary's address: the service {} does not lead here", self.service);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Takes the address of a term that has ended out, unless a successor's stands there already.
    pub async fn withdraw(&self, config: &Configuration) {
        let term = SliceTerm::of(config);
        let work = async {
            let api = self.api().await?;
            let Some(slice) = api.get_opt(&self.service).await.map_err(|error| error.to_string())? else {
                return Ok(());
            };
            match SliceTerm::written_in(&slice) == Some(term) && slice.data["endpoints"] != json!([]) {
                true => self.write(api, &slice, term, json!([])).await,
                false => Ok(()),
            }
        };
        match timeout(WITHDRAW_TIMEOUT, work).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => tracing::info!(%why, "the primary's address was not taken out"),
            Err(_) => tracing::info!("the primary's address was not taken out: no answer from the API server"),
        }
    }

    /// Writes at every change that does not lead here. The error is for people.
    async fn keep_leading_here(&self, term: SliceTerm) -> Result<Infallible, String> {
        let api = self.api().await?;
        let mut changes = watcher::watch_object(api.clone(), &self.service).boxed();
        loop {
            match changes.try_next().await.map_err(|error| error.to_string())? {
                // The operator makes it when it sees the first pod.
                Some(None) => {}
                Some(Some(slice)) if self.leads_here(&slice, term) => {}
                Some(Some(slice)) if SliceTerm::written_in(&slice).is_some_and(|written| term.is_before(written)) => {}
                Some(Some(slice)) => {
                    self.write(api, &slice, term, json!([self.endpoint()])).await?;
                    tracing::debug!(service = self.service, address = %self.address, "wrote the primary's address");
                }
                None => return Err("the watch has ended".to_owned()),
            }
        }
    }

    /// The slice's API is `v1` from Kubernetes 1.21 on.
    async fn api(&self) -> Result<&Api<DynamicObject>, String> {
        let make = || async {
            let of = |version: &str| {
                let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(DISCOVERY_GROUP, version, "EndpointSlice"));
                Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
            };
            match timeout(REQUEST_TIMEOUT, self.client.list_api_group_resources(&format!("{DISCOVERY_GROUP}/v1"))).await
            {
                Ok(Ok(_)) => Ok(of("v1")),
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(of("v1beta1")),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("no answer from the API server within {REQUEST_TIMEOUT:?}")),
            }
        };
        self.api.get_or_try_init(make).await
    }

    async fn write(
        &self,
        api: &Api<DynamicObject>,
        seen: &DynamicObject,
        term: SliceTerm,
        endpoints: Value,
    ) -> Result<(), String> {
        let patch = json!({
            // Refused if there was another write since.
            "metadata": {
                "resourceVersion": seen.resource_version(),
                "annotations": {ANNOTATION_TERM: term.to_string()},
            },
            "endpoints": endpoints,
        });
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match timeout(REQUEST_TIMEOUT, api.patch(&self.service, &params, &Patch::Merge(patch))).await {
            // Another writer was faster: the watch shows its write, and then it is looked at again.
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Ok(()),
            Ok(written) => written.map(drop).map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer from the API server within {REQUEST_TIMEOUT:?}")),
        }
    }

    fn endpoint(&self) -> Value {
        json!({
            "addresses": [self.address.to_string()],
            "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "namespace": self.namespace, "name": self.pod},
        })
    }

    fn leads_here(&self, slice: &DynamicObject, term: SliceTerm) -> bool {
        let only = slice.data["endpoints"].as_array().filter(|endpoints| endpoints.len() == 1);
        let found = only.map(|endpoints| &endpoints[0]);
        let wanted = self.endpoint();
        let is_same = |found: &Value| {
            ["addresses", "conditions", "targetRef"].iter().all(|field| {
                let (found, wanted) = (&found[*field], &wanted[*field]);
                // The server may have more to say of it.
                found == wanted
                    || wanted.as_object().is_some_and(|wanted| wanted.iter().all(|(key, value)| found[key] == *value))
            })
        };
        SliceTerm::written_in(slice) == Some(term) && found.is_some_and(is_same)
    }
}

#[cfg(test)]
mod tests;
