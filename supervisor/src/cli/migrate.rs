//! `jobvisor migrate`.

use std::process::ExitCode;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::store::sqlite::OpenMode;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the statements for this database and touch nothing.
    #[arg(long)]
    print_sql: bool,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<ExitCode, Failure> {
    // Asking for it by name is permission, whatever `migrate` says.
    let place = Place { migrate: true, ..Place::find(global)? };
    if args.print_sql {
        out::data(&place.migration_sql());
        return Ok(ExitCode::SUCCESS);
    }
    block_on(async { place.open(OpenMode::Create).await.map(|_| ()) })?;
    out::data(&format!("{} is up to date", place.shown()));
    Ok(ExitCode::SUCCESS)
}
