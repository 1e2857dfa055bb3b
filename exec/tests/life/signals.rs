//! Signals that are passed on.

use crate::Place;
use crate::sidecar::Sidecar;

/// Its handler is installed without `SA_RESTART`, and its syncs are the C library's, which Python does not repeat. A child keeps
/// `tailwind-exec` busy, so that calls wait to be received.
const SIGNALLED: &str = r#"
import ctypes, errno, os, signal, time

libc = ctypes.CDLL(None, use_errno=True)
came = 0

def count(*_):
    global came
    came += 1

def keep_busy():
    file = os.open("volume/large", os.O_CREAT | os.O_RDWR)
    while True:
        os.pwrite(file, os.urandom(1 << 20), 0)
        os.fsync(file)

supervisor, child = os.getppid(), os.fork()
if child == 0:
    keep_busy()
signal.signal(signal.SIGUSR1, count)
file = os.open("volume/file", os.O_CREAT | os.O_RDWR | os.O_APPEND)
interrupted = 0
for sent in range(1, 101):
    os.kill(supervisor, signal.SIGUSR1)
    while came < sent:
        os.write(file, b"a" * 100)
        while libc.fsync(file) < 0:
            assert ctypes.get_errno() == errno.EINTR, os.strerror(ctypes.get_errno())
            interrupted += 1
os.kill(child, signal.SIGKILL)
os.wait()
print(f"{interrupted} interrupted", flush=True)
"#;

#[test]
fn signals_that_are_passed_on_interrupt_no_sync() {
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    assert_eq!(place.run_python(&sidecar, &[], SIGNALLED), (Some(0), "0 interrupted\n".to_owned()));
}
