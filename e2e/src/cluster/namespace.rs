//! What each test in a cluster runs in: a namespace of its own, with an oracle that no test kills, and apps that report to it.
//!
//! The node with the label [`KEPT`] holds the oracle, and tests leave it alone.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use super::ack_oracle::{Failover, OracleReport, OracleRequest, OracleResponse};
use super::container_logs::ContainerLogs;
use super::kubernetes::{Cluster, TIMEOUT, holds, text};
use crate::logs::{check, last_lines};
use crate::processes::process::free_port;
use crate::wait::poll;
use crate::workload::percentile;

/// The label of the node that tests leave alone.
pub const KEPT: &str = "tailwind.test/kept";
/// The image of the loader and the oracle.
const LOADER: &str = "loader";
/// Where the oracle listens.
const PORT: u16 = 7000;
/// How long the oracle may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// What an app appends.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Records a second.
    pub rate: u64,
    /// Longest record: they are half as long on average.
    pub length_max: u64,
}

impl Load {
    /// Short records, so many a second.
    pub fn of_rate(rate: u64) -> Load {
        Load { rate, length_max: 200 }
    }
}

/// A namespace with an oracle.
pub struct Namespace<'c> {
    /// The cluster that it is in.
    pub cluster: &'c Cluster,
    /// Its name.
    pub name: String,
    logs: ContainerLogs,
    /// Where the oracle is for pods.
    oracle: String,
    /// Where it is for this program.
    oracle_address: String,
    forward: Option<Child>,
    finished: bool,
}

