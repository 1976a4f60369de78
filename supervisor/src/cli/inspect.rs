//! `jobvisor inspect`.

use std::process::ExitCode;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::domain::clock;
use crate::domain::ids::JobId;
use crate::inspect;
use crate::inspect::Report;
use crate::store::StoreError;
use crate::store::sqlite::OpenMode;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The job.
    id: JobId,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    let report = block_on(async {
        let store = place.open(OpenMode::Existing).await?;
        let job = store.job(args.id).await?.ok_or(StoreError::NoSuchJob(args.id.0));
        let job = job.map_err(|error| Failure::failed(&error))?;
        Ok(Report { job, attempts: store.attempts(args.id).await? })
    })?;
    if global.json {
        out::json(&inspect::json(&report));
    } else {
        out::data(&inspect::text(&report, clock::now(), out::colored(global.color)));
    }
    Ok(ExitCode::SUCCESS)
}
