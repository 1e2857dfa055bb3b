//! What containers have written, kept while a test runs: Kubernetes deletes it with the pod.
//!
//! Used by [`namespace`](super::namespace). On this machine's cluster the files on the nodes' disks are linked under a second name
//! as soon as they appear; of another cluster what `kubectl logs` shows at the end has to do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::kubernetes::{Cluster, text};

/// How often new files are looked for. A container that is gone leaves its file for longer.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Keeps the logs of a namespace's containers.
#[derive(Debug)]
pub(crate) struct ContainerLogs {
    namespace: String,
    kept: PathBuf,
    /// Bytes in each file that were there before.
    before: BTreeMap<String, usize>,
    keeper: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    began: Instant,
}

impl ContainerLogs {
    /// Begins to keep the logs of all containers of a namespace, from here on.
    pub(crate) fn keep(cluster: &Cluster, namespace: &str) -> Result<ContainerLogs> {
        let began = Instant::now();
        let folder = cluster.folder().map_or_else(std::env::temp_dir, Path::to_owned);
        let kept = folder.join("kept").join(namespace);
        fs::create_dir_all(&kept).context("make a folder for logs")?;
        link_new(&folder, &format!("{namespace}_"), &kept);
        let before = files(&kept).map(|(name, text)| (name, text.len())).collect();
        let keeper = cluster.folder().map(|folder| {
            let (ended, end) = (Arc::new(AtomicBool::new(false)), namespace.to_owned());
            let (folder, to, prefix, stop) = (folder.to_owned(), kept.clone(), format!("{end}_"), Arc::clone(&ended));
            let body = move || {
                while !stop.load(Ordering::Acquire) {
                    link_new(&folder, &prefix, &to);
                    std::thread::sleep(POLL_INTERVAL);
                }
                link_new(&folder, &prefix, &to);
            };
            (ended, std::thread::spawn(body))
        });
        Ok(ContainerLogs { namespace: namespace.to_owned(), kept, before, keeper, began })
    }

    /// Ends the keeping; every container's lines, by `pod/container/number of its start`.
    pub(crate) fn finish(&mut self, cluster: &Cluster) -> Result<BTreeMap<String, Vec<String>>> {
        match self.keeper.take() {
            Some((ended, thread)) => {
                ended.store(true, Ordering::Release);
                let _ = thread.join();
                Ok(self.read())
            }
            None if cluster.folder().is_none() => self.ask(cluster),
            None => Ok(self.read()),
        }
    }

    fn read(&self) -> BTreeMap<String, Vec<String>> {
        let read = |(name, text): (String, Vec<u8>)| {
            let before = self.before.get(&name).copied().unwrap_or_default();
            let text = String::from_utf8_lossy(&text[before.min(text.len())..]).into_owned();
            (name.replace("..", "/"), text.lines().map(|line| without_stamp(line).to_owned()).collect())
        };
        files(&self.kept).map(read).collect()
    }

    fn ask(&self, cluster: &Cluster) -> Result<BTreeMap<String, Vec<String>>> {
        let mut all = BTreeMap::new();
        for pod in cluster.list(&format!("/api/v1/namespaces/{}/pods", self.namespace))? {
            let name = text(&pod, "/metadata/name");
            let kinds = ["initContainerStatuses", "containerStatuses"].map(|kind| pod["status"][kind].as_array());
            for status in kinds.into_iter().flatten().flatten() {
                let (container, starts) = (text(status, "/name"), status["restartCount"].as_u64().unwrap_or(0));
                all.insert(
                    format!("{name}/{container}/{starts}"),
                    self.kubectl_logs(cluster, &[name, "-c", container]),
                );
                // Of a container's earlier lives, Kubernetes remembers only the last.
                if let Some(before) = starts.checked_sub(1) {
                    let lines = self.kubectl_logs(cluster, &[name, "-c", container, "--previous"]);
                    all.insert(format!("{name}/{container}/{before}"), lines);
                }
            }
        }
        Ok(all)
    }

    fn kubectl_logs(&self, cluster: &Cluster, arguments: &[&str]) -> Vec<String> {
        let since = format!("--since={}s", self.began.elapsed().as_secs() + 1);
        let lines =
            cluster.kubectl(&[&["logs", "-n", &self.namespace, &since], arguments].concat(), "").unwrap_or_default();
        lines.lines().map(str::to_owned).collect()
    }
}

impl Drop for ContainerLogs {
    fn drop(&mut self) {
        if let Some((ended, thread)) = self.keeper.take() {
            ended.store(true, Ordering::Release);
            let _ = thread.join();
        }
    }
}

fn files(folder: &Path) -> impl Iterator<Item = (String, Vec<u8>)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap_or_default()))
}

/// Files are `log/pods/NAMESPACE_POD_UID/CONTAINER/NUMBER.log` on each node's disk.
fn link_new(folder: &Path, prefix: &str, to: &Path) {
    let names = |path: &Path| -> Vec<(String, PathBuf)> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect()
    };
    for (_, node) in names(folder).into_iter().filter(|(name, _)| name.starts_with("node-")) {
        for (pod, path) in names(&node.join("log/pods")) {
            let Some(pod) = pod.strip_prefix(prefix) else { continue };
            let pod = pod.rsplit_once('_').map_or(pod, |(pod, _uid)| pod);
            for (container, path) in names(&path) {
                for (file, path) in names(&path) {
                    // Two pods may have had one name: the file's number tells them apart.
                    let inode = std::os::unix::fs::MetadataExt::ino(&match fs::metadata(&path) {
                        Ok(metadata) => metadata,
                        Err(_) => continue,
                    });
                    // There already, or gone again.
                    let _ = fs::hard_link(&path, to.join(format!("{pod}..{container}..{file}..{inode}")));
                }
            }
        }
    }
}

/// Containerd writes `TIME STREAM F LINE`.
fn without_stamp(line: &str) -> &str {
    line.splitn(4, ' ').nth(3).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn containerd_prefix_is_removed() {
        assert_eq!(super::without_stamp("2026-01-01T00:00:00Z stdout F a line of words"), "a line of words");
    }
}
