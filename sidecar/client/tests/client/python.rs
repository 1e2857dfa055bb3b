//! The Python clients and tables: their own tests, the small sidecars of these tests, the package as a user installs it, and its
//! types.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tailwind_client::{Lsn, Revision};
use tailwind_protocol::socket::{READ_ANYWHERE, READ_TAIL, Request, Response};
use tailwind_protocol::table::request::Mismatch;

use crate::fake::{Peer, Server, sidecar, with_backpressure};
use crate::table::{TABLE, delete, deletes, more, moves, put, puts, require};

const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python");
const MYPY: &str = "mypy==2.4.1";
/// Python's own tests, of which there has to be more than this.
const TESTS_MIN: usize = 100;

/// Runs a command; its standard output, or the end of what it said about its failure.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr));
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}\n{said}", output.status))
}

/// Python 3 without a trace of the environment: what it imports is said by `path`.
fn python(program: impl AsRef<OsStr>, path: &str) -> Command {
    let mut command = Command::new(program);
    command.env_remove("PYTHONHOME").env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn pip(environment: &Path) -> Command {
    let mut command = python(environment.join("bin/python"), "");
    command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]);
    command
}

fn cannot_run(test: &str, why: &str) {
    let why = why.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    let _ = writeln!(std::io::stderr(), "cannot run: {test}: {why}");
}

/// False, and said, where there is no Python.
fn has_python(test: &str) -> bool {
    run(Command::new("python3").arg("--version")).map_err(|why| cannot_run(test, &why)).is_ok()
}

fn check_python_tests(mut python: Command) {
    let said = run(python.args(["-W", "error", "-m", "unittest", "discover", "-s"]).arg(format!("{PACKAGE}/tests")));
    let said = said.unwrap_or_else(|why| panic!("{why}"));
    let count: usize = said.split_once("\nRan ").unwrap().1.split_once(' ').unwrap().0.parse().unwrap();
    assert!(count > TESTS_MIN, "{said}");
}

#[test]
fn python_tests_pass() {
    if has_python("python_tests_pass") {
        check_python_tests(python("python3", PACKAGE));
    }
}

/// Runs `script` once with what is blocking and once with asyncio, under the same names, against a server of its own.
fn with_both_kinds(test: &str, server: impl Fn() -> Server, script: &str) {
    if !has_python(test) {
        return;
    }
    for number in 0..2 {
        let script = format!(
            "import sys\nfrom driven import CLIENTS, LOCAL_TABLES, TABLES\nfrom tailwind import *\npath = sys.argv[1]\n\
             Client, Table, LocalTable = CLIENTS[{number}], TABLES[{number}], LOCAL_TABLES[{number}]\n{script}"
        );
        let server = server();
        let mut command = python("python3", &format!("{PACKAGE}:{PACKAGE}/tests"));
        let said = run(command.args(["-c", &script]).arg(server.path()));
        said.unwrap_or_else(|why| panic!("{why}"));
        server.join();
    }
}

#[test]
fn python_clients_and_the_sidecars_encoder_agree() {
    with_both_kinds(
        "python_clients_and_the_sidecars_encoder_agree",
        || Server::new(sidecar),
        r#"
with Client(path) as client:
    assert client.welcome.inflight_max == 1000 and client.primary == "db-0" and client.role is Role.PRIMARY
    assert client.append(b"one") == 1
    assert client.append_batch([b"two", b""]) == 3
    tickets = [client.submit(b"x") for _ in range(3)]
    assert client.wait(tickets[2]) == 6 and client.wait(tickets[0]) == 4
    assert client.flush() == 6
    assert list(client.read(1, 3)) == [(1, b"one"), (2, b"two"), (3, b"")]
    assert client.barrier() == (3, 6) and client.sync() == 6 and client.trim(2) == 2
    assert client.status() == {"role": "primary"}
    events = []
    for event in client.tail(5):
        events.append(event)
        if isinstance(event, CaughtUp):
            break
    assert events == [(5, b"x"), (6, b"x"), CaughtUp(7)]
    assert client.append(b"seven") == 7
    assert list(client.follow(6)) == [(6, b"x"), (7, b"seven"), Lag(7, 0.0, False), Turn(3, 8)]
    assert list(client.read_anywhere(7)) == [(7, b"seven")] and client.position() == Position(3, 7)
    assert client.append(bytes(1 << 20)) == 8
"#,
    );
}

