//! `jobvisor list`.

use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;

use crate::cli::Global;
use crate::cli::context::Place;
use crate::cli::context::block_on;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::domain::cause::Cause;
use crate::domain::clock;
use crate::domain::job::JobState;
use crate::domain::units::parse_duration;
use crate::inspect;
use crate::store::Filter;
use crate::store::sqlite::OpenMode;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// In this state (may be given several times).
    #[arg(long, value_name = "S")]
    state: Vec<JobState>,
    /// Of this kind.
    #[arg(long, value_name = "K")]
    kind: Option<String>,
    /// Whose last failure had this cause.
    #[arg(long, value_name = "C")]
    cause: Option<Cause>,
    /// Enqueued or ended within this time.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    since: Option<Duration>,
    /// At most this many, newest first.
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: u32,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<ExitCode, Failure> {
    let place = Place::find(global)?;
    let filter = Filter {
        states: args.state.clone(),
        kind: args.kind.clone(),
        cause: args.cause,
        since: args.since.map(|since| clock::now().checked_sub(since).unwrap_or(Timestamp::MIN)),
        limit: Some(args.limit),
        after_id: None,
    };
    let jobs = block_on(async { Ok(place.open(OpenMode::Existing).await?.list(&filter).await?) })?;
    if global.json {
        jobs.iter().for_each(|job| out::json(&inspect::list_json_line(job)));
    } else {
        out::data(&inspect::list_table(&jobs));
    }
    Ok(ExitCode::SUCCESS)
}
