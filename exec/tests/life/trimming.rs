//! The log is trimmed while the program runs, whatever happens meanwhile.

use tailwind_exec::record::{Change, Name, Record};

use crate::sidecar::Sidecar;
use crate::{KILLED, Place};

/// Whether a state was logged after a file got this name.
fn has_state_after(sidecar: &Sidecar, name: &str) -> bool {
    let name = Name::new(name.as_bytes()).unwrap();
    let names = |record: &Vec<u8>| match Record::decode(record).unwrap() {
        Record::Names { changes, .. } => {
            changes.iter().any(|change| matches!(change, Change::Name { name: named, .. } if *named == name))
        }
        _ => false,
    };
    let log = sidecar.log();
    let at = log.iter().position(names).unwrap();
    log[at..].iter().any(|record| Record::is_state(record))
}

/// Bytes within a file and behind its end are due when its old blocks are logged again; what is behind the end is cut off before
/// the file's own sync.
const GROW: &str = r#"
import os

def make(name):
    return os.open("volume/" + name, os.O_CREAT | os.O_RDWR)

grown, other = make("grown"), make("other")
os.write(grown, b"a" * 100_000)
os.fsync(grown)
os.write(other, b"a" * 4096)
os.fsync(other)
os.pwrite(grown, b"b" * 50_000, 10_000)
os.lseek(grown, 0, os.SEEK_END)
os.write(grown, b"c" * 300_000)
os.fsync(make("marker"))
for number in range(200):
    os.pwrite(other, bytes([number + 1]) * 4096, 0)
    os.fsync(other)
os.ftruncate(grown, 100_000)
os.fsync(grown)
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

#[test]
fn what_is_due_is_not_forgotten_by_a_copy() {
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    let options = ["--scan-max", "200000", "--trim-after", "10000"];
    assert_eq!(place.run_python(&sidecar, &options, GROW), (KILLED, "confirmed\n".to_owned()));
    let failed = place.read("stderr").contains("cannot be trimmed");
    assert!(place.run(&sidecar, &[], "tr -d a <volume/grown | wc -c").wait().success());
    assert_eq!(place.read("stdout").trim(), "50000");
    assert!(!failed && has_state_after(&sidecar, "marker"));
}

/// Files lose their names while they are synced: some between their bytes and their names.
const ORPHANS: &str = r#"
import os, random, threading, time

content = random.randbytes(200_000)
kept = os.open("volume/kept", os.O_CREAT | os.O_RDWR)
os.write(kept, b"a" * 4096)
os.fsync(kept)

for number in range(50):
    path = f"volume/{number}"
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    os.write(file, content)

    def remove():
        time.sleep(number / 50 * 0.01)
        os.unlink(path)

    remover = threading.Thread(target=remove)
    remover.start()
    os.fsync(file)
    remover.join()
    os.close(file)

os.fsync(os.open("volume/marker", os.O_CREAT | os.O_RDWR))
for number in range(50):
    os.pwrite(kept, random.randbytes(20_000), 0)
    os.fsync(kept)
print("confirmed", flush=True)
os.kill(os.getpid(), 9)
"#;

#[test]
fn files_that_lose_their_names_do_not_end_trimming() {
    let place = Place::in_memory();
    let sidecar = Sidecar::start(place.path());
    let options = ["--trim-after", "100000"];
    assert_eq!(place.run_python(&sidecar, &options, ORPHANS), (KILLED, "confirmed\n".to_owned()));
    assert!(has_state_after(&sidecar, "marker"));
}
