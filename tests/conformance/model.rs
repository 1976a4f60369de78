//! Random lives of jobs, held against a plain model of the queue after every step.

use jobvisor::domain::cause::Cause;
use jobvisor::domain::ids::{AttemptNo, Fence, JobId, Term};
use jobvisor::domain::job::{Job, JobState};
use jobvisor::domain::retry::Next;
use jobvisor::store::{Acted, Enqueued, Filter, Finish, Finished, NewJob, Store};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use crate::fixture::{Fixture, Sqlite};
use crate::support::{LONG, NOW, begin, failure, refunded, request, success, wants};

const KINDS: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone)]
enum Step {
    Enqueue { kind: usize, priority: i32, key: Option<u8>, later: bool, after: Option<usize> },
    Claim { free: [u32; 2] },
    Finish { which: usize, ending: End },
    FinishAgain { which: usize },
    Cancel { which: usize },
    Retry { which: usize },
    Promote { limit: u32 },
}

#[derive(Debug, Clone, Copy)]
enum End {
    Success,
    Dead,
    Cancelled,
    BackNow,
    BackSoon,
    BackLater,
    Drained,
    Interrupted,
}

fn step() -> impl Strategy<Value = Step> {
    let ending = prop::sample::select(vec![
        End::Success,
        End::Dead,
        End::Cancelled,
        End::BackNow,
        End::BackSoon,
        End::BackLater,
        End::Drained,
        End::Interrupted,
    ]);
    let enqueue = (
        0..2_usize,
        -1..2_i32,
        prop::option::weighted(0.3, 0..2_u8),
        prop::bool::weighted(0.1),
        prop::option::of(0..9_usize),
    );
    prop_oneof![
        6 => enqueue.prop_map(|(kind, priority, key, later, after)| Step::Enqueue { kind, priority, key, later: later && after.is_none(), after: after.filter(|n| n % 3 == 0) }),
        3 => (0..4_u32, 0..4_u32).prop_map(|(a, b)| Step::Claim { free: [a, b] }),
        5 => (0..9_usize, ending).prop_map(|(which, ending)| Step::Finish { which, ending }),
        1 => (0..9_usize).prop_map(|which| Step::FinishAgain { which }),
        1 => (0..9_usize).prop_map(|which| Step::Cancel { which }),
        1 => (0..9_usize).prop_map(|which| Step::Retry { which }),
        2 => (1..3_u32).prop_map(|limit| Step::Promote { limit }),
    ]
}

/// A job as the model keeps it.
#[derive(Debug, Clone, PartialEq)]
struct Plain {
    id: JobId,
    kind: usize,
    priority: i32,
    key: Option<u8>,
    after: Option<usize>,
    state: JobState,
    /// A scheduled job whose time has come; in the order in which the times came.
    due: Option<usize>,
    attempt: u32,
    charged: u32,
    interruptions: u32,
    cancel: bool,
}

#[derive(Debug, Default)]
struct Model {
    jobs: Vec<Plain>,
    ticks: usize,
    finished: Vec<Finish>,
}

impl Model {
    fn holder(&self, kind: usize, key: Option<u8>) -> Option<JobId> {
        let held = |job: &&Plain| key.is_some() && job.key == key && job.kind == kind && !job.state.is_final();
        self.jobs.iter().find(held).map(|job| job.id)
    }

    /// Lower priority numbers first; within one, kinds in turn and lower ids first.
    fn claim(&mut self, mut free: [u32; 2]) -> Vec<(JobId, u32)> {
        let mut taken = Vec::new();
        for priority in -1..2 {
            loop {
                let before = taken.len();
                for (kind, free) in free.iter_mut().enumerate().filter(|(_, free)| **free > 0) {
                    let queued =
                        |j: &&mut Plain| j.state == JobState::Queued && j.kind == kind && j.priority == priority;
                    if let Some(job) = self.jobs.iter_mut().find(queued) {
                        *free -= 1;
                        job.state = JobState::Running;
                        job.attempt += 1;
                        job.charged += 1;
                        taken.push((job.id, job.attempt));
                    }
                }
                if taken.len() == before {
                    break;
                }
            }
        }
        taken
    }

