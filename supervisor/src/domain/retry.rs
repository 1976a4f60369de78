//! What follows from an ending: the one place where budgets are spent (invariant I1).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cause::Cause;
use super::job::Budget;
use super::verdict::Verdict;

/// How long a job waits after its n-th charged failure: `first * factor^(n-1)`, at most `max`, spread by `± jitter`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// Growth; at least 1.
    pub factor: f64,
    /// Never longer than this (before jitter is taken off; jitter never adds beyond it).
    pub max: Duration,
    /// From 0 (none) to 1.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(5), factor: 2.0, max: Duration::from_secs(3600), jitter: 0.2 }
    }
}

/// What to do when the job's own appetite for memory ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOom {
    /// It is dead at once.
    Fail,
    /// Ordinary budget and back-off.
    #[default]
    Retry,
}

/// What of a kind's configuration the decision needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// Waiting times.
    pub backoff: Backoff,
    /// The kind's `on_oom`.
    pub on_oom: OnOom,
}

/// Where the job goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Next {
    /// `succeeded`.
    Succeeded,
    /// `cancelled`.
    Cancelled,
    /// `dead`.
    Dead,
    /// Back to `scheduled` (or `queued` when the delay is zero); `cancelled` instead if a cancel was asked for meanwhile.
    PutBack(Duration),
}

/// What the store has to record beside the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Where the job goes.
    pub next: Next,
    /// The charge made at claim is given back.
    pub refund: bool,
    /// The attempt counts as an interruption.
    pub interruption: bool,
    /// The kind, not the job, is at fault: open its breaker.
    pub breaker: bool,
}
