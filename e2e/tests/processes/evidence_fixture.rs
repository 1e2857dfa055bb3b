//! A group whose app appends, then everything stops, something is damaged, and one member after the other comes back.
//!

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;
use tailwind_e2e::context::TestContext;
use tailwind_e2e::processes::checker::{Comparison, compare};
use tailwind_e2e::processes::damage::{self, Files};
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::steps::{OUTAGE, append, check_whole, primary};
use tailwind_e2e::workload::{Input, Numbered};
use tailwind_report::readiness::{Waiting, WaitsFor};

/// How all processes end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shutdown {
    /// SIGKILL at once.
    PowerLoss,
    /// SIGTERM: what is in memory goes to disk.
    Graceful,
}

/// Warnings and errors that damage rightly causes.
const DAMAGE: [&str; 8] = [
    "unexpected segment file",
    "not part of the log: quarantined",
    "ordered: the log may end early",
    "corrupt copy",
    "damaged: ",
    "error: damaged: ",
    "closed segment is corrupt",
    "error: closed segment is corrupt",
];

/// Bytes of an open file that is large enough to damage.
const OPEN_BYTES_MIN: u64 = 4096;
/// Half a segment.
const SYNCED_BYTES_MAX: u64 = 32 << 10;
/// Batches of records appended until there is one: more than fill a segment.
const MORE_MAX: usize = 100;

/// The group, and what is in its log. The group is dropped before its turn ends.
pub(crate) struct Fixture {
    pub(crate) group: Group,
    pub(crate) input: Numbered,
    /// The last acknowledged record.
    pub(crate) end: u64,
    _test: TestContext,
}

impl Fixture {
    /// One sidecar, so many backups, and all of them in the set.
    pub(crate) fn start(fabric: &str, backups: usize, durability: &str) -> Fixture {
        let test = TestContext::start();
        let mut setup = test.setup(fabric).unwrap();
        (setup.backups, setup.copies, setup.sidecars) = (backups, backups, 1);
        setup.sidecar_options.push(("--durability", durability.to_owned()));
        let group = test.start_group(setup).unwrap();
        Fixture { group, input: test.input(), end: 0, _test: test }
    }

    /// Appends records; all are acknowledged.
    pub(crate) fn append(&mut self, count: u64) {
        self.end = append(&mut primary(&self.group).unwrap(), &self.input, self.end, count).unwrap();
    }

    /// Other records than were ever submitted here.
    pub(crate) fn other_input(&self) -> Numbered {
        Numbered { seed: self.input.seed + 1, ..self.input }
    }

    /// Continues after a record that was the log's last before others were lost.
    pub(crate) fn append_after(&mut self, last: u64, count: u64) {
        self.end = append(&mut primary(&self.group).unwrap(), &self.other_input(), last, count).unwrap();
    }

    /// The primary dies and leads again in a new epoch: what was open is closed.
    pub(crate) fn fail_over(&mut self) {
        self.group.kill_sidecar(0).unwrap();
        self.group.start_sidecar(0).unwrap();
        self.group.wait_for_full_set().unwrap();
    }

    /// A failover, after which every member has the whole log in closed files.
    pub(crate) fn close_all(&mut self) {
        self.fail_over();
        let has_all = |group: &Group, index| {
            !closed_up_to(group, index, self.end).is_empty()
                && !damage::is_in_memory(&group.pool(index), &group.flush_folder(index))
        };
        let all = |group: &Group| (0..group.backups()).all(|index| has_all(group, index));
        self.group.wait("the whole log on every disk, and there alone", all).unwrap();
    }

    /// The file of the log's last segment at a member.
    pub(crate) fn last_closed(&self, index: usize) -> PathBuf {
        closed_up_to(&self.group, index, self.end).remove(0)
    }

    /// The file of the segment that is open at a member. Appends until it holds enough to be damaged.
    pub(crate) fn open_with_records(&mut self, index: usize) -> PathBuf {
        let folder = self.group.flush_folder(index);
        for _ in 0..MORE_MAX {
            let last = damage::open(&folder).unwrap().pop();
            match last.filter(|file| fs::metadata(file).is_ok_and(|found| found.len() >= OPEN_BYTES_MIN)) {
                Some(file) => return file,
                None => self.append(20),
            }
        }
        panic!("no open file of {OPEN_BYTES_MIN} bytes at {}", folder.display());
    }

    /// Appends and syncs. Returns the part of the open segment that a member then has on disk: enough to be missed, and not
    /// so much that a few records would close the segment.
    pub(crate) fn synced_part(&mut self, index: usize) -> Vec<u8> {
        let folder = self.group.flush_folder(index);
        for _ in 0..MORE_MAX {
            self.append(20);
            primary(&self.group).unwrap().sync().unwrap();
            let part = damage::open(&folder).unwrap().pop().map(|file| fs::read(file).unwrap()).unwrap_or_default();
            if (OPEN_BYTES_MIN..SYNCED_BYTES_MAX).contains(&(part.len() as u64)) {
                return part;
            }
        }
        panic!("no open file of {OPEN_BYTES_MIN} to {SYNCED_BYTES_MAX} bytes at {}", folder.display());
    }

