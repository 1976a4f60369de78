//! Random lives of jobs under three supervisors, held against a plain model of the queue after every step.
//!
//! Steps are what supervisors, their rescuers, people and time do, in any order: claims and finishes whose replies are lost,
//! late and repeated outcomes, terms that are renewed, end, fall silent and are declared lost, sweeps that stop half way.
//! Where a job goes is decided by the product's own `decide`. After every step states, budgets and fences are the
//! model's, and:
//! - I1: `charged` is what the records of the attempts add up to, and never more than `max_attempts`;
//! - I2: every attempt but a running one is on record, once;
//! - I4: what is claimed was queued, so nothing runs twice;
//! - I5: an outcome whose fence is stale leaves the job's row as it was.
//!
//! `PROPTEST_CASES` says how many lives; seeds of lives that failed are kept in `model.proptest-regressions` and lived first.

mod plain;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use jobvisor::domain::cause::Cause;
use jobvisor::domain::ids::{Fence, Term};
use jobvisor::domain::job::{Budget, Job, JobState};
use jobvisor::domain::retry::{Backoff, OnOom, Policy, decide};
use jobvisor::domain::verdict::{Ending, Flag};
use jobvisor::store::{
    ClaimKind, ClaimRequest, Enqueued, Filter, Finish, Finished, LossProof, NewJob, NewTerm, Renewed, Renewer, Store,
};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

use crate::fixture::{Fixture, Postgres, Sqlite};
use crate::support::{NOW, given_back, new_job, new_term, request, success, verdict};
use plain::{Claim, KINDS, LEASE, Model, POLICY, PlainJob, TermState, minutes};
use steps::{End, SUPERVISORS, Step, step};

/// Most jobs of a life.
const JOBS: usize = 7;
/// Lives on each store, unless `PROPTEST_CASES` says more or less.
const LIVES: u32 = 48;

/// A supervisor: its term's place in the model, and connections of its own.
struct Supervisor {
    term: usize,
    store: Arc<dyn Store>,
    renewer: Box<dyn Renewer>,
}

/// One life.
struct Life<'f> {
    fixture: &'f dyn Fixture,
    model: Model,
    supervisors: Vec<Supervisor>,
}

fn pick<T: Copy>(all: &[T], which: usize) -> Option<T> {
    all.get(which % all.len().max(1)).copied()
}

fn outcome(fence: Fence, budget: &Budget, ending: End) -> Finish {
    let at_once = matches!(ending, End::FailsAndIsDue | End::Foreign);
    let backoff = Backoff { first: if at_once { NOW } else { POLICY.backoff.first }, ..POLICY.backoff };
    let (ending, flags, snooze) = match ending {
        End::Success => (Ending::Succeeded, vec![], None),
        End::Snoozed => (Ending::Snoozed, vec![], Some(Duration::from_micros(1))),
        End::Fails | End::FailsAndIsDue => (Ending::Failed(Cause::Crash), vec![], None),
        End::FailsForGood => (Ending::Failed(Cause::JobError), vec![Flag::Permanent], None),
        End::Drained => (Ending::Failed(Cause::Drained), vec![], None),
        End::Foreign => (Ending::Failed(Cause::WardenLost), vec![], None),
        End::Cancelled => (Ending::Failed(Cause::Cancelled), vec![], None),
    };
    let mut verdict = verdict(ending);
    verdict.flags = flags;
    let policy = Policy { backoff, on_oom: OnOom::Retry };
    let decision = decide(&verdict, budget, &policy, 0.5, snooze);
    let result = (ending == Ending::Succeeded).then(|| "42".to_owned());
    Finish { decision, verdict: Some(verdict), result, ..success(fence) }
}

impl<'f> Life<'f> {
    async fn begin(fixture: &'f dyn Fixture, stores: &[Arc<dyn Store>]) -> Self {
        fixture.empty().await;
        let mut life = Self { fixture, model: Model::new(fixture.store().is_leased()), supervisors: Vec::new() };
        for store in stores {
            let supervisor = Supervisor { term: 0, store: Arc::clone(store), renewer: store.renewer() };
            life.supervisors.push(supervisor);
            life.new_term(life.supervisors.len() - 1).await;
        }
        life
    }

