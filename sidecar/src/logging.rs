//! Logs to standard error, as text for people or as JSON for collectors.
//!
//! Called once by `main`.

use std::io::IsTerminal;

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
    /// What to log: error, warn, info or debug, also per module as in info,tailwind_sidecar::path=debug
    #[arg(long, env = "TAILWIND_LOG", default_value = "info", global = true, value_name = "FILTER")]
    pub log: String,
    /// How log lines look: text on a terminal, json for collectors
    #[arg(long, env = "TAILWIND_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, global = true)]
    pub log_format: LogFormat,
}

impl LogOptions {
    /// Starts logging.
    pub fn start(&self) -> anyhow::Result<()> {
        let filter = EnvFilter::try_new(&self.log).map_err(|error| {
            anyhow::anyhow!("--log {}: {error}; an example is info,tailwind_sidecar=debug", self.log)
        })?;
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
