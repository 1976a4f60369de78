//! Recording how attempts ended.
//!
//! A batch is one transaction. Each outcome is held against the row's fence (I5); one that no longer matches is held
//! against what was recorded (I2): the same outcome under the same fence is [`Finished::Already`], anything else is
//! [`Finished::Stale`]. An outcome that comes after its attempt was rescued is kept beside it as `late_outcome`, and a
//! cause that proves to be foreign to the job still gives the charge back while the job has not ended.
//!
//! Recording cannot fail for its content (I10): texts go through [`printable`]; a batch that the database refuses is
//! halved down to the outcome at fault, which is then recorded with its result as text and, if that is refused too,
//! without result and story. Either is said in the verdict's `contributing`.

use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::row::{attempt, count, get, state, time, to_json, word_or_none};
use super::{SqliteStore, depend};
use crate::domain::cause::Cause;
use crate::domain::clock;
use crate::domain::ids::{JobId, Term};
use crate::domain::job::JobState;
use crate::domain::retry::Next;
use crate::domain::text::printable;
use crate::domain::verdict::{Ending, Verdict};
use crate::store::error::StoreError;
use crate::store::model::{AttemptRecord, Finish, Finished};

const STEP: &str = "record outcomes";

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

/// The job's row as the fence finds it.
struct Found {
    state: JobState,
    attempt: u32,
    term: Option<Term>,
    last_term: Option<Term>,
    last_outcome: Option<String>,
    cancel_requested: bool,
    claimed_at: Option<Timestamp>,
    budget_since: u32,
}

async fn record(
    conn: &mut SqliteConnection,
    outcome: &Finish,
    detail: Detail,
    now: Timestamp,
) -> Result<Finished, StoreError> {
    let Some(found) = find(conn, outcome.fence.job).await? else { return Ok(Finished::Stale) };
    let fence = outcome.fence;
    if found.state != JobState::Running || found.attempt != fence.attempt.0 || found.term != Some(fence.term) {
        return recall(conn, outcome, &found, now).await;
    }
    let state = target(outcome.decision.next, found.cancel_requested);
    let verdict = outcome.verdict.as_ref().map(|verdict| noted(verdict, detail));
    move_job(conn, outcome, state, detail, now).await?;
    if leaves_row(outcome) {
        let spare = AttemptRecord::default();
        let record = outcome.record.as_ref().unwrap_or(&spare);
        insert_attempt(conn, outcome, verdict.as_ref(), &reduced(record, detail), found.claimed_at.unwrap_or(now), now)
            .await?;
    }
    Ok(Finished::Recorded(state))
}

async fn find(conn: &mut SqliteConnection, job: JobId) -> Result<Option<Found>, StoreError> {
    let row = sqlx::query(
        "SELECT state, attempt, term, last_term, last_outcome, cancel_requested, claimed_at, budget_since
         FROM jobs WHERE id = ?1",
    )
    .bind(job.0)
    .fetch_optional(conn)
    .await
    .map_err(|e| StoreError::sort(STEP, e))?;
    row.as_ref().map(found).transpose()
}

fn found(row: &SqliteRow) -> Result<Found, StoreError> {
    Ok(Found {
        state: state(row)?,
        attempt: attempt(row)?.0,
        term: word_or_none(row, "term")?,
        last_term: word_or_none(row, "last_term")?,
        last_outcome: get(row, "last_outcome")?,
        cancel_requested: get(row, "cancel_requested")?,
        claimed_at: super::row::time_or_none(row, "claimed_at")?,
        budget_since: count(row, "budget_since")?,
    })
}

/// A job that is put back although somebody asked to cancel it is cancelled: nobody else would do it.
const fn target(next: Next, cancel_requested: bool) -> JobState {
    match next {
        Next::Succeeded => JobState::Succeeded,
        Next::Dead => JobState::Dead,
        Next::Cancelled => JobState::Cancelled,
        Next::PutBack(_) if cancel_requested => JobState::Cancelled,
        Next::PutBack(delay) if delay.is_zero() => JobState::Queued,
        Next::PutBack(_) => JobState::Scheduled,
    }
}

/// The word under which an outcome is known again.
fn code(verdict: Option<&Verdict>) -> &'static str {
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

async fn move_job(
    conn: &mut SqliteConnection,
    outcome: &Finish,
    state: JobState,
    detail: Detail,
    now: Timestamp,
) -> Result<(), StoreError> {
    let due = match outcome.decision.next {
        Next::PutBack(delay) if !state.is_final() => Some(now.checked_add(delay).unwrap_or(Timestamp::MAX)),
        Next::PutBack(_) | Next::Succeeded | Next::Cancelled | Next::Dead => None,
    };
    let verdict = outcome.verdict.as_ref();
    sqlx::query(
        "UPDATE jobs SET state = ?2, term = NULL, claim_seq = NULL, last_term = ?3, last_outcome = ?4,
             charged = max(charged - ?5, 0), interruptions = interruptions + ?6, cancel_requested = 0,
             result = ?7, cause = coalesce(?8, cause),
             peak = CASE WHEN ?9 IS NULL THEN peak ELSE max(coalesce(peak, 0), ?9) END,
             run_at = coalesce(?10, run_at), finished_at = ?11
         WHERE id = ?1",
    )
    .bind(outcome.fence.job.0)
    .bind(state.code())
    .bind(outcome.fence.term.to_string())
    .bind(code(verdict))
    .bind(i64::from(outcome.decision.refund))
    .bind(i64::from(outcome.decision.interruption))
    .bind(result(outcome, state, detail)?)
    .bind(verdict.and_then(|v| v.ending.cause()).map(Cause::code))
    .bind(peak(outcome))
    .bind(due.map(Timestamp::as_microsecond))
    .bind(state.is_final().then(|| now.as_microsecond()))
    .execute(conn)
    .await
    .map(|_| ())
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
    verdict: Option<&Verdict>,
    record: &AttemptRecord,
    claimed_at: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    let text = |text: &str| printable(text.as_bytes()).into_owned();
    sqlx::query(
        "INSERT INTO attempts (job_id, attempt, term, outcome, verdict, charged, claimed_at, started_at, ended_at,
             finished_at, supervisor, host, message, trace, output_tail, evidence)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
    )
    .bind(outcome.fence.job.0)
    .bind(i64::from(outcome.fence.attempt.0))
    .bind(outcome.fence.term.to_string())
    .bind(code(verdict))
    .bind(verdict.map(to_json).transpose()?)
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

/// The fence does not hold: was this very outcome recorded before, or is it stale?
async fn recall(
    conn: &mut SqliteConnection,
    outcome: &Finish,
    found: &Found,
    now: Timestamp,
) -> Result<Finished, StoreError> {
    let fence = outcome.fence;
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
