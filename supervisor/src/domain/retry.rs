//! What follows from an ending: the one place where budgets are spent (invariant I1).
//!
//! The charge was made at claim; [`decide`] only says whether it is given back. Every way back to the queue either
//! keeps the charge (and then there is budget left), or counts an interruption (and there are at most
//! `max_interruptions`), or is one that no job can bring about by running: a drain, a start that failed (the kind's
//! breaker bounds those), a snooze that was asked for. So no job starts for ever, however it dies.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cause::Cause;
use super::job::Budget;
use super::verdict::{Ending, Flag, Verdict};

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

/// No snooze is longer: ten years, so that a due time stays a time that stores and calendars know.
const LONGEST_SNOOZE: Duration = Duration::from_secs(10 * 366 * 86_400);

impl Backoff {
    /// The wait after the `nth` failure (from 1); `random`, from 0 to 1, places it within the jitter.
    ///
    /// Growth is compared with what `max` leaves room for before anything is multiplied, so no attempt number
    /// overflows. At the cap the jitter only takes off: a fleet that waits `max` is still spread.
    #[must_use]
    pub fn delay(&self, nth: u32, random: f64) -> Duration {
        let first = self.first.min(self.max).as_secs_f64();
        let max = self.max.as_secs_f64();
        if first <= 0.0 {
            return Duration::ZERO;
        }
        let factor = if self.factor >= 1.0 { self.factor } else { 1.0 };
        let growth = factor.powf(f64::from(nth.saturating_sub(1)));
        let base = if growth < max / first { first * growth } else { max };
        let jitter = if self.jitter.is_nan() { 0.0 } else { self.jitter.clamp(0.0, 1.0) };
        let place = if random.is_nan() { 0.5 } else { random.clamp(0.0, 1.0) };
        let (low, high) = (base * (1.0 - jitter), (base * (1.0 + jitter)).min(max));
        Duration::try_from_secs_f64(low + place * (high - low)).unwrap_or(self.max).min(self.max)
    }
}

/// What a cause means for the budgets.
enum Class {
    /// The job's own: charged.
    Own,
    /// Its own, and sure to come again: charged, and no further attempt.
    Final,
    /// Foreign to the job: given back, but not without end.
    Interruption,
    /// We asked for it in order to stop ourselves: given back always.
    Drain,
    /// Nothing was started: given back, the kind is at fault.
    Start,
    /// Asked for.
    Cancel,
}

/// `fenced` is an interruption: the row is another's by then, so the write is refused by its fence; should the fence
/// still hold (the lease lapsed and nobody came), the job is given back, bounded, because a job may have been
/// what held its supervisor up. `supervisor_lost` is charged for the same reason.
const fn class(cause: Cause) -> Class {
    match cause {
        Cause::JobError
        | Cause::ExitNonzero
        | Cause::ExitWithoutResult
        | Cause::ProtocolError
        | Cause::OomJobLimit
        | Cause::OomDescendant
        | Cause::MemWatchdog
        | Cause::AllocFailed
        | Cause::Timeout
        | Cause::Crash
        | Cause::KilledExternal
        | Cause::KilledUnknown
        | Cause::Panic
        | Cause::Blocked
        | Cause::SupervisorLost => Class::Own,
        Cause::OomAtStart | Cause::Unkillable | Cause::OutputLimit | Cause::CpuLimit => Class::Final,
        Cause::OomAncestorLimit
        | Cause::OomHost
        | Cause::OomOomd
        | Cause::WardenLost
        | Cause::HostRebooted
        | Cause::Fenced => Class::Interruption,
        Cause::Drained => Class::Drain,
        Cause::SpawnFailed | Cause::LimitSetupFailed => Class::Start,
        Cause::Cancelled => Class::Cancel,
    }
}

/// What the store records for an attempt that ended so. `budget` holds this attempt's charge; `random` is from 0 to
/// 1; `snooze` is what the job asked for (without it a snooze lasts the first back-off).
#[must_use]
pub fn decide(verdict: &Verdict, budget: &Budget, policy: &Policy, random: f64, snooze: Option<Duration>) -> Decision {
    let kept = |next| Decision { next, refund: false, interruption: false, breaker: false };
    let given_back = |delay| Decision { refund: true, ..kept(Next::PutBack(delay)) };
    let cause = match verdict.ending {
        Ending::Succeeded => return kept(Next::Succeeded),
        Ending::Snoozed => {
            let asked = snooze.unwrap_or_else(|| policy.backoff.delay(1, random));
            return given_back(asked.min(LONGEST_SNOOZE));
        }
        Ending::Failed(cause) => cause,
    };
    let permanent = verdict.flags.contains(&Flag::Permanent) || (cause.is_own_oom() && policy.on_oom == OnOom::Fail);
    let charged = || {
        if permanent || budget.charged >= budget.max_attempts {
            kept(Next::Dead)
        } else {
            kept(Next::PutBack(policy.backoff.delay(budget.charged, random)))
        }
    };
    match class(cause) {
        Class::Own => charged(),
        Class::Final => kept(Next::Dead),
        Class::Interruption if budget.interruptions < budget.max_interruptions => {
            let delay = policy.backoff.delay(budget.interruptions.saturating_add(1), random);
            Decision { interruption: true, ..given_back(delay) }
        }
        Class::Interruption => charged(),
        Class::Drain => given_back(Duration::ZERO),
        Class::Start => Decision { breaker: true, ..given_back(policy.backoff.delay(1, random)) },
        Class::Cancel => kept(Next::Cancelled),
    }
}