    /// Every process ends; buffers may go with them.
    pub(crate) fn end_all(&mut self, shutdown: Shutdown, memory_survives: bool) {
        match shutdown {
            Shutdown::PowerLoss => self.group.kill_all().unwrap(),
            Shutdown::Graceful => {
                let backups = (0..self.group.backups()).map(Process::Backup);
                for who in std::iter::once(Process::Sidecar(0)).chain(backups) {
                    self.group.signal(who, Signal::TERM).unwrap();
                    assert_eq!(self.group.wait_for_end(who).unwrap(), Some(0));
                }
            }
        }
        for index in (0..self.group.backups()).filter(|_| !memory_survives) {
            fs::remove_dir_all(self.group.pool(index)).unwrap();
        }
    }

    /// These members come back, and a sidecar that does not wait long for the others.
    pub(crate) fn start_with(&mut self, backups: &[usize]) {
        backups.iter().for_each(|index| self.group.start_backup(*index).unwrap());
        self.start_sidecar("--fence-wait-ms", "100".to_owned());
    }

    /// An administrator lets the log end at a record.
    pub(crate) fn start_accepting_loss(&mut self, log: &str, last: u64) {
        self.start_sidecar("--accept-loss", format!("{log}/{last}"));
        self.group.setup_mut().sidecar_options.pop();
    }

    fn start_sidecar(&mut self, flag: &'static str, value: String) {
        self.group.setup_mut().sidecar_options.push((flag, value));
        self.group.start_sidecar(0).unwrap();
    }

    /// Waits until the sidecar reports that it waits for this, and says one of these words why. Nothing is decided by then.
    pub(crate) fn waits_for(&self, wanted: WaitsFor, words: &[&str], what: &str) {
        let leads = || self.group.primary().is_some();
        let waits = |group: &Group| {
            let waiting = serde_json::from_value::<Waiting>(group.status(0)["waiting"].take()).ok();
            waiting.filter(|waiting| waiting.what == wanted).map(|waiting| waiting.why).or(leads().then(String::new))
        };
        let why = self.group.wait_for(&format!("a wait for {wanted} after the loss of {what}"), waits).unwrap();
        assert!(!leads(), "{what} is lost, and it continues\n{}", self.group.last_lines(25));
        assert!(words.iter().any(|words| why.contains(words)), "{what} is lost, and it says: {why}");
    }

    /// Everything that was acknowledged is there.
    pub(crate) fn check(&self) {
        check_whole(&self.group, &self.input, self.end).unwrap();
    }

    /// The same where others have continued the log.
    pub(crate) fn check_as(&self, input: &impl Input) {
        let result = compare(&mut primary(&self.group).unwrap(), input, 1, self.end, |_| {}).unwrap();
        assert_eq!(result, Comparison { read: self.end, lost: 0, duplicated: 0 });
    }

    /// The group is healthy: nothing is lost, no member is missing, and it continues.
    pub(crate) fn check_healthy(&mut self) {
        self.check();
        self.group.wait_for_full_set().unwrap();
        self.append(500);
        self.check();
        self.group.check_logs(&[&OUTAGE[..], &DAMAGE].concat()).unwrap();
    }

    /// The closed files of a member.
    pub(crate) fn closed_files(&self, index: usize) -> Files {
        damage::files(&self.group.flush_folder(index), |name| name.ends_with(".closed")).unwrap()
    }

    /// A member still has all of these, unchanged.
    pub(crate) fn check_kept(&self, index: usize, files: &Files) {
        let now = self.closed_files(index);
        for (name, bytes) in files {
            assert!(now.get(name) == Some(bytes), "{name} of backup{index} is not what it was: {:?}", now.keys());
        }
    }

    /// True when a member has a file of exactly these bytes, under any name.
    pub(crate) fn keeps(&self, index: usize, bytes: &[u8]) -> bool {
        let files = damage::files(&self.group.flush_folder(index), |_| true).unwrap();
        files.values().any(|found| found == bytes)
    }

    /// The log's id, in its textual form.
    pub(crate) fn log(&self) -> String {
        let text = fs::read_to_string(self.group.newest_config().unwrap()).unwrap();
        let config: Value = text.split_once('\n').unwrap().1.parse().unwrap();
        config["configuration"]["log"].as_str().unwrap().to_owned()
    }
}

/// The closed files of a member that end with this record: one at most.
fn closed_up_to(group: &Group, index: usize, end: u64) -> Vec<PathBuf> {
    let files = damage::closed(&group.flush_folder(index)).unwrap();
    files.into_iter().filter(|file| damage::last_record(file) == Some(end)).collect()
}
