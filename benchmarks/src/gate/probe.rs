//! A probe: this program as a child that measures one build when it is asked to. Requests and answers are lines of JSON.
//!
//! A build that has a `./bench` with this version of the conversation is measured by that, so that a client library that became
//! slower is seen too. Any other is measured by this build's probe, with the sidecar of that build.

use std::io::{BufRead, BufReader, Lines, Write, stdin, stdout};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cases::{Case, Groups};
use crate::results::Figures;

/// Raised when requests, answers or what a case means have changed.
const VERSION: u32 = 1;
/// How long a probe may take to stop its groups.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Serialize, Deserialize)]
struct Hello {
    probe: u32,
}

#[derive(Serialize, Deserialize)]
enum Request {
    Start,
    Measure { case: String, milliseconds: u64 },
    Stop,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Done,
    Figures(Figures),
    /// This build cannot do that, or does not know the case.
    Cannot,
    Failed(String),
}

/// The child's side: serves until its standard input ends.
pub(crate) fn serve(program: &Path, memory: &Path) -> Result<()> {
    send(&mut stdout(), &Hello { probe: VERSION })?;
    let mut groups = None;
    for line in stdin().lines() {
        let request = parse(&line.context("read a request")?)?;
        let answer = obey(request, &mut groups, program, memory);
        send(&mut stdout(), &answer.unwrap_or_else(|error| Answer::Failed(format!("{error:#}"))))?;
    }
    Ok(())
}

fn obey(request: Request, groups: &mut Option<Groups>, program: &Path, memory: &Path) -> Result<Answer> {
    match request {
        Request::Start => *groups = Some(Groups::start(program, memory)?),
        Request::Stop => *groups = None,
        Request::Measure { case, milliseconds } => {
            let groups = groups.as_ref().context("the groups were not started")?;
            let Some(case) = Case::find(&case) else { return Ok(Answer::Cannot) };
            let figures = case.measure(program, memory, groups, Duration::from_millis(milliseconds))?;
            return Ok(figures.map_or(Answer::Cannot, Answer::Figures));
        }
    }
    Ok(Answer::Done)
}

/// The parent's side. The child ends when this is dropped.
pub(super) struct Probe {
    child: Child,
    requests: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Probe {
    /// `None` if that `./bench` does not speak this version.
    pub(super) fn start(bench: &Path, sidecar: &Path, memory: &Path) -> Result<Option<Probe>> {
        let mut command = Command::new(bench);
        command.arg("--probe").arg("--program").arg(sidecar).arg("--memory").arg(memory);
        // What it has to say it answers. An older one would only explain its own options.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("start {}", bench.display()))?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take().context("its standard output")?);
        let mut probe = Probe { child, requests, answers: BufReader::new(answers).lines() };
        let hello = probe.answers.next().and_then(Result::ok).and_then(|line| parse::<Hello>(&line).ok());
        Ok(hello.is_some_and(|hello| hello.probe == VERSION).then_some(probe))
    }

    /// Restarts the groups.
    pub(super) fn start_groups(&mut self) -> Result<()> {
        self.ask(&Request::Start).map(|_| ())
    }

    pub(super) fn stop_groups(&mut self) -> Result<()> {
        self.ask(&Request::Stop).map(|_| ())
    }

    /// `None` if that build cannot do it.
    pub(super) fn measure(&mut self, case: &str, time: Duration) -> Result<Option<Figures>> {
        let request = Request::Measure { case: case.to_owned(), milliseconds: time.as_millis() as u64 };
        match self.ask(&request).with_context(|| case.to_owned())? {
            Answer::Figures(figures) => Ok(Some(figures)),
            _ => Ok(None),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        let requests = self.requests.as_mut().context("the probe has been told to end")?;
        send(requests, request)?;
        let line = self.answers.next().context("the probe has ended")?.context("read an answer")?;
        match parse(&line)? {
            Answer::Failed(why) => bail!(why),
            answer => Ok(answer),
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // At the end of its input it stops its groups: a probe that is killed leaves them behind.
        self.requests = None;
        let give_up = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(to: &mut impl Write, what: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(what).context("write a line of JSON")? + "\n";
    to.write_all(line.as_bytes()).and_then(|()| to.flush()).context("the probe has ended")
}

fn parse<T: DeserializeOwned>(line: &str) -> Result<T> {
    serde_json::from_str(line).with_context(|| format!("understand `{line}`"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program that says this and copies its input.
    fn probe(says: &str) -> (tempfile::TempDir, Result<Option<Probe>>) {
        let folder = tempfile::tempdir().unwrap();
        let bench = folder.path().join("bench");
        std::fs::write(&bench, format!("#!/bin/sh\n{says}\n")).unwrap();
        std::fs::set_permissions(&bench, std::fs::Permissions::from_mode(0o755)).unwrap();
        let started = Probe::start(&bench, Path::new("sidecar"), Path::new("/dev/shm"));
        (folder, started)
    }

    #[test]
    fn builds_that_speak_otherwise_are_not_asked() {
        for says in ["echo '{\"probe\":0}'", "echo usage; exit 2", "exit 2", "echo error >&2; exit 2"] {
            assert!(probe(says).1.unwrap().is_none(), "{says}");
        }
    }

    #[test]
    fn answers_are_figures_refusals_or_errors() {
        let answer = |answer: &str| {
            let (folder, probe) = probe(&format!("echo '{{\"probe\":{VERSION}}}'; read line; echo '{answer}'"));
            let found = probe.unwrap().unwrap().measure("a case", Duration::from_secs(1));
            drop(folder);
            found.map_err(|error| format!("{error:#}"))
        };
        assert_eq!(answer(r#"{"Figures":{"p50":1.5}}"#), Ok(Some([(crate::results::Metric::P50, 1.5)].into())));
        assert_eq!(answer("\"Cannot\""), Ok(None));
        assert_eq!(answer(r#"{"Failed":"no hello"}"#), Err("a case: no hello".to_owned()));
        assert!(answer("what?").unwrap_err().contains("understand `what?`"));
    }
}
