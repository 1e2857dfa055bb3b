//! Names: follows inotify, and looks at what its events leave open.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode as Bits, OFlags};
use rustix::io::Errno;
use tracing::info;

use super::files::{File, Links};
use super::proc::{self, Identity};
use super::tree::{At, Entry, Note, What};
use super::watch::Event;
use super::{Known, Refusal, Volume, hold, reopen};
use crate::planted::{self, Bug};
use crate::ranges::Ranges;
use crate::record::{Kind, Name, Number};

/// The second event of a rename follows the first one at once, or after this time what was renamed is looked for.
const RENAME_TIME: Duration = Duration::from_secs(1);

/// A look takes microseconds, and each is repeated whose name has changed in between. A program that makes and moves the same
/// names in a loop pauses for that long now and then, if only because a processor is another's.
const SETTLE_TIME: Duration = Duration::from_secs(30);

/// Looks between two reads of the queue, which holds some thousand events: a few microseconds each.
const LOOKS_AT_ONCE: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Inside,
    Outside,
}

impl Volume {
    /// Follows the queue of events until the names are all known, and those of one moment. An event that was taken does not come
    /// again, so what goes wrong here is for good.
    pub(super) fn settle(&mut self) -> Result<(), Refusal> {
        self.or_lose(Volume::follow_events)
    }

    fn follow_events(&mut self) -> Result<(), Refusal> {
        let (began, mut relisted) = (Instant::now(), false);
        self.watch.read()?;
        loop {
            self.follow_read(&mut relisted)?;
            self.look_at_unsure()?;
            let awaits_renames = self.awaits_renames()?;
            if awaits_renames {
                std::thread::sleep(Duration::from_micros(50));
            } else if !self.tree.is_ahead() {
                break;
            }
            self.watch.read()?;
            let contradicts = |event: &Event| match event {
                Event::At(at, what) => self.tree.contradicts(at, *what),
                Event::Overflow | Event::Unmounted => true,
            };
            if !awaits_renames && !self.watch.events().iter().any(contradicts) {
                break;
            }
            if began.elapsed() > SETTLE_TIME {
                let why = format!("for {SETTLE_TIME:?} names were made and moved faster than they can be looked at");
                return Err(self.lose(why));
            }
        }
        // After the events of the calls that have run.
        if self.links.may_be_elsewhere(0) {
            self.links = Links::default();
            self.suspect_all();
        }
        self.links.settle();
        self.leaving.extend(self.tree.take_nameless());
        self.forget_gone();
        Ok(())
    }

    /// Follows the events that have been read.
    fn follow_read(&mut self, relisted: &mut bool) -> Result<(), Refusal> {
        let (mut overflow, mut lost) = (false, false);
        for event in self.watch.take() {
            let (at, what) = match event {
                Event::At(at, what) => (at, what),
                Event::Overflow => {
                    overflow |= !planted::has(Bug::OverflowIgnored);
                    continue;
                }
                Event::Unmounted => return Err(self.lose("the volume was unmounted".into())),
            };
            match what {
                What::Created => drop(self.links.created.insert(at.clone())),
                What::Deleted | What::MovedTo { .. } => drop(self.links.created.remove(&at)),
                _ => {}
            }
            for note in self.tree.on_event(at, what) {
                match note {
                    Note::Opened(_) if planted::has(Bug::OpenForgotten) => {}
                    Note::Opened(number) => self.opened(number),
                    Note::Closed(_) if planted::has(Bug::CloseForgotten) => {}
                    Note::Closed(number) => self.with(number, |file| file.doubts.add(Ranges::WHOLE)),
                    Note::Moved(number) => self.with(number, |file| file.moved = true),
                    Note::Ragged(number) => self.with(number, |file| file.ragged = true),
                    Note::Attributes(number) => drop(self.modes.insert(number)),
                    Note::Lost => lost = true,
                }
            }
        }
        self.tree.followed();
        // Once for each call: a list takes so long that the next event which it does not explain would come in the meantime.
        if overflow || lost && !std::mem::replace(relisted, true) {
            return self.list_all();
        }
        if lost {
            self.suspect_all();
        }
        Ok(())
    }

    pub(super) fn with(&mut self, number: Number, change: impl FnOnce(&mut File)) {
        if let Some(file) = self.files.get_mut(&number) {
            change(file);
        }
    }

    /// Any file may have been opened, written to or closed.
    fn suspect_all(&mut self) {
        self.effects.may_open(self.files.keys().copied());
        self.files.values_mut().for_each(File::suspect);
        // The root's own mode is not kept.
        self.modes.extend(self.known.keys().filter(|number| **number != Number::ROOT));
    }

