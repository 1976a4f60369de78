//! Rescue on a store whose terms are leases.

use std::time::Duration;

use super::*;
use crate::domain::ids::JobId;
use crate::domain::job::JobState;
use crate::runtime::dispatcher::tests::config;
use crate::runtime::fake::FakeStore;
use crate::runtime::here;
use crate::runtime::snapshot::Running;
use crate::store::NewTerm;
use crate::store::Renewed;

const LEASE: Duration = Duration::from_millis(100);

pub(in crate::runtime) fn term_of(here: &Here) -> NewTerm {
    NewTerm {
        term: Term::new(),
        name: here.name.clone(),
        host: here.host.clone(),
        pid: here.pid,
        boot_id: here.boot_id.clone(),
        identity: here.identity.clone(),
        version: String::new(),
        kinds: Vec::new(),
        lease: LEASE,
    }
}

struct Bench {
    folder: tempfile::TempDir,
    store: Arc<FakeStore>,
    here: Here,
    observed: Observations,
    config: Arc<Config>,
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let here = here::tests::here();
        Self {
            store: FakeStore::open(folder.path(), true).await,
            observed: Observations::load(folder.path(), &here.boot_id),
            here,
            config: config(&[]),
            folder,
        }
    }

    /// Another supervisor, on another host, and a job that it runs.
    async fn other(&self) -> (NewTerm, JobId) {
        let elsewhere = Here { name: "there".to_owned(), host: "elsewhere".to_owned(), ..self.here.clone() };
        let term = term_of(&elsewhere);
        self.store.begin_term(&term).await.unwrap();
        let job = self.store.running(term.term).await.fence.job;
        (term, job)
    }

    async fn round(&mut self) -> usize {
        declare(self.store.as_ref(), &[], &mut self.observed).await.unwrap();
        sweep(self.store.as_ref(), &self.config, &self.here, &[]).await.unwrap()
    }
}

/// Long enough for a lease to be over.
async fn a_lease() {
    tokio::time::sleep(LEASE + Duration::from_millis(20)).await;
}

#[tokio::test]
async fn i4_a_term_is_lost_only_when_its_lease_has_run_out_and_it_was_seen_silent_for_one() {
    let mut bench = Bench::new().await;
    let (term, job) = bench.other().await;
    assert_eq!(bench.round().await, 0);
    a_lease().await;
    assert_eq!(bench.round().await, 0, "silent, but the database does not say that its lease has run out");
    bench.store.expired.lock().unwrap().insert(term.term);
    let mut fresh = Observations::load(bench.folder.path(), &bench.here.boot_id);
    declare(bench.store.as_ref(), &[], &mut fresh).await.unwrap();
    assert!(
        bench.store.terms().await.unwrap()[0].is_open(),
        "who looks for the first time does not know that it was silent"
    );
    assert_eq!(bench.round().await, 1);
    assert_eq!(
        (bench.store.state(job).await, bench.store.causes(job).await),
        (JobState::Scheduled, vec!["supervisor_lost"])
    );
    assert_eq!(bench.round().await, 0, "once");
    let renewed = bench.store.renewer().renew(term.term, None).await.unwrap();
    assert_eq!(renewed, Renewed::Lost, "it cannot come back");
}

#[tokio::test]
async fn i4_a_sign_of_life_between_two_looks_saves_a_term_whose_lease_ran_out() {
    let mut bench = Bench::new().await;
    let (term, job) = bench.other().await;
    bench.store.expired.lock().unwrap().insert(term.term);
    bench.round().await;
    a_lease().await;
    bench.store.renewer().renew(term.term, None).await.unwrap();
    assert_eq!(bench.round().await, 0);
    assert_eq!(bench.store.state(job).await, JobState::Running);
    // And one that comes between our look and our word: the beat no longer matches.
    let row = bench.store.terms().await.unwrap().remove(0);
    bench.store.renewer().renew(term.term, None).await.unwrap();
    assert!(!bench.store.declare_lost(term.term, row.beat, LossProof::Silence).await.unwrap());
}

#[tokio::test]
async fn a_rescue_tells_what_was_last_known_of_memory_and_spreads_neighbours() {
    let mut bench = Bench::new().await;
    let (term, first) = bench.other().await;
    let second = bench.store.running(term.term).await.fence.job;
    let word = [Running {
        job: first,
        attempt: crate::domain::ids::AttemptNo(1),
        kind: "a".to_owned(),
        pid: Some(77),
        started: Some(clock::now()),
        bytes: Some(crate::domain::units::Bytes::mib(33)),
    }];
    bench.store.renewer().renew(term.term, Some(&snapshot::write(&word))).await.unwrap();
    let row = bench.store.terms().await.unwrap().remove(0);
    assert!(bench.store.declare_lost(term.term, row.beat, LossProof::ProcessGone).await.unwrap());
    assert_eq!(bench.round().await, 2);
    let attempt = bench.store.attempts(first).await.unwrap().remove(0);
    let message = attempt.record.message.unwrap();
    assert!(message.contains("pid 77") && message.contains("33") && message.contains("64"), "{message}");
    assert_eq!((attempt.record.started_at, attempt.charged), (word[0].started, true));
    assert_eq!(bench.store.attempts(second).await.unwrap().remove(0).record.message, None);
    let finish = |nth| {
        let decision = crate::domain::retry::Decision {
            next: Next::PutBack(Duration::from_secs(5)),
            refund: false,
            interruption: false,
            breaker: false,
        };
        let fence = crate::domain::ids::Fence { job: first, attempt: attempt.attempt, term: term.term };
        staggered(Finish { fence, decision, verdict: None, result: None, record: None }, nth).decision.next
    };
    assert_eq!(
        (finish(0), finish(2)),
        (Next::PutBack(Duration::from_secs(5)), Next::PutBack(Duration::from_millis(5500)))
    );
    assert_eq!(finish(u32::from(u16::MAX)), Next::PutBack(Duration::from_secs(35)));
}

#[tokio::test]
async fn a_rescue_honours_a_cancel_and_leaves_alone_what_is_named_as_living() {
    let mut bench = Bench::new().await;
    let (term, job) = bench.other().await;
    bench.store.cancel(&[job], "test").await.unwrap();
    let row = bench.store.terms().await.unwrap().remove(0);
    bench.store.declare_lost(term.term, row.beat, LossProof::ProcessGone).await.unwrap();
    let ended = sweep(bench.store.as_ref(), &bench.config, &bench.here, &[term.term]).await.unwrap();
    assert_eq!(
        (ended, bench.store.state(job).await),
        (0, JobState::Running),
        "a term of ours that is being ended here"
    );
    assert_eq!(bench.round().await, 1);
    assert_eq!(bench.store.state(job).await, JobState::Cancelled);
}

#[test]
fn only_our_own_folders_other_boot_is_a_restart_of_the_host() {
    let here = here::tests::here();
    let row = here::tests::row(&here);
    let rebooted = TermRow { boot_id: "another boot".to_owned(), ..row.clone() };
    assert!(matches!(loss_of(Some(&rebooted), &here), Loss::Host { .. }));
    let stranger = TermRow { host: "elsewhere".to_owned(), ..rebooted };
    assert!(matches!(loss_of(Some(&stranger), &here), Loss::Supervisor { .. }));
    assert!(matches!(loss_of(Some(&row), &here), Loss::Supervisor { .. }));
    assert!(matches!(loss_of(None, &here), Loss::Supervisor { pid: None, .. }));
}
