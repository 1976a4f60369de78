//! The command line: shapes of its arguments, one file a command, and the exit status (a contract).
//!
//! Data goes to stdout, everything else to stderr. Exit status: 0 good, 1 the thing asked about failed, 2 usage or
//! configuration, 3 database out of reach, 4 timed out.
//!
//! `run` is special in its order: arguments, `jobs.toml`, the database's lock and the warden come before the first
//! thread, because the warden is forked.

mod act;
mod check;
mod context;
mod doctor;
mod enqueue;
mod failure;
mod fleet;
mod init;
mod inspect;
mod list;
mod migrate;
mod out;
mod pause;
mod run;
mod shell;
mod stats;
mod status;
mod telemetry;
mod wait;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ColorChoice;
use clap::CommandFactory;
use clap::FromArgMatches;
use clap::Parser;
use clap::Subcommand;
use clap::parser::ValueSource;

use crate::cli::failure::Failure;
use crate::store::Store;
use crate::warden;

/// Names the database, and may hold its password.
const DATABASE_URL: &str = "JOBVISOR_DATABASE_URL";

/// Background jobs whose deaths are recorded with their true cause and its proof.
#[derive(Debug, Parser)]
#[command(name = "jobvisor", version, about, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options that every command takes, anywhere on the line.
#[derive(Debug, clap::Args)]
struct Global {
    /// The configuration file.
    #[arg(long, global = true, default_value = "jobs.toml", value_name = "FILE", env = "JOBVISOR_CONFIG")]
    config: PathBuf,
    /// The database, in place of the one that the configuration names: `sqlite://path`, or `postgres://user@host/name`.
    /// One with a password is taken from the environment only.
    #[arg(long, global = true, value_name = "URL", env = DATABASE_URL, hide_env_values = true)]
    database: Option<String>,
    /// The database stands on the command line, where others can read it.
    #[arg(skip)]
    database_is_argument: bool,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    /// When to use colour.
    #[arg(long, global = true, default_value = "auto", value_name = "WHEN")]
    color: ColorChoice,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Supervise: claim jobs, run them, record how they end.
    Run(run::Args),
    /// Add a job; prints its id.
    Enqueue(enqueue::Args),
    /// The whole story of a job: attempts, causes with proof, memory, last output, advice.
    Inspect(inspect::Args),
    /// Find jobs.
    List(list::Args),
    /// Block until jobs have ended; exit status 0 if all succeeded.
    Wait(wait::Args),
    /// Cancel jobs, and wait until those that run have been ended.
    Cancel(act::CancelArgs),
    /// Bring ended jobs back with a fresh budget; their history stays.
    Retry(act::RetryArgs),
    /// Jobs by kind and state, how long the oldest has waited, and kinds that no living supervisor runs.
    Stats,
    /// The kinds of the configuration: their slots and memory, what waits and runs, who paused them.
    Kinds,
    /// Stop kinds from being claimed, by every supervisor; what runs goes on.
    Pause(pause::Args),
    /// Let kinds be claimed again.
    Resume(pause::Args),
    /// The supervisors on record: who runs which kinds, and who is gone.
    Supervisors(fleet::Args),
    /// How the supervisor of this configuration stands: what runs, what is held, when it last did what.
    Status,
    /// Check the configuration without starting anything.
    Check,
    /// Write a first `jobs.toml` and create its database.
    Init,
    /// Bring the database's schema up to date.
    Migrate(migrate::Args),
    /// What this host and database can do, what enforcement will be in force, how to get better.
    Doctor,
    /// Print a script that completes commands and options in a shell.
    Completions(shell::CompletionsArgs),
    /// Print a manual page (`jobvisor man | man -l -`).
    Man(shell::ManArgs),
    /// The warden's own process; started by `run`.
    #[command(hide = true)]
    Warden,
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    main_with(|store| store)
}

/// The same, for a program that puts something of its own between a supervisor and its store (to count, trace or refuse what
/// is asked of it): `wrap` gets the store of the configuration and answers the one that `run` works with. Other commands use
/// the store as it is.
#[must_use]
pub fn main_with(wrap: impl Fn(Arc<dyn Store>) -> Arc<dyn Store>) -> ExitCode {
    let cli = parse();
    let result = match &cli.command {
        Command::Run(args) => run::run(&cli.global, args, &wrap),
        Command::Enqueue(args) => enqueue::run(&cli.global, args),
        Command::Inspect(args) => inspect::run(&cli.global, args),
        Command::List(args) => list::run(&cli.global, args),
        Command::Wait(args) => wait::run(&cli.global, args),
        Command::Cancel(args) => act::cancel(&cli.global, args),
        Command::Retry(args) => act::retry(&cli.global, args),
        Command::Stats => stats::stats(&cli.global),
        Command::Kinds => stats::kinds(&cli.global),
        Command::Pause(args) => pause::pause(&cli.global, args),
        Command::Resume(args) => pause::resume(&cli.global, args),
        Command::Supervisors(args) => fleet::run(&cli.global, args),
        Command::Status => status::run(&cli.global),
        Command::Completions(args) => shell::completions(args),
        Command::Man(args) => shell::man(args),
        Command::Check => check::run(&cli.global),
        Command::Init => init::run(&cli.global),
        Command::Migrate(args) => migrate::run(&cli.global, args),
        Command::Doctor => doctor::run(&cli.global),
        Command::Warden => return warden::run(),
    };
    match result {
        Ok(code) if code == ExitCode::SUCCESS && out::is_incomplete() => failed(),
        Ok(code) => code,
        Err(failure) => {
            out::complain(&failure);
            failure.exit_code()
        }
    }
}

fn parse() -> Cli {
    let matches = Cli::command().get_matches();
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.global.database_is_argument = matches.value_source("database") == Some(ValueSource::CommandLine);
    cli
}

/// Exit status 1: the thing asked about failed.
fn failed() -> ExitCode {
    Failure::FAILED.into()
}
