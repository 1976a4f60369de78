//! The queue as a plain list: what every store must do, one step after another, in the fewest words.
//!
//! Time here is whole minutes that pass only when a step says so; a case takes a moment of real time.

use std::time::Duration;

use jobvisor::domain::cause::Cause;
use jobvisor::domain::ids::{AttemptNo, Fence, JobId, Term};
use jobvisor::domain::job::{Budget, JobState};
use jobvisor::domain::retry::{Backoff, Next};
use jobvisor::domain::units::Bytes;
use jobvisor::domain::verdict::{Ending, Verdict};
use jobvisor::store::{Acted, Finish, Finished, LossProof, RowPolicy};

pub(super) const KINDS: [&str; 2] = ["a", "b"];
pub(super) const PRIORITIES: std::ops::Range<i32> = -1..2;

pub(super) const POLICY: RowPolicy = RowPolicy {
    max_attempts: 2,
    max_interruptions: 2,
    memory: Bytes::mib(64),
    backoff: Backoff {
        first: Duration::from_secs(60 * 60),
        factor: 2.0,
        max: Duration::from_secs(8 * 60 * 60),
        jitter: 0.0,
    },
};

pub(super) const LEASE: i64 = 60;

pub(super) fn minutes(minutes: i64) -> Duration {
    Duration::from_secs(u64::try_from(minutes).unwrap() * 60)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TermState {
    Open,
    Lost,
    Ended,
}

#[derive(Debug, Clone)]
pub(super) struct PlainTerm {
    pub(super) term: Term,
    pub(super) state: TermState,
    pub(super) beat: u64,
    pub(super) expires: i64,
    /// The sequence of its next claim.
    pub(super) seq: u64,
}

/// How a claim ended.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) word: &'static str,
    pub(super) charged: bool,
    pub(super) late: bool,
}

/// A claim is an attempt.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) fence: Fence,
    pub(super) seq: u64,
    /// As the claim's reply told it.
    pub(super) budget: Budget,
    /// Its supervisor never heard of it.
    pub(super) reply_lost: bool,
    pub(super) ended: Option<Ended>,
}

#[derive(Debug, Clone)]
pub(super) struct PlainJob {
    pub(super) id: JobId,
    pub(super) kind: usize,
    pub(super) priority: i32,
    pub(super) key: Option<u8>,
    pub(super) after: Vec<usize>,
    pub(super) state: JobState,
    /// When it is due, and which step said so.
    pub(super) due: (i64, usize),
    pub(super) attempt: u32,
    pub(super) charged: u32,
    pub(super) interruptions: u32,
    /// The attempt after which the budget was made fresh.
    pub(super) since: u32,
    pub(super) cancel: bool,
    pub(super) cause: Option<Cause>,
    /// The claim under which it runs.
    pub(super) running: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) jobs: Vec<PlainJob>,
    pub(super) claims: Vec<Claim>,
    pub(super) terms: Vec<PlainTerm>,
    pub(super) paused: [bool; KINDS.len()],
    pub(super) now: i64,
    pub(super) tick: usize,
    /// Whether leases run out.
    pub(super) leased: bool,
}

/// The word under which an outcome is known again.
pub(super) fn word_of(verdict: Option<&Verdict>) -> &'static str {
    match verdict.map(|verdict| verdict.ending) {
        None => "given_back",
        Some(Ending::Succeeded) => "succeeded",
        Some(Ending::Snoozed) => "snoozed",
        Some(Ending::Failed(cause)) => cause.code(),
    }
}

fn word(outcome: &Finish) -> &'static str {
    word_of(outcome.verdict.as_ref())
}

impl Model {
    pub(super) const fn new(leased: bool) -> Self {
        Self {
            jobs: Vec::new(),
            claims: Vec::new(),
            terms: Vec::new(),
            paused: [false; KINDS.len()],
            now: 0,
            tick: 0,
            leased,
        }
    }

    pub(super) fn begin(&mut self, term: Term) -> usize {
        self.terms.push(PlainTerm { term, state: TermState::Open, beat: 0, expires: self.now + LEASE, seq: 1 });
        self.terms.len() - 1
    }

    pub(super) fn has_expired(&self, term: usize) -> bool {
        self.leased && self.terms[term].expires <= self.now
    }

    /// Whether it is held.
    pub(super) fn renew(&mut self, term: usize) -> bool {
        let expires = self.now + LEASE;
        let term = &mut self.terms[term];
        let held = term.state == TermState::Open;
        if held {
            (term.beat, term.expires) = (term.beat + 1, expires);
        }
        held
    }

    pub(super) fn declare_lost(&mut self, term: usize, beat: u64, proof: LossProof) -> bool {
        let silent = proof == LossProof::ProcessGone || !self.leased || self.has_expired(term);
        let term = &mut self.terms[term];
        if term.state == TermState::Open && term.beat == beat && silent {
            term.state = TermState::Lost;
        }
        term.state == TermState::Lost
    }

