//! `jobvisor completions` and `jobvisor man`: what the shell and the reader of manuals need, made from the arguments themselves.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::cli::failure::Failure;
use crate::cli::out;

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The page of this command; without it, that of the program.
    command: Option<String>,
}

pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "jobvisor", &mut script);
    out::data(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &ManArgs) -> Result<ExitCode, Failure> {
    let mut program = Cli::command();
    program.build();
    let command = match &args.command {
        None => program,
        Some(name) => {
            let found = program.find_subcommand(name).filter(|command| !command.is_hide_set());
            let found = found.ok_or_else(|| Failure::usage(format!("there is no command `{name}`")))?;
            found.clone().version(env!("CARGO_PKG_VERSION"))
        }
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).map_err(|error| Failure::failed(&error))?;
    out::data(&String::from_utf8_lossy(&page));
    Ok(ExitCode::SUCCESS)
}
