//! What probes of the container are told: `tailwind-exec ready`, a process of its own beside the one that runs.
//!
//! `life` leaves word in the folder beside the directory.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::own_folder::OwnFolder;

/// The file's name.
const FILE: &str = "readiness";

/// How far `life` is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Readiness {
    /// The directory is not as the log has it, or its program is about to start.
    Starts,
    /// A standby that could start the program at once.
    Follows,
    /// The program runs.
    Runs,
}

impl Readiness {
    const ALL: [Readiness; 3] = [Readiness::Starts, Readiness::Follows, Readiness::Runs];

    fn word(self) -> &'static str {
        match self {
            Readiness::Starts => "starts",
            Readiness::Follows => "follows",
            Readiness::Runs => "runs",
        }
    }

    pub(crate) fn write(self, own: &OwnFolder) -> Result<()> {
        own.write(FILE, self.word())
    }

    fn read(directory: &Path) -> Result<Readiness> {
        let parent = directory.canonicalize().ok().and_then(|directory| directory.parent().map(Path::to_owned));
        let parent = parent.with_context(|| format!("no {}", directory.display()))?;
        let word = OwnFolder::open(&parent).and_then(|own| own.read(FILE));
        let word = word.with_context(|| format!("no tailwind-exec for {}", directory.display()))?;
        // It is being written.
        Ok(Readiness::ALL.into_iter().find(|readiness| readiness.word() == word).unwrap_or(Readiness::Starts))
    }
}

/// Succeeds for a standby that could take over, and for a program that runs. With a command, that becomes this process and
/// answers for the program.
pub fn probe(directory: &Path, command: &[OsString]) -> Result<()> {
    match (Readiness::read(directory)?, command) {
        (Readiness::Starts, _) => bail!("not ready: the directory is being filled, or the program is about to start"),
        (Readiness::Follows, _) | (Readiness::Runs, []) => Ok(()),
        (Readiness::Runs, [program, arguments @ ..]) => {
            let error = Command::new(program).args(arguments).exec();
            Err(error).with_context(|| format!("start {}", program.display()))
        }
    }
}