/// Takes the requests of one app to a table, then has another connection follow what they have written.
fn table_sidecar(mut peer: Peer) {
    peer.welcome_with(TABLE);
    let request = peer.expect_apply(&[put(b"a", b"1", None)]);
    peer.ack(request, 1);
    let request = peer.expect_apply(&[require(b"a", 1), put(b"b", b"\x00\xff", Some(0)), delete(b"a", Some(1))]);
    peer.ack(request, 3);
    for now in [None, Revision::of(Lsn(9))] {
        let request = peer.expect_apply(&[put(b"a", b"", Some(1))]);
        peer.send(request, Response::Mismatch(Mismatch { operation: 0, now }));
    }
    let mut peer = peer.next_connection();
    peer.welcome_with(TABLE);
    let request = peer.expect(Request::Follow { from: 0, history: 0 });
    peer.keyed(request, 1, &[puts("a", "1"), more(puts("b", "2")), deletes("a")]);
    peer.end(request, 4, true);
    peer.keyed(request, 4, &[moves("b", "2", 2), more(deletes("b")), puts("a", "3")]);
    peer.send(request, Response::Turn { epoch: 5, next: 7 });
    let request = peer.expect(Request::Read { from: 7, limit: 0, flags: READ_TAIL | READ_ANYWHERE, history: 0 });
    peer.keyed(request, 7, &[puts("own", "")]);
    assert!(peer.next(|_, _| ()).is_none(), "the client goes");
}

#[test]
fn python_tables_and_the_sidecars_encoder_agree() {
    with_both_kinds(
        "python_tables_and_the_sidecars_encoder_agree",
        || Server::new(table_sidecar),
        r#"
with Table(path) as table:
    assert table.put(b"a", b"1") == 1
    assert table.apply(Apply().require(b"a", 1).put_if(b"b", b"\x00\xff", None).delete_if(b"a", 1)) == [2, 3]
    for now in None, 9:
        try:
            table.put_if(b"a", b"", 1)
        except Mismatch as error:
            assert (error.operation, error.revision) == (0, now)
        else:
            raise AssertionError("it was carried out")
with LocalTable.follow(path) as local:
    assert [local.next_change() for _ in range(2)] == [Put(b"b", b"2", 2), CaughtUp(4)]
    assert dict(local.items()) == {b"b": Entry(b"2", 2)} and local.seen == 3
    assert [local.next_change() for _ in range(3)] == [Deleted(b"b"), Put(b"a", b"3", 6), Turn(5, 7)]
    assert local.next_change() == Put(b"own", b"", 7)
    assert dict(local.items()) == {b"a": Entry(b"3", 6), b"own": Entry(b"", 7)}
"#,
    );
}

#[test]
fn python_pipelining_does_not_deadlock() {
    with_both_kinds(
        "python_pipelining_does_not_deadlock",
        || Server::new(|peer| with_backpressure(peer, 1000, false)),
        r#"
with Client(path) as client:
    for _ in range(100_000): client.submit(bytes(100))
    assert client.flush() == 100_000
"#,
    );
}

#[test]
fn python_large_records_do_not_deadlock() {
    with_both_kinds(
        "python_large_records_do_not_deadlock",
        || Server::new(|peer| with_backpressure(peer, 4, false)),
        r#"
with Client(path) as client:
    for _ in range(40): client.submit(bytes(1 << 20))
    assert client.flush() == 40
"#,
    );
}

#[test]
fn python_package_has_the_workspaces_version() {
    let init = fs::read_to_string(format!("{PACKAGE}/tailwind/__init__.py")).unwrap();
    assert!(
        init.contains(&format!("\n__version__ = \"{}\"", env!("CARGO_PKG_VERSION"))),
        "{PACKAGE}/tailwind/__init__.py"
    );
    let license = concat!(env!("CARGO_MANIFEST_DIR"), "/../../LICENSE");
    assert_eq!(fs::read(format!("{PACKAGE}/LICENSE")).unwrap(), fs::read(license).unwrap());
}

/// A new virtual environment, or why this machine cannot make one.
fn environment(folder: &Path) -> Result<(), String> {
    run(python("python3", "").args(["-m", "venv"]).arg(folder)).map(drop)
}

/// The paths of all files below, apart from caches.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|entry| entry.file_name() != "__pycache__") {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found.sort();
    found
}

