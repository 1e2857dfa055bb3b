//! Runs the pairs: both builds measure a case, one right after the other.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use indicatif::ProgressBar;

use super::probe::Probe;
use super::{AFTER, BEFORE, Driver, Earlier, Gate, cases};
use crate::machine;
use crate::results::{About, Absent, Contestant, Sample};

/// How long one measurement takes at full effort.
const MEASUREMENT: Duration = Duration::from_millis(500);

/// This build, and where both have their memory.
pub(crate) struct Today<'a> {
    pub(crate) bench: &'a Path,
    pub(crate) sidecar: &'a Path,
    pub(crate) memory: &'a Path,
}

/// Which build a failure is of: that this one fails is an error, that the other does is a result.
enum Failed {
    Before(anyhow::Error),
    After(anyhow::Error),
}

/// Compares. A named commit that cannot be measured is said to be so in the result.
pub(crate) fn run(about: About, earlier: &Earlier, today: &Today<'_>, progress: &ProgressBar) -> Result<Gate> {
    let mut gate = Gate::new(about, earlier.commit.clone());
    gate.comparison.busy_before = machine::busy();
    match compare(&mut gate, earlier, today, progress) {
        Ok(()) => {}
        Err(Failed::After(error)) => return Err(error),
        Err(Failed::Before(error)) => gate.impossible = Some(format!("{error:#}")),
    }
    Ok(gate)
}

fn compare(gate: &mut Gate, earlier: &Earlier, today: &Today<'_>, progress: &ProgressBar) -> Result<(), Failed> {
    let mut after = probe_with(today, today.sidecar).map_err(Failed::After)?;
    let (driver, mut before) = probe_of(earlier, today).map_err(Failed::Before)?;
    gate.driver = driver;
    gate.comparison.contestants = contestants(gate, driver);
    let time = MEASUREMENT * gate.about.effort / 100;
    for round in 1..=gate.about.rounds {
        gate.comparison.load.push(machine::load());
        progress.set_message(format!("gate, pair {round} of {}", gate.about.rounds));
        before.start_groups().map_err(Failed::Before)?;
        after.start_groups().map_err(Failed::After)?;
        for (number, case) in cases::ALL.iter().enumerate() {
            progress.set_message(format!("gate, pair {round} of {}: {}", gate.about.rounds, case.name));
            if gate.comparison.absent.iter().any(|absent| absent.name == case.name) {
                continue;
            }
            let mut measure = |gate: &mut Gate, first: bool| -> Result<(), Failed> {
                let (contestant, figures) = match first {
                    true => (BEFORE, before.measure(case.name, time).map_err(Failed::Before)?),
                    false => (AFTER, after.measure(case.name, time).map_err(Failed::After)?),
                };
                note(gate, contestant, case.name, round, figures);
                Ok(())
            };
            // The second build may find a machine that the first has warmed up, or worn down.
            let first = (round as usize + number).is_multiple_of(2);
            measure(gate, first)?;
            measure(gate, !first)?;
        }
        before.stop_groups().map_err(Failed::Before)?;
        after.stop_groups().map_err(Failed::After)?;
        progress.inc(1);
    }
    Ok(())
}

fn probe_of(earlier: &Earlier, today: &Today<'_>) -> Result<(Driver, Probe)> {
    let [sidecar, bench] = ["tailwind-sidecar", "tailwind-bench"].map(|name| earlier.folder.join(name));
    if !sidecar.is_file() {
        return Err(anyhow!("it could not be built"));
    }
    if bench.is_file()
        && let Some(probe) = Probe::start(&bench, &sidecar, today.memory)?
    {
        return Ok((Driver::Own, probe));
    }
    Ok((Driver::Todays, probe_with(today, &sidecar)?))
}

/// Today's probe, of this sidecar.
fn probe_with(today: &Today<'_>, sidecar: &Path) -> Result<Probe> {
    Probe::start(today.bench, sidecar, today.memory)?.context("this program has no probe")
}

fn contestants(gate: &Gate, driver: Driver) -> Vec<Contestant> {
    let one = |name: &str, version: String, client: &str| Contestant {
        name: name.to_owned(),
        version,
        claim: "in the memory of all 3 backups".to_owned(),
        configuration: format!("--backups 3 --segment-size 8MiB --durability memory, 8 buffers a backup; {client}"),
    };
    let client = match driver {
        Driver::Own => "driven by its own client",
        Driver::Todays => "driven by the client of *after*",
    };
    vec![
        one(BEFORE, format!("commit {}", gate.against.short()), client),
        one(AFTER, gate.about.revision.clone(), "driven by its own client"),
    ]
}

