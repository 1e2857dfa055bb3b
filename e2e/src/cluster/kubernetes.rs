//! Drives a Kubernetes cluster: its objects, and, where it is this machine's own, its nodes and containers.
//!
//! Calls `e2e/cluster/cluster`, which says what nodes are made of and what can be done to them. `scripts/cluster.sh` starts
//! the cluster, packs the images and runs `tests/cluster`.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::MutexGuard;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::context::{cannot_run, exclusive};
use crate::wait::poll;

/// How long a condition may take to come true: a node that is lost is given up after some 15 s, and two processors are
/// shared by all nodes.
pub const TIMEOUT: Duration = Duration::from_secs(90);
/// How often a condition is looked at.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long the API server may take to answer: frozen, it never does.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A cluster that runs.
pub struct Cluster {
    /// The folder of the machine's own cluster.
    folder: Option<PathBuf>,
    kubeconfig: PathBuf,
    runtime: Runtime,
    client: Client,
    _exclusive: MutexGuard<'static, ()>,
}

impl Cluster {
    /// The cluster that the environment names, for this test alone: in `TAILWIND_CLUSTER` the folder of one on this machine, or else in
    /// `KUBECONFIG` any other. From here on this thread, and what it starts, is in the cluster's network.
    pub fn join() -> Result<Cluster> {
        let exclusive = exclusive();
        let folder = std::env::var_os("TAILWIND_CLUSTER").map(PathBuf::from);
        let kubeconfig = match &folder {
            Some(folder) => {
                enter_network(folder)?;
                folder.join("admin.kubeconfig")
            }
            None => std::env::var_os("KUBECONFIG")
                .map(PathBuf::from)
                .context("neither TAILWIND_CLUSTER nor KUBECONFIG is set: run scripts/cluster.sh")?,
        };
        let runtime = Builder::new_current_thread().enable_all().build().context("make a runtime")?;
        let client = runtime.block_on(connect(&kubeconfig))?;
        Ok(Cluster { folder, kubeconfig, runtime, client, _exclusive: exclusive })
    }

    /// The same if tests may break its nodes and its control plane. Otherwise says so where `./check` finds it.
    pub fn join_own(test: &str) -> Result<Option<Cluster>> {
        let cluster = Cluster::join()?;
        if cluster.folder.is_none() {
            cannot_run(test, "takes a cluster of its own; KUBECONFIG names another");
            return Ok(None);
        }
        Ok(Some(cluster))
    }

    /// The folder of the cluster on this machine.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    // ---- Breaking it ----

    /// Runs `e2e/cluster/cluster FOLDER ARGUMENTS`; what it prints.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        let folder = self.folder.as_ref().context("a cluster that is not this machine's own")?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/cluster");
        // The host's network, where its links are made.
        let output = Command::new(script).arg(folder).args(arguments).stdin(Stdio::null()).output();
        let output = output.context("run e2e/cluster/cluster")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cluster {}: {errors}", arguments.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// `kill`, `start`, `cut`, `mend`, `freeze`, `thaw`, ... a node.
    pub fn node(&self, node: &str, action: &str) -> Result<()> {
        let number = node.strip_prefix("node-").with_context(|| format!("{node} is no node of this machine's"))?;
        let mut arguments = vec!["node", number];
        arguments.extend(action.split(' '));
        self.command(&arguments).map(|_| ())
    }

    /// `stop`, `start`, `freeze` or `thaw` the API server.
    pub fn api(&self, action: &str) -> Result<()> {
        self.command(&["api", action]).map(|_| ())
    }

    /// A container that runs, as its node's containerd names it.
    pub fn container(&self, pod: &Value, name: &str) -> Result<Container> {
        let node = text(pod, "/spec/nodeName").strip_prefix("node-").map(str::to_owned);
        let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        let statuses = statuses.chain(pod["status"]["initContainerStatuses"].as_array().into_iter().flatten());
        let status = statuses.into_iter().find(|status| status["name"] == name);
        let id = status.and_then(|status| status["containerID"].as_str()?.strip_prefix("containerd://"));
        let id = id.with_context(|| format!("container {name} of pod {} does not run", text(pod, "/metadata/name")))?;
        Ok(Container { node: node.context("a pod on a node")?, id: id.to_owned() })
    }