    fn finish(&mut self, at: usize, ending: End) -> JobState {
        self.ticks += 1;
        let job = &mut self.jobs[at];
        let state = match ending {
            End::Success => JobState::Succeeded,
            End::Dead => JobState::Dead,
            End::Cancelled => JobState::Cancelled,
            _ if job.cancel => JobState::Cancelled,
            End::BackNow | End::Drained | End::Interrupted => JobState::Queued,
            End::BackSoon | End::BackLater => JobState::Scheduled,
        };
        job.due = matches!(ending, End::BackSoon).then_some(self.ticks);
        job.charged -= u32::from(matches!(ending, End::Drained | End::Interrupted));
        job.interruptions += u32::from(matches!(ending, End::Interrupted));
        (job.state, job.cancel) = (state, false);
        self.follow(at);
        state
    }

    /// What comes after a job that has ended goes on or is cancelled.
    fn follow(&mut self, parent: usize) {
        let ended = self.jobs[parent].state;
        for child in 0..self.jobs.len() {
            if self.jobs[child].after != Some(parent) || self.jobs[child].state != JobState::Waiting {
                continue;
            }
            match ended {
                JobState::Succeeded => self.jobs[child].state = JobState::Queued,
                JobState::Cancelled | JobState::Dead => {
                    self.jobs[child].state = JobState::Cancelled;
                    self.follow(child);
                }
                JobState::Waiting | JobState::Scheduled | JobState::Queued | JobState::Running => {}
            }
        }
    }

