//! Outcomes whose fence no longer holds, held against what was recorded: see [`outcome`](crate::store::outcome).

use jiff::Timestamp;
use sqlx::sqlite::SqliteConnection;

use super::finish::STEP;
use super::row::{attempt, count, get, time, word_or_none};
use crate::domain::ids::Fence;
use crate::store::error::StoreError;
use crate::store::model::{Finish, Finished};
use crate::store::outcome::{Found, Recall, late_json};

/// What is on record; `None`: there is no such job.
async fn find(conn: &mut SqliteConnection, fence: Fence) -> Result<Option<Found>, StoreError> {
    let job = sqlx::query("SELECT attempt, last_term, last_outcome, budget_since FROM jobs WHERE id = ?1")
        .bind(fence.job.0)
        .fetch_optional(&mut *conn)
        .await
        .map_err(|e| StoreError::sort(STEP, e))?;
    let Some(job) = job else { return Ok(None) };
    let row = sqlx::query("SELECT outcome, claimed_at FROM attempts WHERE job_id = ?1 AND attempt = ?2 AND term = ?3")
        .bind(fence.job.0)
        .bind(i64::from(fence.attempt.0))
        .bind(fence.term.to_string())
        .fetch_optional(conn)
        .await
        .map_err(|e| StoreError::sort(STEP, e))?;
    Ok(Some(Found {
        attempt: attempt(&job)?.0,
        last_term: word_or_none(&job, "last_term")?,
        last_outcome: get(&job, "last_outcome")?,
        budget_since: count(&job, "budget_since")?,
        recorded: row.map(|row| Ok((get(&row, "outcome")?, time(&row, "claimed_at")?))).transpose()?,
    }))
}

/// The fence does not hold: was this very outcome recorded before, or is it stale?
pub(super) async fn recall(
    conn: &mut SqliteConnection,
    outcome: &Finish,
    now: Timestamp,
) -> Result<Finished, StoreError> {
    let Some(found) = find(conn, outcome.fence).await? else { return Ok(Finished::Stale) };
    match found.recall(outcome) {
        Recall::Already => Ok(Finished::Already),
        Recall::Stale => Ok(Finished::Stale),
        Recall::Late { claimed_at, refund } => {
            keep(conn, outcome.fence, late_json(outcome, claimed_at, now)).await?;
            if refund {
                give_back(conn, outcome).await?;
            }
            Ok(Finished::Stale)
        }
    }
}

/// The first outcome that comes after a rescue is kept; a second one is the same sent again.
async fn keep(conn: &mut SqliteConnection, fence: Fence, late: String) -> Result<(), StoreError> {
    sqlx::query("UPDATE attempts SET late_outcome = ?3 WHERE job_id = ?1 AND attempt = ?2 AND late_outcome IS NULL")
        .bind(fence.job.0)
        .bind(i64::from(fence.attempt.0))
        .bind(late)
        .execute(conn)
        .await
        .map(|_| ())
        .map_err(|e| StoreError::sort(STEP, e))
}

/// Gives a charge back, once, that a rescue had to leave; a job that has ended stays as it is.
async fn give_back(conn: &mut SqliteConnection, outcome: &Finish) -> Result<(), StoreError> {
    let fence = outcome.fence;
    let refunded = sqlx::query(
        "UPDATE attempts SET charged = 0 WHERE job_id = ?1 AND attempt = ?2 AND charged = 1
             AND EXISTS (SELECT 1 FROM jobs WHERE id = ?1 AND finished_at IS NULL)",
    )
    .bind(fence.job.0)
    .bind(i64::from(fence.attempt.0))
    .execute(&mut *conn)
    .await
    .map_err(|e| StoreError::sort(STEP, e))?;
    if refunded.rows_affected() == 0 {
        return Ok(());
    }
    sqlx::query("UPDATE jobs SET charged = max(charged - 1, 0), interruptions = interruptions + ?2 WHERE id = ?1")
        .bind(fence.job.0)
        .bind(i64::from(outcome.decision.interruption))
        .execute(conn)
        .await
        .map(|_| ())
        .map_err(|e| StoreError::sort(STEP, e))
}