#[test]
fn python_wheel_installs_in_a_clean_environment() {
    const TEST: &str = "python_wheel_installs_in_a_clean_environment";
    let folder = tempfile::tempdir().unwrap();
    let (builder, user) = (folder.path().join("builder"), folder.path().join("user"));
    let (backend, wheels) = (folder.path().join("backend"), folder.path().join("wheels"));
    if let Err(why) = environment(&builder).and_then(|()| environment(&user)) {
        return cannot_run(TEST, &why);
    }
    // All that comes from the network; the rest does without, so that it fails for our reasons only.
    let project = fs::read_to_string(format!("{PACKAGE}/pyproject.toml")).unwrap();
    let requirement = project.split_once("requires = [\"").unwrap().1.split_once('"').unwrap().0;
    if let Err(why) = run(pip(&builder).args(["download", "--no-deps", requirement, "--dest"]).arg(&backend)) {
        return cannot_run(TEST, &why);
    }
    let pip = |environment, arguments: &[&OsStr]| {
        let mut pip = pip(environment);
        run(pip.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", &backend).args(arguments))
            .unwrap_or_else(|why| panic!("{why}"))
    };
    let before = files(Path::new(PACKAGE));
    pip(&builder, &["wheel".as_ref(), "--wheel-dir".as_ref(), wheels.as_ref(), PACKAGE.as_ref()]);
    let version = env!("CARGO_PKG_VERSION");
    let wheel = wheels.join(format!("tailwind_log-{version}-py3-none-any.whl"));
    assert_eq!(files(&wheels), std::slice::from_ref(&wheel));
    for source in [wheel.as_os_str(), PACKAGE.as_ref()] {
        pip(&user, &["install".as_ref(), source]);
        let mut installed = python(user.join("bin/python"), "");
        installed.current_dir(folder.path()).args([
            "-c",
            "import importlib.metadata as m, tailwind\n\
            print(tailwind.__version__, m.version('tailwind-log'), m.requires('tailwind-log'), tailwind.__file__)\n\
            print(*sorted(str(f) for f in m.files('tailwind-log') if f.suffix not in ('.py', '.pyc')))",
        ]);
        let said = run(&mut installed).unwrap();
        let (what, files) = said.split_once('\n').unwrap();
        assert!(what.starts_with(&format!("{version} {version} None {}/", user.display())), "{said}");
        assert!(files.contains(" tailwind/py.typed") || files.starts_with("tailwind/py.typed"), "{said}");
        assert!(files.contains("LICENSE"), "{said}");
        let mut tests = python(user.join("bin/python"), "");
        tests.current_dir(folder.path());
        check_python_tests(tests);
        pip(&user, &["uninstall".as_ref(), "--yes".as_ref(), "tailwind-log".as_ref()]);
    }
    assert_eq!(files(Path::new(PACKAGE)), before, "building leaves nothing behind");
}

/// An environment with mypy, made once for this target directory.
fn mypy() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(MYPY);
    if !folder.exists() {
        let fresh = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let environment_folder = fresh.path().join("environment");
        environment(&environment_folder)?;
        run(pip(&environment_folder).args(["install", MYPY]))?;
        // Another process may have been faster.
        let _ = fs::rename(&environment_folder, &folder);
    }
    Ok(folder)
}

/// The package, and what its README shows, are right to a strict checker, which sees a wrong use.
#[test]
fn python_types_are_strict() {
    let environment = match mypy() {
        Ok(environment) => environment,
        Err(why) => return cannot_run("python_types_are_strict", &why),
    };
    let folder = tempfile::tempdir().unwrap();
    let check = |files: &[PathBuf]| {
        let mut mypy = python(environment.join("bin/python"), "");
        mypy.args(["-m", "mypy", "--strict", "--cache-dir"]).arg(folder.path().join("cache")).env("MYPYPATH", PACKAGE);
        run(mypy.current_dir(folder.path()).args(["-p", "tailwind"].iter().filter(|_| files.is_empty())).args(files))
    };
    check(&[]).unwrap_or_else(|why| panic!("{why}"));
    let readme = fs::read_to_string(format!("{PACKAGE}/README.md")).unwrap();
    let blocks: Vec<_> = readme.split("```python\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 4, "{}", blocks.len());
    for (number, block) in blocks.into_iter().enumerate() {
        let file = folder.path().join(format!("readme_{number}.py"));
        fs::write(&file, block).unwrap();
        check(&[file]).unwrap_or_else(|why| panic!("{why}"));
    }
    let wrong = "import tailwind\nlog = tailwind.Client('x')\nlog.append('text')\nlsn: str = log.append(b'x')\n\
                 log.wait(7)\nfor event in log.follow(): event.payload\nlog.rolee\n\
                 table = tailwind.Table('x')\ntable.put('key', b'')\ntable.apply([])\n\
                 for change in tailwind.LocalTable.follow('x').changes(): change.value\n";
    let file = folder.path().join("wrong.py");
    fs::write(&file, wrong).unwrap();
    let said = check(&[file]).unwrap_err();
    for line in (3..=7).chain(9..=11) {
        assert!(said.contains(&format!("wrong.py:{line}: error:")), "line {line}: {said}");
    }
}
