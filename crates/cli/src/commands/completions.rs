//! `sprag completions`: what a shell needs to complete this command line.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::output::{Failure, Output};

/// Arguments of `sprag completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag completions bash > ~/.local/share/bash-completion/completions/sprag
  sprag completions zsh > ~/.zfunc/_sprag
  sprag completions fish > ~/.config/fish/completions/sprag.fish")]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Runs `sprag completions`.
pub fn run(args: &CompletionsArgs, output: &mut Output) -> Result<(), Failure> {
    let mut script = Vec::new();
    let mut command = crate::args::Args::command();
    clap_complete::generate(args.shell, &mut command, "sprag", &mut script);
    let script = String::from_utf8_lossy(&script);
    if output.is_json() {
        let shell = args.shell.to_string();
        return output.json(&serde_json::json!({"shell": shell, "script": script}));
    }
    output.line(script.trim_end())
}