    /// Kills a container's process 1 (SIGKILL).
    pub fn kill(&self, container: &Container) -> Result<()> {
        self.command(&["node", &container.node, "ctr", "tasks", "kill", "-s", "SIGKILL", &container.id]).map(|_| ())
    }

    /// Stops all processes of a container where they are, or resumes them.
    pub fn freeze(&self, container: &Container, frozen: bool) -> Result<()> {
        let action = if frozen { "pause" } else { "resume" };
        self.command(&["node", &container.node, "ctr", "tasks", action, &container.id]).map(|_| ())
    }

    // ---- Asking it ----

    /// Asks the API server with GET; `None` if there is no such object.
    pub fn get(&self, path: &str) -> Result<Option<Value>> {
        self.ask("GET", path, "application/json", None)
    }

    /// The objects of a collection, such as `/api/v1/nodes`.
    pub fn list(&self, path: &str) -> Result<Vec<Value>> {
        let list = self.get(path)?.with_context(|| format!("the server has no {path}"))?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Merges a change into an object.
    pub fn patch(&self, path: &str, change: &Value) -> Result<Value> {
        let changed = self.ask("PATCH", path, "application/merge-patch+json", Some(change))?;
        changed.with_context(|| format!("no {path}"))
    }

    /// Deletes an object, unless it is gone. Does not wait until it is.
    pub fn delete(&self, path: &str) -> Result<()> {
        self.ask("DELETE", path, "application/json", None).map(|_| ())
    }

    /// Sends any request to the API server; `None` if the status is 404.
    pub fn ask(&self, method: &str, path: &str, content_type: &str, body: Option<&Value>) -> Result<Option<Value>> {
        let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header("content-type", content_type).body(body)?;
        let asked = async { tokio::time::timeout(ANSWER_TIMEOUT, self.client.request_text(request)).await };
        match self.runtime.block_on(asked) {
            Err(_) => bail!("{method} {path}: no answer within {ANSWER_TIMEOUT:?}"),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
            Ok(Err(error)) => Err(anyhow!(error).context(format!("{method} {path}"))),
            Ok(Ok(text)) => Ok(Some(serde_json::from_str(&text).with_context(|| format!("read {path}"))?)),
        }
    }

    /// Creates or changes objects as `kubectl apply` does; fails with its message.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.kubectl(&["apply", "-f", "-"], &list.to_string()).map(|_| ())
    }

    /// Runs kubectl; what it prints.
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        run(Command::new("kubectl").args(arguments).env("KUBECONFIG", &self.kubeconfig), input)
    }

    /// Runs the Helm engine: see `e2e/cluster/helm --help`.
    pub fn helm(&self, arguments: &[&str]) -> Result<String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/helm");
        run(Command::new(script).args(arguments).env("KUBECONFIG", &self.kubeconfig), "")
    }

    /// Waits until there is something to find, also through errors: the API server may be away.
    pub fn wait<T>(&self, what: &str, mut find: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let mut error = None;
        let found = poll(TIMEOUT, POLL_INTERVAL, || {
            find().unwrap_or_else(|failed| {
                error = Some(failed);
                None
            })
        });
        found.with_context(|| {
            let why = error.map_or_else(String::new, |error| format!(": {error:#}"));
            format!("waited {TIMEOUT:?} for {what}{why}")
        })
    }
}

/// A container that runs on a node of this machine's cluster.
#[derive(Clone, Debug)]
pub struct Container {
    node: String,
    id: String,
}

/// A text in an object, by its JSON pointer; empty if there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// True if an object has this condition and it is true.
pub fn holds(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == condition && one["status"] == "True")
}

/// This thread's only, and that of threads and processes that it starts.
fn enter_network(folder: &Path) -> Result<()> {
    let pid = folder.join("control/pid");
    let pid = fs::read_to_string(&pid).with_context(|| format!("no cluster runs in {}", folder.display()))?;
    let network = fs::File::open(format!("/proc/{}/ns/net", pid.trim())).context("open the cluster's network")?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).context("enter the cluster's network")
}

async fn connect(kubeconfig: &Path) -> Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    Ok(Client::try_from(config.context("understand the kubeconfig")?)?)
}

fn run(command: &mut Command, input: &str) -> Result<String> {
    let name = format!("{} {:?}", command.get_program().to_string_lossy(), command.get_args());
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("start {name}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may end without having read everything, with a message.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().with_context(|| format!("wait for {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
