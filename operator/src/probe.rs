//! Asks pods over plain HTTP how they are: a primary for its positions, sidecars for what they wait for, a backup for its
//! damage, for what it keeps in quarantine, and for the reason if it is not ready.
//!
//! Called by [`observe`](crate::observe), which takes what is known by now; requests go on beside it, seldom, briefly and
//! without consequences when they fail. Nothing that matters rests on them.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tailwind_crds::Positions;
use tailwind_crds::names::{BACKUP_CONTAINER, PORT_BACKUP_PROBES, PORT_SIDECAR_PROBES};
use tailwind_crds::readiness::{Readiness, Unready};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Positions are read so often at most.
const POSITIONS_AGE: Duration = Duration::from_secs(30);
/// Reasons are read so often at most.
const OBSTACLES_AGE: Duration = Duration::from_secs(10);
/// Roles are read so often at most: what is said of a wait should not outlive it for long.
const ROLES_AGE: Duration = Duration::from_secs(4);
/// Backups' metrics are read so often at most.
const BACKUPS_AGE: Duration = Duration::from_secs(30);
/// A request that takes longer is given up.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Requests under way at a time.
const REQUESTS_MAX: usize = 32;
/// Sidecars and backups close a connection that has been idle for 10 seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(8);
/// Responses that were not used for so long are dropped.
const UNUSED_MAX: Duration = Duration::from_mins(10);
/// A page of metrics has some ten kilobytes.
const BODY_BYTES_MAX: usize = 1 << 20;
/// A reason is a sentence.
const REASON_CHARS_MAX: usize = 300;
/// What a sidecar waits for names each member, and what is wrong there.
const WAIT_CHARS_MAX: usize = 1000;

type HttpClient = Client<HttpConnector, Empty<Bytes>>;

/// What pods have said.
#[derive(Debug)]
pub(crate) struct Prober {
    client: HttpClient,
    responses: Mutex<HashMap<String, CachedResponse>>,
    requests: Arc<Semaphore>,
}

#[derive(Debug)]
struct CachedResponse {
    requested: Instant,
    text: Option<String>,
}

impl Default for Prober {
    fn default() -> Prober {
        // A request is sent once: one that fails is repeated when its response is wanted again.
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(1)
            .retry_canceled_requests(false)
            .build_http();
        Prober { client, responses: Mutex::default(), requests: Arc::new(Semaphore::new(REQUESTS_MAX)) }
    }
}

impl Prober {
    /// Positions that the primary at this address reports.
    pub(crate) fn positions(self: &Arc<Prober>, ip: &str) -> Option<Positions> {
        positions(&self.get(ip, PORT_SIDECAR_PROBES, "/metrics", POSITIONS_AGE)?)
    }

    /// What the sidecars in these pods of the app say of themselves, by pod.
    pub(crate) fn sidecars(self: &Arc<Prober>, pods: &[&Pod]) -> BTreeMap<String, Readiness> {
        let said = pods.iter().filter_map(|pod| {
            let ip = pod.status.as_ref()?.pod_ip.as_ref()?;
            let text = self.get(ip, PORT_SIDECAR_PROBES, "/readyz", ROLES_AGE)?;
            Some((pod.name_any(), readiness(&text)))
        });
        said.collect()
    }

    /// What those of the pods say that run and are not ready, by pod.
    pub(crate) fn obstacles(self: &Arc<Prober>, pods: &[Pod]) -> BTreeMap<String, Unready> {
        let unready = pods.iter().filter(|pod| is_running_unready(pod));
        unready
            .filter_map(|pod| {
                let ip = pod.status.as_ref()?.pod_ip.as_ref()?;
                let text = self.get(ip, PORT_BACKUP_PROBES, "/readyz", OBSTACLES_AGE)?;
                let text: String = text.trim().chars().take(REASON_CHARS_MAX).collect();
                let Ok(unready) = text.parse();
                (!text.is_empty() && text != "ok").then(|| (pod.name_any(), unready))
            })
            .collect()
    }

    /// Segments of which pods say that they should hold them and do not, by pod; of those that say so.
    pub(crate) fn damaged(self: &Arc<Prober>, pods: &[Pod]) -> BTreeMap<String, u64> {
        let said = pods.iter().filter_map(|pod| Some((pod.name_any(), damaged(&self.backup_metrics(pod)?))));
        said.filter(|(_, count)| *count > 0).collect()
    }

    /// Copies that pods keep in quarantine, by pod; of those that report it, also that there are none.
    pub(crate) fn quarantined(self: &Arc<Prober>, pods: &[Pod]) -> BTreeMap<String, u64> {
        let said = pods.iter().filter_map(|pod| Some((pod.name_any(), quarantined(&self.backup_metrics(pod)?)?)));
        said.collect()
    }