    fn opened(&mut self, number: Number) {
        self.effects.may_open(std::iter::once(number));
        self.with(number, File::suspect);
    }

    /// Whether the second event of a rename is still to come. If not, what was renamed has left the volume.
    fn awaits_renames(&mut self) -> Result<bool, Refusal> {
        let is_floating = self.tree.is_floating();
        for number in self.tree.take_fewer() {
            // It may be open under the name that it has lost.
            self.with(number, |file| file.ragged = true);
            self.opened(number);
        }
        if !is_floating {
            return Ok(false);
        }
        let due: Vec<Number> = self.tree.floating(RENAME_TIME).collect();
        let mut lost = false;
        for number in due {
            let place = self.place(number);
            if place == Some(Place::Inside) {
                // The thread between the two has to wait for a processor.
                continue;
            }
            if self.directories.contains_key(&number) {
                return Err(self.lose(format!("directory {number} was moved out of the volume")));
            }
            self.tree.leaves(number);
            lost |= place.is_none();
        }
        if lost {
            // It was moved before its event came. If it is in the volume, the list finds it.
            self.list_all()?;
        }
        Ok(lost || self.tree.is_floating())
    }

    /// Where a name of it is. `None` if what it is held by had another name, which is gone.
    fn place(&self, number: Number) -> Option<Place> {
        let file = self.files.get(&number).map(|file| &file.reader);
        let other = self.known.get(&number).and_then(|known| known.hold.as_ref());
        let Some(held) = file.or(self.directories.get(&number)).or(other).map(AsFd::as_fd) else {
            return Some(Place::Outside);
        };
        let is_named = proc::identity("", held, AtFlags::EMPTY_PATH).is_ok_and(|identity| identity.links > 0);
        let (Some(root), Some(path), true) = (self.root_path(), proc::own_path(held), is_named) else {
            return Some(Place::Outside);
        };
        if proc::is_deleted(&path) {
            return None;
        }
        Some(if path.starts_with(root) { Place::Inside } else { Place::Outside })
    }

    /// Lists the whole directory again, and takes nothing for granted.
    pub(super) fn relist(&mut self) -> Result<(), Refusal> {
        self.or_lose(Volume::list_all)
    }

    fn list_all(&mut self) -> Result<(), Refusal> {
        info!("lists the volume again and compares all of it");
        self.tree.forget_entries();
        self.links.created.clear();
        self.suspect_all();
        self.unlisted.extend(self.directories.keys());
        self.list(Number::ROOT)
    }

