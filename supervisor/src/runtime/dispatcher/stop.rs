//! Ends that are asked for: of one attempt, of all, and of the supervisor itself.

use std::time::Duration;
use std::time::Instant;

use jiff::Timestamp;

use super::Dispatcher;
use super::LAST_OUTCOMES;
use super::LAST_WORD;
use super::Phase;
use crate::runtime::event::Action;
use crate::store::CancelRequest;
use crate::warden::message::Key;
use crate::warden::message::StopReason;

impl Dispatcher {
    /// While stopping: nothing is left that has to be waited for.
    pub(super) fn is_quiet(&mut self, now: Instant) -> bool {
        if !self.attempts.is_empty() || self.claim_under_way.is_some() {
            return false;
        }
        if self.unrecorded.is_empty() || self.phase == Phase::Killing {
            return true;
        }
        let stopping = self.phase > Phase::Working || self.no_warden.is_some();
        stopping && now >= *self.leave_by.get_or_insert(now + LAST_OUTCOMES)
    }

    pub(super) fn cancel(&mut self, requests: &[CancelRequest], actions: &mut Vec<Action>) {
        for request in requests {
            let found = self.attempts.iter().find(|(_, attempt)| {
                attempt.claimed.fence.job == request.job && attempt.claimed.fence.attempt == request.attempt
            });
            if let Some((&key, _)) = found {
                self.stop(key, StopReason::Cancelled, None, actions);
            }
        }
    }

    /// Asks for an attempt's end, once for each reason that is stronger than the last.
    pub(super) fn stop(&mut self, key: Key, reason: StopReason, grace: Option<Duration>, actions: &mut Vec<Action>) {
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        if attempt.stop.is_some() && grace.is_none() {
            return;
        }
        attempt.stop = attempt.stop.or(Some(reason));
        actions.push(Action::Stop { key, reason, grace: grace.unwrap_or(attempt.kind.grace) });
    }

    fn stop_all(&mut self, grace: Option<Duration>, now: Instant, actions: &mut Vec<Action>) {
        let longest = self.attempts.values().map(|attempt| grace.unwrap_or(attempt.kind.grace)).max();
        self.last_word = longest.map(|grace| now + grace + LAST_WORD);
        let keys: Vec<Key> = self.attempts.keys().copied().collect();
        for key in keys {
            self.stop(key, StopReason::Drained, grace, actions);
        }
    }

    pub(super) fn stop_signal(&mut self, at: Timestamp, now: Instant, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Working => {
                self.phase = Phase::Draining;
                self.own_stop = Some(at);
                self.drain_until = Some(now + self.config.supervisor.drain);
                actions.push(Action::Stopping);
                self.decide(true, now, actions);
            }
            Phase::Draining => {
                self.phase = Phase::Stopping;
                self.stop_all(None, now, actions);
            }
            Phase::Stopping | Phase::Killing => {
                self.phase = Phase::Killing;
                self.stop_all(Some(Duration::ZERO), now, actions);
            }
        }
    }

    pub(super) fn deadline(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.decide(false, now, actions);
        if self.phase == Phase::Draining && self.drain_until.is_some_and(|until| now >= until) {
            self.phase = Phase::Stopping;
            self.stop_all(None, now, actions);
        }
        if self.last_word.is_some_and(|at| now >= at) {
            self.last_word = None;
            // A drain lets attempts finish; only those of a lost term should be gone by then.
            let stopping = self.phase >= Phase::Stopping;
            if self.attempts.values().any(|attempt| stopping || Some(attempt.claimed.fence.term) != self.term) {
                actions.push(Action::KillWarden);
            }
        }
        self.claim_again |= self.breakers.allow_trials(now);
    }
}
