//! What README.md tells people to type, run as it stands there, and what it shows of the quickstart's report.
//!
//! Each recipe has its own network, and its own memory, `/run` and `/var/lib`, so that it can use the ports and folders that it
//! names. The folder in which it runs stands for a clone in which `./quickstart` has built: nothing in the text is replaced.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tailwind_e2e::context::{TestContext, cannot_run};
use tailwind_e2e::processes::process::{Daemon, NOBODY, exec_program, program, run_to_end};
use tempfile::TempDir;

const README: &str = include_str!("../../../README.md");
const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// The headings of what is run.
const REDIS: &str = "Redis, unmodified";
const FIRST_APP: &str = "A first app";
/// The first command of the recipe for root.
const AS_ROOT: &str = "unset TAILWIND_CONTROL_TOKEN TAILWIND_CONFIG";
/// Blocks with other commands, by how they begin, and why no test types them.
const NOT_RUN: [(&str, &str); 2] = [
    (
        "./quickstart ",
        "build everything: CI starts ./check, and the tests of the reports start what ./quickstart starts",
    ),
    ("helm install ", "needs a cluster and a registry: e2e/tests/cluster installs the chart"),
];

/// A fenced block: the heading above it, its language, its text.
struct Block<'a> {
    heading: &'a str,
    language: &'a str,
    text: String,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let (mut blocks, mut heading, mut open) = (Vec::new(), "", None::<Block<'_>>);
    for line in page.lines() {
        match (line.strip_prefix("```"), open.as_mut()) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => open = Some(Block { heading, language, text: String::new() }),
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) => heading = line.strip_prefix("## ").unwrap_or(heading),
        }
    }
    assert!(open.is_none(), "a block does not end");
    blocks
}

/// The commands below a heading in their order.
fn commands_below(heading: &str) -> String {
    let blocks = blocks(README).into_iter().filter(|block| (block.heading, block.language) == (heading, ""));
    blocks.map(|block| block.text).collect()
}

/// The commands of the first app: those that anybody may type, and then those for root.
fn recipes() -> [String; 2] {
    let commands = commands_below(FIRST_APP);
    let at = commands.find(AS_ROOT).expect("README has a recipe for root");
    [commands[..at].to_owned(), commands[at..].to_owned()]
}

/// A folder like the clone that README speaks of. Anybody may read it.
fn clone() -> TempDir {
    let clone = TempDir::new_in("/tmp").unwrap();
    let built = clone.path().join("target/quickstart");
    fs::create_dir_all(&built).unwrap();
    fs::copy(program().unwrap(), built.join("tailwind-sidecar")).unwrap();
    fs::copy(exec_program().unwrap(), built.join("tailwind-exec")).unwrap();
    copy_folder(&Path::new(TOP).join("sidecar/client/python"), &clone.path().join("sidecar/client/python"));
    let app = blocks(README).into_iter().find(|block| block.language == "python").unwrap();
    fs::write(clone.path().join("app.py"), app.text).unwrap();
    fs::set_permissions(clone.path(), fs::Permissions::from_mode(0o755)).unwrap();
    clone
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            fs::copy(path, target).unwrap();
        }
    }
}

/// A command of the shell in namespaces of its own, as root of these. Everything that it starts ends with it.
fn apart(script: &str) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-euc"]).arg(format!(
        "ip link set lo up; for folder in /dev/shm /run /var/lib; do mount -n -t tmpfs tmpfs $folder; chmod 1777 $folder; done
        {script}"
    ));
    command
}

/// Types a recipe into bash, and returns what it has printed. `None`: this machine gives no namespaces.
fn type_in(recipe: &str, test: &str, user: &[&str]) -> Option<String> {
    let tried = run_to_end(&mut apart("true")).unwrap();
    if tried.code != Some(0) {
        cannot_run(test, &format!("no namespaces: {}", tried.errors));
        return None;
    }
    let clone = clone();
    let path = clone.path().join("recipe");
    // What stays behind of it would show up here.
    fs::write(&path, format!("{recipe}\nls -A /dev/shm /run /var/lib\n")).unwrap();
    let logs = TempDir::new().unwrap();
    let mut shell = Daemon::new("README", logs.path().join("log"));
    let mut command = apart(&format!("exec {} bash -euo pipefail {}", user.join(" "), path.display()));
    command.current_dir(clone.path()).env("PYTHONDONTWRITEBYTECODE", "1");
    // So long that no busy machine is taken for a dead one. The end of a process is noticed at once all the same.
    for timeout in ["TAILWIND_HEARTBEAT_SILENCE_MS", "TAILWIND_FENCE_WAIT_MS", "TAILWIND_RPC_TIMEOUT_MS"] {
        command.env(timeout, "10000");
    }
    shell.start(command).unwrap();
    let code = shell.wait_for_end();
    let log = shell.log();
    assert_eq!(code.unwrap_or_else(|error| panic!("{error}\n{log}")), Some(0), "{log}");
    Some(log)
}

