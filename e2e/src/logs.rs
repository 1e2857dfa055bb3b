//! What programs have logged, looked through for what a healthy one does not write.
//!
//! Used for processes of this host, of virtual machines and of containers.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde_json::Value;

/// The log files of a group's processes, by the names of these.
#[derive(Clone, Debug, Default)]
pub struct Logs(pub(crate) Vec<(String, PathBuf)>);

impl Logs {
    /// A process's log.
    pub fn log(&self, name: &str) -> String {
        let known = self.0.iter().find(|(known, _)| known == name);
        known.and_then(|(_, path)| fs::read_to_string(path).ok()).unwrap_or_default()
    }

    /// The last lines of every log.
    pub fn last_lines(&self, count: usize) -> String {
        self.0.iter().map(|(name, _)| last_lines(name, self.log(name).lines(), count)).collect()
    }

    /// No process has logged an error or a warning, but those expected: see [`unexpected`]. Every line has the span of its
    /// sidecar or backup.
    pub fn check_logs(&self, expected: &[&str]) -> Result<()> {
        for (name, _) in &self.0 {
            let log = self.log(name);
            check([(name.clone(), log.lines().map(str::to_owned).collect())], expected)?;
            let (kind, field) = if name.starts_with("backup") { ("backup", "member") } else { ("sidecar", "sidecar") };
            let text = format!(" {kind}{{group=demo {field}={name}}}: ");
            let json = format!(r#""span":{{"group":"demo","{field}":"{name}","name":"{kind}"}}"#);
            let stray = log.lines().find(|line| !line.is_empty() && !line.contains(&text) && !line.contains(&json));
            ensure!(stray.is_none(), "{name}: a line without its span: {stray:?}");
        }
        Ok(())
    }

    /// For a failing test: prints the end of each log, and keeps the files.
    #[allow(clippy::print_stderr, reason = "a failing test reports to people")]
    pub(crate) fn report_failure(&self, folder: &str) {
        eprintln!("{}", self.last_lines(LINES_SHOWN));
        keep(folder, self.0.iter().map(|(_, path)| path.clone()));
    }
}

/// Lines of each log that a failing test shows.
const LINES_SHOWN: usize = 30;

/// Copies the files of a failing test to a folder in `TAILWIND_KEEP_LOGS`, if that is set.
pub(crate) fn keep(folder: &str, files: impl Iterator<Item = PathBuf>) {
    let Some(kept) = std::env::var_os("TAILWIND_KEEP_LOGS").map(|kept| PathBuf::from(kept).join(folder)) else {
        return;
    };
    // If this fails, the test fails anyway.
    let _ = fs::create_dir_all(&kept);
    for path in files.filter(|path| path.is_file()) {
        let _ = fs::copy(&path, kept.join(path.file_name().unwrap_or_default()));
    }
}

/// The last lines of one log, below its name.
pub(crate) fn last_lines<'a>(name: &str, lines: impl Iterator<Item = &'a str>, count: usize) -> String {
    let lines: Vec<&str> = lines.collect();
    let last = &lines[lines.len().saturating_sub(count)..];
    format!("--- {name} ({} lines)\n{}\n", lines.len(), last.join("\n"))
}

/// Fails with the lines of these logs that are [`unexpected`].
pub(crate) fn check(logs: impl IntoIterator<Item = (String, Vec<String>)>, expected: &[&str]) -> Result<()> {
    let found = logs.into_iter().flat_map(|(name, lines)| {
        unexpected(&lines, expected).into_iter().map(move |line| format!("{name}: {line}")).collect::<Vec<_>>()
    });
    let found: Vec<String> = found.collect();
    ensure!(found.is_empty(), "unexpected lines in the logs:\n{}", found.join("\n"));
    Ok(())
}

/// Lines that a healthy program does not write: panics and everything else that is no log line; warnings, unless they contain
/// one of `expected`; and errors, unless they contain what stands there after `error: `. Programs log in text or in JSON.
pub(crate) fn unexpected<'a>(lines: impl IntoIterator<Item = &'a String>, expected: &[&str]) -> Vec<String> {
    let is_expected = |line: &str| match level(line).as_str() {
        "INFO" | "DEBUG" | "TRACE" => true,
        "WARN" => expected.iter().any(|words| line.contains(words)),
        "ERROR" => expected.iter().filter_map(|words| words.strip_prefix("error: ")).any(|words| line.contains(words)),
        _ => line.is_empty(),
    };
    lines.into_iter().filter(|line| !is_expected(line)).cloned().collect()
}

fn level(line: &str) -> String {
    match serde_json::from_str::<Value>(line) {
        Ok(Value::Object(fields)) => fields.get("level").and_then(Value::as_str).unwrap_or_default().to_uppercase(),
        _ => line.split_whitespace().nth(1).unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_lines_are_found() {
        let lines = [
            "2026-01-01T00:00:00Z  INFO tailwind: started",
            "2026-01-01T00:00:00Z  WARN tailwind: member lost",
            "2026-01-01T00:00:00Z  WARN tailwind: something else",
            r#"{"timestamp":"2026","level":"INFO","fields":{"message":"fine"}}"#,
            r#"{"timestamp":"2026","level":"ERROR","fields":{"message":"bad"}}"#,
            "thread 'main' panicked at src/main.rs:1:1:",
        ]
        .map(str::to_owned);
        assert_eq!(unexpected(&lines, &["member lost", "bad"]), [&lines[2], &lines[4], &lines[5]].map(String::clone));
        assert_eq!(unexpected(&lines, &["something", "member", "error: bad"]), [lines[5].clone()]);
    }
}
