//! What sidecars, backups and operators report about themselves: facts to wait for, where logs and messages only have words.
//!
//! Asked for over the pods' network, as the operator does; the operators' figures through the API server.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result, anyhow, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tailwind_crds::names::{PORT_BACKUP_PROBES, PORT_SIDECAR_PROBES};
use tailwind_report::report::{self, BackupReport};
use tailwind_report::sidecar::SidecarReport;

use super::kubernetes::{Cluster, text};
use super::operated::{GROUP, HOME};
use crate::processes::http::{self, HttpResponse};

/// What the sidecar in this pod reports.
pub fn sidecar_report(pod: &Value) -> Result<SidecarReport> {
    report(pod, PORT_SIDECAR_PROBES)
}

/// What this backup reports.
pub fn backup_report(pod: &Value) -> Result<BackupReport> {
    report(pod, PORT_BACKUP_PROBES)
}

/// What the sidecar in this pod answers to the question whether it is ready.
pub fn sidecar_readiness(pod: &Value) -> Result<HttpResponse> {
    probe(pod, PORT_SIDECAR_PROBES, "/readyz")
}

/// What this sample of a counter or a gauge is in the sidecar of this pod: `label` is one of its labels, such as `result="value"`.
pub fn sidecar_metric(pod: &Value, name: &str, label: &str) -> Result<u64> {
    let page = probe(pod, PORT_SIDECAR_PROBES, "/metrics")?;
    let page = String::from_utf8(page.body).context("a page that is no text")?;
    let is_it = |line: &&str| line.split_once('{').is_some_and(|(of, labels)| of == name && labels.contains(label));
    let line = page.lines().find(is_it).with_context(|| format!("no {name} with {label}"))?;
    let (_, value) = line.rsplit_once(' ').context("a sample")?;
    value.parse().with_context(|| line.to_owned())
}

fn report<T: DeserializeOwned>(pod: &Value, port: u16) -> Result<T> {
    let page = probe(pod, port, report::PATH)?;
    report::read(&page.body, GROUP, text(pod, "/metadata/name")).map_err(|why| anyhow!(why))
}

fn probe(pod: &Value, port: u16, path: &str) -> Result<HttpResponse> {
    let address: IpAddr = text(pod, "/status/podIP").parse().context("the pod has no address")?;
    http::get_from((address, port).into(), path).with_context(|| format!("ask {address} for {path}"))
}

/// The samples of this metric of all operators, by operator and labels. Fails if an operator has none.
pub fn operator_metric(cluster: &Cluster, name: &str) -> Result<BTreeMap<String, u64>> {
    let mut samples = BTreeMap::new();
    for operator in operators(cluster)? {
        let of_it = metric_of(cluster, &operator, name)?;
        ensure!(!of_it.is_empty(), "{operator} has no {name}");
        samples.extend(of_it);
    }
    Ok(samples)
}

/// The same of one operator, which may have none.
fn metric_of(cluster: &Cluster, operator: &str, name: &str) -> Result<BTreeMap<String, u64>> {
    let page = format!("/api/v1/namespaces/{HOME}/pods/{operator}:8080/proxy/metrics");
    let page = cluster.kubectl(&["get", "--raw", &page], "")?;
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let sample = |line: &str| {
        let (sample, value) = line.rsplit_once(' ').context("a sample")?;
        Ok((format!("{operator} {sample}"), value.parse().with_context(|| line.to_owned())?))
    };
    page.lines().filter(of_name).map(sample).collect()
}

/// Looks at groups that have failed for what does not pass by itself: something is refused, wrong or out of reach.
pub fn failed_looks(cluster: &Cluster) -> Result<u64> {
    let passes = |sample: &str| [r#"class="conflict""#, r#"class="ending""#].iter().any(|class| sample.contains(class));
    sum_of(cluster, "tailwind_operator_reconcile_errors_total", |sample| !passes(sample))
}

/// Whether an operator leaves the group in this namespace alone, since this other installation manages it.
pub fn is_left_to(cluster: &Cluster, namespace: &str, owner: &str) -> Result<bool> {
    let labels = [format!(r#"namespace="{namespace}""#), format!(r#"managed_by="{owner}""#)];
    let is_it = |sample: &str| labels.iter().all(|label| sample.contains(label));
    Ok(sum_of(cluster, "tailwind_operator_group_refused", is_it)? > 0)
}

/// The sum of such samples of a metric, over all operators.
fn sum_of(cluster: &Cluster, name: &str, such: impl Fn(&str) -> bool) -> Result<u64> {
    let mut sum = 0;
    for operator in operators(cluster)? {
        let samples = metric_of(cluster, &operator, name)?;
        sum += samples.iter().filter(|(sample, _)| such(sample)).map(|(_, value)| value).sum::<u64>();
    }
    Ok(sum)
}

/// The pods of the operators that are not about to end.
fn operators(cluster: &Cluster) -> Result<Vec<String>> {
    let pods = cluster.list(&format!("/api/v1/namespaces/{HOME}/pods"))?;
    let alive = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    Ok(alive.map(|pod| text(pod, "/metadata/name").to_owned()).collect())
}
