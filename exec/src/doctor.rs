//! `doctor`: tries on this host, and in this container, everything that following a program needs.
//!
//! The last two findings are the real thing, small: a child under the filter writes, seeks, renames and syncs, and what would
//! have gone to the log makes the same directory a second time.

use std::cell::RefCell;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::system::uname;

use crate::call::Call;
use crate::descriptors;
use crate::directory::Directory;
use crate::ground;
use crate::image::Image;
use crate::no_log;
use crate::program::{Exit, Program, Signals};
use crate::record::Record;
use crate::supervisor::{Outside, Supervisor};
use crate::trap::{self, Answer, Listener};
use crate::volume::Bounds;

/// The first release with `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`.
const KERNEL: (u32, u32) = (5, 19);
/// For a child that does a few calls.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bounds of the child's directory.
const BOUNDS: Bounds = Bounds { bytes: 1 << 30, files: 1000, scan: 1 << 30, record: 0, trim: u64::MAX };

/// What was found about one thing.
#[derive(Debug)]
pub struct Finding {
    check: &'static str,
    /// What was found; or what is wrong, and what to do.
    result: Result<String>,
}

impl Finding {
    /// Whether it will do.
    pub fn is_good(&self) -> bool {
        self.result.is_ok()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let check = self.check;
        match &self.result {
            Ok(text) => write!(f, "ok      {check:12} {text}"),
            Err(error) => write!(f, "FAILED  {check:12} {error:#}"),
        }
    }
}

/// Everything that matters, for a directory that need not be there yet. What depends on something that is missing is left out.
/// `child` is the command that does the [`work`] in a directory: this program, as a rule.
pub fn examine(directory: &Path, files_max: usize, child: impl Fn(&Path) -> Command) -> Vec<Finding> {
    let mut findings = vec![
        Finding { check: "kernel", result: kernel(&uname().release().to_string_lossy()) },
        Finding { check: "descriptors", result: descriptors(files_max) },
    ];
    let place = Place::make(directory);
    let check = "directory";
    let place = match place {
        Ok(place) => place,
        Err(error) => {
            findings.push(Finding { check, result: Err(error) });
            return findings;
        }
    };
    findings.push(Finding { check, result: place.file_system() });
    findings.push(Finding { check: "inotify", result: watch(&place.volume) });
    findings.push(Finding { check: "openat2", result: open_beneath(&place.volume) });
    let started = trap::spawn(child(&place.volume)).context("start a child under the filter");
    let check = "seccomp";
    match started {
        Ok((mut started, listener)) => {
            findings.push(Finding { check, result: Ok(wake_up(&listener).to_owned()) });
            findings.push(Finding { check: "/proc", result: look(&listener) });
            // It may wait indefinitely for an answer.
            let _ = started.kill();
            let _ = started.wait();
        }
        Err(error) => {
            findings.push(Finding { check, result: Err(error) });
            return findings;
        }
    }
    if findings.iter().all(Finding::is_good) {
        findings.push(Finding { check: "trial", result: place.try_out(child) });
    }
    findings
}

fn kernel(release: &str) -> Result<String> {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (major, minor) = KERNEL;
    ensure!(version >= KERNEL, "Linux {release}: {major}.{minor} or newer is needed");
    Ok(format!("Linux {release}"))
}

fn descriptors(files_max: usize) -> Result<String> {
    match descriptors::raise(files_max) {
        None => Ok(format!("enough for --files-max {files_max}")),
        Some(missing) => bail!(missing),
    }
}

fn watch(directory: &Path) -> Result<String> {
    let limit = |name: &str| {
        let path = format!("/proc/sys/fs/inotify/{name}");
        format!("{path}, now {}", fs::read_to_string(&path).unwrap_or_default().trim())
    };
    let inotify = match inotify::init(CreateFlags::CLOEXEC) {
        Err(Errno::MFILE) => bail!("no instance is left for this user: raise {}", limit("max_user_instances")),
        result => result.context("make an instance")?,
    };
    match inotify::add_watch(&inotify, directory, WatchFlags::CREATE) {
        Err(Errno::NOSPC) => bail!("no watch is left for this user: raise {}", limit("max_user_watches")),
        result => result.context("watch a directory")?,
    };
    Ok("an instance and a watch; each directory takes a watch".into())
}

fn open_beneath(directory: &Path) -> Result<String> {
    let directory = File::open(directory)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(&directory, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty(), resolve)
        .context("open a file: the container's seccomp profile is older than openat2 and has to allow it")?;
    Ok("files are opened beneath the directory only".into())
}

fn wake_up(listener: &Listener) -> &'static str {
    if listener.wakes_at_once() {
        "a child runs under the filter, with no_new_privs"
    } else {
        "a child runs under the filter, with no_new_privs; Linux 6.6 or newer would wake it sooner (SYNC_WAKE_UP)"
    }
}

/// What `/proc` tells of a child that is stopped in a sync.
fn look(listener: &Listener) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let (thread, descriptor) = loop {
        match listener.receive()? {
            Some(stopped) => match stopped.call {
                Call::Sync(descriptor) => break (stopped.thread, descriptor.0),
                _ => drop(listener.answer(stopped.id, Answer::Go)?),
            },
            None => {
                ensure!(Instant::now() < deadline, "the child has made no sync");
                let soon = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&soon));
            }
        }
    };
    let advice = "run tailwind-exec and the program as the same user; AppArmor profiles of old container runtimes forbid it, too";
    let path = |what: &str| format!("/proc/{thread}/{what}");
    fs::read_dir(path("fd")).with_context(|| format!("list {}: {advice}", path("fd")))?;
    let link = path(&format!("fd/{descriptor}"));
    fs::metadata(&link).with_context(|| format!("look at {link}: {advice}"))?;
    let info = path(&format!("fdinfo/{descriptor}"));
    let text = fs::read_to_string(&info).with_context(|| format!("read {info}: {advice}"))?;
    for field in ["pos:", "flags:", "mnt_id:", "ino:"] {
        ensure!(text.lines().any(|line| line.starts_with(field)), "{info} has no `{field}`: the kernel is too old");
    }
    for what in ["maps", "stat"] {
        fs::read(path(what)).with_context(|| format!("read {}: {advice}", path(what)))?;
    }
    Ok("fd, fdinfo, maps and stat of the child can be read".into())
}

