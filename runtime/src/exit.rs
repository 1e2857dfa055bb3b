//! How the programs of this workspace end: their exit codes, and the error that is a mistake of the command line.
//!
//! Every `main` ends with one of these. A process that must not continue, because what it would do next might be wrong, aborts
//! instead (`SIGABRT`, which shells show as 134).

use std::process::ExitCode;

use clap::ValueEnum;

/// The exit codes. Their descriptions are the documentation's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u8)]
pub enum Exit {
    /// Success, or a clean stop of a sidecar, backup, operator or top by SIGTERM or SIGINT. Also if the reader of the output closes
    /// it, as `head` does
    Success = 0,
    /// Something failed, or SIGTERM or SIGINT has ended append, read, tail or follow before the end; standard error says what, and
    /// what to do
    Failure = 1,
    /// The command line or a variable is wrong: nothing was done
    Usage = 2,
    /// status --check: the log can be appended to, and something is missing (DEGRADED)
    Degraded = 3,
    /// status --check: appends wait, or there is no primary (WAITING)
    Waiting = 4,
}

impl Exit {
    /// The code of a program that ends with this error.
    pub fn of(error: &anyhow::Error) -> Exit {
        if error.downcast_ref::<UsageError>().is_some() { Exit::Usage } else { Exit::Failure }
    }

    /// The number.
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        exit.code().into()
    }
}

/// Options that cannot be used, or not together; the message names them and says what is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl UsageError {
    /// A usage error with this message.
    pub fn new(message: impl Into<String>) -> UsageError {
        UsageError(message.into())
    }
}

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Returns with a [`UsageError`]: `usage!("--batch {batch}: at most {max}")`.
#[macro_export]
macro_rules! usage {
    ($($message:tt)*) => {
        return ::core::result::Result::Err($crate::exit::UsageError::new(::std::format!($($message)*)).into())
    };
}

/// Returns with a [`UsageError`] unless the condition holds.
#[macro_export]
macro_rules! ensure_usage {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            $crate::usage!($($message)*);
        }
    };
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_mistake_of_the_command_line_has_its_own_code() {
        fn check(copies: u8) -> anyhow::Result<()> {
            ensure_usage!(copies > 0, "--backups {copies}: 1 to 7");
            anyhow::bail!("the disk is full")
        }
        let mistake = check(0).context("start").unwrap_err();
        assert_eq!(
            (Exit::of(&mistake), format!("{mistake:#}")),
            (Exit::Usage, "start: --backups 0: 1 to 7".to_owned())
        );
        assert_eq!(Exit::of(&check(3).unwrap_err()), Exit::Failure);
    }

    #[test]
    fn every_code_is_described() {
        let codes: Vec<u8> = Exit::value_variants().iter().map(|exit| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4]);
        for exit in Exit::value_variants() {
            assert!(exit.to_possible_value().is_some_and(|value| value.get_help().is_some()), "{exit:?}");
        }
    }
}
