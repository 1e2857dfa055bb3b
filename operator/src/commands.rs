//! Commands for people: print and end.
//!
//! Called by `main`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "programs that print")]

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;
use tailwind_crds::ReplicaGroup;

use crate::options::Settings;
use crate::permissions;
use crate::platform::Platform;
use crate::server_version::ServerVersion;
use crate::webhook::inject::{self, SidecarKind};

/// Give pods their sidecar without a webhook.
#[derive(clap::Args, Clone, Debug)]
pub struct InjectOptions {
    /// The ReplicaGroup, as YAML; `kubectl get rg NAME -o yaml` prints it
    #[arg(long, value_name = "FILE")]
    pub group: PathBuf,
    /// Pods, Deployments, StatefulSets and the like, as YAML; `-` reads standard input
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub file: PathBuf,
    /// Image of the sidecar, unless the group's spec.image names another
    #[arg(long, env = "TAILWIND_SIDECAR_IMAGE", value_name = "IMAGE")]
    pub sidecar_image: String,
    /// The cluster's version: since 1.29, the sidecar starts before the app and stops after it
    #[arg(long, value_name = "VERSION", default_value_t = ServerVersion::TARGET)]
    pub server_version: ServerVersion,
    /// The kind of cluster, which decides who chooses the users and groups of pods
    #[arg(long, value_enum, default_value = "kubernetes")]
    pub platform: Platform,
}

/// The definition.
pub fn crd() -> anyhow::Result<()> {
    print!("{}", tailwind_crds::definition());
    Ok(())
}

/// The permissions.
pub fn permissions() -> anyhow::Result<()> {
    print!("{}", permissions::yaml());
    Ok(())
}

/// Pods with their sidecar.
pub fn inject_stream(
    group: &ReplicaGroup,
    text: &str,
    settings: &Settings,
    server: ServerVersion,
) -> anyhow::Result<String> {
    let mut out = String::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let mut value = Value::deserialize(document).context("not YAML")?;
        if value.is_null() {
            continue;
        }
        // A CronJob has its pods two levels down.
        let paths = ["/spec/jobTemplate/spec/template", "/spec/template", ""];
        let is_pod = value["kind"] == "Pod";
        let paths = if is_pod { &paths[2..] } else { &paths[..2] };
        let path = paths.iter().find(|path| value.pointer(path).is_some());
        if let Some(pod) = path.and_then(|path| value.pointer_mut(path)) {
            // The administrator has chosen this pod: its labels only say which sidecar it needs.
            let labelled = inject::labelled(pod).map_err(|why| anyhow!(why))?;
            let kind = labelled.map_or(SidecarKind::App, |(_, kind)| kind);
            if let Some(why) = inject::refusal(group, kind) {
                bail!(why);
            }
            *pod = inject::inject(pod, group, kind, settings, server).map_err(|why| anyhow!(why))?;
        }
        if !out.is_empty() {
            out.push_str("---\n");
        }
        out.push_str(&serde_yaml::to_string(&value)?);
    }
    Ok(out)
}

/// Pods with their sidecar, printed.
pub fn inject(options: &InjectOptions) -> anyhow::Result<()> {
    let group = read(&options.group)?;
    let group: ReplicaGroup =
        serde_yaml::from_str(&group).with_context(|| format!("{}: not a ReplicaGroup", options.group.display()))?;
    let problems = tailwind_crds::problems(&group, None);
    if !problems.is_empty() {
        bail!("{}: {}", options.group.display(), problems.join("; "));
    }
    let settings = Settings {
        sidecar_image: options.sidecar_image.clone(),
        image_pull_policy: None,
        platform: options.platform,
        ..Settings::default()
    };
    let text = read(&options.file)?;
    print!("{}", inject_stream(&group, &text, &settings, options.server_version)?);
    Ok(())
}

/// Prints what went wrong, for the user who started the program.
pub fn complain(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

fn read(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}