impl<'c> Namespace<'c> {
    /// Makes a namespace with a name of its own, and waits until the oracle is open.
    pub fn create(cluster: &'c Cluster, name: &str) -> Result<Namespace<'c>> {
        let number = getrandom::u32().map_err(|error| anyhow!("draw a random number: {error}"))?;
        // Not that of an earlier attempt, which takes its time to go.
        let name = format!("tailwind-e2e-{name}-{number:08x}");
        cluster.apply(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})])?;
        let logs = ContainerLogs::keep(cluster, &name)?;
        let (oracle, oracle_address) = (String::new(), String::new());
        let mut namespace = Namespace { cluster, name, logs, oracle, oracle_address, forward: None, finished: false };
        namespace.open_oracle()?;
        Ok(namespace)
    }

    fn open_oracle(&mut self) -> Result<()> {
        let kept = self.cluster.list("/api/v1/nodes")?.iter().any(|node| !node["metadata"]["labels"][KEPT].is_null());
        let selector = if kept { json!({ KEPT: "yes" }) } else { json!({}) };
        self.cluster.apply(&[json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "oracle", "namespace": self.name, "labels": {"app": "oracle"}},
            "spec": {
                "nodeSelector": selector,
                "automountServiceAccountToken": false,
                "containers": [{"name": "oracle", "image": image(LOADER), "imagePullPolicy": "IfNotPresent",
                                "args": ["oracle", "--listen", format!("0.0.0.0:{PORT}")],
                                "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1}}],
            },
        })])?;
        let pod = self.wait_for_pod("oracle")?;
        self.oracle = format!("{}:{PORT}", text(&pod, "/status/podIP"));
        self.oracle_address = self.oracle.clone();
        if self.cluster.folder().is_none() {
            let port = free_port()?;
            let forward = Command::new("kubectl")
                .args(["port-forward", "-n", &self.name, "pod/oracle", &format!("{port}:{PORT}")])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn();
            self.forward = Some(forward.context("start kubectl port-forward")?);
            self.oracle_address = format!("127.0.0.1:{port}");
            self.cluster.wait("the port to be forwarded", || Ok(self.report().ok()))?;
        }
        Ok(())
    }

    // ---- Pods ----

    /// The path of a collection in this namespace, such as `pods`, or of an object, `pods/a`.
    pub fn core(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.name)
    }

    /// The same in an API group, such as `apps/v1`.
    pub fn path(&self, group: &str, rest: &str) -> String {
        format!("/apis/{group}/namespaces/{}/{rest}", self.name)
    }

    /// A pod that is there.
    pub fn pod(&self, name: &str) -> Result<Value> {
        let pod = self.cluster.get(&self.core(&format!("pods/{name}")))?;
        pod.with_context(|| format!("no pod {name} in {}", self.name))
    }

    /// The pods with these labels, such as `app=loader`.
    pub fn pods(&self, selector: &str) -> Result<Vec<Value>> {
        self.cluster.list(&self.core(&format!(
            "pods?labelSelector={}",
            selector.replace('=', "%3D").replace(',', "%2C").replace('/', "%2F")
        )))
    }

    /// Waits until a pod is ready; as it is then.
    pub(crate) fn wait_for_pod(&self, name: &str) -> Result<Value> {
        let found = self.cluster.wait(&format!("pod {name} to be ready"), || {
            let pod = self.pod(name)?;
            ensure!(holds(&pod, "Ready"), "{}", pod["status"]);
            Ok(Some(pod))
        });
        found.with_context(|| self.events())
    }

    /// Kills the container `name` of a pod (SIGKILL).
    pub fn kill_container(&self, pod: &str, name: &str) -> Result<()> {
        self.cluster.kill(&self.cluster.container(&self.pod(pod)?, name)?)
    }

    /// Deletes a pod at once and waits until it is gone.
    pub fn remove_pod(&self, pod: &str) -> Result<()> {
        self.delete_pod_at_once(pod)?;
        let path = self.core(&format!("pods/{pod}"));
        self.cluster.wait(&format!("pod {pod} to go"), || Ok(self.cluster.get(&path)?.is_none().then_some(())))
    }

    /// Deletes a pod as `kubectl delete --grace-period=0 --force` does.
    pub fn delete_pod_at_once(&self, pod: &str) -> Result<()> {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
        self.cluster.ask("DELETE", &self.core(&format!("pods/{pod}")), "application/json", Some(&options)).map(|_| ())
    }

    /// The newest events here: what Kubernetes reports as wrong.
    pub(crate) fn events(&self) -> String {
        let events = self.cluster.list(&self.core("events")).unwrap_or_default();
        let lines = events.iter().rev().take(30).map(|event| {
            format!("{} {}: {}", text(event, "/involvedObject/name"), text(event, "/reason"), text(event, "/message"))
        });
        format!("events, the newest first:\n{}", lines.collect::<Vec<_>>().join("\n"))
    }

    /// The container of an app that appends through the sidecar in its pod.
    pub fn loader(&self, load: Load) -> Value {
        let Load { rate, length_max } = load;
        json!({
            "name": "loader", "image": image(LOADER), "imagePullPolicy": "IfNotPresent",
            "args": ["append", "--oracle", self.oracle, "--rate", rate.to_string(), "--length-max", length_max.to_string()],
            "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        })
    }

    // ---- The oracle ----

    /// What the oracle knows.
    pub fn report(&self) -> Result<OracleReport> {
        match self.ask_oracle(&OracleRequest::Report)? {
            OracleResponse::Report(report) => Ok(report),
            other => bail!("unexpected answer of the oracle: {other:?}"),
        }
    }

    fn ask_oracle(&self, request: &OracleRequest) -> Result<OracleResponse> {
        let mut stream = TcpStream::connect(&self.oracle_address).context("connect to the oracle")?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes())?;
        let mut lines = BufReader::new(stream).lines();
        // The first line is the newest replay that is wanted.
        lines.next().context("the oracle closed the connection")??;
        let line = lines.next().context("the oracle does not answer")??;
        serde_json::from_str(&line).context("decode the oracle's answer")
    }

    /// Waits until the oracle's report meets a condition. A violation ends the wait.
    pub fn wait_for_report(&self, what: &str, condition: impl Fn(&OracleReport) -> bool) -> Result<OracleReport> {
        let found = poll(TIMEOUT, Duration::from_millis(20), || match self.report() {
            Ok(report) if report.violations.is_empty() && !condition(&report) => None,
            found => Some(found),
        });
        let report = found.with_context(|| {
            format!(
                "waited {TIMEOUT:?} for {what}: {:#?}\n{}",
                self.report().map(|report| report.sessions),
                self.events()
            )
        })??;
        ensure!(report.violations.is_empty(), "violations: {:#?}", report.violations);
        Ok(report)
    }

    /// Waits until so many more records are acknowledged.
    pub fn wait_for_acks(&self, more: u64) -> Result<OracleReport> {
        let aim = self.report()?.acked + more;
        self.wait_for_report(&format!("record {aim} to be acknowledged"), |report| report.acked >= aim)
    }

    /// Waits until records are acknowledged in a newer epoch than `epoch`; what it took, from ack to ack.
    pub fn wait_for_failover(&self, epoch: u64) -> Result<Failover> {
        let newer = |report: &OracleReport| report.failovers().into_iter().rfind(|failover| failover.epoch > epoch);
        let report = self.wait_for_report("a newer epoch to acknowledge", |report| newer(report).is_some())?;
        newer(&report).context("found")
    }

    /// The newest epoch that has acknowledged, and its pod.
    pub fn primary(&self) -> Result<(u64, String)> {
        let report = self.report()?;
        let newest = report
            .sessions
            .into_iter()
            .filter(|session| session.acked > 0)
            .max_by_key(|session| (session.epoch, session.last_ack_us));
        newest.map(|session| (session.epoch, session.pod)).context("no record was acknowledged")
    }

    /// Has the primary's loader read the whole log: everything that was acknowledged is in there, once, in order.
    pub fn replay(&self) -> Result<OracleReport> {
        let OracleResponse::Replay { request } = self.ask_oracle(&OracleRequest::Replay)? else {
            bail!("unexpected answer of the oracle to a replay");
        };
        self.wait_for_report("the log to be read", |report| report.replayed >= request)
    }

    /// The end of a test: the log is whole, and no program has logged an error or a warning but those expected.
    pub fn finish(mut self, expected: &[&str]) -> Result<OracleReport> {
        let report = self.replay()?;
        self.check_logs(expected)?;
        Ok(report)
    }

    /// No program has logged an error or a warning but those expected.
    pub fn check_logs(&mut self, expected: &[&str]) -> Result<()> {
        self.finished = true;
        let mut logs = self.logs.finish(self.cluster)?;
        for (container, lines) in &mut logs {
            // These print for people.
            if container.contains("/loader/") || container.starts_with("oracle") {
                lines.retain(|line| line.contains("panicked"));
            }
            // `7:M 01 Jan 2026 00:00:00.000 * Ready`: what Redis prints beside programs that log like all others.
            lines.retain(|line| !is_of_redis(line));
        }
        check(logs, expected)
    }

    /// Ends everything here at once.
    fn clear(&self) -> Result<()> {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
        self.cluster.delete(&format!("/api/v1/namespaces/{}", self.name))?;
        self.cluster.ask("DELETE", &self.core("pods"), "application/json", Some(&options)).map(|_| ())
    }
}

