//! Kinds whose child cannot start are backed off as kinds: 1 s, 2 s, … 32 s, then one attempt as a trial. A start that
//! succeeds makes the kind whole.

use std::collections::BTreeMap;
use std::time::Duration;
use std::time::Instant;

/// The pause doubles with each failure up to this one: 1 s to 32 s.
const DOUBLINGS: u32 = 6;
/// After so many failures in a row, `--until-idle` no longer waits for the kind.
const GIVE_UP: u32 = 3;

#[derive(Debug, Default, Clone, Copy)]
struct Breaker {
    failures: u32,
    /// Nothing is started before; `None`: a trial may be.
    open_until: Option<Instant>,
}

/// The breakers of all kinds that failed to start lately.
#[derive(Debug, Default)]
pub(super) struct Breakers(BTreeMap<String, Breaker>);

impl Breakers {
    /// A start failed.
    pub(super) fn failed(&mut self, kind: &str, now: Instant) {
        let breaker = self.0.entry(kind.to_owned()).or_default();
        // Those that were started beside the first that failed say nothing new.
        if breaker.open_until.is_none_or(|until| now >= until) {
            breaker.failures = breaker.failures.saturating_add(1);
            let pause = Duration::from_secs(1 << breaker.failures.min(DOUBLINGS).saturating_sub(1));
            breaker.open_until = Some(now + pause);
        }
    }

    /// A start succeeded; true: the kind was not whole before.
    pub(super) fn started(&mut self, kind: &str) -> bool {
        self.0.remove(kind).is_some()
    }

    /// How many of `slots` the kind may use now.
    pub(super) fn usable(&self, kind: &str, slots: u32, now: Instant) -> u32 {
        match self.0.get(kind) {
            Some(breaker) if breaker.open_until.is_some_and(|until| now < until) => 0,
            Some(_) => slots.min(1),
            None => slots,
        }
    }

    /// Whether nobody should wait for the kind.
    pub(super) fn has_given_up(&self, kind: &str) -> bool {
        self.0.get(kind).is_some_and(|breaker| breaker.failures >= GIVE_UP)
    }

    /// When the next trial may be.
    pub(super) fn next_trial(&self) -> Option<Instant> {
        self.0.values().filter_map(|breaker| breaker.open_until).min()
    }

    /// Lets kinds whose pause is over have their trial; true: there is one.
    pub(super) fn allow_trials(&mut self, now: Instant) -> bool {
        let mut any = false;
        for breaker in self.0.values_mut().filter(|breaker| breaker.open_until.is_some_and(|until| now >= until)) {
            breaker.open_until = None;
            any = true;
        }
        any
    }

    #[cfg(test)]
    pub(super) fn failures(&self, kind: &str) -> u32 {
        self.0.get(kind).map_or(0, |breaker| breaker.failures)
    }
}
