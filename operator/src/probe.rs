//! Asks pods over plain HTTP how they are: a primary for its positions, sidecars for what they wait for, a backup for its
//! damage, for what it keeps in quarantine, and for the reason if it is not ready.
//!
//! Called by [`observe`](crate::observe), which takes what is known by now; the asking goes on beside it, seldom, briefly and
//! without consequences when it fails. Nothing that matters rests on it.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tailwind_crds::Positions;
use tailwind_crds::names::{BACKUP_CONTAINER, PORT_BACKUP_PROBES, PORT_SIDECAR_PROBES};
use tailwind_crds::readiness::{Readiness, Unready};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Positions are read so often at most.
const POSITIONS_AGE: Duration = Duration::from_secs(30);
/// Reasons are read so often at most.
const OBSTACLES_AGE: Duration = Duration::from_secs(10);
/// Roles are read so often at most: what is told of a wait should not outlive it for long.
const ROLES_AGE: Duration = Duration::from_secs(4);
/// Backups' metrics are read so often at most.
const BACKUPS_AGE: Duration = Duration::from_secs(30);
/// Nobody is waited for longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Questions under way at a time.
const QUESTIONS_MAX: usize = 32;
/// Answers that nobody wanted for so long are forgotten.
const FORGOTTEN: Duration = Duration::from_mins(10);
/// A page of metrics has some ten kilobytes.
const BODY_BYTES_MAX: usize = 1 << 20;
/// A reason is a sentence.
const REASON_CHARS_MAX: usize = 300;
/// What a sidecar waits for names each member, and what is wrong there.
const WAIT_CHARS_MAX: usize = 1000;

/// What pods have said.
#[derive(Debug)]
pub struct Prober {
    responses: Mutex<HashMap<String, CachedResponse>>,
    questions: Arc<Semaphore>,
}

#[derive(Debug)]
struct CachedResponse {
    asked: Instant,
    text: Option<String>,
}

impl Default for Prober {
    fn default() -> Prober {
        Prober { responses: Mutex::default(), questions: Arc::new(Semaphore::new(QUESTIONS_MAX)) }
    }
}

impl Prober {
    /// Positions that the primary at this address has told.
    pub fn positions(self: &Arc<Prober>, ip: &str) -> Option<Positions> {
        positions(&self.ask(ip, PORT_SIDECAR_PROBES, "/metrics", POSITIONS_AGE)?)
    }

    /// What the sidecars in these pods of the app say of themselves, by pod.
    pub fn sidecars(self: &Arc<Prober>, pods: &[&Pod]) -> BTreeMap<String, Readiness> {
        let told = pods.iter().filter_map(|pod| {
            let ip = pod.status.as_ref()?.pod_ip.as_ref()?;
            let text = self.ask(ip, PORT_SIDECAR_PROBES, "/readyz", ROLES_AGE)?;
            Some((pod.name_any(), readiness(&text)))
        });
        told.collect()
    }

    /// What those of the pods say that run and are not ready, by pod.
    pub fn obstacles(self: &Arc<Prober>, pods: &[Pod]) -> BTreeMap<String, Unready> {
        let unready = pods.iter().filter(|pod| is_running_unready(pod));
        unready
            .filter_map(|pod| {
                let ip = pod.status.as_ref()?.pod_ip.as_ref()?;
                let text = self.ask(ip, PORT_BACKUP_PROBES, "/readyz", OBSTACLES_AGE)?;
                let text: String = text.trim().chars().take(REASON_CHARS_MAX).collect();
                let Ok(unready) = text.parse();
                (!text.is_empty() && text != "ok").then(|| (pod.name_any(), unready))
            })
            .collect()
    }

    /// Segments of which pods say that they should hold them and do not, by pod; of those that say so.
    pub fn damaged(self: &Arc<Prober>, pods: &[Pod]) -> BTreeMap<String, u64> {
        let told = pods.iter().filter_map(|pod| Some((pod.name_any(), damaged(&self.backup_metrics(pod)?))));
        told.filter(|(_, count)| *count > 0).collect()
    }

    /// Copies that pods keep in quarantine, by pod; of those that have told, also that there are none.
    pub fn quarantined(self: &Arc<Prober>, pods: &[Pod]) -> BTreeMap<String, u64> {
        let told = pods.iter().filter_map(|pod| Some((pod.name_any(), quarantined(&self.backup_metrics(pod)?)?)));
        told.collect()
    }

    fn backup_metrics(self: &Arc<Prober>, pod: &Pod) -> Option<String> {
        let ip = pod.status.as_ref()?.pod_ip.as_ref()?;
        self.ask(ip, PORT_BACKUP_PROBES, "/metrics", BACKUPS_AGE)
    }

    fn responses(&self) -> MutexGuard<'_, HashMap<String, CachedResponse>> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last answer; asks anew if it is old.
    fn ask(self: &Arc<Prober>, ip: &str, port: u16, path: &'static str, age_max: Duration) -> Option<String> {
        let address = SocketAddr::new(ip.parse::<IpAddr>().ok()?, port);
        let key = format!("{address}{path}");
        let mut responses = self.responses();
        let known = responses.get(&key);
        let text = known.and_then(|answer| answer.text.clone());
        if known.is_some_and(|answer| answer.asked.elapsed() < age_max) {
            return text;
        }
        // With all places taken it is asked another time.
        let Ok(permit) = Arc::clone(&self.questions).try_acquire_owned() else { return text };
        responses.retain(|_, answer| answer.asked.elapsed() < FORGOTTEN);
        responses.insert(key.clone(), CachedResponse { asked: Instant::now(), text: text.clone() });
        drop(responses);
        let prober = Arc::clone(self);
        tokio::spawn(async move {
            let answer = timeout(PATIENCE, fetch(address, path)).await.ok().flatten();
            if let Some(known) = prober.responses().get_mut(&key) {
                known.text = answer;
            }
            drop(permit);
        });
        text
    }
}

