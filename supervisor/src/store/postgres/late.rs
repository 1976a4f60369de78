//! Outcomes whose fence no longer holds, held against what was recorded: see [`outcome`](crate::store::outcome).

use sqlx::postgres::PgConnection;

use super::finish::STEP;
use super::row::{attempt, count, cut_int, get, time, time_or_none};
use crate::domain::ids::Term;
use crate::store::error::StoreError;
use crate::store::model::{Finish, Finished};
use crate::store::outcome::{Found, Recall, late_json};

/// The fence does not hold: was this very outcome recorded before, or is it stale?
pub(super) async fn recall(conn: &mut PgConnection, outcome: &Finish) -> Result<Finished, StoreError> {
    let fence = outcome.fence;
    let row = sqlx::query(
        "SELECT j.attempt, j.last_term, j.last_outcome, j.budget_since, a.outcome, a.claimed_at, now() AS now
         FROM jobvisor.jobs j LEFT JOIN jobvisor.attempts a ON a.job_id = j.id AND a.attempt = $2 AND a.term = $3
         WHERE j.id = $1",
    )
    .bind(fence.job.0)
    .bind(cut_int(fence.attempt.0))
    .bind(fence.term.0)
    .fetch_optional(&mut *conn)
    .await
    .map_err(|e| StoreError::sort(STEP, e))?;
    let Some(row) = row else { return Ok(Finished::Stale) };
    let recorded: Option<String> = get(&row, "outcome")?;
    let found = Found {
        attempt: attempt(&row)?.0,
        last_term: get::<Option<sqlx::types::Uuid>>(&row, "last_term")?.map(Term),
        last_outcome: get(&row, "last_outcome")?,
        budget_since: count(&row, "budget_since")?,
        recorded: recorded.zip(time_or_none(&row, "claimed_at")?),
    };
    match found.recall(outcome) {
        Recall::Already => Ok(Finished::Already),
        Recall::Stale => Ok(Finished::Stale),
        Recall::Late { claimed_at, refund } => {
            let late = late_json(outcome, claimed_at, time(&row, "now")?);
            keep(conn, outcome, late, refund).await?;
            Ok(Finished::Stale)
        }
    }
}

/// The first outcome that comes after a rescue is kept; a second one is the same sent again. A charge that a rescue had to leave
/// is given back, once; a job that has ended stays as it is.
async fn keep(conn: &mut PgConnection, outcome: &Finish, late: String, refund: bool) -> Result<(), StoreError> {
    let fence = outcome.fence;
    sqlx::query(
        "WITH a AS MATERIALIZED (
             SELECT charged FROM jobvisor.attempts WHERE job_id = $1 AND attempt = $2 AND term = $3 FOR UPDATE),
         j AS (
             UPDATE jobvisor.jobs SET charged = greatest(charged - 1, 0), interruptions = interruptions + $6::bool::int
             WHERE id = $1 AND $5 AND finished_at IS NULL AND budget_since < $2 AND (SELECT charged FROM a)
             RETURNING id)
         UPDATE jobvisor.attempts
         SET late_outcome = coalesce(late_outcome, $4::text::json), charged = charged AND NOT EXISTS (SELECT 1 FROM j)
         WHERE job_id = $1 AND attempt = $2 AND term = $3",
    )
    .bind(fence.job.0)
    .bind(cut_int(fence.attempt.0))
    .bind(fence.term.0)
    .bind(late)
    .bind(refund)
    .bind(outcome.decision.interruption)
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(|e| StoreError::sort(STEP, e))
}
