//! One writer among several replicas: the holder of the Lease reconciles, and ends when it no longer holds it.
//!
//! Used by [`run`](crate::run). As client-go does it: clocks of different machines are never compared. A holder counts as gone
//! when its record has not changed for as long as it promised to renew it, measured here. A holder stops earlier than that,
//! when renewing has failed for a while. What remains, a pause of the whole process between its last renewal and a write,
//! does no harm: every write that matters names the version or the uid that it was decided on.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// What a holder promises: to renew before.
const DURATION: Duration = Duration::from_secs(15);
/// A holder that could not renew for so long ends, well before another replica may take over.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Between two tries.
const RETRY: Duration = Duration::from_secs(2);
/// One call.
const CALL: Duration = Duration::from_secs(5);

/// A replica that wants the lease, or has it.
pub(crate) struct LeaderElector {
    leases: Api<Lease>,
    name: String,
    identity: String,
    /// The record of another holder, and since when it has been so.
    seen: Option<(Record, Instant)>,
    /// When the last renewal was asked for that succeeded.
    renewed: tokio::time::Instant,
}

type Record = (Option<String>, Option<MicroTime>);

/// What has come of a try to hold the lease.
enum Tried {
    Held,
    HeldByOther,
    /// Somebody has changed it since it was read: another replica, or anybody else. It is read again before that means anything.
    Changed,
}

/// The holder of the lease.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    Ourselves,
    /// Nobody, or one that has not renewed it in time.
    Nobody,
    Other,
}

impl LeaderElector {
    /// Nothing is asked yet. The identity is unique among the replicas, restarted ones included.
    pub(crate) fn new(client: kube::Client, namespace: &str, name: &str, identity: String) -> LeaderElector {
        let (leases, renewed) = (Api::namespaced(client, namespace), tokio::time::Instant::now());
        LeaderElector { leases, name: name.to_owned(), identity, seen: None, renewed }
    }

    /// Waits until this replica holds the lease.
    pub(crate) async fn acquire(&mut self) {
        info!(lease = self.name, identity = self.identity, "waiting for the lease");
        loop {
            let asked = tokio::time::Instant::now();
            match timeout(CALL, self.try_hold()).await {
                Ok(Ok(Tried::Held)) => {
                    self.renewed = asked;
                    break;
                }
                Ok(Ok(Tried::HeldByOther | Tried::Changed)) => {}
                Ok(Err(error)) => warn!(lease = self.name, error = format!("{error:#}"), "lease not acquired"),
                Err(_) => warn!(lease = self.name, "lease not acquired: the API server does not answer"),
            }
            sleep(RETRY).await;
        }
        info!(lease = self.name, "lease acquired");
    }

    /// Renews for as long as it can. Returns when the lease is lost, and then the process has to end. It may be dropped and called
    /// again: the deadline counts from the last renewal.
    pub(crate) async fn keep(&mut self) -> anyhow::Error {
        loop {
            // Neither a pause nor a call that hangs outlasts the deadline.
            let renewed = self.renewed;
            let left = |most: Duration| most.min(RENEW_DEADLINE.saturating_sub(renewed.elapsed()));
            sleep(left(RETRY)).await;
            let asked = tokio::time::Instant::now();
            match timeout(left(CALL), self.try_hold()).await {
                Ok(Ok(Tried::Held)) => self.renewed = asked,
                Ok(Ok(Tried::HeldByOther)) => return anyhow::anyhow!("another replica holds lease {}", self.name),
                Ok(Ok(Tried::Changed)) => info!("lease not renewed: it has changed since it was read"),
                Ok(Err(error)) => warn!(error = format!("{error:#}"), "lease not renewed"),
                Err(_) => warn!("lease not renewed: the API server does not answer"),
            }
            if self.renewed.elapsed() >= RENEW_DEADLINE {
                return anyhow::anyhow!("lease {} could not be renewed for {RENEW_DEADLINE:?}", self.name);
            }
        }
    }

    /// Lets another replica take over at once.
    pub(crate) async fn release(&mut self) -> anyhow::Result<()> {
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() == Some(&self.identity) {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }

    async fn try_hold(&mut self) -> anyhow::Result<Tried> {
        let Some(lease) = self.leases.get_opt(&self.name).await.context("read the lease")? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.record(None)) };
            return written(self.leases.create(&PostParams::default(), &lease).await);
        };
        match self.holder(lease.spec.as_ref(), Instant::now()) {
            Holder::Other => Ok(Tried::HeldByOther),
            Holder::Ourselves | Holder::Nobody => {
                let spec = Some(self.record(lease.spec.as_ref()));
                // With the version that was read: of two that try, one succeeds.
                let lease = Lease { metadata: lease.metadata, spec };
                written(self.leases.replace(&self.name, &PostParams::default(), &lease).await)
            }
        }
    }

    fn holder(&mut self, spec: Option<&LeaseSpec>, now: Instant) -> Holder {
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if holder == self.identity {
            return Holder::Ourselves;
        }
        if holder.is_empty() {
            return Holder::Nobody;
        }
        let record = (Some(holder.to_owned()), spec.and_then(|spec| spec.renew_time.clone()));
        let promised =
            spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
        let promised = promised.map_or(DURATION, Duration::from_secs);
        match &self.seen {
            Some((seen, since)) if *seen == record => match now.duration_since(*since) >= promised {
                true => Holder::Nobody,
                false => Holder::Other,
            },
            _ => {
                self.seen = Some((record, now));
                Holder::Other
            }
        }
    }

    fn record(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let ours = before.filter(|before| before.holder_identity.as_ref() == Some(&self.identity));
        let transitions = before.and_then(|before| before.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: ours.and_then(|before| before.acquire_time.clone()).or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(if ours.is_some() || before.is_none() { transitions } else { transitions + 1 }),
            ..LeaseSpec::default()
        }
    }
}