    async fn new_term(&mut self, sup: usize) {
        let new = NewTerm { lease: minutes(LEASE), ..new_term() };
        let supervisor = &mut self.supervisors[sup];
        supervisor.renewer.begin_term(&new).await.unwrap();
        supervisor.term = self.model.begin(new.term);
    }

    async fn take(&mut self, step: &Step) {
        self.model.tick += 1;
        match step {
            Step::Enqueue(new) => self.enqueue(new).await,
            Step::Claim { sup, free, lost } => self.claim(*sup, *free, *lost).await,
            Step::Haunt(which) => {
                let over = |term: &&plain::PlainTerm| term.state != TermState::Open;
                let over: Vec<Term> = self.model.terms.iter().filter(over).map(|term| term.term).collect();
                let Some(term) = pick(&over, *which) else { return };
                let kinds = KINDS.map(|kind| crate::support::wants(kind, 9)).to_vec();
                assert_eq!(self.fixture.store().claim(&request(term, kinds)).await.unwrap(), []);
            }
            Step::Finish { which, lost } => self.finish_some(which, *lost).await,
            Step::Late(which, ending) => self.late(*which, *ending).await,
            Step::Forged { which, how } => self.forged(*which, *how).await,
            Step::GiveBack(sup) => self.give_back(*sup).await,
            Step::Renew(sup) => self.renew(*sup).await,
            Step::EndTerm(sup) => {
                let term = self.supervisors[*sup].term;
                self.supervisors[*sup].store.end_term(self.model.terms[term].term).await.unwrap();
                self.model.end(term);
                self.new_term(*sup).await;
            }
            Step::DeclareLost { sup, old_beat, gone } => self.declare_lost(*sup, *old_beat, *gone).await,
            Step::Sweep(at_most) => self.sweep(*at_most).await,
            Step::TakeOver(sup) => {
                self.declare_lost(*sup, false, true).await;
                self.sweep(usize::MAX).await;
            }
            Step::Cancel(which) | Step::Retry(which) => self.act(step, *which).await,
            Step::Pause(kind) => {
                self.fixture.store().pause(&[KINDS[*kind].to_owned()], "me").await.unwrap();
                self.model.paused[*kind] = true;
            }
            Step::Resume(kind) => {
                let resumed = self.fixture.store().resume(&[KINDS[*kind].to_owned()]).await.unwrap();
                let expected = self.model.paused[*kind].then(|| KINDS[*kind].to_owned());
                assert_eq!(resumed, expected.into_iter().collect::<Vec<_>>());
                self.model.paused[*kind] = false;
            }
            Step::Promote(limit) => {
                let promoted = self.fixture.store().promote(*limit).await.unwrap();
                assert_eq!(promoted.count, self.model.promote(*limit));
                let waits = self.model.jobs.iter().any(|job| job.state == JobState::Scheduled);
                assert_eq!(promoted.next_due.is_some(), waits);
            }
            Step::Elapse(by) => {
                self.fixture.elapse(minutes(*by)).await;
                self.model.now += by;
            }
        }
    }

    async fn enqueue(&mut self, new: &steps::NewJob) {
        if self.model.jobs.len() >= JOBS {
            // Few jobs with long lives show more than many with short ones.
            return self.act(&Step::Retry(0), self.model.tick).await;
        }
        let steps::NewJob { kind, priority, key, later, after } = new;
        let model = &mut self.model;
        let all: Vec<usize> = (0..model.jobs.len()).collect();
        let after: Vec<usize> = after.iter().filter_map(|which| pick(&all, *which)).collect();
        let store = self.fixture.store();
        let at = store.now().await.unwrap() + minutes(LEASE);
        let job = NewJob {
            priority: *priority,
            unique_key: key.map(|key| key.to_string()),
            run_at: later.then_some(at),
            after: after.iter().map(|at| model.jobs[*at].id).collect(),
            policy: Some(POLICY),
            ..new_job(KINDS[*kind])
        };
        let answer = store.enqueue(&[job]).await.unwrap()[0];
        if let Some(id) = model.holder(*kind, *key) {
            assert_eq!(answer, Enqueued::Exists(id));
            return;
        }
        let id = answer.id();
        assert_eq!(answer, Enqueued::New(id));
        let due = if *later { model.now + LEASE } else { model.now };
        let state = model.first_state(&after, due);
        let (kind, priority, key, due) = (*kind, *priority, *key, (due, model.tick));
        let (attempt, charged, interruptions, since) = (0, 0, 0, 0);
        let (cancel, cause, running) = (false, None, None);
        model.jobs.push(PlainJob {
            id,
            kind,
            priority,
            key,
            after,
            state,
            due,
            attempt,
            charged,
            interruptions,
            since,
            cancel,
            cause,
            running,
        });
    }

