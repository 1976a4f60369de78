//! `jobvisor supervisors`.

use std::process::ExitCode;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::inspect;
use crate::inspect::TermState;
use crate::store::sqlite::OpenMode;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// At most this many, newest first; those that have not ended are always shown.
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: usize,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    let terms = block_on(async { Ok(place.open(OpenMode::Existing).await?.terms().await?) })?;
    let holding = place.holding(&terms)?;
    let states = terms.into_iter().zip(holding).map(|(row, holds)| {
        let state = TermState::of(&row, holds);
        (row, state)
    });
    let shown: Vec<_> =
        states.enumerate().filter(|(n, (row, _))| *n < args.limit || row.is_open()).map(|(_, row)| row).collect();
    if global.json {
        shown.iter().for_each(|(row, state)| out::json(&inspect::supervisor_json_line(row, *state)));
    } else {
        out::data(&inspect::supervisors_table(&shown));
    }
    Ok(ExitCode::SUCCESS)
}
