//! Syncs of what is mapped, and of file systems: of the volume, of files elsewhere, and of no file.

use std::io::Write;

use crate::sidecar::Sidecar;
use crate::{KILLED, Place};

const SCRIPT: &str = r#"
import ctypes, errno, mmap, os

libc = ctypes.CDLL(None, use_errno=True)

def sync(name, call):
    try:
        call()
        print(name, "confirmed", flush=True)
    except OSError as error:
        print(name, errno.errorcode[error.errno], flush=True)

def store(name, path):
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, 4096)
    memory = mmap.mmap(file, 4096)
    memory[:4] = b"data"
    sync(name, memory.flush)
    return file

def sync_file_system(name, path):
    def call():
        if libc.syncfs(os.open(path, os.O_RDONLY)) != 0:
            raise OSError(ctypes.get_errno(), name)
    sync(name, call)

store("inside", "volume/file")
os.rename("volume/file", "volume/moved")
store("outside", ELSEWHERE)
memory = mmap.mmap(-1, 4096)
memory[:4] = b"data"
sync("anonymous", memory.flush)
sync_file_system("volume", "volume")
sync_file_system("elsewhere", ELSEWHERE)
os.kill(os.getpid(), 9)
"#;

#[test]
fn what_is_elsewhere_is_never_confirmed() {
    let place = Place::new();
    let sidecar = Sidecar::start(place.path());
    // On another file system, with a name that has a space.
    let mut elsewhere = tempfile::Builder::new().prefix("a file").tempfile_in("/dev/shm").unwrap();
    elsewhere.write_all(&[0; 4096]).unwrap();
    let path = elsewhere.path().to_str().unwrap();
    let script = SCRIPT.replace("ELSEWHERE", &format!("{path:?}"));
    for (options, outcome) in [(&[][..], "EIO"), (&["--outside", "/dev/shm"], "confirmed")] {
        let expected = format!(
            "inside confirmed\noutside {outcome}\nanonymous confirmed\nvolume confirmed\nelsewhere {outcome}\n"
        );
        assert_eq!(place.run_python(&sidecar, options, &script), (KILLED, expected));
        assert!(place.run(&sidecar, &[], "head -c 4 volume/moved").wait().success());
        assert_eq!(place.read("stdout"), "data");
    }
}