fn is_running_unready(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    statuses.iter().any(|container| {
        let running = container.state.as_ref().is_some_and(|state| state.running.is_some());
        container.name == BACKUP_CONTAINER && running && !container.ready
    })
}

async fn fetch(address: SocketAddr, path: &str) -> Option<String> {
    let stream = TcpStream::connect(address).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
    let request =
        hyper::Request::get(path).header(hyper::header::HOST, address.to_string()).body(Empty::<Bytes>::new());
    let request = request.ok()?;
    let exchange = async {
        let response = sender.send_request(request).await.ok()?;
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await.ok()?;
        String::from_utf8(body.to_bytes().to_vec()).ok()
    };
    // The connection ends with the answer.
    let mut connection = std::pin::pin!(connection);
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        _ = &mut connection => exchange.await,
    }
}

fn readiness(text: &str) -> Readiness {
    let Ok(mut readiness) = text.parse::<Readiness>();
    if let Some(waiting) = &mut readiness.waiting {
        waiting.why = waiting.why.chars().take(WAIT_CHARS_MAX).collect();
    }
    readiness
}

/// Of a primary: one that is recovering the log knows no positions yet, and tells 0.
fn positions(metrics: &str) -> Option<Positions> {
    if gauge(metrics, "tailwind_primary")? != 1 {
        return None;
    }
    Some(Positions { first: gauge(metrics, "tailwind_first_lsn")?, acked: gauge(metrics, "tailwind_acked_lsn")? })
}

fn damaged(metrics: &str) -> u64 {
    let names = ["tailwind_backup_segments_corrupt", "tailwind_backup_segments_damaged", "tailwind_backup_doubtful"];
    names.into_iter().filter_map(|name| gauge(metrics, name)).sum()
}

fn quarantined(metrics: &str) -> Option<u64> {
    gauge(metrics, "tailwind_backup_quarantined")
}

/// Reads one gauge of a page of metrics.
fn gauge(metrics: &str, name: &str) -> Option<u64> {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let mut values = lines.filter(|rest| rest.starts_with(['{', ' ']));
    values.next()?.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tailwind_crds::readiness::WaitsFor;

    use super::*;

    #[test]
    fn positions_are_read_from_metrics() {
        let page = "# TYPE tailwind_acked_lsn gauge\ntailwind_acked_lsn_other 7\ntailwind_acked_lsn{group=\"a\"} 42\n\
                    tailwind_first_lsn 3\ntailwind_primary{group=\"a\"} 1\n";
        assert_eq!(positions(page), Some(Positions { first: 3, acked: 42 }));
        assert_eq!(positions("tailwind_primary 1\ntailwind_acked_lsn 1\n"), None);
        assert_eq!(positions(&page.replace("} 1\n", "} 0\n")), None, "it is recovering the log");
    }

    #[test]
    fn a_wait_is_read_from_readiness_and_bounded() {
        let told = readiness(&format!("recovering\nwaits for evidence: {}\n", "b ".repeat(10_000)));
        let waiting = told.waiting.unwrap();
        assert_eq!((told.role.as_str(), waiting.what), ("recovering", WaitsFor::Evidence));
        assert_eq!(waiting.why.len(), WAIT_CHARS_MAX);
        assert_eq!(readiness("primary\n"), Readiness { role: "primary".to_owned(), waiting: None });
    }

    #[test]
    fn damage_is_read_from_metrics() {
        let page = "tailwind_backup_segments_corrupt{member=\"b\"} 2\ntailwind_backup_segments_damaged{member=\"b\"} 0\n\
                    tailwind_backup_doubtful{member=\"b\"} 1\n";
        assert_eq!((damaged(page), damaged("tailwind_backup_info 1\n")), (3, 0));
    }

    #[test]
    fn quarantine_is_read_from_metrics_that_tell_of_it() {
        let page =
            "tailwind_backup_quarantined_bytes{member=\"b\"} 4096\ntailwind_backup_quarantined{member=\"b\"} 2\n";
        assert_eq!(quarantined(page), Some(2));
        assert_eq!(quarantined("tailwind_backup_quarantined{member=\"b\"} 0\n"), Some(0));
        assert_eq!(quarantined("tailwind_backup_quarantined_bytes{member=\"b\"} 4096\n"), None);
    }

    #[tokio::test]
    async fn a_reason_is_fetched_once_and_known_afterwards() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper::service::service_fn(|_| async {
                Ok::<_, std::convert::Infallible>(hyper::Response::new("too little memory\n".to_owned()))
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        let prober = Arc::new(Prober::default());
        let ask = || prober.ask("127.0.0.1", port, "/readyz", Duration::from_secs(60));
        assert_eq!(ask(), None);
        let answer = timeout(Duration::from_secs(10), async {
            loop {
                match ask() {
                    Some(text) => break text,
                    None => tokio::task::yield_now().await,
                }
            }
        });
        assert_eq!(answer.await.unwrap(), "too little memory\n");
    }
}
