//! Outcomes whose fence no longer holds, held against what was recorded.
//!
//! The same outcome under the same fence is [`Finished::Already`]: its reply was lost (I2). Anything else is
//! [`Finished::Stale`] (I5). One that comes after its attempt was rescued is kept beside it as `late_outcome`, and a cause
//! that proves to be foreign to the job still gives the charge back, once, while the job has not ended (I10).

use jiff::Timestamp;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::finish::{STEP, code};
use super::row::{attempt, count, get, time, word_or_none};
use crate::domain::cause::Cause;
use crate::domain::ids::{JobId, Term};
use crate::domain::text::printable;
use crate::store::error::StoreError;
use crate::store::model::{Finish, Finished};

/// What the job's row says of attempts before.
struct Found {
    attempt: u32,
    last_term: Option<Term>,
    last_outcome: Option<String>,
    budget_since: u32,
}

async fn find(conn: &mut SqliteConnection, job: JobId) -> Result<Option<Found>, StoreError> {
    let row = sqlx::query("SELECT attempt, last_term, last_outcome, budget_since FROM jobs WHERE id = ?1")
        .bind(job.0)
        .fetch_optional(conn)
        .await
        .map_err(|e| StoreError::sort(STEP, e))?;
    row.as_ref().map(found).transpose()
}

fn found(row: &SqliteRow) -> Result<Found, StoreError> {
    Ok(Found {
        attempt: attempt(row)?.0,
        last_term: word_or_none(row, "last_term")?,
        last_outcome: get(row, "last_outcome")?,
        budget_since: count(row, "budget_since")?,
    })
}

/// The fence does not hold: was this very outcome recorded before, or is it stale?
pub(super) async fn recall(
    conn: &mut SqliteConnection,
    outcome: &Finish,
    now: Timestamp,
) -> Result<Finished, StoreError> {
    let fence = outcome.fence;
    let Some(found) = find(conn, fence.job).await? else { return Ok(Finished::Stale) };
    let row = sqlx::query("SELECT outcome, claimed_at FROM attempts WHERE job_id = ?1 AND attempt = ?2 AND term = ?3")
        .bind(fence.job.0)
        .bind(i64::from(fence.attempt.0))
        .bind(fence.term.to_string())
        .fetch_optional(&mut *conn)
        .await
        .map_err(|e| StoreError::sort(STEP, e))?;
    let word = code(outcome.verdict.as_ref());
    let Some(row) = row else {
        let same = found.attempt == fence.attempt.0
            && found.last_term == Some(fence.term)
            && found.last_outcome.as_deref() == Some(word);
        return Ok(if same { Finished::Already } else { Finished::Stale });
    };
    let recorded: &str = get(&row, "outcome")?;
    if recorded == word {
        return Ok(Finished::Already);
    }
    if recorded == Cause::SupervisorLost.code() || recorded == Cause::HostRebooted.code() {
        keep_late(conn, outcome, time(&row, "claimed_at")?, now).await?;
        if outcome.decision.refund && fence.attempt.0 > found.budget_since {
            refund_late(conn, outcome).await?;
        }
    }
    Ok(Finished::Stale)
}

/// The first outcome that comes after a rescue is kept; a second one is the same sent again.
async fn keep_late(
    conn: &mut SqliteConnection,
    outcome: &Finish,
    claimed_at: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    let text = |text: &str| printable(text.as_bytes()).into_owned();
    let record = outcome.record.as_ref();
    let late = serde_json::json!({
        "outcome": code(outcome.verdict.as_ref()),
        "verdict": outcome.verdict,
        "decision": outcome.decision,
        "result": outcome.result.as_deref().map(text),
        "claimed_at": claimed_at,
        "received_at": now,
        "started_at": record.and_then(|r| r.started_at),
        "ended_at": record.and_then(|r| r.ended_at),
        "message": record.and_then(|r| r.message.as_deref()).map(text),
        "trace": record.and_then(|r| r.trace.as_deref()).map(text),
        "output_tail": record.map(|r| text(&r.output_tail)),
        "evidence": record.map(|r| &r.evidence),
    });
    sqlx::query("UPDATE attempts SET late_outcome = ?3 WHERE job_id = ?1 AND attempt = ?2 AND late_outcome IS NULL")
        .bind(outcome.fence.job.0)
        .bind(i64::from(outcome.fence.attempt.0))
        .bind(late.to_string())
        .execute(conn)
        .await
        .map(|_| ())
        .map_err(|e| StoreError::sort(STEP, e))
}

/// Gives a charge back, once, that a rescue had to leave; a job that has ended stays as it is.
async fn refund_late(conn: &mut SqliteConnection, outcome: &Finish) -> Result<(), StoreError> {
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