    async fn claim(&mut self, sup: usize, free: [usize; KINDS.len()], lost: bool) {
        let (model, supervisor) = (&mut self.model, &self.supervisors[sup]);
        let kinds = KINDS.iter().zip(free).map(|(kind, free)| ClaimKind {
            kind: (*kind).to_owned(),
            free: u32::try_from(free).unwrap(),
            policy: POLICY,
        });
        let term = &mut model.terms[supervisor.term];
        let (seq, state) = (term.seq, term.state);
        term.seq += 1;
        let ask = ClaimRequest { seq, ..request(term.term, kinds.collect()) };
        let claimed = supervisor.store.claim(&ask).await.unwrap();
        if state != TermState::Open || (claimed.is_empty() && model.has_expired(supervisor.term)) {
            assert_eq!(claimed, [], "a term that is over claims nothing");
            return;
        }
        let mut expected = model.claimable(free);
        if model.leased {
            // Such a store goes on from where it was, so a row that came back may be passed over for a moment; not
            // more than one kind's worth, and nothing if less is there than was asked for.
            let got: Vec<usize> =
                claimed.iter().filter_map(|c| model.jobs.iter().position(|job| job.id == c.fence.job)).collect();
            assert_eq!(got.len(), expected.len(), "so many are there: {expected:?}");
            let free_for = |kind: usize| got.iter().filter(|at| model.jobs[**at].kind == kind).count() <= free[kind];
            assert!((0..KINDS.len()).all(free_for), "no kind gets more than its slots");
            expected = got;
        }
        for (claimed, at) in claimed.iter().zip(&expected) {
            assert_eq!(model.jobs[*at].state, JobState::Queued, "what is claimed was queued (I4): {claimed:?}");
            assert!(!model.paused[model.jobs[*at].kind], "a paused kind was claimed");
            let claim = model.claim(*at, supervisor.term, seq, lost);
            assert_eq!((claimed.fence, claimed.budget), (claim.fence, claim.budget));
        }
        assert_eq!(claimed.len(), expected.len(), "{claimed:?} {expected:?}");
    }

    /// Sends outcomes and holds the answers against the model's; a stale one must leave the row alone (I5).
    async fn finish(&mut self, sup: usize, outcomes: Vec<Finish>) -> Vec<Finished> {
        let store = Arc::clone(&self.supervisors[sup % SUPERVISORS].store);
        let before: Vec<Option<Job>> = self.rows(&outcomes).await;
        let charges: Vec<(u32, u32)> = self.budgets(&outcomes);
        let expected: Vec<Finished> = outcomes.iter().map(|outcome| self.model.finish(outcome)).collect();
        let done = store.finish(&outcomes).await.unwrap();
        assert_eq!(done, expected, "{outcomes:?}");
        let (after, charged) = (self.rows(&outcomes).await, self.budgets(&outcomes));
        for (n, done) in done.iter().enumerate() {
            let alone = outcomes.iter().filter(|other| other.fence.job == outcomes[n].fence.job).count() == 1;
            if *done != Finished::Stale || !alone {
                continue;
            }
            let (mut before, mut after) = (before[n].clone(), after[n].clone());
            if charges[n] != charged[n] {
                // The one thing that a late outcome may do: give back what a rescue had to leave charged.
                before
                    .iter_mut()
                    .chain(&mut after)
                    .for_each(|job| (job.budget.charged, job.budget.interruptions) = (0, 0));
            }
            assert_eq!(before, after, "a stale fence changed the row (I5)");
        }
        done
    }

