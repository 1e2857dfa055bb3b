//! Two-sided replication is for `./bench`: nothing that ships or demonstrates the product may build it in.

use std::fs;
use std::path::{Path, PathBuf};

const FEATURE: &str = "baselines";
/// What makes images, installs or demonstrates, from the top of the repository.
const SHIPS: &[&str] =
    &["Dockerfile", "quickstart", "charts", "manifests", "scripts/images.sh", "e2e/cluster", "e2e/rdma", "examples"];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// A file, or all below a folder.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    entries.flat_map(|entry| files(&entry.unwrap().path())).collect()
}

#[test]
fn nothing_that_ships_names_the_feature() {
    let all: Vec<PathBuf> = SHIPS.iter().flat_map(|path| files(&top().join(path))).collect();
    assert!(all.len() > SHIPS.len(), "there are files to look at");
    for file in all {
        let text = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
        assert!(!text.contains(FEATURE), "{} names the feature `{FEATURE}`", file.display());
        assert!(!text.contains("--all-features"), "{} builds with all features", file.display());
    }
}

/// Only the feature of the same name of another crate turns it on, and no crate has it by default.
#[test]
fn no_crate_enables_the_feature_by_default() {
    let manifests = ["Cargo.toml", "sidecar/Cargo.toml", "sidecar/fabric/Cargo.toml", "e2e/Cargo.toml"];
    for manifest in manifests.iter().map(|path| top().join(path)) {
        let text = fs::read_to_string(&manifest).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#') && line.contains(FEATURE));
        for line in lines {
            assert!(line.starts_with("baselines = ["), "{}: {line}", manifest.display());
        }
    }
}