/// A folder beside the directory, with a directory for the child and one for the copy. Removed at the end.
struct Place {
    folder: PathBuf,
    volume: PathBuf,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Nobody else uses it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Place {
    fn make(directory: &Path) -> Result<Place> {
        let absolute = std::path::absolute(directory)?;
        let parent = absolute.parent().context("--dir is the root of the file system: give a folder of its own")?;
        if let Ok(directory) = directory.canonicalize() {
            ground::check_mount(&directory, directory.parent().unwrap_or(parent))?;
        }
        let folder = parent.join(format!(".tailwind-exec-doctor-{}", std::process::id()));
        let place = Place { volume: folder.join("volume"), folder };
        for part in ["volume", "copy", "stage"] {
            let path = place.folder.join(part);
            fs::create_dir_all(&path)
                .with_context(|| format!("make {}: --dir has to be in a volume", path.display()))?;
        }
        Ok(place)
    }

    fn file_system(&self) -> Result<String> {
        let name = ground::check_file_system(&self.volume)?;
        Ok(format!("{name}, and no mount of its own"))
    }

    /// Follows a child, and rebuilds its directory from what would have gone to the log.
    fn try_out(&self, child: impl Fn(&Path) -> Command) -> Result<String> {
        let began = Instant::now();
        fs::remove_dir_all(&self.volume)?;
        fs::create_dir(&self.volume)?;
        let records = RefCell::new(Vec::new());
        let (volume, log) = no_log::follow(&self.volume, BOUNDS, |record| records.borrow_mut().push(record.to_vec()))?;
        let mut program = Program::start(child(&self.volume), Signals::catch()?)?;
        let mut supervisor = Supervisor::new(&mut program, volume, log, Outside::default(), 0);
        let exit = supervisor.run();
        let (tally, _) = supervisor.into_tally();
        program.kill()?;
        ensure!(exit? == Exit::Code(0), "a child that writes, seeks, renames and syncs has failed: see above");
        ensure!(tally.failures.is_empty(), "its syncs fail: {:?}", tally.failures);

        let copy = self.folder.join("copy");
        let open = |path: &Path| File::open(path).map(OwnedFd::from);
        let mut directory = Directory::new(open(&copy)?, open(&self.folder.join("stage"))?)?;
        let mut image = Image::default();
        for record in records.borrow().iter() {
            let record = Record::decode(record)?;
            let operations = image.fold(&record)?;
            directory.carry_out(&image, &operations)?;
        }
        let (ours, copied) = (files(&self.volume)?, files(&copy)?);
        ensure!(ours == copied, "what would have gone to the log does not make the same directory: report this");
        let (syncs, ms) = (tally.syncs, began.elapsed().as_millis());
        Ok(format!("a child has written, renamed and made {syncs} syncs, and was followed ({ms} ms)"))
    }
}

/// Names and bytes, in order.
fn files(directory: &Path) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            let name = PathBuf::from(entry.file_name());
            found.extend(files(&entry.path())?.into_iter().map(|(below, bytes)| (name.join(below), bytes)));
        } else {
            found.push((entry.file_name().into(), fs::read(entry.path())?));
        }
    }
    found.sort();
    Ok(found)
}

/// What the child does under the filter: a bit of each kind of change, with syncs in between.
pub fn work(directory: &Path) -> io::Result<()> {
    let (first, second) = (directory.join("first"), directory.join("second"));
    let mut file = File::create(&first)?;
    file.write_all(&[1; 10_000])?;
    file.sync_all()?;
    file.seek(SeekFrom::Start(100))?;
    file.write_all(&[2; 50])?;
    file.sync_data()?;
    std::os::unix::fs::FileExt::write_all_at(&file, &[3; 5000], 20_000)?;
    file.set_len(24_000)?;
    file.sync_all()?;
    fs::create_dir(directory.join("below"))?;
    fs::rename(&first, directory.join("below/renamed"))?;
    fs::write(&second, "a second file")?;
    File::open(&second)?.sync_all()?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_are_refused() {
        for good in ["5.19.0", "6.1.0-18-amd64", "6.18.44-fc", "10.0"] {
            assert!(kernel(good).is_ok(), "{good}");
        }
        for bad in ["5.15.0-100-generic", "5.10", "4.18.0", ""] {
            let error = kernel(bad).unwrap_err().to_string();
            assert!(error.contains("5.19 or newer is needed"), "{error}");
        }
    }

    #[test]
    fn a_line_has_a_result_a_subject_and_advice() {
        let good = Finding { check: "kernel", result: Ok("Linux 6.1".into()) };
        assert_eq!(good.to_string(), "ok      kernel       Linux 6.1");
        let bad = Finding { check: "inotify", result: Err(anyhow::anyhow!("no space").context("watch a directory")) };
        assert_eq!(bad.to_string(), "FAILED  inotify      watch a directory: no space");
    }
}
