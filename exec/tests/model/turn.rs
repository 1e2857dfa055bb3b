//! One turn: folds the log so far into a directory, runs a player there, and judges every prefix of what it has logged.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode};

use tailwind_client::Lsn;
use tailwind_exec::directory::Directory;
use tailwind_exec::image::Image;
use tailwind_exec::program::{Exit, Program, Signals};
use tailwind_exec::record::Record;
use tailwind_exec::supervisor::{Log, Loss, Outside, Supervisor};
use tailwind_exec::volume::{Bounds, Volume};

use crate::journal::{Entry, Leads};
use crate::judge::{Fold, Judge};
use crate::random::Random;
use crate::{Places, block, read_blocks};

/// Exit code of a turn that is not as it should be. Any other is a fault of the test.
pub(crate) const FOUND: u8 = 3;
/// Small, so that names and bytes need several records and batches.
const RECORD_MAX: usize = 5000;
const BATCH_RECORDS: usize = 6;
/// Small, so that a turn sees several generations.
const TRIM: u64 = 20_000;

/// A log in memory. Acks come when they like, in order.
struct Memory {
    batches: Vec<Vec<Vec<u8>>>,
    acked: usize,
    sent_records: u64,
    acked_records: u64,
    published: File,
    random: Random,
    /// Always readable: the loop must not sleep, as an ack may come at any time.
    wake: (UnixStream, UnixStream),
    /// Looks at the log until the next ack.
    pause: u64,
    /// Where the log was trimmed: the first record that is left, counted from the turn's first one, and the number of batches
    /// that were acknowledged then.
    trims: Vec<(usize, usize)>,
}

impl Memory {
    fn new(places: &Places) -> Memory {
        let wake = UnixStream::pair().expect("a pair of sockets");
        std::io::Write::write_all(&mut &wake.1, &[0]).expect("write a byte");
        let published = File::create(places.acked()).expect("make the number of acks");
        published.write_all_at(&0u64.to_le_bytes(), 0).expect("write the number of acks");
        Memory {
            batches: Vec::new(),
            acked: 0,
            sent_records: 0,
            acked_records: 0,
            published,
            random: places.random(1),
            wake,
            pause: 0,
            trims: Vec::new(),
        }
    }

    fn ack_one(&mut self) {
        let Some(batch) = self.batches.get(self.acked) else { return };
        self.acked += 1;
        self.acked_records += batch.len() as u64;
        // The player's syncs know what is acknowledged before the supervisor does.
        self.published.write_all_at(&(self.acked as u64).to_le_bytes(), 0).expect("write the number of acks");
    }
}

impl Log for &mut Memory {
    fn record_max(&self) -> usize {
        RECORD_MAX
    }

    fn send(&mut self, records: &[Vec<u8>]) -> Result<(), Loss> {
        for batch in records.chunks(BATCH_RECORDS) {
            assert!(batch.iter().all(|record| record.len() <= RECORD_MAX), "a record is too large");
            self.sent_records += batch.len() as u64;
            self.batches.push(batch.to_vec());
        }
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), Loss> {
        Ok(())
    }

    fn pump(&mut self) -> Result<(), Loss> {
        self.take_acks()
    }

    fn take_acks(&mut self) -> Result<(), Loss> {
        if self.pause > 0 {
            self.pause -= 1;
        } else {
            self.ack_one();
            self.pause = if self.random.one_in(3) { self.random.below(300) } else { self.random.below(3) };
        }
        Ok(())
    }

    fn sent(&self) -> Lsn {
        Lsn(self.sent_records)
    }

    fn acked(&self) -> Lsn {
        Lsn(self.acked_records)
    }

    fn trim(&mut self, below: Lsn) {
        assert!(below.0 <= self.acked_records, "the log is trimmed to what is not acknowledged");
        self.trims.push((below.0 as usize - 1, self.acked));
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.0.as_fd()
    }
}

pub(crate) fn main() -> ExitCode {
    // Shown if the turn fails.
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let places = Places::read();
    match turn(&places) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tracing::error!("{why}");
            ExitCode::from(FOUND)
        }
    }
}

fn open(path: &Path) -> OwnedFd {
    fs::create_dir_all(path).expect("make a folder");
    File::open(path).expect("open a folder").into()
}

fn turn(places: &Places) -> Result<(), String> {
    let signals = Signals::catch().expect("catch signals");
    let log = read_blocks(&places.log());
    let root = places.directory();
    let mut directory = Directory::new(open(&root), open(&places.volume.join("stage"))).map_err(|e| e.to_string())?;
    let mut image = Image::default();
    for bytes in &log {
        let record = Record::decode(bytes).map_err(|e| e.to_string())?;
        let operations = image.fold(&record).map_err(|e| format!("{e}: {record:?}"))?;
        directory.carry_out(&image, &operations).map_err(|e| format!("{e}: {operations:?}"))?;
    }
    let begin = Record::Begin { next: image.next() };
    let operations = image.fold(&begin).map_err(|e| e.to_string())?;
    directory.carry_out(&image, &operations).map_err(|e| e.to_string())?;
    let left = directory.finish(&image).map_err(|e| e.to_string())?;
    let bounds = Bounds { bytes: 1 << 30, files: 10_000, scan: 1 << 30, record: RECORD_MAX, trim: TRIM };
    let volume = Volume::new(bounds, image, left).map_err(|e| e.to_string())?;

    File::create(places.journal()).expect("make a journal");
    let mut memory = Memory::new(places);
    (&mut memory).send(&[begin.encode()]).expect("memory takes everything");
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.env("TAILWIND_MODEL_ROLE", "player");
    let mut program = Program::start(command, signals).map_err(|e| e.to_string())?;
    let exit = Supervisor::new(&mut program, volume, &mut memory, Outside::default(), 0).run();
    program.kill().map_err(|e| e.to_string())?;
    match exit {
        Ok(Exit::Code(0)) => {}
        other => return Err(format!("the player ends with {other:?}")),
    }
    judge(places, &log, &memory, &root)
}

