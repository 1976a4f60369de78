//! Reading.

use jiff::Timestamp;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::row::{
    attempt, big_count, get, job as job_row, job_columns, json_or_none, size, sql_time, state, term, time, time_or_none,
};
use crate::domain::cause::Cause;
use crate::domain::ids::JobId;
use crate::domain::job::{Job, JobState};
use crate::store::error::StoreError;
use crate::store::model::{AttemptRecord, AttemptRow, Count, Filter};

pub(super) async fn job(store: &PostgresStore, id: JobId) -> Result<Option<Job>, StoreError> {
    const STEP: &str = "read a job";
    let row = store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(concat!("SELECT ", job_columns!(), " FROM jobvisor.jobs WHERE id = $1"))
                    .bind(id.0)
                    .fetch_optional(conn)
                    .await
                    .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    row.as_ref().map(job_row).transpose()
}

pub(super) async fn attempts(store: &PostgresStore, id: JobId) -> Result<Vec<AttemptRow>, StoreError> {
    const STEP: &str = "read attempts";
    let rows = store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "SELECT attempt, term, verdict::text AS verdict, charged, claimed_at, started_at, ended_at, finished_at,
                         supervisor, host, message, trace, output_tail, evidence::text AS evidence,
                         late_outcome::text AS late_outcome
                     FROM jobvisor.attempts WHERE job_id = $1 ORDER BY attempt",
                )
                .bind(id.0)
                .fetch_all(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    rows.iter().map(attempt_row).collect()
}

fn attempt_row(row: &PgRow) -> Result<AttemptRow, StoreError> {
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

pub(super) async fn list(store: &PostgresStore, filter: Filter) -> Result<Vec<Job>, StoreError> {
    const STEP: &str = "list jobs";
    let rows = store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                let states: Vec<&str> = filter.states.iter().map(|state| state.code()).collect();
                sqlx::query(concat!(
                    "SELECT ",
                    job_columns!(),
                    " FROM jobvisor.jobs
                     WHERE (cardinality($1::text[]) = 0 OR state = ANY($1)) AND ($2::text IS NULL OR kind = $2)
                       AND ($3::text IS NULL OR cause = $3)
                       AND ($4::timestamptz IS NULL OR created_at > $4 OR finished_at > $4)
                       AND ($5::bigint IS NULL OR id > $5)
                     ORDER BY id DESC LIMIT $6"
                ))
                .bind(states)
                .bind(filter.kind.as_deref())
                .bind(filter.cause.map(Cause::code))
                .bind(filter.since.map(sql_time))
                .bind(filter.after_id.map(|id| id.0))
                .bind(filter.limit.map(i64::from))
                .fetch_all(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    rows.iter().map(job_row).collect()
}

/// One walk over the table: an index for this alone would be written at each change of state (SQLite has one, where a walk reads
/// all payloads; here large ones are kept apart).
pub(super) async fn counts(store: &PostgresStore) -> Result<Vec<Count>, StoreError> {
    const STEP: &str = "count jobs";
    let rows = store
        .conns
        .run(STEP, |conn| {
            Box::pin(async move {
                sqlx::query(
                    "SELECT kind, state, count(*) FILTER (WHERE attempt > 0) AS attempted, count(*) AS jobs,
                         CASE WHEN count(*) = count(own_memory) THEN min(own_memory) END AS smallest
                     FROM jobvisor.jobs GROUP BY kind, state",
                )
                .fetch_all(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    let mut counts = rows.iter().map(count_row).collect::<Result<Vec<_>, _>>()?;
    let place = |state: JobState| JobState::ALL.iter().position(|known| *known == state);
    counts.sort_by(|a, b| (&a.kind, place(a.state)).cmp(&(&b.kind, place(b.state))));
    Ok(counts)
}

fn count_row(row: &PgRow) -> Result<Count, StoreError> {
    Ok(Count {
        kind: get(row, "kind")?,
        state: state(row)?,
        attempted: big_count(row, "attempted")?,
        jobs: big_count(row, "jobs")?,
        smallest: size(row, "smallest")?,
    })
}

pub(super) async fn schedule_has_unfinished(store: &PostgresStore, schedule: &str) -> Result<bool, StoreError> {
    const STEP: &str = "look for unfinished jobs of a schedule";
    let schedule = schedule.to_owned();
    store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query_scalar(
                    "SELECT EXISTS (SELECT FROM jobvisor.jobs WHERE schedule = $1 AND finished_at IS NULL)",
                )
                .bind(schedule)
                .fetch_one(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

/// The server's clock.
pub(super) async fn now(store: &PostgresStore) -> Result<Timestamp, StoreError> {
    const STEP: &str = "read the clock";
    let row = store
        .conns
        .run(STEP, |conn| {
            Box::pin(async move {
                sqlx::query("SELECT clock_timestamp() AS now")
                    .fetch_one(conn)
                    .await
                    .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    time(&row, "now")
}
