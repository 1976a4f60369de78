//! Recording how attempts ended.
//!
//! A batch is one transaction; each outcome is one statement that compares the fence and moves the job (I5), and one more
//! for the attempt's row. An outcome that no longer matches goes to [`late`]; what a refused one leaves out, see
//! [`outcome`](crate::store::outcome).

use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::row::{state, time};
use super::{SqliteStore, depend, late};
use crate::domain::clock;
use crate::domain::ids::Fence;
use crate::domain::job::JobState;
use crate::domain::retry::Next;
use crate::store::error::StoreError;
use crate::store::model::{Finish, Finished};
use crate::store::outcome::{Detail, Story, cause, code, in_parts, leaves_row, peak, result, target};

pub(super) const STEP: &str = "record outcomes";

pub(super) async fn finish(store: &SqliteStore, outcomes: &[Finish]) -> Result<Vec<Finished>, StoreError> {
    let outcomes: Arc<[Finish]> = Arc::from(outcomes);
    in_parts(outcomes.len(), |range, detail| record_range(store, Arc::clone(&outcomes), range, detail)).await
}

async fn record_range(
    store: &SqliteStore,
    outcomes: Arc<[Finish]>,
    range: Range<usize>,
    detail: Detail,
) -> Result<Vec<Finished>, StoreError> {
    store
        .write(STEP, move |conn| {
            Box::pin(async move {
                let now = clock::now();
                let mut done = Vec::with_capacity(range.len());
                let (mut succeeded, mut failed) = (Vec::new(), Vec::new());
                for outcome in outcomes.get(range).unwrap_or_default() {
                    let finished = record(conn, outcome, detail, now).await?;
                    match finished {
                        Finished::Recorded(JobState::Succeeded) => succeeded.push(outcome.fence.job),
                        Finished::Recorded(JobState::Cancelled | JobState::Dead) => failed.push(outcome.fence.job),
                        Finished::Recorded(
                            JobState::Waiting | JobState::Scheduled | JobState::Queued | JobState::Running,
                        )
                        | Finished::Already
                        | Finished::Stale => {}
                    }
                    done.push(finished);
                }
                depend::succeeded(conn, &succeeded, now).await?;
                depend::failed(conn, &failed, now).await?;
                Ok(done)
            })
        })
        .await
}

async fn record(
    conn: &mut SqliteConnection,
    outcome: &Finish,
    detail: Detail,
    now: Timestamp,
) -> Result<Finished, StoreError> {
    let Some(row) = move_job(conn, outcome, detail, now).await? else {
        return late::recall(conn, outcome, now).await;
    };
    if leaves_row(outcome) {
        insert_attempt(conn, outcome.fence, Story::of(outcome, detail)?, time(&row, "claimed_at")?, now).await?;
    }
    Ok(Finished::Recorded(state(&row)?))
}

/// Moves the job if the fence holds; `None`: it does not.
///
/// A job that is put back although somebody asked to cancel it is cancelled: nobody else would do it.
async fn move_job(
    conn: &mut SqliteConnection,
    outcome: &Finish,
    detail: Detail,
    now: Timestamp,
) -> Result<Option<SqliteRow>, StoreError> {
    let due = match outcome.decision.next {
        Next::PutBack(delay) => Some(now.checked_add(delay).unwrap_or(Timestamp::MAX)),
        Next::Succeeded | Next::Cancelled | Next::Dead => None,
    };
    sqlx::query(
        "UPDATE jobs SET state = CASE WHEN ?10 IS NOT NULL AND cancel_requested THEN 'cancelled' ELSE ?4 END,
             term = NULL, claim_seq = NULL, last_term = ?3, last_outcome = ?5,
             charged = max(charged - ?6, 0), interruptions = interruptions + ?7, cancel_requested = 0,
             result = ?8, cause = coalesce(?9, cause),
             run_at = CASE WHEN ?10 IS NULL OR cancel_requested THEN run_at ELSE ?10 END,
             finished_at = CASE WHEN ?10 IS NULL OR cancel_requested THEN ?11 END,
             peak = CASE WHEN ?12 IS NULL THEN peak ELSE max(coalesce(peak, 0), ?12) END
         WHERE id = ?1 AND state = 'running' AND attempt = ?2 AND term = ?3
         RETURNING state, claimed_at",
    )
    .bind(outcome.fence.job.0)
    .bind(i64::from(outcome.fence.attempt.0))
    .bind(outcome.fence.term.to_string())
    .bind(target(outcome.decision.next).code())
    .bind(code(outcome.verdict.as_ref()))
    .bind(i64::from(outcome.decision.refund))
    .bind(i64::from(outcome.decision.interruption))
    .bind(result(outcome, detail)?)
    .bind(cause(outcome))
    .bind(due.map(Timestamp::as_microsecond))
    .bind(now.as_microsecond())
    .bind(peak(outcome))
    .fetch_optional(conn)
    .await
    .map_err(|e| StoreError::sort(STEP, e))
}

async fn insert_attempt(
    conn: &mut SqliteConnection,
    fence: Fence,
    story: Story,
    claimed_at: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO attempts (job_id, attempt, term, outcome, verdict, charged, claimed_at, started_at, ended_at,
             finished_at, supervisor, host, message, trace, output_tail, evidence)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
    )
    .bind(fence.job.0)
    .bind(i64::from(fence.attempt.0))
    .bind(fence.term.to_string())
    .bind(story.outcome)
    .bind(story.verdict)
    .bind(story.charged)
    .bind(claimed_at.as_microsecond())
    .bind(story.started_at.map(Timestamp::as_microsecond))
    .bind(story.ended_at.map(Timestamp::as_microsecond))
    .bind(now.as_microsecond())
    .bind(story.supervisor)
    .bind(story.host)
    .bind(story.message)
    .bind(story.trace)
    .bind(story.output_tail)
    .bind(story.evidence)
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(|e| StoreError::sort(STEP, e))
}
