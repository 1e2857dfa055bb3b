//! A large file of holes.

use crate::sidecar::Sidecar;
use crate::{KILLED, Place};

/// A file of 10 GiB with a page at its begin, around its middle and at its end.
const MAKE_SPARSE: &str = r#"
import os

size = 10 << 30
file = os.open("volume/file", os.O_CREAT | os.O_RDWR)
os.ftruncate(file, size)
for at in [0, size // 2 + 5, size - 4096]:
    os.pwrite(file, b"page" * 1024, at)
os.fsync(file)
print("made", flush=True)
os.kill(os.getpid(), 9)
"#;

/// Finds it as it was made, fills a bit of a hole, and cuts it.
const CHANGE_SPARSE: &str = r#"
import os

size = 10 << 30
file = os.open("volume/file", os.O_RDWR)
assert os.fstat(file).st_size == size
assert os.fstat(file).st_blocks < 100_000, "holes are filled"
for at in [0, size // 2 + 5, size - 4096]:
    assert os.pread(file, 4096, at) == b"page" * 1024
    assert os.pread(file, 4096, (at + (1 << 30)) % size + 4096) == bytes(4096)
os.pwrite(file, b"more" * 1024, 3 << 30)
os.fsync(file)
os.ftruncate(file, 5 << 30)
os.ftruncate(file, size + 5)
os.fsync(file)
print("changed", flush=True)
os.kill(os.getpid(), 9)
"#;

const CHECK_SPARSE: &str = r#"
import os

file = os.open("volume/file", os.O_RDONLY)
assert os.fstat(file).st_size == (10 << 30) + 5
assert os.fstat(file).st_blocks < 100_000, "holes are filled"
for at, bytes in [(0, b"page"), (3 << 30, b"more"), (5 << 30, bytes(4)), ((10 << 30) - 4096, bytes(4))]:
    assert os.pread(file, 4096, at) == bytes * 1024
print("checked")
"#;

#[test]
fn a_large_sparse_file_costs_what_is_in_it() {
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    let bytes_max = (11_u64 << 30).to_string();
    // No hole fits into what may be read.
    let options = ["--bytes-max", &bytes_max, "--scan-max", "1000000"];
    assert_eq!(place.run_python(&sidecar, &options, MAKE_SPARSE), (KILLED, "made\n".to_owned()));
    assert_eq!(place.run_python(&sidecar, &options, CHANGE_SPARSE), (KILLED, "changed\n".to_owned()));
    assert_eq!(place.run_python(&sidecar, &options, CHECK_SPARSE), (Some(0), "checked\n".to_owned()));
    let logged: usize = sidecar.log().iter().map(Vec::len).sum();
    assert!(logged < 100_000, "{logged} bytes of log");
}