    async fn rows(&self, outcomes: &[Finish]) -> Vec<Option<Job>> {
        let mut rows = Vec::new();
        for outcome in outcomes {
            rows.push(self.fixture.store().job(outcome.fence.job).await.unwrap());
        }
        rows
    }

    fn budgets(&self, outcomes: &[Finish]) -> Vec<(u32, u32)> {
        let of = |outcome: &Finish| self.model.jobs.iter().find(|job| job.id == outcome.fence.job);
        outcomes.iter().map(|outcome| of(outcome).map_or((0, 0), |job| (job.charged, job.interruptions))).collect()
    }

    async fn finish_some(&mut self, which: &[(usize, End)], lost: bool) {
        let model = &self.model;
        let held = |claim: &usize| !model.claims[*claim].reply_lost;
        let running: Vec<usize> = model.jobs.iter().filter_map(|job| job.running).filter(held).collect();
        let mut outcomes: Vec<Finish> = Vec::new();
        for (which, ending) in which {
            let Some(claim) = pick(&running, *which) else { return };
            let Claim { fence, budget, .. } = model.claims[claim];
            if outcomes.iter().all(|other| other.fence != fence) {
                outcomes.push(outcome(fence, &budget, *ending));
            }
        }
        let sup = which[0].0;
        let done = self.finish(sup, outcomes.clone()).await;
        assert!(done.iter().all(|done| matches!(done, Finished::Recorded(_))));
        if lost {
            let again = self.finish(sup, outcomes).await;
            assert!(again.iter().all(|done| *done == Finished::Already));
        }
    }

    /// Rather of one whose job runs again by now, or that was rescued: that is where a stale outcome does harm.
    async fn late(&mut self, which: usize, ending: End) {
        let among = match which % 4 {
            0 => self.model.overtaken(),
            1 | 2 => self.model.rescued(which % 4 == 1),
            _ => (0..self.model.claims.len()).collect(),
        };
        let Some(claim) = pick(&among, which / 8) else { return };
        let Claim { fence, budget, .. } = self.model.claims[claim];
        self.finish(which, vec![outcome(fence, &budget, ending)]).await;
        if which.is_multiple_of(2) {
            self.finish(which, vec![outcome(fence, &budget, ending)]).await;
        }
    }

    async fn forged(&mut self, which: usize, how: usize) {
        let Some(claim) = pick(&(0..self.model.claims.len()).collect::<Vec<_>>(), which) else { return };
        let Claim { fence, budget, .. } = self.model.claims[claim];
        let elsewhere = pick(&self.model.terms.iter().map(|term| term.term).collect::<Vec<_>>(), which / 3);
        let forged = match how {
            0 => Fence { term: Term::new(), ..fence },
            1 => Fence { term: elsewhere.filter(|term| *term != fence.term).unwrap_or_default(), ..fence },
            2 => crate::support::next_attempt(crate::support::next_attempt(fence)),
            _ => Fence { attempt: jobvisor::domain::ids::AttemptNo(0), ..fence },
        };
        if self.model.claims.iter().all(|claim| claim.fence != forged) {
            let done = self.finish(which, vec![outcome(forged, &budget, End::Success)]).await;
            assert_eq!(done, [Finished::Stale]);
        }
    }

    /// What a supervisor does that has no claim under way: rows of its own that it does not know of are given back.
    async fn give_back(&mut self, sup: usize) {
        let (model, supervisor) = (&mut self.model, &self.supervisors[sup]);
        let term = &model.terms[supervisor.term];
        let mut rows = supervisor.store.own_rows(term.term, term.seq).await.unwrap();
        rows.sort_unstable();
        assert_eq!(rows, model.own_rows(term.term, term.seq));
        let lost = model.claims.iter().filter(|claim| {
            claim.reply_lost && rows.contains(&(claim.fence.job, claim.fence.attempt)) && claim.fence.term == term.term
        });
        let outcomes: Vec<Finish> = lost.map(|claim| given_back(claim.fence)).collect();
        self.finish(sup, outcomes).await;
    }