fn written(result: Result<Lease, kube::Error>) -> anyhow::Result<Tried> {
    match result {
        Ok(_) => Ok(Tried::Held),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(Tried::Changed),
        Err(error) => bail!("write the lease: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;
    use crate::test_api;

    fn elector() -> LeaderElector {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        LeaderElector::new(client, "tailwind-system", "tailwind-operator", "a".to_owned())
    }

    fn held_by(holder: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        }
    }

    #[tokio::test]
    async fn lease_expires_by_local_observation_not_holder_clock() {
        let mut elector = elector();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        // Its clock is far behind: that alone says nothing.
        assert_eq!(elector.holder(Some(&held_by("b", 0)), after(0)), Holder::Other);
        assert_eq!(elector.holder(Some(&held_by("b", 0)), after(14)), Holder::Other);
        assert_eq!(elector.holder(Some(&held_by("b", 1)), after(15)), Holder::Other);
        assert_eq!(elector.holder(Some(&held_by("b", 1)), after(29)), Holder::Other);
        assert_eq!(elector.holder(Some(&held_by("b", 1)), after(30)), Holder::Nobody);
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_ends_before_anybody_may_take_over() {
        let mut elector = LeaderElector::new(hanging(), "tailwind-system", "tailwind-operator", "a".to_owned());
        let began = tokio::time::Instant::now();
        let why = elector.keep().await;
        assert_eq!(why.to_string(), "lease tailwind-operator could not be renewed for 10s");
        assert!(began.elapsed() < DURATION - RETRY, "after {:?}", began.elapsed());
    }

    /// A client whose calls never come back.
    fn hanging() -> kube::Client {
        let hang = |_: axum::http::Request<kube::client::Body>| {
            std::future::pending::<Result<axum::http::Response<kube::client::Body>, std::io::Error>>()
        };
        kube::Client::new(tower::service_fn(hang), "tailwind-system")
    }

    /// Somebody has labelled it, or a renewal that was not answered has been stored after all.
    #[tokio::test(start_paused = true)]
    async fn a_holder_that_comes_second_once_looks_again() {
        let renewals = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&renewals);
        let client = tower::service_fn(move |request: axum::http::Request<kube::client::Body>| {
            let before = match *request.method() {
                axum::http::Method::PUT => counted.fetch_add(1, Ordering::Relaxed),
                _ => 1,
            };
            let (code, body) = match before {
                0 => test_api::failure(409, "Conflict"),
                _ => (200, json!({"metadata": {"name": "tailwind-operator"}, "spec": held_by("a", 5)})),
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let response = axum::http::Response::builder().status(code).body(body);
            std::future::ready(Ok::<_, std::io::Error>(response.unwrap()))
        });
        let client = kube::Client::new(client, "tailwind-system");
        let mut elector = LeaderElector::new(client, "tailwind-system", "tailwind-operator", "a".to_owned());
        assert!(timeout(2 * RENEW_DEADLINE, elector.keep()).await.is_err());
        assert!(renewals.load(Ordering::Relaxed) > 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_is_not_begun_again_with_another_wait() {
        let mut elector = LeaderElector::new(hanging(), "tailwind-system", "tailwind-operator", "a".to_owned());
        let began = tokio::time::Instant::now();
        assert!(timeout(Duration::from_secs(9), elector.keep()).await.is_err());
        elector.keep().await;
        assert!(began.elapsed() < DURATION - RETRY, "after {:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_free_lease_is_taken_and_our_own_renewed() {
        let mut elector = elector();
        assert_eq!(elector.holder(None, Instant::now()), Holder::Nobody);
        assert_eq!(elector.holder(Some(&held_by("", 5)), Instant::now()), Holder::Nobody);
        assert_eq!(elector.holder(Some(&held_by("a", 5)), Instant::now()), Holder::Ourselves);
        let taken = elector.record(Some(&held_by("b", 5)));
        assert_eq!((taken.holder_identity.as_deref(), taken.lease_transitions), (Some("a"), Some(1)));
        assert_eq!(elector.record(Some(&taken)).acquire_time, taken.acquire_time);
    }
}
