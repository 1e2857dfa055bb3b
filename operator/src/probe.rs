//! Asks pods over plain HTTP how they are: sidecars and backups for their reports, and backups for the reason if they are not
//! ready.
//!
//! Called by [`observe`](crate::observe), which waits for answers for a moment and takes what is known then; later ones are
//! there for the next look. A report that cannot be read is passed on with its reason, and never taken for a sound backup or a
//! working primary. Right before a pod is removed, those whose reports allow it are asked once more.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use tailwind_crds::names::{BACKUP_CONTAINER, PORT_BACKUP_PROBES, PORT_SIDECAR_PROBES};
use tailwind_report::readiness::Unready;
use tailwind_report::report::{self, BackupReport};
use tailwind_report::sidecar::{ROWS_MAX, SidecarReport};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Reasons are read so often at most.
const OBSTACLES_AGE: Duration = Duration::from_secs(10);
/// Reports are read so often at most: what is said of damage or of a wait should not outlive it for long.
const REPORTS_AGE: Duration = Duration::from_secs(4);
/// A request that takes longer is given up.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// So often a page is requested before there is no answer, with a pause in between: 10 s in all, if nobody refuses.
const TRIES: u32 = 3;
const TRY_PAUSE: Duration = Duration::from_secs(2);
/// A reconcile waits so long for a page that it has requested.
const ANSWER_PATIENCE: Duration = Duration::from_millis(300);
/// An older answer is ignored: within this time a healthy group is looked at, and its pods are asked, three times.
const ANSWER_AGE_MAX: Duration = Duration::from_secs(90);
/// Requests under way at a time.
const REQUESTS_MAX: usize = 32;
/// Sidecars and backups close a connection that has been idle for 10 seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(8);
/// Responses that were not used for so long are dropped.
const UNUSED_MAX: Duration = Duration::from_mins(10);
/// A report has a hundred bytes; what a sidecar waits for, a line for each member.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Names of pods and roles.
const NAME_CHARS_MAX: usize = 253;
/// A reason is a sentence.
const REASON_CHARS_MAX: usize = 300;
/// What a sidecar waits for names each member, and what is wrong there.
const WAIT_CHARS_MAX: usize = 1000;

const NO_ADDRESS: &str = "it has no address";

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
    /// The request is under way.
    awaited: bool,
    /// When the last page came.
    answered: Option<(Instant, Timestamp)>,
    /// The last page, or why there was none; `None` before the first one.
    page: Option<Result<Page, String>>,
}

/// A whole response.
#[derive(Clone, Debug)]
struct Page {
    status: StatusCode,
    body: Bytes,
}