    fn list(&mut self, number: Number) -> Result<(), Refusal> {
        self.unlisted.remove(&number);
        self.tree.list(number);
        let Some(directory) = self.directories.get(&number) else { return Ok(()) };
        let directory = match reopen_directory(directory) {
            // Just removed: its parent's events will say so.
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
        for entry in Dir::new(directory)? {
            let name = entry?.file_name().to_owned();
            if let Some(name) = Name::new(name.to_bytes()) {
                self.tree.doubt((number, name));
            }
        }
        Ok(())
    }

    fn look_at_unsure(&mut self) -> Result<(), Refusal> {
        loop {
            let unsure = self.tree.take_unsure();
            if unsure.is_empty() {
                return Ok(());
            }
            for (count, at) in unsure.into_iter().enumerate() {
                self.look(at)?;
                if count % LOOKS_AT_ONCE == LOOKS_AT_ONCE - 1 {
                    // The queue must not overflow in the meantime.
                    self.watch.read()?;
                }
            }
        }
    }

    /// Looks what a name stands for.
    fn look(&mut self, at: At) -> Result<(), Refusal> {
        let is_created = self.links.created.remove(&at);
        let found = match self.directories.get(&at.0) {
            Some(directory) => match hold(directory.as_fd(), &at.1) {
                Ok(found) => found,
                Err(Errno::NOENT) => {
                    self.tree.set(at, None);
                    return Ok(());
                }
                Err(errno) => return Err(self.lose(format!("cannot look at {}: {errno}", at.1))),
            },
            None => {
                self.tree.set(at, None);
                return Ok(());
            }
        };
        let identity = proc::identity("", &found, AtFlags::EMPTY_PATH)?;
        if identity.device != self.device {
            return Err(self.lose(format!("{} is on another device", at.1)));
        }
        if identity.links > 1 && identity.kind == FileType::RegularFile {
            self.tree.linked();
        }
        if let Some(&number) = self.inodes.get(&identity.inode) {
            if self.tree.entry(&at) != Some(Entry::Known(number)) {
                self.links.seen += usize::from(is_created);
                // Events that came under this name may have been meant for it, and events under its other names for others.
                if let Some(Entry::Known(other)) = self.tree.entry(&at) {
                    self.opened(other);
                }
                self.opened(number);
                self.with(number, |file| file.moved = true);
            }
            self.tree.set(at.clone(), Some(Entry::Known(number)));
            let names = if identity.kind == FileType::Directory { 1 } else { identity.links };
            if self.tree.names(number).count() as u64 > u64::from(names) {
                // It has come from one of the others since that was looked at.
                self.tree.doubt_others(number, &at);
            }
            // It may have moved while the volume was listed, from where nobody had looked yet to where somebody had.
            return if self.unlisted.contains(&number) { self.list(number) } else { Ok(()) };
        }
        let entry = match identity.kind {
            FileType::RegularFile => {
                let number = self.adopt(identity, Kind::File, found)?;
                let moved = self.tree.entry(&at) != Some(Entry::Unknown { moved: false });
                self.with(number, |file| file.moved = moved);
                Entry::Known(number)
            }
            FileType::Directory => Entry::Known(self.adopt(identity, Kind::Directory, found)?),
            FileType::Symlink => {
                let target = fs::readlinkat(&found, "", Vec::new())?.into_bytes();
                Entry::Known(self.adopt(identity, Kind::Link(target.into()), found)?)
            }
            _ => Entry::Ignored,
        };
        self.tree.set(at, Some(entry));
        Ok(())
    }

    /// Gives a number to what has none.
    fn adopt(&mut self, identity: Identity, kind: Kind, found: OwnedFd) -> Result<Number, Refusal> {
        if self.known.len() >= self.bounds.files {
            return Err(self.lose(format!("the volume has more than {} files (--files-max)", self.bounds.files)));
        }
        let reused = if planted::has(Bug::NumberUsedTwice) { self.first_free() } else { None };
        let number = reused.unwrap_or(self.next);
        self.next = self.next.max(number.next());
        self.inodes.insert(identity.inode, number);
        let mut hold = Some(found);
        match (&kind, &hold) {
            (Kind::File, Some(found)) => {
                let file = match reopen(found) {
                    Ok(reader) => File::new(identity.inode, reader),
                    Err(errno) => {
                        let mut file = File::new(identity.inode, found.try_clone()?);
                        file.fault = Some(format!("file {number} cannot be read: {errno}"));
                        file
                    }
                };
                let mapped = self.mapped_elsewhere.has(identity.inode);
                // Its first name may be elsewhere, and events of descriptors that come by it.
                let ragged = self.links.may_be_elsewhere(self.effects.links());
                self.files.insert(number, File { mapped, ragged, ..file });
                self.effects.come(identity.inode, number);
                self.opened(number);
                hold = None;
            }
            (Kind::Directory, Some(found)) => {
                match self.watch.add(found.as_fd(), number) {
                    // Likewise.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    added => added?,
                }
                self.directories.insert(number, found.try_clone()?);
                // What it had before it was watched.
                self.list(number)?;
            }
            _ => {}
        }
        self.known.insert(number, Known { inode: identity.inode, kind, hold });
        Ok(number)
    }

    /// For a planted bug.
    fn first_free(&self) -> Option<Number> {
        (1..self.next.0)
            .map(Number)
            .find(|number| !self.known.contains_key(number) && self.image.node(*number).is_none())
    }

    /// Forgets what has no name, here and in the log. Until a removed name is gone there too, a power failure may bring it back:
    /// then the file has to be as its last sync left it.
    pub(super) fn forget_gone(&mut self) {
        let leaving = std::mem::take(&mut self.leaving);
        for number in leaving {
            if self.tree.names(number).next().is_some() {
                continue;
            }
            if self.image.node(number).is_some_and(|node| !node.names.is_empty()) {
                self.leaving.insert(number);
            } else {
                self.forget(number);
            }
        }
    }

    fn forget(&mut self, number: Number) {
        if self.image.node(number).is_some() {
            self.orphans.insert(number);
        }
        if let Some(File { inode, mapped, .. }) = self.files.remove(&number) {
            self.effects.leave(inode, number);
            if mapped {
                self.mapped_elsewhere.add(inode);
            }
        }
        self.directories.remove(&number);
        self.unlisted.remove(&number);
        self.modes.remove(&number);
        if let Some(known) = self.known.remove(&number)
            && !planted::has(Bug::InodeReused)
        {
            self.inodes.remove(&known.inode);
        }
    }
}

fn reopen_directory(held: &OwnedFd) -> Result<OwnedFd, Errno> {
    fs::openat(held, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Bits::empty())
}
