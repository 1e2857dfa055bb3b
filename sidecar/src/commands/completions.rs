//! `completions`: a script by which a shell completes commands, options and values.

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::command_line::CommandLine;

const EXAMPLES: &str = "\
Examples:
  For this bash session:
    source <(tailwind-sidecar completions bash)
  For every bash session of this user:
    tailwind-sidecar completions bash > ~/.local/share/bash-completion/completions/tailwind-sidecar
  For every zsh session, in a folder of its fpath:
    tailwind-sidecar completions zsh > /usr/local/share/zsh/site-functions/_tailwind-sidecar

Exit codes: 0 if the script was printed; 1 if something failed; 2 if the command line is invalid";

/// Print a script with which a shell completes commands, options and values.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsOptions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script.
pub fn run(options: &CompletionsOptions) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut CommandLine::command(), "tailwind-sidecar", &mut script);
    let script = String::from_utf8(script).context("make the script")?;
    // The script for bash spells the hyphen in our name in two ways, and completes nothing after a command then. See
    // https://github.com/clap-rs/clap/issues/6421.
    super::print(&[script.replace("tailwind__subcmd__sidecar", "tailwind__sidecar")])
}
