//! Logs to standard error, as text for people or as JSON for collectors; and what is said about errors, and how often.
//!
//! Started once by `main`.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

/// The same trouble is logged at most so often.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// For collectors
    Json,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub struct LogOptions {
    /// What to log: error, warn, info or debug, also per module as in info,tailwind_sidecar::path=debug
    #[arg(long, env = "TAILWIND_LOG", default_value = "info", global = true, value_name = "FILTER", value_parser = parse_filter)]
    pub log: String,
    /// How log lines look: text on a terminal, json for collectors
    #[arg(long, env = "TAILWIND_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, global = true)]
    pub log_format: LogFormat,
}

const EXAMPLE: &str = "an example is info,tailwind_sidecar::path=debug";

/// Checks a filter with the other options, because an error is told in the log once there is one. A word that is no level would
/// be taken for a module of which everything is logged, and of all else nothing.
fn parse_filter(filter: &str) -> Result<String, String> {
    let words = filter.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.contains(['=', '[']));
    for word in words {
        let level = word.to_ascii_lowercase();
        let is_level = ["off", "error", "warn", "info", "debug", "trace"].contains(&level.as_str());
        if !is_level {
            return Err(format!("`{word}` is not a level (off, error, warn, info, debug, trace); {EXAMPLE}"));
        }
    }
    if filter.trim().is_empty() {
        return Err(format!("it is empty; {EXAMPLE}"));
    }
    EnvFilter::try_new(filter).map(|_| filter.to_owned()).map_err(|error| format!("{error}; {EXAMPLE}"))
}

impl LogOptions {
    /// Starts logging.
    pub fn start(&self) -> anyhow::Result<()> {
        let filter = EnvFilter::try_new(&self.log).with_context(|| format!("--log {}: {EXAMPLE}", self.log))?;
        // What fails in there is told where it is consumed.
        let quiet = ["kube_client", "kube_runtime"].into_iter().filter(|module| !self.log.contains(module));
        let filter = quiet
            .map(|module| format!("{module}=off").parse())
            .try_fold(filter, |filter, directive| directive.map(|directive| filter.add_directive(directive)))?;
        let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
            LogFormat::Json => builder.json().flatten_event(true).init(),
        }
        Ok(())
    }
}

/// An error with its causes, each told once: some errors name their cause in their own words already.
pub fn explain(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = cause;
        } else if !said.ends_with(&cause) {
            said += ": ";
            said += &cause;
        }
    }
    said
}

/// Keeps the same trouble from being logged at every try: once, and then every ten seconds.
#[derive(Debug)]
pub struct Repeats<T> {
    said: Option<(T, Instant)>,
}

impl<T> Default for Repeats<T> {
    fn default() -> Repeats<T> {
        Repeats { said: None }
    }
}

impl<T: PartialEq> Repeats<T> {
    /// True if this is to be logged now; then it counts as logged.
    pub fn is_due(&mut self, trouble: T, now: Instant) -> bool {
        let fresh = |(said, at): &(T, Instant)| *said != trouble || now.duration_since(*at) >= SAY_AGAIN;
        let is_due = self.said.as_ref().is_none_or(fresh);
        if is_due {
            self.said = Some((trouble, now));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_that_would_log_nothing_are_refused() {
        for good in ["info", "INFO", "off", "info,tailwind_sidecar::path=debug", "warn,[span]=trace"] {
            assert_eq!(parse_filter(good).as_deref(), Ok(good));
        }
        for bad in ["nonsense", "inf", "info,path", "loud,tailwind_sidecar=debug", "tailwind_sidecar=loud", "", " "] {
            let error = parse_filter(bad).unwrap_err();
            assert!(error.contains("an example is info,"), "{error}");
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        let not_found = || std::io::Error::from_raw_os_error(2);
        let plain = anyhow::Error::new(not_found()).context("open the file");
        assert_eq!(explain(&plain), "open the file: No such file or directory (os error 2)");
        let path = std::path::PathBuf::from("/x");
        let naming = crate::store::file::StoreError::Io { action: "list folder", path, source: not_found() };
        let said = explain(&anyhow::Error::new(naming).context("start"));
        assert_eq!(said, "start: list folder /x: No such file or directory (os error 2)");
    }

    #[test]
    fn the_same_trouble_is_due_again_after_a_while() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        assert!(repeats.is_due("a", start));
        assert!(!repeats.is_due("a", start + Duration::from_millis(60)));
        assert!(!repeats.is_due("a", start + SAY_AGAIN / 2));
        assert!(repeats.is_due("a", start + SAY_AGAIN));
        assert!(!repeats.is_due("a", start + SAY_AGAIN));
        assert!(repeats.is_due("b", start + SAY_AGAIN));
    }
}
