//! What each test in a cluster plays on: a namespace of its own, a ledger that nobody kills, and apps that report to it.
//!
//! Used by `tests/cluster.rs`. The node with the label [`KEPT`] holds the ledger, and tests leave it alone.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use super::logs::{Logs, unexpected};
use super::{Cluster, PATIENCE, holds, text};
use crate::ledger::{Answer, Failover, Message, Report};

/// The label of the node that tests leave alone.
pub const KEPT: &str = "tailwind.test/kept";
/// The image of the loader and the ledger.
const LOADER: &str = "loader";
/// Where the ledger listens.
const PORT: u16 = 7000;
/// How long the ledger may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A namespace with a ledger.
pub struct Stage<'c> {
    /// The cluster that it is in.
    pub cluster: &'c Cluster,
    /// Its name.
    pub namespace: String,
    logs: Logs,
    /// Where the ledger is for pods.
    ledger: String,
    /// Where it is for this program.
    desk: String,
    forward: Option<Child>,
    finished: bool,
}

impl<'c> Stage<'c> {
    /// Makes a namespace with a name of its own, and waits until the ledger is open.
    pub fn set(cluster: &'c Cluster, name: &str) -> Result<Stage<'c>> {
        let number = getrandom::u32().map_err(|error| anyhow!("draw a random number: {error}"))?;
        // Not that of an earlier attempt, which takes its time to go.
        let namespace = format!("tailwind-e2e-{name}-{number:08x}");
        cluster.apply(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})])?;
        let logs = Logs::keep(cluster, &namespace)?;
        let (ledger, desk) = (String::new(), String::new());
        let mut stage = Stage { cluster, namespace, logs, ledger, desk, forward: None, finished: false };
        stage.open_ledger()?;
        Ok(stage)
    }

    fn open_ledger(&mut self) -> Result<()> {
        let kept = self.cluster.list("/api/v1/nodes")?.iter().any(|node| !node["metadata"]["labels"][KEPT].is_null());
        let selector = if kept { json!({ KEPT: "yes" }) } else { json!({}) };
        self.cluster.apply(&[json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "ledger", "namespace": self.namespace, "labels": {"app": "ledger"}},
            "spec": {
                "nodeSelector": selector,
                "automountServiceAccountToken": false,
                "containers": [{"name": "ledger", "image": image(LOADER), "imagePullPolicy": "IfNotPresent",
                                "args": ["ledger", "--listen", format!("0.0.0.0:{PORT}")],
                                "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1}}],
            },
        })])?;
        let pod = self.wait_for_pod("ledger")?;
        self.ledger = format!("{}:{PORT}", text(&pod, "/status/podIP"));
        self.desk = self.ledger.clone();
        if self.cluster.folder().is_none() {
            let port = crate::process::free_port()?;
            let forward = Command::new("kubectl")
                .args(["port-forward", "-n", &self.namespace, "pod/ledger", &format!("{port}:{PORT}")])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn();
            self.forward = Some(forward.context("start kubectl port-forward")?);
            self.desk = format!("127.0.0.1:{port}");
            self.cluster.wait("the way to the ledger", || Ok(self.report().ok()))?;
        }
        Ok(())
    }

    // ---- Pods ----

    /// The path of a collection in this namespace, such as `pods`, or of an object, `pods/a`.
    pub fn core(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.namespace)
    }

    /// The same in an API group, such as `apps/v1`.
    pub fn path(&self, group: &str, rest: &str) -> String {
        format!("/apis/{group}/namespaces/{}/{rest}", self.namespace)
    }

    /// A pod that is there.
    pub fn pod(&self, name: &str) -> Result<Value> {
        let pod = self.cluster.get(&self.core(&format!("pods/{name}")))?;
        pod.with_context(|| format!("no pod {name} in {}", self.namespace))
    }

    /// The pods with these labels, such as `app=loader`.
    pub fn pods(&self, selector: &str) -> Result<Vec<Value>> {
        self.cluster.list(&self.core(&format!(
            "pods?labelSelector={}",
            selector.replace('=', "%3D").replace(',', "%2C").replace('/', "%2F")
        )))
    }

    /// Waits until a pod is ready; as it is then.
    pub fn wait_for_pod(&self, name: &str) -> Result<Value> {
        let found = self.cluster.wait(&format!("pod {name} to be ready"), || {
            let pod = self.pod(name)?;
            ensure!(holds(&pod, "Ready"), "{}", pod["status"]);
            Ok(Some(pod))
        });
        found.with_context(|| self.events())
    }

    /// Kills the container `name` of a pod without a word to anybody.
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

    /// The newest events here: what Kubernetes says about what went wrong.
    pub fn events(&self) -> String {
        let events = self.cluster.list(&self.core("events")).unwrap_or_default();
        let lines = events.iter().rev().take(30).map(|event| {
            format!("{} {}: {}", text(event, "/involvedObject/name"), text(event, "/reason"), text(event, "/message"))
        });
        format!("events, the newest first:\n{}", lines.collect::<Vec<_>>().join("\n"))
    }

    /// The container of an app that appends through the sidecar in its pod.
    pub fn loader(&self, rate: u64) -> Value {
        json!({
            "name": "loader", "image": image(LOADER), "imagePullPolicy": "IfNotPresent",
            "args": ["append", "--ledger", self.ledger, "--rate", rate.to_string()],
            "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        })
    }

    // ---- The ledger ----

    /// What the ledger knows.
    pub fn report(&self) -> Result<Report> {
        match self.ask_ledger(&Message::Report)? {
            Answer::Report(report) => Ok(report),
            other => bail!("the ledger answers {other:?}"),
        }
    }

    fn ask_ledger(&self, message: &Message) -> Result<Answer> {
        let mut stream = TcpStream::connect(&self.desk).context("connect to the ledger")?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(format!("{}\n", serde_json::to_string(message)?).as_bytes())?;
        let mut lines = BufReader::new(stream).lines();
        // Everybody is greeted with the newest replay that is wanted.
        lines.next().context("the ledger says nothing")??;
        let line = lines.next().context("the ledger does not answer")??;
        serde_json::from_str(&line).context("understand the ledger")
    }

    /// Waits until the ledger's report fits. A broken promise ends the wait.
    pub fn wait_for_report(&self, what: &str, fits: impl Fn(&Report) -> bool) -> Result<Report> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let report = self.report()?;
            ensure!(report.violations.is_empty(), "broken promises: {:#?}", report.violations);
            if fits(&report) {
                return Ok(report);
            }
            ensure!(
                Instant::now() < deadline,
                "waited {PATIENCE:?} for {what}: {:#?}\n{}",
                report.lives,
                self.events()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until so many more records are acknowledged.
    pub fn wait_for_acks(&self, more: u64) -> Result<Report> {
        let aim = self.report()?.acked + more;
        self.wait_for_report(&format!("record {aim} to be acknowledged"), |report| report.acked >= aim)
    }

    /// Waits until records are acknowledged in a newer epoch than `epoch`; what it took, from ack to ack.
    pub fn wait_for_failover(&self, epoch: u64) -> Result<Failover> {
        let newer = |report: &Report| report.failovers().into_iter().rfind(|failover| failover.epoch > epoch);
        let report = self.wait_for_report("a newer epoch to acknowledge", |report| newer(report).is_some())?;
        newer(&report).context("found")
    }

    /// The newest epoch that has acknowledged, and its pod.
    pub fn primary(&self) -> Result<(u64, String)> {
        let report = self.report()?;
        let newest =
            report.lives.into_iter().filter(|life| life.acked > 0).max_by_key(|life| (life.epoch, life.last_ack_us));
        newest.map(|life| (life.epoch, life.pod)).context("nobody has acknowledged anything")
    }

    /// Has whoever is primary read the whole log: everything that was acknowledged is in there, once, in order.
    pub fn replay(&self) -> Result<Report> {
        let Answer::Replay { request } = self.ask_ledger(&Message::Replay)? else {
            bail!("the ledger does not pass on that a replay is wanted");
        };
        self.wait_for_report("the log to be read", |report| report.replayed >= request)
    }

    /// The end of a test: the log is whole, and no program has logged anything that a healthy one does not, but warnings
    /// with one of the words `expected`. Prints what happened.
    pub fn finish(mut self, expected: &[&str]) -> Result<Report> {
        let report = self.replay()?;
        self.check_logs(expected)?;
        Ok(report)
    }

    /// Nothing is wrong with the log so far as it was read, and with the logs of programs, as [`Stage::finish`] looks at them.
    pub fn check_logs(&mut self, expected: &[&str]) -> Result<()> {
        self.finished = true;
        let mut found = Vec::new();
        for (container, lines) in self.logs.finish(self.cluster)? {
            // They print for people.
            if !container.contains("/loader/") && !container.starts_with("ledger") {
                found.extend(unexpected(&lines, expected).into_iter().map(|line| format!("{container}: {line}")));
            } else {
                found.extend(
                    lines
                        .into_iter()
                        .filter(|line| line.contains("panicked"))
                        .map(|line| format!("{container}: {line}")),
                );
            }
        }
        ensure!(found.is_empty(), "unexpected lines in the logs:\n{}", found.join("\n"));
        Ok(())
    }

    /// Ends everything here, without ceremony.
    fn clear(&self) -> Result<()> {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
        self.cluster.delete(&format!("/api/v1/namespaces/{}", self.namespace))?;
        self.cluster.ask("DELETE", &self.core("pods"), "application/json", Some(&options)).map(|_| ())
    }
}

impl Drop for Stage<'_> {
    #[allow(clippy::print_stderr, reason = "a failing test reports to people")]
    fn drop(&mut self) {
        if let Some(mut forward) = self.forward.take() {
            let _ = forward.kill();
            let _ = forward.wait();
        }
        if std::thread::panicking() || !self.finished {
            eprintln!("{}\n{}", self.namespace, self.events());
            for (container, lines) in self.logs.finish(self.cluster).unwrap_or_default() {
                eprintln!("--- {container} ({} lines)", lines.len());
                lines[lines.len().saturating_sub(20)..].iter().for_each(|line| eprintln!("{line}"));
            }
        }
        if let Err(error) = self.clear() {
            eprintln!("{} stays: {error:#}", self.namespace);
        }
    }
}

/// An image by its short name. On this machine's cluster they are loaded; elsewhere `TAILWIND_IMAGES` says where they lie,
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
    let at = |share| crate::workload::percentile(&sorted, share) / 1000;
    let all: Vec<String> = sorted.iter().map(|gap| (gap / 1000).to_string()).collect();
    format!("median {} ms, 90 % {} ms, longest {} ms of {}: {}", at(0.5), at(0.9), at(1.0), sorted.len(), all.join(" "))
}
