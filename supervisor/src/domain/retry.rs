//! What follows from an ending: the one place where budgets are spent (invariant I1).
//!
//! The charge was made at claim; [`decide`] only says whether it is given back. Every way back to the queue either
//! keeps the charge (and then there is budget left), or counts an interruption (and there are at most
//! `max_interruptions`), or is one that no job can bring about by running: a drain, a start that failed (the kind's
//! breaker bounds those) or was refused for want of trust, a snooze that was asked for. So no job starts for ever, however it dies.

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
    /// Nothing was started and nobody but the supervisor is at fault: given back always.
    NotStarted,
    /// Asked for.
    Cancel,
}

/// `fenced` before any code of the job ran (a start that was refused past the trust deadline) is given back always: the job had no
/// part in it, not even in holding up its supervisor. Else `fenced` is an interruption: the row is another's by then, so the write is refused by its fence; should the fence
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
    let not_started = cause == Cause::Fenced && verdict.flags.contains(&Flag::AtStart);
    match if not_started { Class::NotStarted } else { class(cause) } {
        Class::Own => charged(),
        Class::Final => kept(Next::Dead),
        Class::Interruption if budget.interruptions < budget.max_interruptions => {
            let delay = policy.backoff.delay(budget.interruptions.saturating_add(1), random);
            Decision { interruption: true, ..given_back(delay) }
        }
        Class::Interruption => charged(),
        Class::Drain => given_back(Duration::ZERO),
        Class::NotStarted => given_back(policy.backoff.delay(1, random)),
        Class::Start => Decision { breaker: true, ..given_back(policy.backoff.delay(1, random)) },
        Class::Cancel => kept(Next::Cancelled),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::verdict::{Certainty, Sureness};
    use super::*;

    const POLICY: Policy = Policy {
        backoff: Backoff { first: Duration::from_secs(5), factor: 2.0, max: Duration::from_secs(3600), jitter: 0.0 },
        on_oom: OnOom::Retry,
    };

    fn ended(ending: Ending, flags: &[Flag]) -> Verdict {
        let certainty = Certainty { kill: Sureness::Proved, reason: Sureness::Proved };
        Verdict { ending, certainty, contributing: vec![], flags: flags.to_vec() }
    }

    const fn budget(charged: u32, max_attempts: u32, interruptions: u32, max_interruptions: u32) -> Budget {
        Budget { charged, max_attempts, interruptions, max_interruptions }
    }

    /// The decision in one line: where to, then what is given back or counted.
    fn say(d: Decision) -> String {
        let next = match d.next {
            Next::Succeeded => "succeeded".to_owned(),
            Next::Cancelled => "cancelled".to_owned(),
            Next::Dead => "dead".to_owned(),
            Next::PutBack(delay) => format!("back in {}s", delay.as_secs_f64()),
        };
        let marks = [(d.refund, "refund"), (d.interruption, "interruption"), (d.breaker, "breaker")];
        [next]
            .into_iter()
            .chain(marks.into_iter().filter(|(on, _)| *on).map(|(_, m)| m.to_owned()))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Cause; then with budget left; with the last attempt charged; with interruptions used up too.
    const TABLE: &[(Cause, &str, &str, &str)] = &[
        (Cause::JobError, "back in 5s", "dead", "dead"),
        (Cause::ExitNonzero, "back in 5s", "dead", "dead"),
        (Cause::ExitWithoutResult, "back in 5s", "dead", "dead"),
        (Cause::ProtocolError, "back in 5s", "dead", "dead"),
        (Cause::OutputLimit, "dead", "dead", "dead"),
        (Cause::OomJobLimit, "back in 5s", "dead", "dead"),
        (Cause::OomDescendant, "back in 5s", "dead", "dead"),
        (Cause::OomAtStart, "dead", "dead", "dead"),
        (Cause::OomAncestorLimit, "back in 5s, refund, interruption", "back in 5s, refund, interruption", "dead"),
        (Cause::OomHost, "back in 5s, refund, interruption", "back in 5s, refund, interruption", "dead"),
        (Cause::OomOomd, "back in 5s, refund, interruption", "back in 5s, refund, interruption", "dead"),
        (Cause::MemWatchdog, "back in 5s", "dead", "dead"),
        (Cause::AllocFailed, "back in 5s", "dead", "dead"),
        (Cause::Timeout, "back in 5s", "dead", "dead"),
        (Cause::Cancelled, "cancelled", "cancelled", "cancelled"),
        (Cause::Drained, "back in 0s, refund", "back in 0s, refund", "back in 0s, refund"),
        (Cause::Fenced, "back in 5s, refund, interruption", "back in 5s, refund, interruption", "dead"),
        (Cause::Crash, "back in 5s", "dead", "dead"),
        (Cause::CpuLimit, "dead", "dead", "dead"),
        (Cause::KilledExternal, "back in 5s", "dead", "dead"),
        (Cause::KilledUnknown, "back in 5s", "dead", "dead"),
        (
            Cause::SpawnFailed,
            "back in 5s, refund, breaker",
            "back in 5s, refund, breaker",
            "back in 5s, refund, breaker",
        ),
        (
            Cause::LimitSetupFailed,
            "back in 5s, refund, breaker",
            "back in 5s, refund, breaker",
            "back in 5s, refund, breaker",
        ),
        (Cause::Unkillable, "dead", "dead", "dead"),
        (Cause::Panic, "back in 5s", "dead", "dead"),
        (Cause::Blocked, "back in 5s", "dead", "dead"),
        (Cause::SupervisorLost, "back in 5s", "dead", "dead"),
        (Cause::WardenLost, "back in 5s, refund, interruption", "back in 5s, refund, interruption", "dead"),
        (Cause::HostRebooted, "back in 5s, refund, interruption", "back in 5s, refund, interruption", "dead"),
    ];

    #[test]
    fn i1_every_cause_spends_its_budget_as_specified() {
        assert!(TABLE.iter().map(|row| row.0).eq(Cause::ALL.iter().copied()));
        let budgets = [budget(1, 3, 0, 5), budget(3, 3, 0, 5), budget(3, 3, 5, 5)];
        for (cause, left, last, used_up) in TABLE {
            let verdict = ended(Ending::Failed(*cause), &[]);
            let got = budgets.map(|b| say(decide(&verdict, &b, &POLICY, 0.5, None)));
            assert_eq!(got, [*left, *last, *used_up], "{cause}");
        }
    }

    #[test]
    fn i1_an_interruption_beyond_its_budget_is_charged_but_need_not_be_the_end() {
        let verdict = ended(Ending::Failed(Cause::OomHost), &[]);
        assert_eq!(say(decide(&verdict, &budget(2, 3, 5, 5), &POLICY, 0.5, None)), "back in 10s");
        assert_eq!(say(decide(&verdict, &budget(1, 1, 0, 0), &POLICY, 0.5, None)), "dead");
    }

    #[test]
    fn success_snooze_permanence_and_on_oom_are_obeyed() {
        let b = budget(1, 3, 0, 5);
        let fail = Policy { on_oom: OnOom::Fail, ..POLICY };
        let asked = Some(Duration::from_secs(90));
        let rows = [
            (ended(Ending::Succeeded, &[]), POLICY, None, "succeeded"),
            (ended(Ending::Snoozed, &[]), POLICY, asked, "back in 90s, refund"),
            (ended(Ending::Snoozed, &[]), POLICY, None, "back in 5s, refund"),
            (ended(Ending::Snoozed, &[]), POLICY, Some(Duration::MAX), "back in 316224000s, refund"),
            (ended(Ending::Failed(Cause::JobError), &[Flag::Permanent]), POLICY, None, "dead"),
            (ended(Ending::Failed(Cause::Fenced), &[Flag::AtStart]), POLICY, None, "back in 5s, refund"),
            (ended(Ending::Failed(Cause::OomJobLimit), &[]), fail, None, "dead"),
            (ended(Ending::Failed(Cause::MemWatchdog), &[]), fail, None, "dead"),
            (ended(Ending::Failed(Cause::OomHost), &[]), fail, None, "back in 5s, refund, interruption"),
            (ended(Ending::Failed(Cause::Crash), &[]), fail, None, "back in 5s"),
        ];
        for (verdict, policy, snooze, expected) in rows {
            assert_eq!(say(decide(&verdict, &b, &policy, 0.5, snooze)), expected, "{verdict:?}");
        }
    }

    #[test]
    fn delays_of_two_hundred_attempts_grow_to_the_cap_and_stay_there() {
        for (first, factor) in [(1, 2.0), (86_400, 10.0)] {
            let max = Duration::from_secs(100 * 86_400);
            let backoff = Backoff { first: Duration::from_secs(first), factor, max, jitter: 0.0 };
            let delays: Vec<_> = (1..=200).map(|n| backoff.delay(n, 0.5)).collect();
            assert_eq!(delays[..2], [Duration::from_secs(first), Duration::from_secs(first).mul_f64(factor)]);
            assert!(delays.is_sorted() && delays[199] == max, "{delays:?}");
        }
    }

    #[test]
    fn a_fleet_that_fails_in_one_second_is_spread() {
        for nth in [1, 200] {
            let backoff = Backoff { first: Duration::from_secs(60), ..Backoff::default() };
            let mut seconds = std::collections::BTreeMap::<u64, u32>::new();
            for job in 0..500 {
                *seconds.entry(backoff.delay(nth, f64::from(job) / 500.0).as_secs()).or_default() += 1;
            }
            assert!(seconds.values().all(|n| *n <= 100), "{seconds:?}");
        }
    }

    fn cause() -> impl Strategy<Value = Cause> {
        prop::sample::select(Cause::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn no_delay_panics_or_passes_its_cap(
            first in any::<Duration>(), max in any::<Duration>(), factor in prop::num::f64::ANY, jitter in prop::num::f64::ANY,
            nth in any::<u32>(), random in prop::num::f64::ANY,
        ) {
            let delay = Backoff { first, factor, max, jitter }.delay(nth, random);
            prop_assert!(delay <= max);
        }

        #[test]
        fn i1_a_job_is_never_put_back_with_a_charge_that_uses_its_budget_up(
            cause in cause(), charged in 1..9_u32, max in 1..9_u32, done in 0..9_u32, free in 0..9_u32, random in 0.0..1.0,
        ) {
            let d = decide(&ended(Ending::Failed(cause), &[]), &budget(charged, max, done, free), &POLICY, random, None);
            if matches!(d.next, Next::PutBack(_)) {
                prop_assert!(d.refund || charged < max);
            }
            prop_assert!(!d.interruption || (d.refund && done < free));
        }

        #[test]
        fn i1_no_life_has_more_starts_than_its_budgets(
            causes in prop::collection::vec(cause(), 200), max_attempts in 1..6_u32, max_interruptions in 0..6_u32,
        ) {
            let mut b = budget(0, max_attempts, 0, max_interruptions);
            let (mut starts, mut ended_at_all) = (0, false);
            for cause in causes {
                b.charged += 1;
                prop_assert!(b.charged <= max_attempts, "a start beyond the budget");
                let never_ran = matches!(cause, Cause::SpawnFailed | Cause::LimitSetupFailed);
                starts += u32::from(cause != Cause::Drained && !never_ran);
                let d = decide(&ended(Ending::Failed(cause), &[]), &b, &POLICY, 0.5, None);
                b.charged -= u32::from(d.refund);
                b.interruptions += u32::from(d.interruption);
                if !matches!(d.next, Next::PutBack(_)) {
                    ended_at_all = true;
                    break;
                }
            }
            prop_assert!(starts <= max_attempts + max_interruptions);
            prop_assert!(ended_at_all, "two hundred attempts and no end");
        }
    }
}