    async fn renew(&mut self, sup: usize) {
        let supervisor = &mut self.supervisors[sup];
        let term = &self.model.terms[supervisor.term];
        let renewed = supervisor.renewer.renew(term.term, Some("[]")).await.unwrap();
        let held = self.model.renew(supervisor.term);
        assert_eq!(renewed, if held { Renewed::Held } else { Renewed::Lost });
        if !held {
            self.new_term(sup).await;
        }
    }

    async fn declare_lost(&mut self, sup: usize, old_beat: bool, gone: bool) {
        let at = self.supervisors[sup].term;
        let term = &self.model.terms[at];
        let beat = if old_beat { term.beat.wrapping_sub(1).min(term.beat + 1) } else { term.beat };
        let proof = if gone { LossProof::ProcessGone } else { LossProof::Silence };
        let other = &self.supervisors[(sup + 1) % SUPERVISORS].store;
        let lost = other.declare_lost(term.term, beat, proof).await.unwrap();
        assert_eq!(lost, self.model.declare_lost(at, beat, proof));
    }

    /// A rescuer ends what runs under terms that are over, and may not come to the end of it.
    async fn sweep(&mut self, at_most: usize) {
        let mut rows = self.fixture.store().rescuable(&self.model.open_terms()).await.unwrap();
        rows.sort_by_key(|row| row.fence.job);
        let expected = self.model.rescuable();
        let fences: Vec<Fence> = rows.iter().map(|row| row.fence).collect();
        assert_eq!(fences, expected.iter().map(|claim| self.model.claims[*claim].fence).collect::<Vec<_>>());
        let mut outcomes = Vec::new();
        for row in rows.iter().take(at_most) {
            let job = self.model.jobs.iter().find(|job| job.id == row.fence.job).unwrap();
            assert_eq!(row.cancel_requested, job.cancel);
            assert_eq!((row.budget.charged, row.budget.interruptions), (job.charged, job.interruptions));
            assert_eq!((row.budget.max_attempts, row.backoff), (POLICY.max_attempts, POLICY.backoff));
            let verdict = verdict(Ending::Failed(Cause::SupervisorLost));
            let policy = Policy { backoff: row.backoff, on_oom: OnOom::Retry };
            let decision = decide(&verdict, &row.budget, &policy, 0.5, None);
            outcomes.push(Finish { decision, verdict: Some(verdict), result: None, ..success(row.fence) });
        }
        self.finish(at_most, outcomes).await;
    }

    async fn act(&mut self, step: &Step, which: usize) {
        // Rather one for which it is meant.
        let meant = |at: &usize| {
            self.model.jobs[*at].state.is_final() == matches!(step, Step::Retry(_)) || which.is_multiple_of(3)
        };
        let Some(at) = pick(&(0..self.model.jobs.len()).filter(meant).collect::<Vec<_>>(), which) else { return };
        let (id, store) = (self.model.jobs[at].id, self.fixture.store());
        if matches!(step, Step::Cancel(_)) {
            assert_eq!(store.cancel(&[id], "me").await.unwrap(), [(id, self.model.cancel(at))]);
        } else {
            assert_eq!(store.retry(&[id]).await.unwrap(), [(id, self.model.retry(at))]);
        }
    }

