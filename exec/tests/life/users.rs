//! As a user without privileges, as containers should be.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use rustix::process::geteuid;

use crate::sidecar::Sidecar;
use crate::{EXEC, Place, Running, cannot_run};

/// The user `nobody`.
const NOBODY: u32 = 65534;

/// `tailwind-exec` and a shell script, as another user than root.
fn start(place: &Place, sidecar: &Sidecar, script: &str) -> Running {
    // Where that user may execute it.
    let program = place.path().join("tailwind-exec");
    fs::copy(EXEC, &program).unwrap();
    let mut command = if geteuid().is_root() {
        fs::set_permissions(sidecar.socket(), fs::Permissions::from_mode(0o666)).unwrap();
        chown(place.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let mut command = place.command("setpriv");
        let user = NOBODY.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(program);
        command
    } else {
        place.command(program.to_str().unwrap())
    };
    command.arg("--dir").arg(place.volume()).args(["--without-pid-1", "--files-max", "1000"]);
    command.arg("--socket").arg(sidecar.socket()).args(["--", "sh", "-c", script]);
    Running { child: command.spawn().unwrap() }
}

/// The user of a standby is the owner, and may read what it has just made; the modes say otherwise.
#[test]
fn modes_that_forbid_everything_stand_in_no_takeovers_way() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let make = "
        mkdir volume/folder volume/closed
        echo secret | tee volume/file volume/folder/file volume/closed/file
        chmod 000 volume/file volume/folder/file volume/closed
        sync
        kill -9 $$";
    assert_eq!(start(&place, &sidecar, make).wait().code(), Some(128 + 9));
    let find = "
        stat -c '%a %n' volume/*
        echo more >volume/new; sync volume/new || exit 3
        chmod 700 volume/*; chmod 600 volume/folder/file
        sync volume || exit 3
        cat volume/file volume/*/file";
    assert_eq!(start(&place, &sidecar, find).wait().code(), Some(0));
    let found = "0 volume/closed\n0 volume/file\n755 volume/folder\nsecret\nsecret\nsecret\n";
    assert_eq!(place.read("stdout"), found);
}

/// A directory that cannot be watched, and a position that goes back and forth over the same bytes, as if nothing was written.
const SEEK: &str = r#"
import errno, os

file = os.open("volume/file", os.O_CREAT | os.O_RDWR)
os.write(file, b"a" * 100)
os.fsync(file)
os.mkdir("volume/closed", 0)
os.lseek(file, 0, os.SEEK_SET)
os.write(file, b"b" * 100)
for _ in range(2):
    try:
        os.fsync(file)
        print("confirmed", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"#;

/// The seek meets the fault before any sync does.
#[test]
fn what_a_seek_could_not_follow_is_never_confirmed() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    fs::write(place.path().join("program.py"), SEEK).unwrap();
    assert_eq!(start(&place, &sidecar, "exec python3 program.py").wait().code(), Some(74));
    assert_eq!(place.read("stdout"), "EIO\nEIO\n");
}

/// A process that is about to end belongs to root in `/proc`, before it is a zombie.
#[test]
fn processes_that_end_disturb_no_sync() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    let script = "
        for loop in 1 2 3; do
            (while [ ! -e done ]; do /bin/true; done) &
        done
        count=0
        while [ $count -lt 200 ]; do
            echo line >>volume/file
            sync volume/file || exit 3
            count=$((count + 1))
        done
        touch done
        wait";
    let status = start(&place, &sidecar, script).wait();
    assert_eq!(status.code(), Some(0), "{}", place.read("stderr"));
}

/// Root itself may not look at it without a capability. `PR_SET_DUMPABLE(2const)`
const HIDDEN: &str = r#"
import ctypes, os

PR_SET_DUMPABLE = 4
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
file = os.open("volume/file", os.O_CREAT | os.O_RDWR)
os.write(file, b"data")
os.fsync(file)
"#;

/// Root in a container may list what a process has open, and look at none of it if it is another user's.
#[test]
fn what_may_only_be_listed_is_never_confirmed() {
    if !geteuid().is_root() {
        cannot_run("what_may_only_be_listed_is_never_confirmed", "needs root");
        return;
    }
    let user = NOBODY.to_string();
    let write = "echo data >volume/file && sync volume/file";
    let as_another = format!("setpriv --reuid {user} --regid {user} --clear-groups sh -c '{write}'");
    for program in [&as_another, "python3 program.py"] {
        let place = Place::new();
        let sidecar = Sidecar::start(place.path());
        fs::write(place.path().join("program.py"), HIDDEN).unwrap();
        let mut command = place.command("setpriv");
        command.args(["--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace", EXEC, "--dir"]).arg(place.volume());
        command.args(["--without-pid-1", "--files-max", "1000", "--socket"]).arg(sidecar.socket());
        command.args(["--", "sh", "-c", &format!("chmod 777 . volume; {program} && echo confirmed")]);
        Running { child: command.spawn().unwrap() }.wait();
        assert_eq!(place.read("stdout"), "", "{program}");
        assert!(place.read("stderr").contains("Input/output error"), "{program}");
    }
}