impl Drop for Namespace<'_> {
    #[allow(clippy::print_stderr, reason = "a failing test reports to people")]
    fn drop(&mut self) {
        if let Some(mut forward) = self.forward.take() {
            let _ = forward.kill();
            let _ = forward.wait();
        }
        if std::thread::panicking() || !self.finished {
            eprintln!("{}\n{}", self.name, self.events());
            for (container, lines) in self.logs.finish(self.cluster).unwrap_or_default() {
                eprint!("{}", last_lines(&container, lines.iter().map(String::as_str), 20));
            }
        }
        if let Err(error) = self.clear() {
            eprintln!("{} was not deleted: {error:#}", self.name);
        }
    }
}

/// Lines of Redis begin with a process and its role.
fn is_of_redis(line: &str) -> bool {
    let Some((process, role)) = line.split_once(' ').and_then(|(begin, _)| begin.split_once(':')) else { return false };
    let is_role = role.len() == 1 || role == "signal-handler";
    is_role && !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit())
}

/// An image by its short name. On this machine's cluster they are loaded; elsewhere `TAILWIND_IMAGES` names their place,
/// such as `registry.example/tailwind-`.
pub fn image(name: &str) -> String {
    format!("{}:e2e", image_name(name))
}

/// The same without its tag.
pub fn image_name(name: &str) -> String {
    let prefix = std::env::var("TAILWIND_IMAGES").unwrap_or_else(|_| "localhost/tailwind-".to_owned());
    format!("{prefix}{name}")
}

/// Durations in milliseconds, sorted, as people want to see a distribution.
pub fn distribution(gaps_us: &[u64]) -> String {
    let mut sorted = gaps_us.to_vec();
    sorted.sort_unstable();
    let at = |share| percentile(&sorted, share) / 1000;
    let all: Vec<String> = sorted.iter().map(|gap| (gap / 1000).to_string()).collect();
    format!("median {} ms, 90 % {} ms, longest {} ms of {}: {}", at(0.5), at(0.9), at(1.0), sorted.len(), all.join(" "))
}