fn judge(places: &Places, before: &[Vec<u8>], memory: &Memory, root: &Path) -> Result<(), String> {
    let judge = Judge::new(Entry::read(&places.journal()))?;
    let mut fold = Fold::default();
    before.iter().try_for_each(|record| fold.take(record))?;
    for (count, batch) in memory.batches.iter().enumerate() {
        judge
            .allows(count as u64, &fold)
            .map_err(|why| format!("after {count} batches: {why}\n{}", story(places, memory)))?;
        batch.iter().try_for_each(|record| fold.take(record))?;
    }
    let count = memory.batches.len();
    for (first, acked) in &memory.trims {
        judge_trimmed(&judge, memory, *first, *acked).map_err(|why| format!("trimmed to record {first}: {why}"))?;
    }
    judge.allows(count as u64, &fold).map_err(|why| format!("after all {count} batches: {why}"))?;
    if judge.syncs() < 2 || count < 2 {
        return Err(format!("a player that syncs {} times and logs {count} batches proves nothing", judge.syncs()));
    }
    same(&fold, root)?;

    // The next turn begins at any of these points.
    let mut random = places.random(2);
    let cut = if random.one_in(3) { count } else { random.below(count as u64 + 1) as usize };
    let kept = memory.batches[..cut].iter().flatten();
    let trimmed = memory.trims.iter().filter(|(_, acked)| *acked <= cut).map(|(first, _)| before.len() + first).max();
    let whole = before.iter().chain(kept);
    let log: Vec<u8> = whole.skip(trimmed.unwrap_or(0)).flat_map(|record| block(record)).collect();
    fs::write(places.log(), log).map_err(|e| e.to_string())
}

/// A log that was trimmed to a record, once so many batches were acknowledged, is as good as the whole one.
fn judge_trimmed(judge: &Judge, memory: &Memory, first: usize, acked: usize) -> Result<(), String> {
    let mut fold = Fold::default();
    let mut record = 0;
    for (count, batch) in memory.batches.iter().enumerate() {
        if count >= acked {
            judge.allows(count as u64, &fold).map_err(|why| format!("after {count} batches: {why}"))?;
        }
        for bytes in batch {
            if record >= first {
                fold.take(bytes)?;
            }
            record += 1;
        }
    }
    judge.allows(memory.batches.len() as u64, &fold)
}

/// Everything that was logged and written down, to find out what happened.
fn story(places: &Places, memory: &Memory) -> String {
    if std::env::var_os("TAILWIND_EXEC_VERBOSE").is_none() {
        return "TAILWIND_EXEC_VERBOSE=1 shows the log and the journal".into();
    }
    let records = memory.batches.iter().enumerate().flat_map(|(n, batch)| batch.iter().map(move |record| (n, record)));
    let records = records.map(|(n, record)| format!("  batch {n}: {:.300?}\n", Record::decode(record)));
    let entries = Entry::read(&places.journal());
    let entries = entries.iter().enumerate().map(|(time, entry)| match entry {
        Entry::Content(file, bytes) => format!("  {time} {} bytes of file {file}\n", bytes.len()),
        entry => format!("  {time} {entry:?}\n"),
    });
    records.chain(entries).collect()
}

/// The program has ended in order: the log has all of it.
fn same(fold: &Fold, root: &Path) -> Result<(), String> {
    let tree = fold.tree()?;
    let mut found = 0;
    let mut to_list = vec![root.to_owned()];
    while let Some(directory) = to_list.pop() {
        for entry in fs::read_dir(directory).map_err(|e| e.to_string())? {
            let path = entry.map_err(|e| e.to_string())?.path();
            let below = path.strip_prefix(root).map_err(|e| e.to_string())?.display().to_string();
            let metadata = fs::symlink_metadata(&path).map_err(|e| e.to_string())?;
            let (leads, bytes) = tree.get(&below).ok_or_else(|| format!("at the end {below} is not in the log"))?;
            let equal = if metadata.is_dir() {
                to_list.push(path);
                *leads == Leads::Directory
            } else if metadata.is_symlink() {
                matches!(leads, Leads::Link(_))
            } else {
                fs::read(&path).map_err(|e| e.to_string())? == *bytes
            };
            if !equal {
                return Err(format!("at the end {below} is not what the log has"));
            }
            found += 1;
        }
    }
    if found == tree.len() { Ok(()) } else { Err(format!("at the end the log has {} names, not {found}", tree.len())) }
}
