//! What `/proc` tells of the program's processes: which descriptors may write to which file, and how far they have come.
//!
//! It reads only `fd`, `fdinfo`, `maps` and `stat` of `/proc`: the default profiles of container runtimes do not block these.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::io::Errno;

use crate::call::{Descriptor, Thread};

/// A file, as a descriptor or a name leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) links: u32,
}

/// What a descriptor is, by `fdinfo`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Info {
    pub(crate) position: u64,
    pub(crate) inode: u64,
    pub(crate) mount: u64,
    pub(crate) writable: bool,
}

/// A descriptor of a process that may write to a regular file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Writer {
    pub(crate) process: u32,
    pub(crate) descriptor: i32,
    pub(crate) info: Info,
}

/// A process of the program whose descriptors cannot be seen: what it writes is unknown.
#[derive(Debug, thiserror::Error)]
#[error(
    "process {process} of the program cannot be looked at in /proc ({source}): it runs as another user than tailwind-exec, \
     or a security profile forbids it"
)]
pub(crate) struct Hidden {
    process: u32,
    source: io::Error,
}

/// What a file's status says.
pub(crate) fn identity(
    at: impl rustix::path::Arg,
    directory: impl std::os::fd::AsFd,
    flags: AtFlags,
) -> Result<Identity, Errno> {
    let found = statx(directory, at, flags, StatxFlags::BASIC_STATS)?;
    Ok(Identity {
        device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        kind: FileType::from_raw_mode(found.stx_mode.into()),
        mode: found.stx_mode.into(),
        links: found.stx_nlink,
    })
}

/// The mount that a directory is seen through, if each inode that is seen through it is another file. On btrfs each subvolume
/// has its own inodes.
pub(crate) fn mount(directory: &OwnedFd) -> Result<Option<u64>, Errno> {
    if rustix::fs::fstatfs(directory)?.f_type as u32 == libc::BTRFS_SUPER_MAGIC as u32 {
        return Ok(None);
    }
    let found = statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    Ok(Some(found.stx_mnt_id))
}

/// The file behind a descriptor of a thread. Only an error that [says so](is_closed) means that there is none: to list descriptors
/// takes fewer rights than to look at one. `proc_pid_fd(5)`
pub(crate) fn descriptor(thread: Thread, descriptor: Descriptor) -> Result<Identity, Errno> {
    identity(format!("/proc/{thread}/fd/{}", descriptor.0), CWD, AtFlags::empty())
}

/// Of which type the file system is that a thread's descriptor leads to. `statfs(2)`
pub(crate) fn file_system(thread: Thread, descriptor: Descriptor) -> Option<u64> {
    rustix::fs::statfs(format!("/proc/{thread}/fd/{}", descriptor.0)).ok().map(|system| system.f_type as u64)
}

/// Whether this error of [`descriptor`] says that it is not open, or that its thread has ended.
pub(crate) fn is_closed(thread: Thread, errno: Errno) -> bool {
    is_gone(errno) || state(thread.0) != State::Lives
}

fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::SRCH)
}

/// What descriptors are now, of which each sync asks again: the files of `/proc` that say so stay open, up to `INFOS_MAX`.
///
/// An open one says what its number stands for at each moment. Once its process or thread has ended it says nothing, even if
/// another one has that number by then.
#[derive(Default)]
pub(crate) struct Infos {
    open: HashMap<(u32, i32), File>,
    /// The process or thread that was asked for last, and answered, since the last call was stopped.
    last: Option<u32>,
    /// When those began of which all descriptors that were asked for since were open already: so they are the same ones.
    began: HashMap<u32, u64>,
}

const INFOS_MAX: usize = 64;

impl Infos {
    /// What a descriptor of a process or thread is now; `None` if it is closed.
    pub(crate) fn get(&mut self, process: u32, descriptor: i32) -> Option<Info> {
        let at = (process, descriptor);
        self.last = Some(process);
        if let Some(info) = self.open.get(&at).and_then(read_info) {
            return Some(info);
        }
        self.last = None;
        self.open.remove(&at);
        self.began.remove(&process);
        let file = File::open(format!("/proc/{process}/fdinfo/{descriptor}")).ok()?;
        let info = read_info(&file)?;
        if self.open.len() >= INFOS_MAX {
            self.open.clear();
        }
        self.open.insert(at, file);
        self.last = Some(process);
        Some(info)
    }

