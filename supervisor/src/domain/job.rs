//! The life of a job: its states, what moves it, and the one function that says what may follow what.
//!
//! ```text
//!             enqueue            due                 claim (attempt += 1, charged += 1)
//!  (none) ──────────► scheduled ─────► queued ─────────────────────────► running
//!    │                    ▲  ▲            ▲                               │ │ │ │
//!    └────► waiting ──────│──│── parents done                             │ │ │ └ done ─────► succeeded
//!                         │  └── failed, budget left: back off ───────────┘ │ └─ cancelled ─► cancelled
//!                         └───── snoozed, drained, given back ──────────────┤
//!    scheduled, queued, waiting ── cancel ─► cancelled                      └─ permanent, or budget used ─► dead
//! ```
//! The same table stands as CHECK constraints in the stores' schemas.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ids::{AttemptNo, JobId};
use super::units::Bytes;

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// For jobs that it comes after.
    Waiting,
    /// For its time.
    Scheduled,
    /// Due now; a supervisor may claim it.
    Queued,
    /// Claimed; counted and charged.
    Running,
    /// Done.
    Succeeded,
    /// Ended by a person or a program.
    Cancelled,
    /// Its budget is used up, or its failure is permanent; kept for a person.
    Dead,
}

impl JobState {
    /// Every state, in the order of the life of a job.
    pub const ALL: [Self; 7] =
        [Self::Waiting, Self::Scheduled, Self::Queued, Self::Running, Self::Succeeded, Self::Cancelled, Self::Dead];

    /// The stored and printed word.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Scheduled => "scheduled",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Cancelled => "cancelled",
            Self::Dead => "dead",
        }
    }

    /// Whether the job has ended.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled | Self::Dead)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

impl FromStr for JobState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|state| state.code() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|state| state.code()).collect();
            format!("`{text}` is not a state; known are {}", known.join(", "))
        })
    }
}

/// What moves a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JobEvent {
    /// Its time has come, or the jobs before it are done.
    Due,
    /// A supervisor took it.
    Claimed,
    /// The attempt did its work.
    Done,
    /// The attempt failed and there is budget left; or it was snoozed, drained or given back.
    PutBack,
    /// The attempt failed for good, or the budget is used up.
    BudgetUsed,
    /// It was cancelled.
    Cancelled,
    /// A person wants it run again, with a fresh budget.
    Retried,
}

impl JobEvent {
    /// Every event.
    pub const ALL: [Self; 7] =
        [Self::Due, Self::Claimed, Self::Done, Self::PutBack, Self::BudgetUsed, Self::Cancelled, Self::Retried];
}

/// A move that the life of a job does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {state} cannot be moved by {event:?}")]
pub struct IllegalTransition {
    /// Where the job stood.
    pub state: JobState,
    /// What was to move it.
    pub event: JobEvent,
}

/// What follows when `event` meets a job in `state`. `PutBack` leads to `scheduled`; one whose time is now is `Due` at once.
///
/// # Errors
/// [`IllegalTransition`], naming both, for every pair that the drawing does not show.
pub const fn next(state: JobState, event: JobEvent) -> Result<JobState, IllegalTransition> {
    use JobEvent::{BudgetUsed, Cancelled, Claimed, Done, Due, PutBack, Retried};
    match (state, event) {
        (JobState::Waiting | JobState::Scheduled, Due) => Ok(JobState::Queued),
        (JobState::Queued, Claimed) => Ok(JobState::Running),
        (JobState::Running, Done) => Ok(JobState::Succeeded),
        (JobState::Running, PutBack) => Ok(JobState::Scheduled),
        (JobState::Running, BudgetUsed) => Ok(JobState::Dead),
        (JobState::Waiting | JobState::Scheduled | JobState::Queued | JobState::Running, Cancelled) => {
            Ok(JobState::Cancelled)
        }
        (JobState::Succeeded | JobState::Cancelled | JobState::Dead, Retried) => Ok(JobState::Queued),
        (state, event) => Err(IllegalTransition { state, event }),
    }
}

/// The budgets of a job and what of them is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Attempts that count, this one included while it runs (it is charged at claim).
    pub charged: u32,
    /// How many may.
    pub max_attempts: u32,
    /// Attempts that ended for a cause foreign to the job, drains apart.
    pub interruptions: u32,
    /// How many of those are free of charge.
    pub max_interruptions: u32,
}

/// A job as it is stored, without its attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// The name under which `jobs.toml` says how to run it.
    pub kind: String,
    /// Where it stands.
    pub state: JobState,
    /// Lower goes first.
    pub priority: i32,
    /// For fair shares; empty: none.
    pub tenant: String,
    /// JSON text as given.
    pub payload: String,
    /// JSON text; `None` until it succeeded, or when it produced none.
    pub result: Option<String>,
    /// Number of the last attempt; 0: never claimed.
    pub attempt: AttemptNo,
    /// Its budgets.
    pub budget: Budget,
    /// Memory limit of the last claim, or what it was enqueued with; `None`: the kind's, not known yet.
    pub memory: Option<Bytes>,
    /// Cause of the last attempt that ended without success.
    pub cause: Option<super::cause::Cause>,
    /// At most one unfinished job of a kind holds a key.
    pub unique_key: Option<String>,
    /// The schedule that made it.
    pub schedule: Option<String>,
    /// A cancel has been asked for while it runs.
    pub cancel_requested: bool,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it is or was due.
    pub run_at: Timestamp,
    /// When the running or last attempt was claimed.
    pub claimed_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The most that any of its attempts used.
    pub peak: Option<Bytes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The drawing as a table: rows are states in the order of `ALL`, columns events; `.` is illegal.
    const TABLE: [&str; 7] = [
        // Due Claimed Done PutBack BudgetUsed Cancelled Retried
        "queued . . . . cancelled .",
        "queued . . . . cancelled .",
        ". running . . . cancelled .",
        ". . succeeded scheduled dead cancelled .",
        ". . . . . . queued",
        ". . . . . . queued",
        ". . . . . . queued",
    ];

    #[test]
    fn every_pair_of_state_and_event_is_ruled() {
        for (state, row) in JobState::ALL.into_iter().zip(TABLE) {
            for (event, cell) in JobEvent::ALL.into_iter().zip(row.split(' ')) {
                let expected = cell.parse().map_err(|_: String| IllegalTransition { state, event });
                assert_eq!(next(state, event), expected, "{state} × {event:?}");
            }
        }
    }
}
