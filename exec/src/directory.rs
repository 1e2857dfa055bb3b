//! The directory that is replicated, as the log's follower keeps it: carries out the operations of [`crate::image`].
//!
//! The log is not trusted with anything outside of the directory: each step is one name in a directory that is held open, found
//! without links (`openat2`), and the stage lies in a folder of ours beside it. Modes wait for the turn: until then the follower
//! has to write to what a program may have made read-only.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, Mode as Bits, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::blocks::Blocks;
use crate::compare::{Compared, Comparison, Plan};
use crate::image::{Image, Operation};
use crate::ranges::Ranges;
use crate::record::{Kind, Name, Number};

/// Bytes whose hashes may be outstanding: a turn computes them, in some 20 ms.
const STALE_MAX: u64 = 64 << 20;
/// While the follower has it.
const FILE_BITS: Bits = Bits::from_raw_mode(0o600);
const DIRECTORY_BITS: Bits = Bits::from_raw_mode(0o700);

/// The directory and its stage.
pub struct Directory {
    stage: OwnedFd,
    /// Each directory that has a number.
    directories: HashMap<Number, OwnedFd>,
    /// The file that was written to last: most records continue the one before.
    open: Option<(Number, OwnedFd)>,
    hashes: HashMap<Number, Hashes>,
    stale: u64,
    comparison: Comparison,
}

/// What is known of a file's bytes.
#[derive(Default)]
struct Hashes {
    blocks: Blocks,
    /// Written since its hashes were computed.
    stale: Ranges,
}

/// What a follower leaves to the program's supervisor.
pub struct Left {
    /// Each directory that has a number, opened with `O_PATH`.
    pub directories: HashMap<Number, OwnedFd>,
    /// The hashes of each file, under the seed of `comparison`.
    pub blocks: HashMap<Number, Blocks>,
    /// The comparison that the seed belongs to.
    pub comparison: Comparison,
}

impl Directory {
    /// An empty directory, and an empty stage on the same mount.
    pub fn new(root: OwnedFd, stage: OwnedFd) -> io::Result<Directory> {
        Ok(Directory {
            stage,
            directories: HashMap::from([(Number::ROOT, root)]),
            open: None,
            hashes: HashMap::new(),
            stale: 0,
            comparison: Comparison::new()?,
        })
    }

    /// Carries out what a record of `image` has led to. The image is as it is after that record.
    pub fn carry_out(&mut self, image: &Image, operations: &[Operation<'_>]) -> io::Result<()> {
        operations.iter().try_for_each(|operation| {
            self.step(image, operation).map_err(|error| {
                let what = describe(image, operation);
                io::Error::new(error.kind(), format!("cannot {what}: {error}"))
            })
        })?;
        if self.stale > STALE_MAX { self.hash(image) } else { Ok(()) }
    }

    fn step(&mut self, image: &Image, operation: &Operation<'_>) -> io::Result<()> {
        match operation {
            Operation::Make { number, kind } => self.make(*number, kind),
            Operation::Write { file, offset, bytes } => {
                self.changed(*file, (*offset, *offset + bytes.len() as u64));
                write_all(self.file(image, *file)?, bytes, *offset)
            }
            Operation::Zero { file, offset, length } => {
                self.changed(*file, (*offset, *offset + *length));
                self.zero(image, *file, *offset, *length)
            }
            Operation::Resize { file, length } => {
                let hashes = self.hashes.entry(*file).or_default();
                if *length < hashes.blocks.length() {
                    hashes.blocks.cut(*length);
                    // The last block's hash is not that of its bytes any more.
                    self.changed(*file, (length.saturating_sub(1), *length));
                }
                Ok(fs::ftruncate(self.file(image, *file)?, *length)?)
            }
            Operation::Detach { from, number } => {
                Ok(fs::renameat(self.directory(from.0)?, from.1.as_os_str(), &self.stage, staged(*number))?)
            }
            Operation::Unlink { from } => {
                Ok(fs::unlinkat(self.directory(from.0)?, from.1.as_os_str(), AtFlags::empty())?)
            }
            Operation::Attach { number, to } => {
                Ok(fs::renameat(&self.stage, staged(*number), self.directory(to.0)?, to.1.as_os_str())?)
            }
            Operation::Link { from, to } => Ok(fs::linkat(
                self.directory(from.0)?,
                from.1.as_os_str(),
                self.directory(to.0)?,
                to.1.as_os_str(),
                AtFlags::empty(),
            )?),
            Operation::Discard { number, kind } => self.discard(*number, kind),
        }
    }

    fn make(&mut self, number: Number, kind: &Kind) -> io::Result<()> {
        let name = staged(number);
        match kind {
            Kind::File => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                let file = fs::openat(&self.stage, &name, flags, FILE_BITS)?;
                self.open = Some((number, file));
            }
            Kind::Directory => {
                fs::mkdirat(&self.stage, &name, DIRECTORY_BITS)?;
                let directory = open_directory(self.stage.as_fd(), name.as_ref())?;
                self.directories.insert(number, directory);
            }
            Kind::Link(target) => fs::symlinkat(target.as_ref(), &self.stage, &name)?,
        }
        Ok(())
    }

    fn zero(&mut self, image: &Image, file: Number, offset: u64, length: u64) -> io::Result<()> {
        let file = self.file(image, file)?;
        let size = fs::fstat(file)?.st_size as u64;
        let end = offset + length;
        if offset < size {
            let flags = fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE;
            fs::fallocate(file, flags, offset, length.min(size - offset))?;
        }
        if end > size { Ok(fs::ftruncate(file, end)?) } else { Ok(()) }
    }