fn note(gate: &mut Gate, contestant: &str, case: &str, round: u32, figures: Option<crate::results::Figures>) {
    let (contestant, case) = (contestant.to_owned(), case.to_owned());
    match figures {
        Some(figures) => gate.comparison.samples.push(Sample { contestant, case, at: None, round, figures }),
        None => {
            let why = format!("the build {contestant} cannot do that");
            let known = gate.comparison.absent.iter().any(|absent| absent.name == case);
            if !known {
                gate.comparison.absent.push(Absent { name: case, why });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::gate::{Commit, Verdict};
    use crate::report::example;

    /// A folder with both programs; the client answers each request like this.
    fn build(hello: &str, answer: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let bench = format!(
            "#!/bin/sh\necho '{hello}'\n\
             while read line; do case \"$line\" in *Measure*) echo '{answer}';; *) echo '\"Done\"';; esac; done\n"
        );
        for (name, text) in [("tailwind-bench", bench.as_str()), ("tailwind-sidecar", "")] {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder
    }

    const HELLO: &str = r#"{"probe":1}"#;

    fn compared(before: &tempfile::TempDir, after: &tempfile::TempDir) -> Result<Gate> {
        let commit = Commit::parse("abcdef0123456789 of old").unwrap();
        let earlier = Earlier { commit, folder: before.path().to_owned() };
        let (bench, sidecar) = (after.path().join("tailwind-bench"), after.path().join("tailwind-sidecar"));
        let today = Today { bench: &bench, sidecar: &sidecar, memory: after.path() };
        let about = About { rounds: 13, ..example::gate().about };
        run(about, &earlier, &today, &ProgressBar::hidden())
    }

    #[test]
    fn each_build_is_measured_by_its_own_client() {
        let (before, after) =
            (build(HELLO, r#"{"Figures":{"p50":60.0}}"#), build(HELLO, r#"{"Figures":{"p50":90.0}}"#));
        let gate = compared(&before, &after).unwrap();
        assert_eq!((gate.driver, gate.impossible.as_ref()), (Driver::Own, None));
        let rows = gate.rows();
        assert_eq!(rows.len(), 6, "one append at a time");
        assert!(rows.iter().all(|row| row.before.max == 60.0 && row.after.min == 90.0));
        assert!(rows.iter().all(|row| row.judged.verdict == Verdict::Worse));
        assert!(
            !compared(&after, &before).unwrap().rows().is_empty()
                && compared(&after, &before).unwrap().regressions().is_empty()
        );
    }

    #[test]
    fn a_client_that_cannot_be_asked_is_replaced_and_that_is_said() {
        let answer = r#"{"Figures":{"p50":60.0}}"#;
        let gate = compared(&build("usage", answer), &build(HELLO, answer)).unwrap();
        assert_eq!((gate.driver, gate.impossible), (Driver::Todays, None));
    }

    #[test]
    fn a_commit_that_cannot_be_measured_is_no_answer() {
        let (fine, broken) =
            (build(HELLO, r#"{"Figures":{"p50":60.0}}"#), build(HELLO, r#"{"Failed":"no such frame"}"#));
        let gate = compared(&broken, &fine).unwrap();
        assert_eq!(gate.impossible.as_deref(), Some("shm, one append, client sleeps: no such frame"));
        assert!(compared(&fine, &broken).unwrap_err().to_string().contains("shm, one append"), "that is an error");
        fs::remove_file(broken.path().join("tailwind-sidecar")).unwrap();
        assert_eq!(compared(&broken, &fine).unwrap().impossible.as_deref(), Some("it could not be built"));
    }

    #[test]
    fn what_one_build_cannot_do_is_missing() {
        let gate = compared(&build(HELLO, r#""Cannot""#), &build(HELLO, r#"{"Figures":{"p50":60.0}}"#)).unwrap();
        assert_eq!(gate.comparison.absent.len(), cases::ALL.len());
        assert_eq!(gate.comparison.absent[0].why, "the build before cannot do that");
        assert!(gate.rows().is_empty());
    }
}