    pub(super) fn end(&mut self, term: usize) {
        let term = &mut self.terms[term];
        if term.state == TermState::Open {
            term.state = TermState::Ended;
        }
    }

    pub(super) fn open_terms(&self) -> Vec<Term> {
        self.terms.iter().filter(|term| term.state == TermState::Open).map(|term| term.term).collect()
    }

    pub(super) fn term_of(&self, claim: &Claim) -> &PlainTerm {
        self.terms.iter().find(|term| term.term == claim.fence.term).unwrap()
    }

    /// The claims that run under a term, below a sequence.
    pub(super) fn own_rows(&self, term: Term, below: u64) -> Vec<(JobId, AttemptNo)> {
        let running = self.jobs.iter().filter_map(|job| job.running).map(|claim| &self.claims[claim]);
        running.filter(|c| c.fence.term == term && c.seq < below).map(|c| (c.fence.job, c.fence.attempt)).collect()
    }

    /// The claims that run under terms which are over, by job.
    pub(super) fn rescuable(&self) -> Vec<usize> {
        let running = self.jobs.iter().filter_map(|job| job.running);
        running.filter(|claim| self.term_of(&self.claims[*claim]).state != TermState::Open).collect()
    }

    /// The attempts that have ended and whose jobs run again.
    pub(super) fn overtaken(&self) -> Vec<usize> {
        let runs = |claim: &Claim| self.jobs.iter().any(|job| job.id == claim.fence.job && job.running.is_some());
        (0..self.claims.len()).filter(|at| self.claims[*at].ended.is_some() && runs(&self.claims[*at])).collect()
    }

    /// The attempts that a rescuer ended; `open`: of jobs that have not ended, and of these rather those whose budget is a fresh
    /// one by now.
    pub(super) fn rescued(&self, open: bool) -> Vec<usize> {
        let job_of = |at: &usize| self.jobs.iter().find(|job| job.id == self.claims[*at].fence.job);
        let rescued = |at: &usize| {
            let ended = self.claims[*at].ended.as_ref();
            ended.is_some_and(|ended| ended.word == Cause::SupervisorLost.code())
        };
        let goes_on = |at: &usize| job_of(at).is_some_and(|job| !job.state.is_final());
        let outlived = |at: &usize| job_of(at).is_some_and(|job| self.claims[*at].fence.attempt.0 <= job.since);
        let mut all: Vec<usize> = (0..self.claims.len()).filter(rescued).collect();
        if open {
            all.retain(goes_on);
            if all.iter().any(outlived) {
                all.retain(outlived);
            }
        }
        all
    }

    /// The unfinished job that holds a key.
    pub(super) fn holder(&self, kind: usize, key: Option<u8>) -> Option<JobId> {
        let held = |job: &&PlainJob| key.is_some() && job.key == key && job.kind == kind && !job.state.is_final();
        self.jobs.iter().find(held).map(|job| job.id)
    }

    /// Where a job begins.
    pub(super) fn first_state(&self, after: &[usize], due: i64) -> JobState {
        let parents: Vec<JobState> = after.iter().map(|at| self.jobs[*at].state).collect();
        if parents.iter().any(|state| matches!(state, JobState::Cancelled | JobState::Dead)) {
            JobState::Cancelled
        } else if parents.iter().any(|state| *state != JobState::Succeeded) {
            JobState::Waiting
        } else if due > self.now {
            JobState::Scheduled
        } else {
            JobState::Queued
        }
    }

    /// What a claim may get, in the order in which it gets it: lower priority numbers first; within one, kinds in turn and
    /// lower ids first.
    pub(super) fn claimable(&self, free: [usize; KINDS.len()]) -> Vec<usize> {
        let mut free = free;
        let mut taken = Vec::new();
        for priority in PRIORITIES {
            loop {
                let before = taken.len();
                for (kind, free) in free.iter_mut().enumerate() {
                    let next = self.jobs.iter().enumerate().find(|(at, job)| {
                        let there = job.state == JobState::Queued && !self.paused[kind];
                        there && job.kind == kind && job.priority == priority && !taken.contains(at)
                    });
                    if let Some((at, _)) = next.filter(|_| *free > 0) {
                        *free -= 1;
                        taken.push(at);
                    }
                }
                if taken.len() == before {
                    break;
                }
            }
        }
        taken
    }

    pub(super) fn claim(&mut self, at: usize, term: usize, seq: u64, reply_lost: bool) -> Claim {
        let job = &mut self.jobs[at];
        job.attempt += 1;
        job.charged += 1;
        job.state = JobState::Running;
        job.running = Some(self.claims.len());
        let budget = Budget {
            charged: job.charged,
            max_attempts: POLICY.max_attempts,
            interruptions: job.interruptions,
            max_interruptions: POLICY.max_interruptions,
        };
        let fence = Fence { job: job.id, attempt: AttemptNo(job.attempt), term: self.terms[term].term };
        let claim = Claim { fence, seq, budget, reply_lost, ended: None };
        self.claims.push(claim.clone());
        claim
    }