    fn discard(&mut self, number: Number, kind: &Kind) -> io::Result<()> {
        self.open.take_if(|(open, _)| *open == number);
        self.directories.remove(&number);
        if let Some(hashes) = self.hashes.remove(&number) {
            self.stale -= hashes.stale.size();
        }
        let flags = if *kind == Kind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        Ok(fs::unlinkat(&self.stage, staged(number), flags)?)
    }

    fn changed(&mut self, file: Number, range: (u64, u64)) {
        let hashes = self.hashes.entry(file).or_default();
        let before = hashes.stale.size();
        hashes.stale.add(range);
        self.stale += hashes.stale.size() - before;
    }

    fn directory(&self, number: Number) -> io::Result<BorrowedFd<'_>> {
        // The image knows no directory that was not made.
        self.directories.get(&number).map(AsFd::as_fd).ok_or_else(|| Errno::NOENT.into())
    }

    fn file(&mut self, image: &Image, number: Number) -> io::Result<BorrowedFd<'_>> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != number) {
            self.open = Some((number, self.open_file(image, number, OFlags::RDWR)?));
        }
        let (_, file) = self.open.as_ref().ok_or(Errno::NOENT)?;
        Ok(file.as_fd())
    }

    fn open_file(&self, image: &Image, number: Number, flags: OFlags) -> io::Result<OwnedFd> {
        match image.node(number).and_then(|node| node.names.first()) {
            Some((directory, name)) => open_beneath(self.directory(*directory)?, name.as_os_str(), flags),
            None => open_beneath(self.stage.as_fd(), OsStr::new(&staged(number)), flags),
        }
    }

    /// Computes the hashes that are outstanding.
    fn hash(&mut self, image: &Image) -> io::Result<()> {
        let lengths = image.nodes().filter(|(_, node)| node.kind == Kind::File);
        for (number, node) in lengths {
            let hashes = self.hashes.entry(number).or_default();
            if hashes.stale.is_empty() && hashes.blocks.length() == node.length {
                continue;
            }
            let stale = std::mem::take(&mut hashes.stale);
            let mut blocks = std::mem::take(&mut hashes.blocks);
            let file = self.open_file(image, number, OFlags::RDONLY)?;
            let plan = Plan::new(file.as_fd(), &blocks, &stale, node.length)?;
            let compared = self.comparison.compare(file.as_fd(), &mut blocks, &plan, |_, _| ())?;
            if compared != Compared::Whole {
                return Err(io::Error::other(format!(
                    "file {number} is shorter than the log says: something else writes here"
                )));
            }
            self.hashes.insert(number, Hashes { blocks, stale: Ranges::default() });
        }
        self.stale = 0;
        Ok(())
    }

    /// The turn: leaves everything to the supervisor, which sets the modes once it has what they may forbid. What has no name is
    /// discarded by the turn's first record.
    pub fn finish(mut self, image: &Image) -> io::Result<Left> {
        self.hash(image)?;
        let blocks = self.hashes.into_iter().map(|(number, hashes)| (number, hashes.blocks)).collect();
        Ok(Left { directories: self.directories, blocks, comparison: self.comparison })
    }
}

/// What an operation does, for people.
fn describe(image: &Image, operation: &Operation<'_>) -> String {
    let file = |number: Number| match image.path(number) {
        Some(path) => path.display().to_string(),
        None => format!("file {number}, which has no name yet"),
    };
    let at = |(directory, name): &(Number, Name)| image.path(*directory).unwrap_or_default().join(name.as_os_str());
    match operation {
        Operation::Make { number, .. } => format!("make {}", file(*number)),
        Operation::Write { file: number, .. } => format!("write to {}", file(*number)),
        Operation::Zero { file: number, .. } => format!("make zeros in {}", file(*number)),
        Operation::Resize { file: number, .. } => format!("change the length of {}", file(*number)),
        Operation::Detach { from, .. } => format!("move {} away", at(from).display()),
        Operation::Unlink { from } => format!("remove {}", at(from).display()),
        Operation::Attach { to, .. } | Operation::Link { to, .. } => format!("make {}", at(to).display()),
        Operation::Discard { number, .. } => format!("remove number {number} from the stage"),
    }
}

fn staged(number: Number) -> String {
    number.to_string()
}

/// Removes a file by its path in a directory, if it is there. A link on the way leads nowhere: its target may be elsewhere.
pub(crate) fn remove_beneath(directory: &Path, name: &Path) -> io::Result<()> {
    let root = fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Bits::empty())?;
    let (parent, file) = (name.parent().unwrap_or(name), name.file_name().unwrap_or_default());
    let parent = match parent.as_os_str() {
        here if here.is_empty() => Ok(root),
        parent => open_directory(root.as_fd(), parent),
    };
    let removed = parent.and_then(|parent| Ok(fs::unlinkat(parent, file, AtFlags::empty())?));
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn open_beneath(directory: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    Ok(fs::openat2(directory, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Bits::empty(), resolve)?)
}

/// Holds a directory, without reading it.
fn open_directory(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    open_beneath(parent, name, OFlags::PATH | OFlags::DIRECTORY)
}

fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, offset))?;
        bytes = &bytes[count..];
        offset += count as u64;
    }
    Ok(())
}
