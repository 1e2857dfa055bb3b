//! Following a program without a log: what would be appended is acknowledged at once. For dry runs and `doctor`.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::event::{EventfdFlags, eventfd};
use tailwind_client::Lsn;

use crate::directory::Directory;
use crate::image::Image;
use crate::record::Record;
use crate::supervisor::{Log, Loss};
use crate::volume::{Bounds, Refusal, Volume};

/// The largest record of a sidecar whose options are the default ones.
const RECORD_MAX: usize = 1 << 20;

/// A log that goes nowhere.
pub(crate) struct NoLog<F> {
    /// Gets each record.
    take: F,
    sent: Lsn,
    /// Never readable: no ack is waited for.
    silent: OwnedFd,
}

/// A directory with all that is in it, as the first records of such a log.
pub(crate) fn follow<F: FnMut(&[u8])>(directory: &Path, bounds: Bounds, take: F) -> Result<(Volume, NoLog<F>)> {
    let open = || File::open(directory).map(OwnedFd::from).with_context(|| format!("open {}", directory.display()));
    let mut image = Image::default();
    let begin = Record::Begin { next: image.next() };
    image.fold(&begin)?;
    // Nothing is made in the stage, as nothing comes from a log.
    let left = Directory::new(open()?, open()?)?.finish(&image)?;
    let bounds = Bounds { record: RECORD_MAX, ..bounds };
    let mut volume = Volume::new(bounds, image, left).context("watch the directory")?;
    let silent = eventfd(0, EventfdFlags::CLOEXEC)?;
    let mut log = NoLog { take, sent: Lsn(0), silent };
    log.send(&[begin.encode()])?;
    let imported = volume.import();
    let captured = volume.capture_all(|records| log.send(records))?;
    if let Err(Refusal::Lost(why) | Refusal::Full(why)) = imported.and(captured) {
        bail!("the files of {} cannot be followed: {why}", directory.display());
    }
    Ok((volume, log))
}

impl<F: FnMut(&[u8])> Log for NoLog<F> {
    fn record_max(&self) -> usize {
        RECORD_MAX
    }

    fn send(&mut self, records: &[Vec<u8>]) -> Result<(), Loss> {
        for record in records {
            (self.take)(record);
            self.sent = self.sent.next();
        }
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), Loss> {
        Ok(())
    }

    fn pump(&mut self) -> Result<(), Loss> {
        Ok(())
    }

    fn take_acks(&mut self) -> Result<(), Loss> {
        Ok(())
    }

    fn sent(&self) -> Lsn {
        self.sent
    }

    fn acked(&self) -> Lsn {
        self.sent
    }

    fn trim(&mut self, _: Lsn) {}

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.silent.as_fd()
    }
}
