//! Pods with their sidecar, as the webhook and `tailwind-operator inject` make them. Each file in `tests/injections` opens
//! with prose, then has a group, then pods; what follows `# ---- injected` is the result. `UPDATE_GOLDENFILES=1` rewrites it.

use std::fs;
use std::path::Path;

use tailwind_crds::{ReplicaGroup, problems};
use tailwind_operator::commands::inject_stream;
use tailwind_operator::options::Settings;
use tailwind_operator::platform::Platform;

const RESULT: &str = "\n# ---- injected\n";

#[test]
fn injected_pods_match_their_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/injections");
    let mut wrong = Vec::new();
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let (given, expected) = text.split_once(RESULT).unwrap_or((&text, ""));
        let given = given.trim_end();
        let (head, pods) = given.split_once("\n---\n").unwrap();
        let after = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let kubernetes = after("# Kubernetes ").map(|version| (Platform::Kubernetes, version));
        let openshift = || after("# OpenShift ").map(|version| (Platform::OpenShift, version));
        let (platform, version) =
            kubernetes.or_else(openshift).expect("a line `# Kubernetes 1.x`, or `# OpenShift 1.x` with that version");
        let settings =
            Settings { sidecar_image: "example.com/tailwind-sidecar:1.0".to_owned(), platform, ..Settings::default() };
        let group: ReplicaGroup = serde_yaml::from_str(head).unwrap();
        assert_eq!(problems(&group, None), Vec::<String>::new(), "{}", path.display());
        let injected = inject_stream(&group, pods, &settings, version.trim().parse().unwrap()).unwrap();
        // Once is enough: a webhook may be asked again about a pod that it has changed.
        assert_eq!(inject_stream(&group, &injected, &settings, version.trim().parse().unwrap()).unwrap(), injected);
        count += 1;
        if injected == expected {
            continue;
        }
        if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
            fs::write(&path, format!("{given}{RESULT}{injected}")).unwrap();
        } else {
            wrong.push(format!("{}:\n{injected}", path.display()));
        }
    }
    assert!(count >= 6, "files are missing");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
