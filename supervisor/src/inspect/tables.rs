//! Lists of jobs as tables.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

use super::json::{moment, size};
use super::printable;
use crate::domain::job::{Job, JobState};
use crate::domain::units::show_duration;

/// The table of `list`: one line a job, as given.
#[must_use]
pub fn list_table(jobs: &[Job]) -> String {
    let rows = jobs.iter().map(|job| {
        [
            job.id.to_string(),
            printable::line(&job.kind),
            job.state.to_string(),
            job.attempt.to_string(),
            job.cause.map_or_else(|| "-".to_owned(), |cause| cause.to_string()),
            moment(job.created_at),
            job.finished_at.map_or_else(|| "-".to_owned(), moment),
            size(job.peak),
        ]
    });
    table(["id", "kind", "state", "attempt", "cause", "created", "finished", "peak"], rows)
}

/// What `run --until-idle` prints at its end: a line a job, then how many ended how. `cause` is that of the last
/// attempt that failed, in brackets when the job got over it; `took` runs from the enqueueing to the end.
#[must_use]
pub fn summary_table(jobs: &[Job]) -> String {
    let rows = jobs.iter().map(|job| {
        [
            job.id.to_string(),
            printable::line(&job.kind),
            job.state.to_string(),
            format!("{} of {}", job.attempt, job.budget.max_attempts),
            cause(job),
            format!("{} / {}", size(job.peak), size(job.memory)),
            took(job),
        ]
    });
    let table = table(["id", "kind", "state", "attempts", "cause", "peak / limit", "took"], rows);
    format!("{table}\n{}\n", counts(jobs))
}

fn cause(job: &Job) -> String {
    match job.cause {
        None => "-".to_owned(),
        Some(cause) if job.state == JobState::Succeeded => format!("({cause})"),
        Some(cause) => cause.to_string(),
    }
}

fn took(job: &Job) -> String {
    let length = job.finished_at.map(|at| at.duration_since(job.created_at));
    let length = length.and_then(|length| Duration::try_from(length).ok());
    length.map_or_else(|| "-".to_owned(), show_duration)
}

fn counts(jobs: &[Job]) -> String {
    let mut states = BTreeMap::<JobState, usize>::new();
    let mut causes = BTreeMap::new();
    for job in jobs {
        *states.entry(job.state).or_default() += 1;
        if let (JobState::Dead, Some(cause)) = (job.state, job.cause) {
            *causes.entry(cause.code()).or_insert(0_usize) += 1;
        }
    }
    let causes: Vec<_> = causes.iter().map(|(cause, n)| format!("{n} {cause}")).collect();
    let states = states.iter().map(|(state, n)| {
        let why = *state == JobState::Dead && !causes.is_empty();
        if why { format!("{n} {state} ({})", causes.join(", ")) } else { format!("{n} {state}") }
    });
    let noun = if jobs.len() == 1 { "job" } else { "jobs" };
    let parts: Vec<_> = states.collect();
    if parts.is_empty() { "no jobs".to_owned() } else { format!("{} {noun}: {}", jobs.len(), parts.join(", ")) }
}

/// Columns by content, whatever the width of the terminal: a table is read by `grep` as well. Ends with a newline.
pub(super) fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table.add_rows(rows);
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}
