//! Logs to standard error, as text for people or as JSON for collectors; and errors as one line.
//!
//! Started once by [`process::run`](crate::process::run).

use std::io::IsTerminal;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

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
    /// What to log: error, warn, info or debug, also per module as in info,tailwind_runtime::http=debug
    #[arg(long, env = "TAILWIND_LOG", default_value = "info", global = true, value_name = "FILTER")]
    #[arg(help_heading = "Logging")]
    #[arg(value_parser = parse_filter)]
    pub log: String,
    /// Format of log lines
    #[arg(long, env = "TAILWIND_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, global = true)]
    #[arg(help_heading = "Logging")]
    pub log_format: LogFormat,
}

/// Levels as filters name them.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A filter of levels and of modules with levels. [`EnvFilter`] takes any word for a module that is logged in full, so that a
/// misspelled level would silence the log.
fn parse_filter(text: &str) -> Result<String, String> {
    let example = "use off, error, warn, info, debug or trace, also per module as in info,tailwind_runtime::http=debug";
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let directives = || text.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    if directives().next().is_none() {
        return Err(format!("names no level: {example}"));
    }
    for directive in directives() {
        let Some((module, level)) = directive.split_once('=') else {
            if is_level(directive) {
                continue;
            }
            return Err(format!("`{directive}` is no level: {example}"));
        };
        let is_path = module.split("::").all(|name| {
            let mut chars = name.chars();
            chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
                && chars.all(|char| char.is_ascii_alphanumeric() || char == '_')
        });
        if !is_path {
            return Err(format!("`{module}` is no module: {example}"));
        }
        if !is_level(level) {
            return Err(format!("`{level}` in `{directive}` is no level: {example}"));
        }
    }
    Ok(text.to_owned())
}

impl LogOptions {
    /// Starts logging.
    pub fn start(&self) -> anyhow::Result<()> {
        let filter = EnvFilter::try_new(&self.log).with_context(|| format!("--log {}", self.log))?;
        // Their errors are logged where they are consumed.
        let quiet = ["kube_client", "kube_runtime"].into_iter().filter(|module| !self.log.contains(module));
        let filter = quiet
            .map(|module| format!("{module}=off").parse())
            .try_fold(filter, |filter, directive| directive.map(|directive| filter.add_directive(directive)))?;
        // If nobody reads the log any more, that is no reason to panic.
        let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
        match self.log_format {
            LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
            LogFormat::Json => builder.json().flatten_event(true).init(),
        }
        Ok(())
    }
}

/// An error with its causes, each once: some errors include their cause in their own message.
pub fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_and_modules_with_levels() {
        for good in ["info", "WARN", "info,tailwind_sidecar::path=debug", "off, kube=trace,"] {
            assert_eq!(parse_filter(good).as_deref(), Ok(good));
        }
        for (bad, words) in [
            ("", "names no level"),
            (",", "names no level"),
            ("verbose", "`verbose` is no level"),
            ("info,debgu", "`debgu` is no level"),
            ("tailwind_sidecar", "`tailwind_sidecar` is no level"),
            ("info,tailwind_sidecar=loud", "`loud` in `tailwind_sidecar=loud` is no level"),
            ("=debug", "`` is no module"),
            ("some module=debug", "`some module` is no module"),
        ] {
            let error = parse_filter(bad).unwrap_err();
            assert!(error.contains(words) && error.contains("use off, error"), "{bad}: {error}");
        }
    }

    #[test]
    fn an_error_names_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("list folder /x: {0}")]
        struct ListError(#[source] std::io::Error);

        let not_found = || std::io::Error::from_raw_os_error(2);
        let plain = anyhow::Error::new(not_found()).context("open the file");
        assert_eq!(explain(&plain), "open the file: No such file or directory (os error 2)");
        let text = explain(&anyhow::Error::new(ListError(not_found())).context("start"));
        assert_eq!(text, "start: list folder /x: No such file or directory (os error 2)");
    }
}
