//! `jobvisor wait`, and the waiting that `cancel` shares with it.

use std::process::ExitCode;
use std::time::Duration;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failed;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::domain::ids::JobId;
use crate::domain::job::Job;
use crate::domain::job::JobState;
use crate::domain::units::parse_duration;
use crate::inspect;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::sqlite::OpenMode;

/// How often the store is asked when nothing tells of a change.
const POLL: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The jobs.
    #[arg(required = true)]
    ids: Vec<JobId>,
    /// Give up after this long (exit status 4).
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    let jobs = block_on(async {
        let store = place.open(OpenMode::Existing).await?;
        until_ended(store.as_ref(), &args.ids, args.timeout).await
    })?;
    let Some(jobs) = jobs else {
        out::note("timed out: not all jobs have ended");
        return Ok(Failure::TIMED_OUT.into());
    };
    for job in &jobs {
        if global.json {
            out::json(&inspect::list_json_line(job));
        } else {
            let cause = job.cause.filter(|_| job.state != JobState::Succeeded).map(|cause| format!(" {cause}"));
            out::data(&format!("{} {}{}", job.id, job.state, cause.unwrap_or_default()));
        }
    }
    Ok(if jobs.iter().all(|job| job.state == JobState::Succeeded) { ExitCode::SUCCESS } else { failed() })
}

/// The jobs once all have ended; `None` when the time ran out first.
pub(crate) async fn until_ended(
    store: &dyn Store,
    ids: &[JobId],
    timeout: Option<Duration>,
) -> Result<Option<Vec<Job>>, Failure> {
    let waiting = async {
        loop {
            let jobs = read(store, ids).await?;
            if jobs.iter().all(|job| job.state.is_final()) {
                return Ok(jobs);
            }
            next_look(store).await;
        }
    };
    match timeout {
        None => waiting.await.map(Some),
        Some(limit) => tokio::time::timeout(limit, waiting).await.map_or(Ok(None), |jobs| jobs.map(Some)),
    }
}

/// Waits for a change, or for a moment.
pub(crate) async fn next_look(store: &dyn Store) {
    tokio::select! {
        () = store.changed() => {}
        () = tokio::time::sleep(POLL) => {}
    }
}

async fn read(store: &dyn Store, ids: &[JobId]) -> Result<Vec<Job>, Failure> {
    let mut jobs = Vec::with_capacity(ids.len());
    for id in ids {
        let job = store.job(*id).await?.ok_or(StoreError::NoSuchJob(id.0));
        jobs.push(job.map_err(|error| Failure::failed(&error))?);
    }
    Ok(jobs)
}
