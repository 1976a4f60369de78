//! Reading: every call is one statement, fetched whole, on a reader.

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;

use super::SqliteStore;
use super::row::{
    attempt, count, get, job as job_row, job_columns, json_or_none, size, state, term, time, time_or_none, to_json,
};
use crate::domain::cause::Cause;
use crate::domain::ids::JobId;
use crate::domain::job::{Job, JobState};
use crate::store::error::StoreError;
use crate::store::model::{AttemptRecord, AttemptRow, Count, Filter};

pub(super) async fn job(store: &SqliteStore, id: JobId) -> Result<Option<Job>, StoreError> {
    let row = sqlx::query(concat!("SELECT ", job_columns!(), " FROM jobs WHERE id = ?1"))
        .bind(id.0)
        .fetch_optional(&store.readers)
        .await
        .map_err(|e| StoreError::sort("read a job", e))?;
    row.as_ref().map(job_row).transpose()
}

pub(super) async fn attempts(store: &SqliteStore, id: JobId) -> Result<Vec<AttemptRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT attempt, term, verdict, charged, claimed_at, started_at, ended_at, finished_at, supervisor, host,
             message, trace, output_tail, evidence, late_outcome
         FROM attempts WHERE job_id = ?1 ORDER BY attempt",
    )
    .bind(id.0)
    .fetch_all(&store.readers)
    .await
    .map_err(|e| StoreError::sort("read attempts", e))?;
    rows.iter().map(attempt_row).collect()
}

fn attempt_row(row: &SqliteRow) -> Result<AttemptRow, StoreError> {
    Ok(AttemptRow {
        attempt: attempt(row)?,
        term: term(row, "term")?,
        verdict: json_or_none(row, "verdict")?,
        charged: get(row, "charged")?,
        claimed_at: time(row, "claimed_at")?,
        finished_at: time(row, "finished_at")?,
        record: AttemptRecord {
            started_at: time_or_none(row, "started_at")?,
            ended_at: time_or_none(row, "ended_at")?,
            supervisor: get(row, "supervisor")?,
            host: get(row, "host")?,
            message: get(row, "message")?,
            trace: get(row, "trace")?,
            output_tail: get(row, "output_tail")?,
            evidence: json_or_none(row, "evidence")?.unwrap_or_default(),
        },
        late_outcome: get(row, "late_outcome")?,
    })
}

pub(super) async fn list(store: &SqliteStore, filter: &Filter) -> Result<Vec<Job>, StoreError> {
    let states: Vec<&str> = filter.states.iter().map(|state| state.code()).collect();
    let rows = sqlx::query(concat!(
        "SELECT ",
        job_columns!(),
        " FROM jobs
         WHERE (?1 = '[]' OR state IN (SELECT value FROM json_each(?1)))
           AND (?2 IS NULL OR kind = ?2) AND (?3 IS NULL OR cause = ?3)
           AND (?4 IS NULL OR created_at > ?4 OR finished_at > ?4) AND (?5 IS NULL OR id > ?5)
         ORDER BY id DESC LIMIT ?6"
    ))
    .bind(to_json(&states)?)
    .bind(filter.kind.as_deref())
    .bind(filter.cause.map(Cause::code))
    .bind(filter.since.map(|since| since.as_microsecond()))
    .bind(filter.after_id.map(|id| id.0))
    .bind(filter.limit.map_or(-1, i64::from))
    .fetch_all(&store.readers)
    .await
    .map_err(|e| StoreError::sort("list jobs", e))?;
    rows.iter().map(job_row).collect()
}

pub(super) async fn counts(store: &SqliteStore) -> Result<Vec<Count>, StoreError> {
    let rows = sqlx::query(
        "SELECT kind, state, sum(attempt > 0) AS attempted, count(*) AS jobs,
                CASE WHEN count(*) = count(own_memory) THEN min(own_memory) END AS smallest
         FROM jobs GROUP BY kind, state",
    )
    .fetch_all(&store.readers)
    .await
    .map_err(|e| StoreError::sort("count jobs", e))?;
    let mut counts = rows.iter().map(count_row).collect::<Result<Vec<_>, _>>()?;
    let place = |state: JobState| JobState::ALL.iter().position(|known| *known == state);
    counts.sort_by(|a, b| (&a.kind, place(a.state)).cmp(&(&b.kind, place(b.state))));
    Ok(counts)
}

pub(super) async fn oldest_queued(store: &SqliteStore) -> Result<Vec<(String, Timestamp)>, StoreError> {
    let rows =
        sqlx::query("SELECT kind, min(run_at) AS due FROM jobs WHERE state = 'queued' GROUP BY kind ORDER BY kind")
            .fetch_all(&store.readers)
            .await
            .map_err(|e| StoreError::sort("look for the oldest queued jobs", e))?;
    rows.iter().map(|row| Ok((get(row, "kind")?, time(row, "due")?))).collect()
}

fn count_row(row: &SqliteRow) -> Result<Count, StoreError> {
    Ok(Count {
        kind: get(row, "kind")?,
        state: state(row)?,
        attempted: count(row, "attempted")?,
        jobs: count(row, "jobs")?,
        smallest: size(row, "smallest")?,
    })
}

pub(super) async fn schedule_has_unfinished(store: &SqliteStore, schedule: &str) -> Result<bool, StoreError> {
    sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM jobs WHERE schedule = ?1 AND finished_at IS NULL)")
        .bind(schedule)
        .fetch_one(&store.readers)
        .await
        .map_err(|e| StoreError::sort("look for unfinished jobs of a schedule", e))
}
