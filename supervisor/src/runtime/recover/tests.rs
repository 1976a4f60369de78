//! What is done before a term begins, and in which order.

use std::sync::Arc;

use super::*;
use crate::config::Config;
use crate::domain::evidence::ExitStatus;
use crate::domain::evidence::ProcessEvidence;
use crate::domain::evidence::Stage;
use crate::domain::job::JobState;
use crate::domain::retry::Decision;
use crate::domain::retry::Next;
use crate::domain::verdict::Certainty;
use crate::domain::verdict::Ending;
use crate::domain::verdict::Sureness;
use crate::domain::verdict::Verdict;
use crate::runtime::dispatcher::tests::config;
use crate::runtime::dispatcher::tests::kind;
use crate::runtime::fake::FakeStore;
use crate::runtime::fake::Takes;
use crate::runtime::here;
use crate::runtime::rescue::tests::term_of;
use crate::store::Claimed;
use crate::store::NewTerm;

struct Bench {
    _folder: tempfile::TempDir,
    store: Arc<FakeStore>,
    here: Here,
    config: Config,
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Arc::unwrap_or_clone(config(&[kind("a", 4)]));
        config.supervisor.state_dir = folder.path().to_owned();
        let store = FakeStore::open(folder.path(), true).await;
        Self { _folder: folder, store, here: here::tests::here(), config }
    }

    /// A predecessor with this state folder whose process is gone.
    async fn predecessor(&self) -> NewTerm {
        let mut term = term_of(&self.here);
        term.identity.start_time += 1;
        self.store.begin_term(&term).await.unwrap();
        term
    }

    async fn recover(&self) -> Recovered {
        recover(self.store.as_ref(), &self.config, &self.here, Term::new()).await.unwrap()
    }

    fn warden_saw(&self, claimed: &Claimed, code: i32) {
        let process = ProcessEvidence {
            stage: Stage::AfterExec,
            pid: Some(9),
            exit: Some(ExitStatus::Exited(code)),
            ..ProcessEvidence::default()
        };
        ends::write(&self.config.supervisor.state_dir, &EndFile { fence: claimed.fence, process }).unwrap();
    }

    fn journaled(&self, claimed: &Claimed) {
        let certainty = Certainty { kill: Sureness::Proved, reason: Sureness::Proved };
        let finish = Finish {
            fence: claimed.fence,
            decision: Decision { next: Next::Succeeded, refund: false, interruption: false, breaker: false },
            verdict: Some(Verdict { ending: Ending::Succeeded, certainty, contributing: vec![], flags: vec![] }),
            result: Some("\"kept\"".to_owned()),
            record: None,
        };
        journal::write(&journal::entry(&self.config.supervisor.state_dir, &finish).unwrap()).unwrap();
    }

    fn files(&self) -> usize {
        let state_dir = &self.config.supervisor.state_dir;
        journal::read_all(state_dir).unwrap().len() + ends::read_all(state_dir).unwrap().len()
    }
}

#[tokio::test]
async fn i9_what_the_journal_and_the_warden_know_is_recorded_before_the_rest_is_rescued() {
    let bench = Bench::new().await;
    let term = bench.predecessor().await.term;
    let held = bench.store.running(term).await;
    let seen = bench.store.running(term).await;
    let both = bench.store.running(term).await;
    let unseen = bench.store.running(term).await;
    bench.journaled(&held);
    bench.journaled(&both);
    bench.warden_saw(&both, 3);
    bench.warden_saw(&seen, 3);
    assert_eq!(bench.recover().await, Recovered { journaled: 2, seen: 1, unseen: 1 });
    assert_eq!(bench.files(), 0);
    for claimed in [held, both] {
        let job = bench.store.job(claimed.fence.job).await.unwrap().unwrap();
        assert_eq!((job.state, job.result.as_deref()), (JobState::Succeeded, Some("\"kept\"")));
    }
    assert_eq!(bench.store.causes(seen.fence.job).await, ["exit_nonzero"]);
    assert_eq!(bench.store.causes(unseen.fence.job).await, ["supervisor_lost"]);
    assert!(bench.store.terms().await.unwrap()[0].lost_at.is_some(), "proven gone, its lease need not run out");
    assert_eq!(bench.recover().await, Recovered::default(), "nothing is left to do");
}

#[tokio::test]
async fn i10_what_the_warden_saw_of_a_row_that_somebody_else_rescued_is_kept_as_its_late_outcome() {
    let bench = Bench::new().await;
    let term = bench.predecessor().await;
    let claimed = bench.store.running(term.term).await;
    let row = bench.store.terms().await.unwrap().remove(0);
    assert!(bench.store.declare_lost(term.term, row.beat, LossProof::ProcessGone).await.unwrap());
    let rescuer = Here { name: "there".to_owned(), ..bench.here.clone() };
    assert_eq!(rescue::sweep(bench.store.as_ref(), &bench.config, &rescuer, &[]).await.unwrap(), 1);
    bench.warden_saw(&claimed, 3);
    assert_eq!(bench.recover().await, Recovered::default());
    let attempt = bench.store.attempts(claimed.fence.job).await.unwrap().remove(0);
    assert!(attempt.late_outcome.is_some_and(|late| late.contains("exit_nonzero")), "its proof is not lost");
    assert_eq!(bench.files(), 0);
}

#[tokio::test]
async fn d6_a_term_that_is_not_proven_gone_keeps_its_rows_until_its_lease_runs_out() {
    let bench = Bench::new().await;
    let mut term = term_of(&bench.here);
    term.identity.state_id = "another folder".to_owned();
    term.identity.start_time += 1;
    bench.store.begin_term(&term).await.unwrap();
    let claimed = bench.store.running(term.term).await;
    assert_eq!(bench.recover().await, Recovered::default());
    assert_eq!(bench.store.state(claimed.fence.job).await, JobState::Running);
}

#[tokio::test]
async fn i10_files_stay_until_the_store_has_taken_them() {
    let bench = Bench::new().await;
    let term = bench.predecessor().await.term;
    let (held, seen) = (bench.store.running(term).await, bench.store.running(term).await);
    bench.journaled(&held);
    bench.warden_saw(&seen, 3);
    bench.store.take(Takes::None);
    let away = recover(bench.store.as_ref(), &bench.config, &bench.here, Term::new()).await;
    assert!(away.is_err_and(|error| error.is_unavailable()));
    assert_eq!(bench.files(), 2);
    bench.store.take(Takes::All);
    bench.store.refuses.lock().unwrap().insert(held.fence.job);
    assert_eq!(bench.recover().await.seen, 1, "one that is refused holds up no other");
    assert_eq!(bench.files(), 1, "and stays");
}
