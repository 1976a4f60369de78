//! Reading: every call is one statement, fetched whole.

use jiff::Timestamp;
use sqlx::postgres::{PgConnection, PgRow};

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

/// A state that has an index of its own must be named in the text for it to be used.
macro_rules! list_sql {
    ($state:literal) => {
        concat!(
            "SELECT ",
            job_columns!(),
            " FROM jobvisor.jobs
             WHERE ($1::text[] = '{}' OR state = ANY ($1)) AND ($2::text IS NULL OR kind = $2)
                 AND ($3::text IS NULL OR cause = $3)
                 AND ($4::timestamptz IS NULL OR created_at > $4 OR finished_at > $4) AND ($5::bigint IS NULL OR id > $5)",
            $state,
            " ORDER BY id DESC LIMIT $6"
        )
    };
}

const fn list_text(states: &[JobState]) -> &'static str {
    const ANY: &str = list_sql!("");
    match states {
        [only] => match only {
            JobState::Waiting => list_sql!(" AND state = 'waiting'"),
            JobState::Scheduled => list_sql!(" AND state = 'scheduled'"),
            JobState::Queued => list_sql!(" AND state = 'queued'"),
            JobState::Running => list_sql!(" AND state = 'running'"),
            JobState::Dead => list_sql!(" AND state = 'dead'"),
            JobState::Succeeded | JobState::Cancelled => ANY,
        },
        [] | [_, _, ..] => ANY,
    }
}

pub(super) async fn list(store: &PostgresStore, filter: Filter) -> Result<Vec<Job>, StoreError> {
    const STEP: &str = "list jobs";
    let states: Vec<String> = filter.states.iter().map(|state| state.code().to_owned()).collect();
    let rows = store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(list_text(&filter.states))
                    .bind(states)
                    .bind(filter.kind)
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

/// Unfinished jobs by the indexes that know them; for the ended ones the table is walked. An index for that (0.38 against 0.7 s at a
/// million ended jobs) would be one more entry for every job that ends, and counts are rare.
macro_rules! counts_sql {
    ($($which:literal),+) => {
        concat!("SELECT * FROM (VALUES (NULL::text, NULL::text, 0::bigint, 0::bigint, NULL::bigint))
                     AS c (kind, state, attempted, jobs, smallest) WHERE false" $(,
            " UNION ALL
              SELECT kind, state, count(*) FILTER (WHERE attempt > 0), count(*),
                  CASE WHEN count(*) = count(own_memory) THEN min(own_memory) END
              FROM jobvisor.jobs WHERE ", $which, " GROUP BY kind, state")+)
    };
}

const COUNTS: &str = counts_sql!(
    "finished_at IS NOT NULL",
    "state = 'waiting'",
    "state = 'scheduled'",
    "state = 'queued'",
    "state = 'running'"
);

pub(super) async fn counts(store: &PostgresStore) -> Result<Vec<Count>, StoreError> {
    const STEP: &str = "count jobs";
    let rows = store
        .conns
        .run(STEP, |conn| {
            Box::pin(async move { sqlx::query(COUNTS).fetch_all(conn).await.map_err(|e| StoreError::sort(STEP, e)) })
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
                    "SELECT EXISTS (SELECT 1 FROM jobvisor.jobs WHERE schedule = $1 AND finished_at IS NULL)",
                )
                .bind(schedule)
                .fetch_one(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

pub(super) async fn now(store: &PostgresStore) -> Result<Timestamp, StoreError> {
    const STEP: &str = "read the server's clock";
    let row = store
        .conns
        .run(STEP, |conn: &mut PgConnection| {
            Box::pin(async move {
                let row = sqlx::query("SELECT clock_timestamp() AS now").fetch_one(conn).await;
                row.map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    time(&row, "now")
}