impl Page {
    fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }
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
    /// What the sidecars in these pods report, or why that cannot be read, by pod; of those that have been asked.
    pub(crate) async fn sidecar_reports<'a>(
        self: &Arc<Prober>,
        group: &str,
        pods: impl Iterator<Item = &'a Pod>,
    ) -> BTreeMap<String, Result<SidecarReport, String>> {
        let mut reports = self.reports::<SidecarReport>(PORT_SIDECAR_PROBES, group, pods).await;
        for report in reports.values_mut().flatten() {
            report.waiting.iter_mut().for_each(|waiting| waiting.why = cut(&waiting.why, WAIT_CHARS_MAX));
            report.appends_wait.iter_mut().for_each(|wait| wait.why = cut(&wait.why, WAIT_CHARS_MAX));
            report.follow.iter_mut().for_each(|follow| follow.from = cut(&follow.from, NAME_CHARS_MAX));
            let why_not = report.takeover.iter_mut().filter_map(|takeover| takeover.why_not.as_mut());
            why_not.for_each(|why| *why = cut(why, REASON_CHARS_MAX));
            report.members.truncate(ROWS_MAX);
            for member in &mut report.members {
                member.name = cut(&member.name, NAME_CHARS_MAX);
                member.why.iter_mut().for_each(|why| *why = cut(why, REASON_CHARS_MAX));
            }
            report.role = cut(&report.role, NAME_CHARS_MAX);
        }
        reports
    }

    /// What backups report, or why that cannot be read, by pod; of those that have been asked.
    pub(crate) async fn backup_reports<'a>(
        self: &Arc<Prober>,
        group: &str,
        pods: impl Iterator<Item = &'a Pod>,
    ) -> BTreeMap<String, Result<BackupReport, String>> {
        self.reports(PORT_BACKUP_PROBES, group, pods).await
    }

    /// The same, asked now: each once.
    pub(crate) async fn backup_reports_now<'a>(
        &self,
        group: &str,
        pods: impl Iterator<Item = &'a Pod>,
    ) -> BTreeMap<String, Result<BackupReport, String>> {
        let requests = pods.map(|pod| async move {
            let name = pod.name_any();
            let page = match url(pod, PORT_BACKUP_PROBES, report::PATH) {
                Some(url) => fetch_in_time(&self.client, &url).await,
                None => Err(NO_ADDRESS.to_owned()),
            };
            let report = reported(page, group, &name);
            (name, report)
        });
        join_all(requests).await.into_iter().collect()
    }

    async fn reports<'a, T: DeserializeOwned>(
        self: &Arc<Prober>,
        port: u16,
        group: &str,
        pods: impl Iterator<Item = &'a Pod>,
    ) -> BTreeMap<String, Result<T, String>> {
        let requests = pods.map(|pod| async move {
            let (name, page) = (pod.name_any(), self.get(pod, port, report::PATH, REPORTS_AGE).await?);
            let report = reported(page, group, &name);
            Some((name, report))
        });
        join_all(requests).await.into_iter().flatten().collect()
    }

    /// What those of the pods say that run and are not ready, by pod.
    pub(crate) async fn obstacles(self: &Arc<Prober>, pods: &[Pod]) -> BTreeMap<String, Unready> {
        let requests = pods.iter().filter(|pod| is_running_unready(pod)).map(|pod| async move {
            let page = self.get(pod, PORT_BACKUP_PROBES, "/readyz", OBSTACLES_AGE).await?.ok()?;
            let text = cut(page.text().trim(), REASON_CHARS_MAX);
            let Ok(unready) = text.parse();
            (!text.is_empty() && text != "ok").then(|| (pod.name_any(), unready))
        });
        join_all(requests).await.into_iter().flatten().collect()
    }

    /// As after a long time: pods that have answered are asked again.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        self.responses().retain(|_, known| known.awaited);
    }

    fn responses(&self) -> MutexGuard<'_, HashMap<String, CachedResponse>> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last response, or why there is none; requests another one first if it is old. `None` before the first one.
    async fn get(
        self: &Arc<Prober>,
        pod: &Pod,
        port: u16,
        path: &'static str,
        age_max: Duration,
    ) -> Option<Result<Page, String>> {
        let Some(url) = url(pod, port, path) else { return Some(Err(NO_ADDRESS.to_owned())) };
        if let Some(request) = self.request(&url, age_max) {
            // A pod that is well answers within milliseconds. Others are waited for beside the reconciles.
            drop(timeout(ANSWER_PATIENCE, request).await);
        }
        self.responses().get(&url)?.known()
    }

    /// Requests a page, unless that has been done a moment ago. The task ends once there is an answer, or none is expected.
    fn request(self: &Arc<Prober>, url: &str, age_max: Duration) -> Option<JoinHandle<()>> {
        let mut responses = self.responses();
        if responses.get(url).is_some_and(|known| known.requested.elapsed() < age_max || known.is_awaited()) {
            return None;
        }
        // With as many requests under way as there may be, it is requested another time.
        let permit = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        responses.retain(|_, response| response.requested.elapsed() < UNUSED_MAX);
        let known = responses.entry(url.to_owned()).or_insert_with(CachedResponse::new);
        (known.requested, known.awaited) = (Instant::now(), true);
        drop(responses);
        let (prober, url) = (Arc::clone(self), url.to_owned());
        Some(tokio::spawn(async move {
            let page = prober.fetch_patiently(&url, permit).await;
            if let Some(known) = prober.responses().get_mut(&url) {
                known.take(page);
            }
        }))
    }

    /// Retries before it reports that there is no answer: a single lost answer means nothing, and until then the last one
    /// stands.
    async fn fetch_patiently(&self, url: &str, permit: OwnedSemaphorePermit) -> Result<Page, String> {
        let mut permit = permit;
        for _ in 1..TRIES {
            if let Ok(page) = fetch_in_time(&self.client, url).await {
                return Ok(page);
            }
            drop(permit);
            tokio::time::sleep(TRY_PAUSE).await;
            permit = Arc::clone(&self.requests).acquire_owned().await.expect("nobody closes it");
        }
        let page = fetch_in_time(&self.client, url).await;
        drop(permit);
        page
    }
}

