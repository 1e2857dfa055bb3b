//! A position goes back after another thread, or another process with the same description, has written: no position tells of
//! that. Here the write holds the position while the seek is stopped, and ends before the seek runs.

use crate::Place;

const SCRIPT: &str = r#"
import ctypes, os, threading, time

size = 64 << 20
bytes = b"b" * size
file = os.open("volume/file", os.O_CREAT | os.O_RDWR)
os.ftruncate(file, size)
os.fsync(file)
# Until then an opening may not have come to its end, and writers are looked for at each sync.
time.sleep(1.1)
os.fsync(file)

def write():
    assert os.write(file, bytes) == size

def thread():
    writer = threading.Thread(target=write)
    writer.start()
    return writer.join

def process():
    child = os.fork()
    if child == 0:
        write()
        os._exit(0)
    return lambda: os.waitpid(child, 0)

join = WRITER()
while os.stat("volume/file").st_blocks == 0:
    pass
os.lseek(file, 0, os.SEEK_SET)
assert os.lseek(file, 0, os.SEEK_CUR) == 0
join()
os.fsync(file)
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

/// Whoever writes.
fn a_write_before_the_seek_is_kept(writer: &str) {
    let script = SCRIPT.replace("WRITER", writer);
    assert_eq!(Place::in_memory().show_after(&script, "tr -d b <volume/file | wc -c").trim(), "0");
}

#[test]
fn a_write_of_another_thread_before_a_seek_is_kept() {
    a_write_before_the_seek_is_kept("thread");
}

#[test]
fn a_write_of_another_process_before_a_seek_is_kept() {
    a_write_before_the_seek_is_kept("process");
}
