//! What people do to jobs: cancel and retry.

use jiff::Timestamp;
use sqlx::sqlite::SqliteConnection;

use super::row::{attempt, get, id};
use super::{SqliteStore, depend};
use crate::domain::clock;
use crate::domain::ids::{JobId, Term};
use crate::domain::job::{JobEvent, JobState, next};
use crate::domain::text::printable;
use crate::store::error::StoreError;
use crate::store::model::{Acted, CancelRequest};

const CANCEL: &str = "cancel jobs";
const RETRY: &str = "retry jobs";

pub(super) async fn cancel(store: &SqliteStore, ids: Vec<JobId>, by: &str) -> Result<Vec<(JobId, Acted)>, StoreError> {
    let by = printable(by.as_bytes()).into_owned();
    store
        .write(CANCEL, move |conn| {
            Box::pin(async move {
                let now = clock::now();
                let mut acted = Vec::with_capacity(ids.len());
                for job in ids {
                    acted.push((job, cancel_one(conn, job, &by, now).await?));
                }
                Ok(acted)
            })
        })
        .await
}

async fn cancel_one(conn: &mut SqliteConnection, job: JobId, by: &str, now: Timestamp) -> Result<Acted, StoreError> {
    let Some(state) = state_of(conn, job, CANCEL).await? else { return Ok(Acted::Missing) };
    match state {
        JobState::Running => {
            sqlx::query("UPDATE jobs SET cancel_requested = 1, cancel_by = ?2 WHERE id = ?1 AND cancel_requested = 0")
                .bind(job.0)
                .bind(by)
                .execute(conn)
                .await
                .map_err(|e| StoreError::sort(CANCEL, e))?;
            Ok(Acted::Requested)
        }
        JobState::Waiting | JobState::Scheduled | JobState::Queued => {
            sqlx::query("UPDATE jobs SET state = 'cancelled', finished_at = ?2, cancel_by = ?3 WHERE id = ?1")
                .bind(job.0)
                .bind(now.as_microsecond())
                .bind(by)
                .execute(&mut *conn)
                .await
                .map_err(|e| StoreError::sort(CANCEL, e))?;
            depend::failed(conn, &[job], now).await?;
            Ok(Acted::Done)
        }
        JobState::Succeeded | JobState::Cancelled | JobState::Dead => Ok(Acted::Refused(state)),
    }
}

pub(super) async fn cancel_requests(store: &SqliteStore, term: Term) -> Result<Vec<CancelRequest>, StoreError> {
    let rows = sqlx::query(
        "SELECT id, attempt, coalesce(cancel_by, '') AS cancel_by FROM jobs
         WHERE state = 'running' AND term = ?1 AND cancel_requested = 1 ORDER BY id",
    )
    .bind(term.to_string())
    .fetch_all(&store.readers)
    .await
    .map_err(|e| StoreError::sort("read what is to be cancelled", e))?;
    rows.iter()
        .map(|row| Ok(CancelRequest { job: id(row)?, attempt: attempt(row)?, by: get(row, "cancel_by")? }))
        .collect()
}

pub(super) async fn retry(store: &SqliteStore, ids: Vec<JobId>) -> Result<Vec<(JobId, Acted)>, StoreError> {
    store
        .write(RETRY, move |conn| {
            Box::pin(async move {
                let now = clock::now();
                let mut acted = Vec::with_capacity(ids.len());
                for job in ids {
                    acted.push((job, retry_one(conn, job, now).await?));
                }
                Ok(acted)
            })
        })
        .await
}

/// A job whose unique key another unfinished job holds by now is refused: it would be the second of its key.
async fn retry_one(conn: &mut SqliteConnection, job: JobId, now: Timestamp) -> Result<Acted, StoreError> {
    let Some(state) = state_of(conn, job, RETRY).await? else { return Ok(Acted::Missing) };
    if next(state, JobEvent::Retried).is_err() {
        return Ok(Acted::Refused(state));
    }
    let done = sqlx::query(
        "UPDATE jobs SET state = 'queued', charged = 0, interruptions = 0, budget_since = attempt, result = NULL,
             finished_at = NULL, run_at = ?2, cancel_by = NULL
         WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM jobs other WHERE other.kind = jobs.kind
             AND other.unique_key = jobs.unique_key AND other.finished_at IS NULL)",
    )
    .bind(job.0)
    .bind(now.as_microsecond())
    .execute(conn)
    .await
    .map_err(|e| StoreError::sort(RETRY, e))?;
    Ok(if done.rows_affected() == 0 { Acted::Refused(state) } else { Acted::Done })
}

async fn state_of(conn: &mut SqliteConnection, job: JobId, step: &'static str) -> Result<Option<JobState>, StoreError> {
    let row = sqlx::query("SELECT state FROM jobs WHERE id = ?1")
        .bind(job.0)
        .fetch_optional(conn)
        .await
        .map_err(|e| StoreError::sort(step, e))?;
    row.as_ref().map(super::row::state).transpose()
}