    pub(super) fn finish(&mut self, outcome: &Finish) -> Finished {
        let Some(at) = self.jobs.iter().position(|job| job.id == outcome.fence.job) else { return Finished::Stale };
        let Some(claim) = self.jobs[at].running.filter(|claim| self.claims[*claim].fence == outcome.fence) else {
            return self.recall(at, outcome);
        };
        let decision = outcome.decision;
        self.claims[claim].ended = Some(Ended { word: word(outcome), charged: !decision.refund, late: false });
        let job = &mut self.jobs[at];
        job.state = match decision.next {
            Next::Succeeded => JobState::Succeeded,
            Next::Dead => JobState::Dead,
            Next::Cancelled => JobState::Cancelled,
            Next::PutBack(_) if job.cancel => JobState::Cancelled,
            Next::PutBack(Duration::ZERO) => JobState::Queued,
            Next::PutBack(delay) => {
                job.due = (self.now + i64::try_from(delay.as_secs() / 60).unwrap(), self.tick);
                JobState::Scheduled
            }
        };
        job.charged -= u32::from(decision.refund);
        job.interruptions += u32::from(decision.interruption);
        job.cause = outcome.verdict.as_ref().and_then(|verdict| verdict.ending.cause()).or(job.cause);
        (job.cancel, job.running) = (false, None);
        let state = job.state;
        self.follow(at);
        Finished::Recorded(state)
    }

    /// An outcome whose fence no longer holds: known again, or kept beside a rescue's, or nothing.
    fn recall(&mut self, at: usize, outcome: &Finish) -> Finished {
        let Some(claim) = self.claims.iter_mut().find(|claim| claim.fence == outcome.fence) else {
            return Finished::Stale;
        };
        let ended = claim.ended.as_mut().unwrap();
        if ended.word == word(outcome) {
            return Finished::Already;
        }
        if ended.word == Cause::SupervisorLost.code() {
            ended.late = true;
            let job = &mut self.jobs[at];
            let counts = outcome.fence.attempt.0 > job.since && !job.state.is_final();
            if outcome.decision.refund && ended.charged && counts {
                ended.charged = false;
                job.charged -= 1;
                job.interruptions += u32::from(outcome.decision.interruption);
            }
        }
        Finished::Stale
    }

    /// What comes after a job that has ended goes on or is cancelled.
    fn follow(&mut self, parent: usize) {
        let ended = self.jobs[parent].state;
        for child in 0..self.jobs.len() {
            let job = &self.jobs[child];
            if !job.after.contains(&parent) || job.state != JobState::Waiting {
                continue;
            }
            match ended {
                JobState::Succeeded => self.jobs[child].state = self.first_state(&job.after, job.due.0),
                JobState::Cancelled | JobState::Dead => {
                    self.jobs[child].state = JobState::Cancelled;
                    self.follow(child);
                }
                JobState::Waiting | JobState::Scheduled | JobState::Queued | JobState::Running => {}
            }
        }
    }

    pub(super) fn cancel(&mut self, at: usize) -> Acted {
        let job = &mut self.jobs[at];
        match job.state {
            JobState::Running => {
                job.cancel = true;
                Acted::Requested
            }
            state @ (JobState::Succeeded | JobState::Cancelled | JobState::Dead) => Acted::Refused(state),
            JobState::Waiting | JobState::Scheduled | JobState::Queued => {
                job.state = JobState::Cancelled;
                self.follow(at);
                Acted::Done
            }
        }
    }

    pub(super) fn retry(&mut self, at: usize) -> Acted {
        let PlainJob { state, kind, key, .. } = self.jobs[at];
        if !state.is_final() || self.holder(kind, key).is_some() {
            return Acted::Refused(state);
        }
        let job = &mut self.jobs[at];
        (job.state, job.charged, job.interruptions, job.since) = (JobState::Queued, 0, 0, job.attempt);
        Acted::Done
    }

    pub(super) fn promote(&mut self, limit: u32) -> u64 {
        let now = self.now;
        let due = |job: &&mut PlainJob| job.state == JobState::Scheduled && job.due.0 <= now;
        let mut due: Vec<&mut PlainJob> = self.jobs.iter_mut().filter(due).collect();
        due.sort_by_key(|job| (job.due, job.id));
        let due = due.into_iter().take(usize::try_from(limit).unwrap());
        due.map(|job| job.state = JobState::Queued).count().try_into().unwrap()
    }

    /// Charges that the records of a job's attempts add up to, under its present budget (I1).
    pub(super) fn charges(&self, job: &PlainJob) -> usize {
        let counts = |claim: &&Claim| {
            let charged = claim.ended.as_ref().is_none_or(|ended| ended.charged);
            claim.fence.job == job.id && claim.fence.attempt.0 > job.since && charged
        };
        self.claims.iter().filter(counts).count()
    }
}