    /// Another call is stopped: by another thread, perhaps, with a number that was an earlier one's.
    pub(crate) fn next_call(&mut self) {
        self.last = None;
    }

    /// When a thread began that is stopped. If it is the one whose descriptor was just asked for, that may be known.
    pub(crate) fn began(&mut self, thread: Thread) -> Option<u64> {
        let began = |thread| began(thread).ok().flatten();
        if self.last != Some(thread.0) {
            return began(thread);
        }
        if let Some(began) = self.began.get(&thread.0) {
            return Some(*began);
        }
        let began = began(thread)?;
        if self.began.len() >= INFOS_MAX {
            self.began.clear();
        }
        self.began.insert(thread.0, began);
        Some(began)
    }
}

fn read_info(file: &File) -> Option<Info> {
    // The lines that are wanted come first, and have no more.
    let mut text = [0; 256];
    let length = file.read_at(&mut text, 0).ok()?;
    parse_info(str::from_utf8(&text[..length]).ok()?)
}

fn parse_info(text: &str) -> Option<Info> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    // O_WRONLY and O_RDWR.
    let access = u32::from_str_radix(field("flags")?, 8).ok()? & 3;
    Some(Info {
        position: field("pos")?.parse().ok()?,
        inode: field("ino")?.parse().ok()?,
        mount: field("mnt_id")?.parse().ok()?,
        writable: access != 0,
    })
}

/// When a thread began, in ticks since the machine did: with its number, that names it for good.
///
/// # Errors
/// It cannot be told. `None` if it is gone.
pub(crate) fn began(thread: Thread) -> io::Result<Option<u64>> {
    Ok(stat(thread.0)?.map(|stat| stat.began))
}

/// What `stat` says of a process or thread.
struct Stat {
    parent: u32,
    threads: u32,
    began: u64,
}

