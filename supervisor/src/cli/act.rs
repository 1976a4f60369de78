//! `jobvisor cancel` and `jobvisor retry`.

use std::process::ExitCode;
use std::time::Duration;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failed;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::cli::wait::until_ended;
use crate::domain::ids::JobId;
use crate::domain::job::JobState;
use crate::domain::units::parse_duration;
use crate::store::Acted;
use crate::store::Filter;
use crate::store::Store;
use crate::store::sqlite::OpenMode;

#[derive(Debug, clap::Args)]
pub(crate) struct CancelArgs {
    /// The jobs.
    #[arg(required = true)]
    ids: Vec<JobId>,
    /// How long to wait for running ones to be ended (exit status 4 after it).
    #[arg(long, default_value = "60s", value_name = "DURATION", value_parser = parse_duration)]
    timeout: Duration,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RetryArgs {
    /// The jobs.
    #[arg(required_unless_present = "state")]
    ids: Vec<JobId>,
    /// All jobs in this state instead (`dead`, `cancelled` or `succeeded`).
    #[arg(long, value_name = "S", conflicts_with = "ids")]
    state: Option<JobState>,
    /// Of those, only this kind.
    #[arg(long, value_name = "K", requires = "state")]
    kind: Option<String>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn cancel(global: &Global, args: &CancelArgs) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    block_on(async {
        let store = place.open(OpenMode::Existing).await?;
        if args.dry_run {
            return dry_run(store.as_ref(), &args.ids, |state| !state.is_final()).await;
        }
        let acted = store.cancel(&args.ids, &requester()).await?;
        let requested: Vec<JobId> =
            acted.iter().filter(|(_, acted)| *acted == Acted::Requested).map(|(id, _)| *id).collect();
        let ended = until_ended(store.as_ref(), &requested, Some(args.timeout)).await?;
        let timed_out = ended.is_none();
        let ended = ended.unwrap_or_default();
        let mut good = true;
        for (id, acted) in acted {
            let state = ended.iter().find(|job| job.id == id).map(|job| job.state);
            match (acted, state) {
                (Acted::Done, _) | (Acted::Requested, Some(JobState::Cancelled)) => {
                    out::data(&id.to_string());
                    continue;
                }
                (Acted::Requested, Some(state)) => out::note(&format!("job {id}: too late, it {state}")),
                (Acted::Requested, None) => {
                    out::note(&format!("job {id}: asked for; it still runs (is a supervisor there?)"))
                }
                (Acted::Refused(state), _) => out::note(&format!("job {id}: too late, it is {state}")),
                (Acted::Missing, _) => out::note(&format!("job {id} does not exist")),
            }
            good = false;
        }
        Ok(if timed_out {
            Failure::TIMED_OUT.into()
        } else if good {
            ExitCode::SUCCESS
        } else {
            failed()
        })
    })
}

pub(crate) fn retry(global: &Global, args: &RetryArgs) -> Result<ExitCode, Failure> {
    if let Some(state) = args.state.filter(|state| !state.is_final()) {
        return Err(Failure::usage(format!(
            "a job that is {state} cannot be retried\nhint: `--state dead`, `cancelled` or `succeeded`"
        )));
    }
    let place = Place::find(global)?;
    block_on(async {
        let store = place.open(OpenMode::Existing).await?;
        let ids = match args.state {
            None => args.ids.clone(),
            Some(state) => {
                let filter = Filter { states: vec![state], kind: args.kind.clone(), ..Filter::default() };
                store.list(&filter).await?.into_iter().map(|job| job.id).collect()
            }
        };
        if args.dry_run {
            return dry_run(store.as_ref(), &ids, JobState::is_final).await;
        }
        let mut good = true;
        for (id, acted) in store.retry(&ids).await? {
            match acted {
                Acted::Done | Acted::Requested => out::data(&id.to_string()),
                Acted::Refused(state) => out::note(&format!("job {id}: it is {state}")),
                Acted::Missing => out::note(&format!("job {id} does not exist")),
            }
            good &= matches!(acted, Acted::Done | Acted::Requested);
        }
        Ok(if good { ExitCode::SUCCESS } else { failed() })
    })
}

async fn dry_run(store: &dyn Store, ids: &[JobId], would: impl Fn(JobState) -> bool) -> Result<ExitCode, Failure> {
    let mut good = true;
    for id in ids {
        let job = store.job(*id).await?;
        good &= job.as_ref().is_some_and(|job| would(job.state));
        match job {
            Some(job) if would(job.state) => out::data(&id.to_string()),
            Some(job) => out::note(&format!("job {id}: it is {}", job.state)),
            None => out::note(&format!("job {id} does not exist")),
        }
    }
    Ok(if good { ExitCode::SUCCESS } else { failed() })
}

/// Who asks, as it stands in the record.
fn requester() -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
    format!("{user} (pid {})", std::process::id())
}