impl CachedResponse {
    fn new() -> CachedResponse {
        CachedResponse { requested: Instant::now(), awaited: false, answered: None, page: None }
    }

    /// A request is under way. One whose task has ended silently stops counting after a while.
    fn is_awaited(&self) -> bool {
        self.awaited && self.requested.elapsed() < ANSWER_AGE_MAX
    }

    fn take(&mut self, page: Result<Page, String>) {
        if page.is_ok() {
            self.answered = Some((Instant::now(), Timestamp::now()));
        }
        (self.awaited, self.page) = (false, Some(page));
    }

    /// The page, unless it is too old to say anything. The moment of an answer and not its age is told: a text that changed with
    /// every look would be written at every look.
    fn known(&self) -> Option<Result<Page, String>> {
        let last = |(_, at): (Instant, Timestamp)| format!("its last answer came at {at:.0}");
        Some(match (self.page.clone()?, self.answered) {
            (Ok(_), Some(answered)) if answered.0.elapsed() >= ANSWER_AGE_MAX => Err(last(answered)),
            (Err(why), Some(answered)) => Err(format!("{why}; {}", last(answered))),
            (page, _) => page,
        })
    }
}

/// `None` while the pod has no address.
fn url(pod: &Pod, port: u16, path: &str) -> Option<String> {
    let ip = pod.status.as_ref()?.pod_ip.as_deref()?.parse::<IpAddr>().ok()?;
    Some(format!("http://{}{path}", SocketAddr::new(ip, port)))
}

async fn fetch_in_time(client: &HttpClient, url: &str) -> Result<Page, String> {
    let page = timeout(REQUEST_TIMEOUT, fetch(client, url)).await;
    page.unwrap_or_else(|_| Err(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())))
}

/// Whether a backup runs and is not ready.
pub(crate) fn is_running_unready(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    statuses.iter().any(|container| {
        let running = container.state.as_ref().is_some_and(|state| state.running.is_some());
        container.name == BACKUP_CONTAINER && running && !container.ready
    })
}

async fn fetch(client: &HttpClient, url: &str) -> Result<Page, String> {
    let url = url.parse().map_err(|error| format!("{url}: {error}"))?;
    let response = client.get(url).await.map_err(|error| format!("no answer: {}", root_cause(&error)))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
    let body = body.map_err(|error| format!("the answer is cut off: {}", root_cause(error.as_ref())))?;
    Ok(Page { status, body: body.to_bytes() })
}

/// What an HTTP client's error comes from: it says itself only at which step.
fn root_cause(error: &dyn Error) -> &dyn Error {
    error.source().map_or(error, root_cause)
}

/// The report on a page, or why there is none, in few words.
fn reported<T: DeserializeOwned>(page: Result<Page, String>, group: &str, name: &str) -> Result<T, String> {
    page.and_then(|page| read_report(&page, group, name)).map_err(|why| cut(&why, REASON_CHARS_MAX))
}

fn read_report<T: DeserializeOwned>(page: &Page, group: &str, name: &str) -> Result<T, String> {
    match page.status {
        StatusCode::OK => report::read(&page.body, group, name),
        StatusCode::NOT_FOUND => {
            Err(format!("it has no page {}: its program is older than the operator", report::PATH))
        }
        status => Err(format!("{} answers {status}: {}", report::PATH, page.text().trim())),
    }
}