/// `None` if it is gone.
fn stat(process: u32) -> io::Result<Option<Stat>> {
    let Some(text) = read_stat(process)? else { return Ok(None) };
    let parse = || {
        let mut fields = text.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let threads = fields.nth(15)?.parse().ok()?;
        let began = fields.nth(1)?.parse().ok()?;
        Some(Stat { parent, threads, began })
    };
    parse().map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// What stands in `/proc/PID/stat` behind the name; `None` if the process or thread is gone.
fn read_stat(process: u32) -> io::Result<Option<String>> {
    match fs::read(format!("/proc/{process}/stat")) {
        Ok(text) => behind_name(&text).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        Err(error) if has_ended(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The name stands in brackets, and may have any bytes itself: the kernel cuts it off in the middle of a character.
fn behind_name(text: &[u8]) -> Option<String> {
    let end = text.iter().rposition(|byte| *byte == b')')?;
    String::from_utf8(text[end + 1..].to_vec()).ok()
}

/// Whether a stopped thread is all of the program: nobody else writes until its call has run. If that cannot be told, it is not.
///
/// The first child in a list of `/proc` is always right, and is followed by the second one as long as it lives; a thread that is
/// stopped does. Orphans become children of this process's first thread, which has started the program.
pub(crate) fn is_alone(thread: Thread) -> bool {
    let children = |process: u32| fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let is_only_child = children(std::process::id()).is_ok_and(|children| children.trim() == thread.to_string());
    is_only_child
        && children(thread.0).is_ok_and(|children| children.is_empty())
        && stat(thread.0).is_ok_and(|stat| stat.is_some_and(|stat| stat.threads == 1))
}

/// Whether a thread is one of a process.
pub(crate) fn is_thread_of(thread: Thread, process: u32) -> bool {
    fs::exists(format!("/proc/{process}/task/{thread}")).unwrap_or(false)
}

/// Whether a process is an ancestor of a thread's.
pub(crate) fn is_descendant(thread: Thread, process: u32) -> bool {
    let parent = |at: &u32| stat(*at).ok().flatten().map(|stat| stat.parent).filter(|parent| *parent > 1);
    std::iter::successors(Some(thread.0), parent).take(LINE_MAX).any(|ancestor| ancestor == process)
}

/// Ancestors that are asked for theirs.
const LINE_MAX: usize = 64;

/// Tries to read a list of processes in which no parent is missing.
const TRIES: usize = 8;

/// All processes that descend from this one, but for itself.
pub(crate) fn descendants() -> io::Result<Vec<u32>> {
    let own = std::process::id();
    let mut tries = TRIES;
    loop {
        tries -= 1;
        let parents = parents()?;
        let others = || parents.keys().copied().filter(|&process| process != own);
        let broken = others().any(|process| lineage(&parents, process, own) == Lineage::Broken);
        if !broken || tries == 0 {
            return Ok(others().filter(|&process| lineage(&parents, process, own) != Lineage::Foreign).collect());
        }
    }
}

fn parents() -> io::Result<HashMap<u32, u32>> {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(process) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if let Some(stat) = stat(process)? {
            parents.insert(process, stat.parent);
        }
    }
    Ok(parents)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lineage {
    Ours,
    Foreign,
    /// An ancestor has ended while the list was read, and its children have another parent now.
    Broken,
}

fn lineage(parents: &HashMap<u32, u32>, process: u32, own: u32) -> Lineage {
    let mut at = process;
    // No line is longer than the list; one that changed while it was read may be a circle.
    for _ in 0..=parents.len() {
        match parents.get(&at) {
            Some(&parent) if parent == own => return Lineage::Ours,
            // The first process, and the kernel's own threads.
            Some(0) => return Lineage::Foreign,
            Some(&parent) => at = parent,
            None => return Lineage::Broken,
        }
    }
    Lineage::Broken
}

/// How long a process may take from the beginning of its end until its descriptors are closed: it gives its memory back before.
const END_TIME: Duration = Duration::from_secs(10);
const END_PAUSE: Duration = Duration::from_micros(100);

/// Walks through processes that the ones before have not met.
const WALKS: usize = 8;

/// Descriptors of the program that may write to a regular file of a device.
pub(crate) struct Found {
    pub(crate) writers: Vec<Writer>,
    /// No process has come that was not looked at.
    pub(crate) complete: bool,
}

/// Looks for all of them.
///
/// A process that is forked during the walk may have the only number of a description by then, since its parent may have closed
/// its own before its turn came. So it is followed by others, until one meets nobody new.
pub(crate) fn writers(device: u64) -> Result<Found, Hidden> {
    let (mut writers, mut known) = (Vec::new(), HashSet::new());
    for _ in 0..WALKS {
        let mut processes = descendants().map_err(|source| Hidden { process: std::process::id(), source })?;
        processes.retain(|process| known.insert(*process));
        if processes.is_empty() {
            return Ok(Found { writers, complete: true });
        }
        find_writers(&processes, device, &mut writers)?;
    }
    Ok(Found { writers, complete: false })
}

fn find_writers(processes: &[u32], device: u64, found: &mut Vec<Writer>) -> Result<(), Hidden> {
    for &process in processes {
        let (mut at, mut ends_by) = (process, None);
        loop {
            let looked = writers_of(at, device);
            if let Ok(writers) = &looked
                && !writers.is_empty()
            {
                found.extend(writers);
                break;
            }
            match (state(at), looked) {
                // Nobody but root may look at it, and it has no descriptors any more: closing them was an event of its own. But a
                // process lives on without its first thread, as long as it has others.
                (State::Ended, _) => match living_thread(process) {
                    Some(thread) => at = thread,
                    None => break,
                },
                (State::Lives, Ok(_)) => break,
                // Another one has its number by now.
                (State::Lives, Err(error)) if has_ended(&error) => {}
                // As little may it be looked at; but it may still have some, with bytes that a sync owes.
                (State::Ends, _) if Instant::now() < *ends_by.get_or_insert_with(|| Instant::now() + END_TIME) => {
                    std::thread::sleep(END_PAUSE);
                }
                (State::Ends, Ok(_)) => break,
                (_, Err(source)) => return Err(Hidden { process, source }),
            }
        }
    }
    Ok(())
}

/// The writers of one process, by its own number or that of a thread. If it ends during the listing, that is an error: the list
/// would lack descriptors that are still open.
fn writers_of(process: u32, device: u64) -> io::Result<Vec<Writer>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        let Some(descriptor) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let identity = match identity(format!("/proc/{process}/fd/{descriptor}"), CWD, AtFlags::empty()) {
            Ok(identity) => identity,
            // Closed.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        };
        if identity.device != device || identity.kind != FileType::RegularFile {
            continue;
        }
        match fs::read_to_string(format!("/proc/{process}/fdinfo/{descriptor}")) {
            Ok(text) => {
                let info = parse_info(&text).filter(|info| info.writable);
                found.extend(info.map(|info| Writer { process, descriptor, info }));
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn has_ended(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(is_gone)
}

/// How far a process is from its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Lives,
    /// It makes no calls any more, and belongs to root.
    Ends,
    /// It was not waited for, or is gone.
    Ended,
}

fn state(process: u32) -> State {
    match read_stat(process) {
        Ok(Some(text)) => parse_state(&text).unwrap_or(State::Lives),
        Ok(None) => State::Ended,
        Err(_) => State::Lives,
    }
}

/// Whether only its death or what it waits for wakes the first thread of a process.
pub(crate) fn sleeps_uninterruptibly(process: u32) -> bool {
    read_stat(process).is_ok_and(|text| text.is_some_and(|text| text.trim_start().starts_with('D')))
}

/// A thread of a process that has not ended; one that makes calls, if there is one.
fn living_thread(process: u32) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let numbers = threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    let states: Vec<(u32, State)> = numbers.map(|thread| (thread, state(thread))).collect();
    let in_state = |wanted| states.iter().find(|(_, state)| *state == wanted).map(|(thread, _)| *thread);
    in_state(State::Lives).or_else(|| in_state(State::Ends))
}

/// From what stands behind the name.
fn parse_state(text: &str) -> Option<State> {
    // `PF_EXITING` in the kernel's `include/linux/sched.h`.
    const EXITING: u64 = 4;
    let mut fields = text.split_ascii_whitespace();
    let letter = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    Some(match letter {
        "Z" | "X" => State::Ended,
        _ if flags & EXITING != 0 => State::Ends,
        _ => State::Lives,
    })
}

/// The path of a thread's descriptor.
pub(crate) fn path(thread: Thread, descriptor: Descriptor) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{thread}/fd/{}", descriptor.0)).ok()
}

/// The path of a descriptor of this process.
pub(crate) fn own_path(descriptor: BorrowedFd<'_>) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()
}

/// What the kernel writes behind the path of a file that has no name any more.
const DELETED: &[u8] = b" (deleted)";

/// Whether a path says that its file has no name any more, or had another one.
pub(crate) fn is_deleted(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(DELETED)
}

/// Memory that a thread shares with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) inode: u64,
    pub(crate) writable: bool,
    pub(crate) path: PathBuf,
}

/// What a thread has mapped of files and shares with them, in `address..address + length`.
pub(crate) fn mapped(thread: Thread, address: u64, length: u64) -> io::Result<Vec<Mapping>> {
    let text = fs::read(format!("/proc/{thread}/maps"))?;
    let end = address.saturating_add(length);
    Ok(text.split(|byte| *byte == b'\n').filter_map(|line| parse_mapping(line, address, end)).collect())
}

/// `start-end flags offset major:minor inode path`, all but the inode in hexadecimal digits. The path is what is left, with its
/// line ends as `\012`.
fn parse_mapping(line: &[u8], address: u64, end: u64) -> Option<Mapping> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (place, path) = line.split_at(line.iter().position(|byte| *byte == b'/')?);
    let mut fields = str::from_utf8(place).ok()?.split_ascii_whitespace();
    let (first, last) = fields.next()?.split_once('-')?;
    let flags = fields.next()?;
    let inode = fields.nth(2)?.parse().ok()?;
    let path = OsString::from_vec(path.to_vec()).into();
    let mapping = Mapping { inode, writable: flags.contains('w'), path };
    (flags.ends_with('s') && hex(first)? < end && hex(last)? > address).then_some(mapping)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn fdinfo_is_read() {
        let text = "pos:\t42\nflags:\t0102002\nmnt_id:\t31\nino:\t77\nlock:\t1: POSIX\n";
        assert_eq!(parse_info(text), Some(Info { position: 42, inode: 77, mount: 31, writable: true }));
        assert_eq!(parse_info(&text.replace("0102002", "0100000")).map(|info| info.writable), Some(false));
        assert_eq!(parse_info("pos:\t1\n"), None);
    }

    #[test]
    fn an_open_info_tells_what_the_number_stands_for_now() {
        let mut infos = Infos::default();
        let own = std::process::id();
        let mut info = |file: &File| infos.get(own, file.as_raw_fd()).map(|info| (info.position, info.inode));
        let mut file = tempfile::tempfile().expect("make a file");
        let inode = file.metadata().expect("look at the file").ino();
        assert_eq!(info(&file), Some((0, inode)));
        file.write_all(b"abc").expect("write");
        assert_eq!(info(&file), Some((3, inode)));
        let other = tempfile::tempfile().expect("make another file");
        let other_inode = other.metadata().expect("look at the file").ino();
        let mut number = OwnedFd::from(file);
        rustix::io::dup3(&other, &mut number, rustix::io::DupFlags::empty()).expect("replace the file");
        let file = File::from(number);
        assert_eq!(info(&file), Some((0, other_inode)));
        let number = file.as_raw_fd();
        drop(file);
        assert_eq!(infos.get(own, number).filter(|info| info.inode == other_inode), None);
    }

    #[test]
    fn infos_stay_few() {
        let files: Vec<File> = (0..2 * INFOS_MAX).map(|_| tempfile::tempfile().expect("make a file")).collect();
        let mut infos = Infos::default();
        assert!(files.iter().all(|file| infos.get(std::process::id(), file.as_raw_fd()).is_some()));
        assert!(infos.open.len() <= INFOS_MAX);
    }

    #[test]
    fn states_are_read() {
        let stat = |state: &str, flags: u64| parse_state(&format!("{state} 1 7 7 0 -1 {flags} 99 0"));
        assert_eq!(stat("S", 0x40_4000), Some(State::Lives));
        assert_eq!(stat("R", 0x40_4004), Some(State::Ends));
        assert_eq!(stat("Z", 0x40_4004), Some(State::Ended));
        assert_eq!(state(std::process::id()), State::Lives);
    }

    #[test]
    fn names_may_have_any_bytes() {
        assert_eq!(behind_name(b"7 (a) b\xd0) S 1").as_deref(), Some(" S 1"));
        assert_eq!(behind_name(b"7 (a"), None);
    }

    #[test]
    fn mappings_are_found_by_address() {
        let line = "7f00-8000 rw-s 00000000 08:01 4711   /vol/data/a file";
        let parse = |line: &str, address, end| parse_mapping(line.as_bytes(), address, end);
        let mapping = Mapping { inode: 4711, writable: true, path: "/vol/data/a file".into() };
        assert_eq!(parse(line, 0x7f80, 0x7f81), Some(mapping.clone()));
        assert_eq!(parse(line, 0x8000, 0x9000), None);
        assert_eq!(parse(&line.replace("rw-s", "r--s"), 0, 0x9000), Some(Mapping { writable: false, ..mapping }));
        assert_eq!(parse(&line.replace("rw-s", "rw-p"), 0, 0x9000), None);
        assert_eq!(parse("7f00-8000 rw-s 00000000 00:00 0", 0, u64::MAX), None);
    }

    #[test]
    fn own_children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("start sleep");
        let found = descendants().expect("list processes");
        child.kill().expect("kill sleep");
        child.wait().expect("wait for sleep");
        assert!(found.contains(&child.id()));
        assert!(!found.contains(&std::process::id()));
    }
}
