//! What the recording of outcomes has in common in all stores: how little of one may be left out, and what an outcome means
//! whose fence does not hold.
//!
//! Recording cannot fail for its content (I10): texts go through [`printable`]; a batch that the database refuses is
//! halved down to the outcome at fault, which is then recorded with its result as text and, if that is refused too,
//! without result and story. Either is said in the verdict's `contributing`.
//!
//! The same outcome under the same fence is [`Finished::Already`]: its reply was lost (I2). Anything else is
//! [`Finished::Stale`] (I5). One that comes after its attempt was rescued is kept beside it as `late_outcome`, and a cause
//! that proves to be foreign to the job still gives the charge back, once, while the job has not ended (I10).

use std::ops::Range;

use jiff::Timestamp;

use super::error::StoreError;
use super::model::{AttemptRecord, Finish, Finished};
use crate::domain::cause::Cause;
use crate::domain::ids::Term;
use crate::domain::job::JobState;
use crate::domain::retry::Next;
use crate::domain::text::printable;
use crate::domain::verdict::{Ending, Verdict};

/// How much of an outcome is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// All of it.
    Full,
    /// All of it, the result as a JSON string.
    ResultAsText,
    /// Where the job goes, and the verdict.
    Minimal,
}

/// Records `count` outcomes with `record`, all at once if the database takes them, else in halves.
pub(super) async fn in_parts<F, W>(count: usize, mut record: F) -> Result<Vec<Finished>, StoreError>
where
    F: FnMut(Range<usize>, Detail) -> W,
    W: Future<Output = Result<Vec<Finished>, StoreError>>,
{
    let mut done = Vec::with_capacity(count);
    let mut todo = vec![(0..count, Detail::Full)];
    while let Some((range, detail)) = todo.pop() {
        if range.is_empty() {
            continue;
        }
        let error = match record(range.clone(), detail).await {
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

/// A type of ours as JSON text.
pub(super) fn to_json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|e| StoreError::corrupt(format!("a value has no JSON form: {e}")))
}

/// Where the job goes, unless a cancel was asked for.
pub(super) const fn target(next: Next) -> JobState {
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
pub(super) fn leaves_row(outcome: &Finish) -> bool {
    let went_well = matches!(outcome.verdict.as_ref().map(|v| v.ending), Some(Ending::Succeeded | Ending::Snoozed));
    outcome.record.is_some() || !went_well
}

/// The result as JSON text, if the job succeeded and the detail has room for one.
pub(super) fn result(outcome: &Finish, detail: Detail) -> Result<Option<String>, StoreError> {
    let succeeded = target(outcome.decision.next) == JobState::Succeeded;
    let Some(text) = outcome.result.as_ref().filter(|_| succeeded) else { return Ok(None) };
    match detail {
        Detail::Full => Ok(Some(text.clone())),
        Detail::ResultAsText => to_json(text).map(Some),
        Detail::Minimal => Ok(None),
    }
}

/// The code of the cause, if it failed.
pub(super) fn cause(outcome: &Finish) -> Option<&'static str> {
    outcome.verdict.as_ref().and_then(|v| v.ending.cause()).map(Cause::code)
}

/// The most memory that the attempt used.
pub(super) fn peak(outcome: &Finish) -> Option<i64> {
    let process = outcome.record.as_ref()?.evidence.process.as_ref()?;
    process.memory.peak.map(|peak| peak.as_i64())
}

/// What goes into an attempt's row, storable.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) outcome: &'static str,
    pub(super) verdict: Option<String>,
    pub(super) charged: bool,
    pub(super) started_at: Option<Timestamp>,
    pub(super) ended_at: Option<Timestamp>,
    pub(super) supervisor: String,
    pub(super) host: String,
    pub(super) message: Option<String>,
    pub(super) trace: Option<String>,
    pub(super) output_tail: String,
    pub(super) evidence: String,
}

impl Story {
    pub(super) fn of(outcome: &Finish, detail: Detail) -> Result<Self, StoreError> {
        let verdict = outcome.verdict.as_ref().map(|verdict| noted(verdict, detail));
        let record = outcome.record.as_ref().map(|record| reduced(record, detail)).unwrap_or_default();
        Ok(Self {
            outcome: code(verdict.as_ref()),
            verdict: verdict.as_ref().map(to_json).transpose()?,
            charged: !outcome.decision.refund,
            started_at: record.started_at,
            ended_at: record.ended_at,
            supervisor: text(&record.supervisor),
            host: text(&record.host),
            message: record.message.as_deref().map(text),
            trace: record.trace.as_deref().map(text),
            output_tail: text(&record.output_tail),
            evidence: to_json(&record.evidence)?,
        })
    }
}

/// Any text as one that every database takes.
pub(super) fn text(text: &str) -> String {
    printable(text.as_bytes()).into_owned()
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

/// What is on record about the job of an outcome whose fence does not hold.
#[derive(Debug)]
pub(super) struct Found {
    /// Number of the job's last attempt.
    pub(super) attempt: u32,
    pub(super) last_term: Option<Term>,
    pub(super) last_outcome: Option<String>,
    pub(super) budget_since: u32,
    /// The row of the outcome's own attempt and term: its outcome, and when it was claimed.
    pub(super) recorded: Option<(String, Timestamp)>,
}

/// What an outcome is whose fence does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recall {
    /// Recorded before.
    Already,
    /// Somebody else's word stands.
    Stale,
    /// The word that stands is a rescuer's, who could not know better: to be kept beside it.
    Late {
        /// When the attempt was claimed.
        claimed_at: Timestamp,
        /// The charge is to be given back, if it still stands and the job has not ended.
        refund: bool,
    },
}

impl Found {
    pub(super) fn recall(&self, outcome: &Finish) -> Recall {
        let fence = outcome.fence;
        let word = code(outcome.verdict.as_ref());
        let Some((recorded, claimed_at)) = &self.recorded else {
            let same = self.attempt == fence.attempt.0
                && self.last_term == Some(fence.term)
                && self.last_outcome.as_deref() == Some(word);
            return if same { Recall::Already } else { Recall::Stale };
        };
        if recorded == word {
            return Recall::Already;
        }
        if *recorded != Cause::SupervisorLost.code() && *recorded != Cause::HostRebooted.code() {
            return Recall::Stale;
        }
        let refund = outcome.decision.refund && fence.attempt.0 > self.budget_since;
        Recall::Late { claimed_at: *claimed_at, refund }
    }
}

/// A late outcome as it is kept.
pub(super) fn late_json(outcome: &Finish, claimed_at: Timestamp, received_at: Timestamp) -> String {
    let record = outcome.record.as_ref();
    serde_json::json!({
        "outcome": code(outcome.verdict.as_ref()),
        "verdict": outcome.verdict,
        "decision": outcome.decision,
        "result": outcome.result.as_deref().map(text),
        "claimed_at": claimed_at,
        "received_at": received_at,
        "started_at": record.and_then(|r| r.started_at),
        "ended_at": record.and_then(|r| r.ended_at),
        "message": record.and_then(|r| r.message.as_deref()).map(text),
        "trace": record.and_then(|r| r.trace.as_deref()).map(text),
        "output_tail": record.map(|r| text(&r.output_tail)),
        "evidence": record.map(|r| &r.evidence),
    })
    .to_string()
}