fn cut(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

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

    fn response(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    /// The report of backup `b` of group `orders`, read from this response.
    async fn report_in(response: &str) -> Result<BackupReport, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/report", listener.local_addr().unwrap());
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(read_request(&mut stream).await);
            // A client that has read enough hangs up.
            let _ = stream.write_all(response.as_bytes()).await;
        };
        let client = Prober::default().client;
        let (page, ()) = tokio::join!(fetch(&client, &url), serve);
        read_report(&page?, "orders", "b")
    }

    #[tokio::test]
    async fn a_bad_answer_is_never_a_sound_report() {
        let sound = r#"{"version":1,"group":"orders","name":"b","damaged":0,"quarantined":0}"#;
        let page = |body: &str| response("200 OK", body);
        let other = |from: &str, to: &str| page(&sound.replace(from, to));
        assert_eq!(report_in(&page(sound)).await, Ok(BackupReport { quarantined: Some(0), ..BackupReport::default() }));
        let newer = other("}", r#","new":[{}]}"#);
        assert_eq!(report_in(&newer).await, Ok(BackupReport { quarantined: Some(0), ..BackupReport::default() }));
        for (response, why) in [
            (response("404 Not Found", sound), "it has no page /report: its program is older than the operator"),
            (response("500 Internal Server Error", sound), "/report answers 500 Internal Server Error: {"),
            (response("503 Service Unavailable", "unresponsive: why\n"), "503 Service Unavailable: unresponsive: why"),
            (page(""), "malformed: EOF"),
            (page("tailwind_backup_info 1\n"), "malformed: expected"),
            (page(&sound[..sound.len() - 1]), "malformed: EOF"),
            (page(sound).replace("\r\n\r\n", "0\r\n\r\n"), "cut off: "),
            (page(&format!("{sound}{}", " ".repeat(BODY_BYTES_MAX))), "cut off: length limit exceeded"),
            (other(":1,", ":0,"), "version 0, and this program reads version 1"),
            (other(":1,", ":2,"), "version 2, and this program reads version 1"),
            (other("\"b\"", "\"c\""), "from c of group orders"),
            (other("orders", "other"), "from b of group other"),
            (String::new(), "no answer: "),
        ] {
            let refused = report_in(&response).await.unwrap_err();
            assert!(refused.contains(why), "{response}: {refused}");
        }
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let refused = fetch(&Prober::default().client, &format!("http://{nobody}/report")).await.unwrap_err();
        assert!(refused.starts_with("no answer: Connection refused"), "{refused}");
        let reports = Arc::new(Prober::default()).backup_reports("orders", [Pod::default()].iter()).await;
        assert!(reports[""].is_err(), "a pod without an address");
    }

    fn page(text: &'static str) -> Result<Page, String> {
        Ok(Page { status: StatusCode::OK, body: Bytes::from_static(text.as_bytes()) })
    }

    #[test]
    fn an_old_answer_says_nothing() {
        let mut response = CachedResponse::new();
        assert!(response.known().is_none());
        response.take(page("ok"));
        let (_, at) = response.answered.unwrap();
        assert_eq!(response.known().unwrap().unwrap().text(), "ok");
        let long_ago = Instant::now().checked_sub(ANSWER_AGE_MAX).unwrap();
        response.answered = Some((long_ago, at));
        let last = format!("its last answer came at {at:.0}");
        assert_eq!(response.known().unwrap().unwrap_err(), last);
        response.take(Err("no answer: refused".to_owned()));
        assert_eq!(response.known().unwrap().unwrap_err(), format!("no answer: refused; {last}"));
        response.take(page("ok"));
        assert!(response.known().unwrap().is_ok(), "it answers again");
    }

    /// Two requests find nobody; the third one is answered.
    #[tokio::test]
    async fn lost_requests_are_repeated() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/report", listener.local_addr().unwrap());
        let prober = Prober::default();
        let serve = async {
            for served in [false, false, true] {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(read_request(&mut stream).await);
                if served {
                    stream.write_all(RESPONSE).await.unwrap();
                }
            }
        };
        let permit = Arc::clone(&prober.requests).try_acquire_owned().unwrap();
        let (page, ()) = tokio::join!(prober.fetch_patiently(&url, permit), serve);
        assert_eq!(page.unwrap().text(), "ok\n");
        assert_eq!(prober.requests.available_permits(), REQUESTS_MAX);
    }

    #[tokio::test]
    async fn responses_are_cached() {
        for ip in ["127.0.0.1", "::1"] {
            responses_of_are_cached(ip).await;
        }
    }

    async fn responses_of_are_cached(ip: &str) {
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(read_request(&mut stream).await);
            stream.write_all(RESPONSE).await.unwrap();
            assert!(!read_request(&mut stream).await, "a second request");
        });
        let prober = Arc::new(Prober::default());
        let pod = serde_json::from_value(serde_json::json!({"status": {"podIP": ip}})).unwrap();
        let get = || prober.get(&pod, port, "/readyz", Duration::from_secs(60));
        let response = timeout(Duration::from_secs(10), async {
            loop {
                match get().await {
                    Some(page) => break page,
                    None => tokio::task::yield_now().await,
                }
            }
        });
        assert_eq!(response.await.unwrap().unwrap().text(), "ok\n");
        assert_eq!(get().await.unwrap().unwrap().text(), "ok\n");
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
            while fetch(&client, &url).await.is_ok() {
                sent += 1;
            }
        });
        until_reused.await.expect("no connection is reused");
        assert_eq!(received.load(Ordering::SeqCst), sent);
    }
}