    async fn check(&self, step: &Step, all: bool) {
        let store = self.fixture.store();
        let mut jobs = store.list(&Filter::default()).await.unwrap();
        jobs.reverse();
        let agree = jobs.len() == self.model.jobs.len() && jobs.iter().zip(&self.model.jobs).all(|(a, b)| same(a, b));
        assert!(agree, "after {step:?}:\n{jobs:#?}\n{:#?}", self.model.jobs);
        for (job, plain) in jobs.iter().zip(&self.model.jobs) {
            assert_eq!(usize::try_from(job.budget.charged), Ok(self.model.charges(plain)), "charges add up (I1)");
            assert!(job.budget.charged <= job.budget.max_attempts && job.budget.max_attempts == POLICY.max_attempts);
        }
        let current = |term: &Term| self.supervisors.iter().any(|sup| self.model.terms[sup.term].term == *term);
        for term in self.model.terms.iter().filter(|term| all || current(&term.term)) {
            let mut rows = store.own_rows(term.term, u64::MAX >> 1).await.unwrap();
            rows.sort_unstable();
            assert_eq!(rows, self.model.own_rows(term.term, u64::MAX), "fences are the model's, after {step:?}");
            let asked: Vec<_> = store.cancel_requests(term.term).await.unwrap().iter().map(|c| c.job).collect();
            let marked = self.model.jobs.iter().filter(|job| job.cancel && rows.iter().any(|row| row.0 == job.id));
            assert_eq!(asked, marked.map(|job| job.id).collect::<Vec<_>>());
        }
        let touched = self.model.jobs.iter().filter(|job| all || job.attempt > 0);
        for job in touched {
            self.check_attempts(job).await;
        }
    }

    /// Every claim is on record, once, as it ended (I2).
    async fn check_attempts(&self, job: &PlainJob) {
        let attempts = self.fixture.store().attempts(job.id).await.unwrap();
        let ended = self.model.claims.iter().filter(|claim| claim.fence.job == job.id);
        let ended: Vec<_> = ended
            .filter_map(|claim| Some((claim.fence.attempt, claim.fence.term, claim.ended.as_ref()?)))
            .map(|(attempt, term, ended)| (attempt, term, ended.word, ended.charged, ended.late))
            .collect();
        let recorded: Vec<_> = attempts
            .iter()
            .map(|row| {
                let word = plain::word_of(row.verdict.as_ref());
                (row.attempt, row.term, word, row.charged, row.late_outcome.is_some())
            })
            .collect();
        assert_eq!(recorded, ended, "job {}", job.id);
    }
}

fn same(job: &Job, plain: &PlainJob) -> bool {
    let ended = job.finished_at.is_some() == plain.state.is_final();
    ended
        && (job.id, job.state, job.attempt.0, job.budget.charged)
            == (plain.id, plain.state, plain.attempt, plain.charged)
        && (job.budget.interruptions, job.cancel_requested, job.cause)
            == (plain.interruptions, plain.cancel, plain.cause)
        && (job.result.is_some() == (plain.state == JobState::Succeeded))
}

async fn live(fixture: &dyn Fixture, stores: &[Arc<dyn Store>], steps: &[Step]) {
    let mut life = Life::begin(fixture, stores).await;
    for step in steps {
        life.take(step).await;
        life.check(step, false).await;
    }
    if let Some(step) = steps.last() {
        life.check(step, true).await;
    }
}

fn lives<F: Fixture>(new: impl Future<Output = F>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (fixture, stores) = runtime.block_on(async {
        let fixture = new.await;
        let mut stores = Vec::new();
        for _ in 0..SUPERVISORS {
            stores.push(fixture.another().await);
        }
        (fixture, stores)
    });
    let seeds = FileFailurePersistence::Direct("conformance/model.proptest-regressions");
    let defaults = ProptestConfig::default();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: if std::env::var_os("PROPTEST_CASES").is_some() { defaults.cases } else { LIVES },
        failure_persistence: Some(Box::new(seeds)),
        max_shrink_time: 60_000,
        ..defaults
    });
    let lived = runner.run(&prop::collection::vec(step(), 10..90), |steps| {
        runtime.block_on(live(&fixture, &stores, &steps));
        Ok(())
    });
    lived.unwrap_or_else(|failed| panic!("{failed}"));
}

#[test]
fn i1_i2_i4_i5_any_life_of_jobs_on_sqlite_is_as_the_plain_model_says() {
    lives(Sqlite::new());
}

#[test]
fn i1_i2_i4_i5_any_life_of_jobs_on_postgres_is_as_the_plain_model_says() {
    lives(Postgres::new());
}
