//! Names: follows inotify, and looks at what its events leave open.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode as Bits, OFlags};
use rustix::io::Errno;
use tracing::info;

use super::files::File;
use super::proc::{self, Identity};
use super::tree::{At, Entry, Note};
use super::watch::Event;
use super::{Known, Refusal, Volume, hold, reopen};
use crate::planted::{self, Bug};
use crate::ranges::Ranges;
use crate::record::{Kind, Name, Number};

/// The second event of a rename follows the first one at once, unless the thread between them has to wait for a processor.
const RENAME_TIME: Duration = Duration::from_secs(1);

/// A look takes microseconds, and each is repeated whose name has changed in between. A program that makes and moves the same
/// names in a loop pauses for that long now and then, if only because a processor is another's.
const SETTLE_TIME: Duration = Duration::from_secs(30);

impl Volume {
    /// Follows the queue of events until the names are all known, and those of one moment. An event that was taken does not come
    /// again, so whatever goes wrong here is for good.
    pub(super) fn settle(&mut self) -> Result<(), Refusal> {
        self.or_lose(Volume::follow_events)
    }

    fn follow_events(&mut self) -> Result<(), Refusal> {
        let began = Instant::now();
        let mut floating = None;
        self.watch.read()?;
        loop {
            self.follow_read()?;
            self.look_at_unsure()?;
            if !self.tree.is_floating() {
                floating = None;
            } else if floating.get_or_insert_with(Instant::now).elapsed() < RENAME_TIME {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                self.leave_floating()?;
                floating = None;
            }
            if !self.tree.is_ahead() && floating.is_none() {
                break;
            }
            self.watch.read()?;
            let contradicts = |event: &Event| match event {
                Event::At(at, what) => self.tree.contradicts(at, *what),
                Event::Overflow | Event::Unmounted => true,
            };
            if floating.is_none() && !self.watch.events().iter().any(contradicts) {
                break;
            }
            if began.elapsed() > SETTLE_TIME {
                let why = format!("for {SETTLE_TIME:?} names were made and moved faster than they can be looked at");
                return Err(self.lose(why));
            }
        }
        self.leaving.extend(self.tree.take_nameless());
        self.forget_gone();
        Ok(())
    }

    /// Follows the events that have been read.
    fn follow_read(&mut self) -> Result<(), Refusal> {
        let mut lost = false;
        for event in self.watch.take() {
            let (at, what) = match event {
                Event::At(at, what) => (at, what),
                Event::Overflow => {
                    lost |= !planted::has(Bug::OverflowIgnored);
                    continue;
                }
                Event::Unmounted => return Err(self.lose("the volume was unmounted".into())),
            };
            for note in self.tree.follow(at, what) {
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
        if lost {
            self.list_all()?;
        }
        Ok(())
    }

    pub(super) fn with(&mut self, number: Number, change: impl FnOnce(&mut File)) {
        if let Some(file) = self.files.get_mut(&number) {
            change(file);
        }
    }

    fn opened(&mut self, number: Number) {
        for opens in self.effects.all_mut().filter_map(|effect| effect.opens.as_mut()) {
            opens.insert(number);
        }
        self.with(number, File::suspect);
    }

    /// The second event of a rename has not come: what was renamed has left the volume.
    fn leave_floating(&mut self) -> Result<(), Refusal> {
        for number in self.tree.take_floating() {
            if self.directories.contains_key(&number) {
                return Err(self.lose(format!("directory {number} was moved out of the volume")));
            }
        }
        Ok(())
    }

    /// Lists the whole directory again, and takes nothing for granted.
    pub(super) fn relist(&mut self) -> Result<(), Refusal> {
        self.or_lose(Volume::list_all)
    }

    fn list_all(&mut self) -> Result<(), Refusal> {
        info!("lists the volume again and compares all of it");
        self.tree.forget_entries();
        self.files.values_mut().for_each(File::suspect);
        // The root's own mode is not kept.
        self.modes.extend(self.known.keys().filter(|number| **number != Number::ROOT));
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
            for at in unsure {
                self.look(at)?;
            }
        }
    }

    /// Looks what a name stands for.
    fn look(&mut self, at: At) -> Result<(), Refusal> {
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
                // Events that came under this name may have been meant for it, and events under its other names for others.
                if let Some(Entry::Known(other)) = self.tree.entry(&at) {
                    self.with(other, File::suspect);
                }
                self.with(number, |file| {
                    file.suspect();
                    file.moved = true;
                });
            }
            self.tree.set(at, Some(Entry::Known(number)));
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
                self.files.insert(number, file);
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
        self.known.insert(number, Known { inode: identity.inode, kind, _hold: hold });
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
        self.files.remove(&number);
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
