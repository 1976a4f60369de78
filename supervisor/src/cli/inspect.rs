//! `jobvisor inspect`.

use std::process::ExitCode;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::cli::wait::next_look;
use crate::domain::clock;
use crate::domain::ids::JobId;
use crate::inspect;
use crate::inspect::Report;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::sqlite::OpenMode;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The job.
    id: JobId,
    /// Print it again at every change, until the job has ended (with `--json`: one object a line).
    #[arg(long)]
    watch: bool,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    block_on(async {
        let store = place.open(OpenMode::Existing).await?;
        let mut shown = None;
        loop {
            let report = read(store.as_ref(), args.id).await?;
            let ended = report.job.state.is_final();
            // The text itself changes every second (`3 s ago`); what it tells of does not.
            let changed = shown.as_ref() != Some(&(report.job.clone(), report.attempts.len()));
            if changed {
                print(global, &report);
                shown = Some((report.job, report.attempts.len()));
            }
            if ended || !args.watch {
                return Ok(ExitCode::SUCCESS);
            }
            next_look(store.as_ref()).await;
        }
    })
}

async fn read(store: &dyn Store, id: JobId) -> Result<Report, Failure> {
    let job = store.job(id).await?.ok_or(StoreError::NoSuchJob(id.0));
    let job = job.map_err(|error| Failure::failed(&error))?;
    Ok(Report { job, attempts: store.attempts(id).await? })
}

fn print(global: &Global, report: &Report) {
    if global.json {
        out::json(&inspect::json(report));
    } else {
        out::data(&inspect::text(report, clock::now(), out::colored(global.color)));
    }
}