/// What is left of a recipe that has removed everything.
const NOTHING_LEFT: &str = "/dev/shm:\n\n/run:\n\n/var/lib:\n";

/// Types a recipe as a user other than root. It prints these lines in this order, and leaves nothing behind.
fn type_in_as_nobody(recipe: &str, test: &str, expected: &[&str]) {
    let nobody = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];
    let user = if rustix::process::geteuid().is_root() { &nobody[..] } else { &[] };
    let Some(printed) = type_in(recipe, test, user) else { return };
    let mut lines = printed.lines();
    for wanted in expected {
        assert!(lines.any(|line| line == *wanted), "{wanted}: {printed}");
    }
    assert!(printed.ends_with(NOTHING_LEFT), "{printed}");
}

#[test]
fn redis_needs_no_root() {
    let _test = TestContext::start();
    let expected = ["1", "OK", "2", "hello"];
    type_in_as_nobody(&commands_below(REDIS), "redis_needs_no_root", &expected);
}

#[test]
fn the_first_app_needs_no_root() {
    let _test = TestContext::start();
    let expected = ["1 {}", "2 {b'run0': b'hello'}", "run0=hello", "run1=hello", "run9=hello"];
    type_in_as_nobody(&recipes()[0], "the_first_app_needs_no_root", &expected);
}

#[test]
fn root_may_leave_the_folders_out() {
    let _test = TestContext::start();
    // From top to bottom, in one shell.
    let Some(printed) = type_in(&recipes().concat(), "root_may_leave_the_folders_out", &[]) else { return };
    assert!(printed.contains("1 record, 5 B, LSN 1 to 1"), "{printed}");
    let left = printed.rsplit_once("/dev/shm:").unwrap().1;
    // The folder of all groups is not the group's to remove.
    assert_eq!(left, "\n\n/run:\n\n/var/lib:\ntailwind\n", "{printed}");
}

#[test]
fn every_command_in_the_readme_is_run() {
    let mut reasons = NOT_RUN.to_vec();
    for block in blocks(README) {
        let Block { heading, language, text } = block;
        match language {
            "" if [REDIS, FIRST_APP].contains(&heading) => {}
            "" => {
                let at = reasons.iter().position(|(begins, _)| text.starts_with(begins));
                reasons
                    .remove(at.unwrap_or_else(|| panic!("nothing runs this block, and no reason is given:\n{text}")));
            }
            // The app, and what ./quickstart prints.
            "python" if heading == FIRST_APP => {}
            "text" if text.starts_with("report (") => {}
            other => panic!("a block of language {other:?} below {heading:?}: is it run?\n{text}"),
        }
    }
    assert!(reasons.is_empty(), "README has no such block any more: {reasons:?}");
}

/// The rows' names, which do not depend on the machine.
fn rows(report: &str) -> Vec<&str> {
    let (_, rows) = report.split_once("report (").unwrap_or_else(|| panic!("no report: {report}"));
    let rows = rows.lines().filter_map(|line| line.strip_prefix("  "));
    rows.map(|row| row.split("  ").next().unwrap()).collect()
}

/// Runs what `./quickstart` starts. Its report has the rows of the one below a heading of README, in their order, and that one
/// tells of no losses.
fn check_report(heading: &str, options: &[&str], none: &[&str]) {
    let _test = TestContext::start();
    let memory = TempDir::new_in("/dev/shm").unwrap();
    let mut quickstart = Command::new(env!("CARGO_BIN_EXE_quickstart"));
    quickstart.arg("--memory").arg(memory.path()).arg("--program").arg(program().unwrap());
    quickstart.env("TAILWIND_EXEC_PROGRAM", exec_program().unwrap());
    // So long that no busy machine is taken for a dead one.
    quickstart.args(["--silence-ms", "5000", "--records", "3000"]).args(options);
    let ended = run_to_end(&mut quickstart).unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut blocks = blocks(README).into_iter();
    let shown = blocks.find(|block| (block.heading, block.language) == (heading, "text")).unwrap().text;
    let printed = rows(&ended.out);
    let mut rest = printed.iter();
    let missing = rows(&shown).into_iter().find(|row| !rest.any(|other| other == row));
    assert_eq!(missing, None, "README has {:?}, and the report {printed:?}", rows(&shown));
    for row in none {
        let line = shown.lines().find(|line| line.trim_start().starts_with(row)).unwrap();
        assert_eq!(line.rsplit(' ').next(), Some("0"), "{line}");
    }
}

#[test]
fn the_report_is_that_of_quickstart() {
    check_report("", &["--file", &format!("{TOP}/README.md")], &["records lost"]);
}

#[test]
fn the_report_of_redis_is_that_of_quickstart() {
    check_report(REDIS, &["--app", "redis"], &["answered writes lost", "writes repeated"]);
}