    fn cancel(&mut self, at: usize) -> Acted {
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

    fn retry(&mut self, at: usize) -> Acted {
        let Plain { state, kind, key, .. } = self.jobs[at];
        if !state.is_final() || self.holder(kind, key).is_some() {
            return Acted::Refused(state);
        }
        let job = &mut self.jobs[at];
        (job.state, job.charged, job.interruptions, job.due) = (JobState::Queued, 0, 0, None);
        Acted::Done
    }

    fn promote(&mut self, limit: u32) -> u64 {
        let mut due: Vec<&mut Plain> =
            self.jobs.iter_mut().filter(|j| j.state == JobState::Scheduled && j.due.is_some()).collect();
        due.sort_by_key(|job| job.due);
        let due = due.into_iter().take(usize::try_from(limit).unwrap());
        due.map(|job| job.state = JobState::Queued).count().try_into().unwrap()
    }
}

fn outcome(fence: Fence, ending: End) -> Finish {
    let back = |next| failure(fence, Cause::Crash, next);
    match ending {
        End::Success => success(fence),
        End::Dead => back(Next::Dead),
        End::Cancelled => failure(fence, Cause::Cancelled, Next::Cancelled),
        End::BackNow => back(Next::PutBack(NOW)),
        End::BackSoon => back(Next::PutBack(std::time::Duration::from_micros(1))),
        End::BackLater => back(Next::PutBack(LONG)),
        End::Drained => refunded(failure(fence, Cause::Drained, Next::PutBack(NOW)), false),
        End::Interrupted => refunded(failure(fence, Cause::OomHost, Next::PutBack(NOW)), true),
    }
}

async fn enqueue(store: &dyn Store, model: &mut Model, step: &Step) {
    let Step::Enqueue { kind, priority, key, later, after } = *step else { return };
    let after = after.filter(|n| *n < model.jobs.len());
    let now = store.now().await.unwrap();
    let job = NewJob {
        priority,
        unique_key: key.map(|k| k.to_string()),
        run_at: later.then(|| now + LONG),
        after: after.iter().map(|n| model.jobs[*n].id).collect(),
        ..crate::support::new_job(KINDS[kind])
    };
    let answer = store.enqueue(&[job]).await.unwrap()[0];
    if let Some(id) = model.holder(kind, key) {
        assert_eq!(answer, Enqueued::Exists(id));
        return;
    }
    let state = match after.map(|n| model.jobs[n].state) {
        None | Some(JobState::Succeeded) if later => JobState::Scheduled,
        None | Some(JobState::Succeeded) => JobState::Queued,
        Some(JobState::Cancelled | JobState::Dead) => JobState::Cancelled,
        Some(_) => JobState::Waiting,
    };
    let id = answer.id();
    assert_eq!(answer, Enqueued::New(id));
    model.jobs.push(Plain {
        id,
        kind,
        priority,
        key,
        after,
        state,
        due: None,
        attempt: 0,
        charged: 0,
        interruptions: 0,
        cancel: false,
    });
}

async fn take(store: &dyn Store, model: &mut Model, term: Term, step: &Step) {
    match *step {
        Step::Enqueue { .. } => enqueue(store, model, step).await,
        Step::Claim { free } => {
            let kinds = KINDS.iter().zip(free).map(|(kind, free)| wants(kind, free)).collect();
            let claimed = store.claim(&request(term, kinds)).await.unwrap();
            let got: Vec<_> = claimed.iter().map(|c| (c.fence.job, c.fence.attempt.0)).collect();
            assert_eq!(got, model.claim(free));
        }
        Step::Finish { which, ending } => {
            let running: Vec<usize> =
                (0..model.jobs.len()).filter(|n| model.jobs[*n].state == JobState::Running).collect();
            let Some(at) = running.get(which % running.len().max(1)).copied() else { return };
            let job = &model.jobs[at];
            let outcome = outcome(Fence { job: job.id, attempt: AttemptNo(job.attempt), term }, ending);
            model.finished.push(outcome.clone());
            let state = model.finish(at, ending);
            assert_eq!(store.finish(&[outcome]).await.unwrap(), [Finished::Recorded(state)]);
        }
        Step::FinishAgain { which } => {
            let Some(outcome) = model.finished.get(which) else { return };
            assert_eq!(store.finish(std::slice::from_ref(outcome)).await.unwrap(), [Finished::Already]);
        }
        Step::Cancel { which } if which < model.jobs.len() => {
            let id = model.jobs[which].id;
            assert_eq!(store.cancel(&[id], "me").await.unwrap(), [(id, model.cancel(which))]);
        }
        Step::Retry { which } if which < model.jobs.len() => {
            let id = model.jobs[which].id;
            assert_eq!(store.retry(&[id]).await.unwrap(), [(id, model.retry(which))]);
        }
        Step::Cancel { .. } | Step::Retry { .. } => {}
        Step::Promote { limit } => assert_eq!(store.promote(limit).await.unwrap().count, model.promote(limit)),
    }
}

fn same(job: &Job, plain: &Plain) -> bool {
    (job.id, job.state, job.attempt.0, job.budget.charged, job.budget.interruptions, job.cancel_requested)
        == (plain.id, plain.state, plain.attempt, plain.charged, plain.interruptions, plain.cancel)
}

async fn live(steps: Vec<Step>) {
    let fixture = Sqlite::new().await;
    let store = fixture.store();
    let term = begin(store).await;
    let mut model = Model::default();
    for step in &steps {
        take(store, &mut model, term, step).await;
        let mut jobs = store.list(&Filter::default()).await.unwrap();
        jobs.reverse();
        let agree = jobs.len() == model.jobs.len() && jobs.iter().zip(&model.jobs).all(|(job, plain)| same(job, plain));
        assert!(agree, "after {step:?}:\n{jobs:#?}\n{:#?}", model.jobs);
    }
    for plain in &model.jobs {
        let ended = plain.attempt - u32::from(plain.state == JobState::Running);
        let attempts = store.attempts(plain.id).await.unwrap();
        let numbers: Vec<u32> = attempts.iter().map(|a| a.attempt.0).collect();
        assert_eq!(numbers, (1..=ended).collect::<Vec<_>>(), "every claim ends on record, once (I2)");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("conformance/model.proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn i1_i2_i5_any_life_of_jobs_is_as_the_plain_model_says(steps in prop::collection::vec(step(), 1..50)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(live(steps));
    }
}
