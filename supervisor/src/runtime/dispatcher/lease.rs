//! Terms, and until when they may be trusted (I4); rows that the store holds for us and we do not (I2).

use std::collections::BTreeSet;
use std::collections::HashSet;
use std::time::Duration;
use std::time::Instant;

use super::Dispatcher;
use super::LAST_WORD;
use super::Phase;
use crate::domain::clock::BootInstant;
use crate::domain::ids::AttemptNo;
use crate::domain::ids::Fence;
use crate::domain::ids::JobId;
use crate::domain::ids::Term;
use crate::runtime::event::Action;
use crate::runtime::snapshot::Running;
use crate::warden::message::Key;
use crate::warden::message::StopReason;

impl Dispatcher {
    /// The term that we hold.
    #[must_use]
    pub const fn term(&self) -> Option<Term> {
        self.term
    }

    /// That term, and every earlier one under which something still runs here or waits to be recorded.
    #[must_use]
    pub fn terms(&self) -> Vec<Term> {
        let running = self.attempts.values().map(|attempt| attempt.claimed.fence.term);
        let held = self.unrecorded.values().map(|fence| fence.term);
        let terms: BTreeSet<Term> = self.term.into_iter().chain(running).chain(held).collect();
        terms.into_iter().collect()
    }

    /// What runs, for whoever may have to end it.
    #[must_use]
    pub fn running(&self) -> Vec<Running> {
        let one = |attempt: &super::Attempt| Running {
            job: attempt.claimed.fence.job,
            attempt: attempt.claimed.fence.attempt,
            kind: attempt.claimed.kind.clone(),
            pid: attempt.pid,
            started: attempt.started,
            bytes: None,
        };
        self.attempts.values().map(one).collect()
    }

    /// What keeps us from taking jobs, for the status line.
    pub(super) fn trouble(&self) -> &'static str {
        if self.term.is_none() {
            " (no term)"
        } else if !self.is_trusted() {
            " (lease not renewed)"
        } else if !self.recording {
            " (outcomes cannot be recorded)"
        } else {
            ""
        }
    }

    fn is_trusted(&self) -> bool {
        match self.until {
            Some(until) => self.boottime < until,
            None => !self.identity.leased,
        }
    }

    /// Whether what is claimed under our term may be started.
    pub(super) fn may_start(&self) -> bool {
        !self.warden_away && self.term.is_some() && self.is_trusted()
    }

    pub(super) fn term_begun(&mut self, term: Term, until: Option<BootInstant>, actions: &mut Vec<Action>) {
        self.term = Some(term);
        self.until = until;
        self.claim_again = true;
        self.trust(actions);
    }

    pub(super) fn renewed(&mut self, term: Term, until: Option<BootInstant>, actions: &mut Vec<Action>) {
        if self.term == Some(term) && until > self.until {
            // What was wanted while it was not trusted is asked for now: `claim_again` stands since.
            self.until = until;
            self.trust(actions);
        }
    }

    /// Kills what runs under a lost term. Others may run its jobs already, so nothing is graceful; what comes of it is
    /// recorded under the old fence, which the store refuses or keeps as a late outcome.
    pub(super) fn term_lost(&mut self, term: Term, now: Instant, actions: &mut Vec<Action>) {
        if self.term == Some(term) {
            self.term = None;
            self.until = None;
        }
        let of_term = |(_, attempt): &(&Key, &super::Attempt)| attempt.claimed.fence.term == term;
        let keys: Vec<Key> = self.attempts.iter().filter(of_term).map(|(key, _)| *key).collect();
        if !keys.is_empty() && self.phase == Phase::Working {
            self.last_word.get_or_insert(now + LAST_WORD);
        }
        for key in keys {
            self.stop(key, StopReason::Fenced, Some(Duration::ZERO), actions);
        }
    }

    /// Tells the warden the deadline, if there is one. Between two wardens there is nobody to tell; the next one is told first of all.
    pub(super) fn trust(&self, actions: &mut Vec<Action>) {
        if let Some(until) = self.until
            && !self.warden_away
        {
            actions.push(Action::Trust { until });
        }
    }

    /// Rows of our term that we do not hold: their claim's reply was lost, and they go back; or their outcome was taken by a
    /// database that has forgotten it since (a failover), and it is sent again.
    pub(super) fn own_rows(
        &mut self,
        term: Term,
        rows: &[(JobId, AttemptNo)],
        below: u64,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        if below > self.oldest_unanswered() || self.term != Some(term) {
            return;
        }
        let held: HashSet<Fence> = self
            .attempts
            .values()
            .map(|attempt| attempt.claimed.fence)
            .chain(self.unrecorded.values().copied())
            .collect();
        for &(job, attempt) in rows {
            let fence = Fence { job, attempt, term };
            if held.contains(&fence) {
                continue;
            }
            match self.sent.of(now, &fence) {
                Some(finish) => self.record(finish, actions),
                None => self.give_back(fence, actions),
            }
        }
    }
}