    fn backup_metrics(self: &Arc<Prober>, pod: &Pod) -> Option<String> {
        let ip = pod.status.as_ref()?.pod_ip.as_ref()?;
        self.get(ip, PORT_BACKUP_PROBES, "/metrics", BACKUPS_AGE)
    }

    fn responses(&self) -> MutexGuard<'_, HashMap<String, CachedResponse>> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last response; requests another one if it is old.
    fn get(self: &Arc<Prober>, ip: &str, port: u16, path: &'static str, age_max: Duration) -> Option<String> {
        let address = SocketAddr::new(ip.parse::<IpAddr>().ok()?, port);
        let url = format!("http://{address}{path}");
        let mut responses = self.responses();
        let known = responses.get(&url);
        let text = known.and_then(|response| response.text.clone());
        if known.is_some_and(|response| response.requested.elapsed() < age_max) {
            return text;
        }
        // With as many requests under way as there may be, it is requested another time.
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else { return text };
        responses.retain(|_, response| response.requested.elapsed() < UNUSED_MAX);
        responses.insert(url.clone(), CachedResponse { requested: Instant::now(), text: text.clone() });
        drop(responses);
        let prober = Arc::clone(self);
        tokio::spawn(async move {
            let text = timeout(REQUEST_TIMEOUT, fetch(&prober.client, &url)).await.ok().flatten();
            if let Some(known) = prober.responses().get_mut(&url) {
                known.text = text;
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

async fn fetch(client: &HttpClient, url: &str) -> Option<String> {
    let response = client.get(url.parse().ok()?).await.ok()?;
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await.ok()?;
    String::from_utf8(body.to_bytes().to_vec()).ok()
}

fn readiness(text: &str) -> Readiness {
    let Ok(mut readiness) = text.parse::<Readiness>();
    if let Some(waiting) = &mut readiness.waiting {
        waiting.why = waiting.why.chars().take(WAIT_CHARS_MAX).collect();
    }
    readiness
}

/// Of a primary: one that is recovering the log knows no positions yet, and reports 0.
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tailwind_crds::readiness::WaitsFor;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

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
    fn a_long_wait_is_cut_off() {
        let sidecar = readiness(&format!("recovering\nwaits for evidence: {}\n", "b ".repeat(10_000)));
        let waiting = sidecar.waiting.unwrap();
        assert_eq!((sidecar.role.as_str(), waiting.what), ("recovering", WaitsFor::Evidence));
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
    fn quarantine_is_read_from_metrics() {
        let page =
            "tailwind_backup_quarantined_bytes{member=\"b\"} 4096\ntailwind_backup_quarantined{member=\"b\"} 2\n";
        assert_eq!(quarantined(page), Some(2));
        assert_eq!(quarantined("tailwind_backup_quarantined{member=\"b\"} 0\n"), Some(0));
        assert_eq!(quarantined("tailwind_backup_quarantined_bytes{member=\"b\"} 4096\n"), None);
    }

    /// Reads a request's head; false at the end of the connection.
    async fn read_request(stream: &mut TcpStream) -> bool {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return false,
            }
        }
        true
    }

    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";

    #[tokio::test]
    async fn responses_are_cached() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(read_request(&mut stream).await);
            stream.write_all(RESPONSE).await.unwrap();
            assert!(!read_request(&mut stream).await, "a second request");
        });
        let prober = Arc::new(Prober::default());
        let get = || prober.get("127.0.0.1", port, "/readyz", Duration::from_secs(60));
        assert_eq!(get(), None);
        let response = timeout(Duration::from_secs(10), async {
            loop {
                match get() {
                    Some(text) => break text,
                    None => tokio::task::yield_now().await,
                }
            }
        });
        assert_eq!(response.await.unwrap(), "ok\n");
    }

    #[tokio::test]
    async fn a_request_on_a_reused_connection_is_sent_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/readyz", listener.local_addr().unwrap());
        let received = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&received);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let count = Arc::clone(&count);
                tokio::spawn(async move {
                    // The second request gets no response: the client cannot know whether it was carried out.
                    for response in [RESPONSE, b""] {
                        if read_request(&mut stream).await {
                            count.fetch_add(1, Ordering::SeqCst);
                            stream.write_all(response).await.unwrap();
                        }
                    }
                });
            }
        });
        let client = Prober::default().client;
        let mut sent = 1;
        let until_reused = timeout(Duration::from_secs(10), async {
            while fetch(&client, &url).await.is_some() {
                sent += 1;
            }
        });
        until_reused.await.expect("no connection is reused");
        assert_eq!(received.load(Ordering::SeqCst), sent);
    }
}
