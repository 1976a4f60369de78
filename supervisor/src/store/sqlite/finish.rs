//! Recording how attempts ended.
//!
//! A batch is one transaction; each outcome is one statement that compares the fence and moves the job (I5), and one more
//! for the attempt's row. An outcome that no longer matches goes to [`late`].
//!
//! Recording cannot fail for its content (I10): texts go through [`printable`]; a batch that the database refuses is
//! halved down to the outcome at fault, which is then recorded with its result as text and, if that is refused too,
//! without result and story. Either is said in the verdict's `contributing`.

use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::row::{state, time, to_json};
use super::{SqliteStore, depend, late};
use crate::domain::cause::Cause;
use crate::domain::clock;
use crate::domain::job::JobState;
use crate::domain::retry::Next;
use crate::domain::text::printable;
use crate::domain::verdict::{Ending, Verdict};
use crate::store::error::StoreError;
use crate::store::model::{AttemptRecord, Finish, Finished};

pub(super) const STEP: &str = "record outcomes";

/// How much of an outcome is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Detail {
    /// All of it.
    Full,
    /// All of it, the result as a JSON string.
    ResultAsText,
    /// Where the job goes, and the verdict.
    Minimal,
}

pub(super) async fn finish(store: &SqliteStore, outcomes: &[Finish]) -> Result<Vec<Finished>, StoreError> {
    let outcomes: Arc<[Finish]> = Arc::from(outcomes);
    let mut done = Vec::with_capacity(outcomes.len());
    let mut todo = vec![(0..outcomes.len(), Detail::Full)];
    while let Some((range, detail)) = todo.pop() {
        let error = match record_range(store, Arc::clone(&outcomes), range.clone(), detail).await {
            Ok(recorded) => {
                done.extend(recorded);
                continue;
            }
            Err(error) if error.is_unavailable() => return Err(error),
            Err(error) => error,
        };
        if range.len() > 1 {
            let middle = range.start + range.len() / 2;
            todo.push((middle..range.end, detail));
            todo.push((range.start..middle, detail));
            continue;
        }
        let next = match detail {
            Detail::Full => Detail::ResultAsText,
            Detail::ResultAsText => Detail::Minimal,
            Detail::Minimal => return Err(error),
        };
        tracing::warn!(%error, ?next, "an outcome was refused as it was; recording less of it");
        todo.push((range, next));
    }
    Ok(done)
}

async fn record_range(
    store: &SqliteStore,
    outcomes: Arc<[Finish]>,
    range: Range<usize>,
    detail: Detail,
) -> Result<Vec<Finished>, StoreError> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
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
        insert_attempt(conn, outcome, detail, time(&row, "claimed_at")?, now).await?;
    }
    Ok(Finished::Recorded(state(&row)?))
}

const fn target(next: Next) -> JobState {
    match next {
        Next::Succeeded => JobState::Succeeded,
        Next::Dead => JobState::Dead,
        Next::Cancelled => JobState::Cancelled,
        Next::PutBack(delay) if delay.is_zero() => JobState::Queued,
        Next::PutBack(_) => JobState::Scheduled,
    }
}

/// The word under which an outcome is known again.
pub(super) fn code(verdict: Option<&Verdict>) -> &'static str {
    match verdict.map(|v| v.ending) {
        None => "given_back",
        Some(Ending::Succeeded) => "succeeded",
        Some(Ending::Snoozed) => "snoozed",
        Some(Ending::Failed(cause)) => cause.code(),
    }
}

/// Every attempt leaves a row but a light one that went well: only that may come without its story.
fn leaves_row(outcome: &Finish) -> bool {
    let went_well = matches!(outcome.verdict.as_ref().map(|v| v.ending), Some(Ending::Succeeded | Ending::Snoozed));
    outcome.record.is_some() || !went_well
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
    let state = target(outcome.decision.next);
    let due = match outcome.decision.next {
        Next::PutBack(delay) => Some(now.checked_add(delay).unwrap_or(Timestamp::MAX)),
        Next::Succeeded | Next::Cancelled | Next::Dead => None,
    };
    let verdict = outcome.verdict.as_ref();
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
    .bind(state.code())
    .bind(code(verdict))
    .bind(i64::from(outcome.decision.refund))
    .bind(i64::from(outcome.decision.interruption))
    .bind(result(outcome, state, detail)?)
    .bind(verdict.and_then(|v| v.ending.cause()).map(Cause::code))
    .bind(due.map(Timestamp::as_microsecond))
    .bind(now.as_microsecond())
    .bind(peak(outcome))
    .fetch_optional(conn)
    .await
    .map_err(|e| StoreError::sort(STEP, e))
}

fn result(outcome: &Finish, state: JobState, detail: Detail) -> Result<Option<String>, StoreError> {
    let Some(text) = outcome.result.as_ref().filter(|_| state == JobState::Succeeded) else { return Ok(None) };
    match detail {
        Detail::Full => Ok(Some(text.clone())),
        Detail::ResultAsText => to_json(text).map(Some),
        Detail::Minimal => Ok(None),
    }
}

fn peak(outcome: &Finish) -> Option<i64> {
    let process = outcome.record.as_ref()?.evidence.process.as_ref()?;
    process.memory.peak.map(|peak| peak.as_i64())
}

/// Says in the verdict what was left out.
fn noted(verdict: &Verdict, detail: Detail) -> Verdict {
    let note = match detail {
        Detail::Full => None,
        Detail::ResultAsText => Some("the database refused the result as JSON; it is kept as text"),
        Detail::Minimal => Some("the database refused the result and the story of this attempt; they were left out"),
    };
    let mut verdict = verdict.clone();
    verdict.contributing.extend(note.map(str::to_owned));
    verdict
}

fn reduced(record: &AttemptRecord, detail: Detail) -> AttemptRecord {
    match detail {
        Detail::Full | Detail::ResultAsText => record.clone(),
        Detail::Minimal => AttemptRecord {
            started_at: record.started_at,
            ended_at: record.ended_at,
            supervisor: record.supervisor.clone(),
            host: record.host.clone(),
            ..AttemptRecord::default()
        },
    }
}

async fn insert_attempt(
    conn: &mut SqliteConnection,
    outcome: &Finish,
    detail: Detail,
    claimed_at: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    let verdict = outcome.verdict.as_ref().map(|verdict| noted(verdict, detail));
    let record = outcome.record.as_ref().map(|record| reduced(record, detail)).unwrap_or_default();
    let text = |text: &str| printable(text.as_bytes()).into_owned();
    sqlx::query(
        "INSERT INTO attempts (job_id, attempt, term, outcome, verdict, charged, claimed_at, started_at, ended_at,
             finished_at, supervisor, host, message, trace, output_tail, evidence)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
    )
    .bind(outcome.fence.job.0)
    .bind(i64::from(outcome.fence.attempt.0))
    .bind(outcome.fence.term.to_string())
    .bind(code(verdict.as_ref()))
    .bind(verdict.as_ref().map(to_json).transpose()?)
    .bind(!outcome.decision.refund)
    .bind(claimed_at.as_microsecond())
    .bind(record.started_at.map(Timestamp::as_microsecond))
    .bind(record.ended_at.map(Timestamp::as_microsecond))
    .bind(now.as_microsecond())
    .bind(text(&record.supervisor))
    .bind(text(&record.host))
    .bind(record.message.as_deref().map(text))
    .bind(record.trace.as_deref().map(text))
    .bind(text(&record.output_tail))
    .bind(to_json(&record.evidence)?)
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(|e| StoreError::sort(STEP, e))
}
