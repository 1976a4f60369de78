//! Short words for what the cases need all the time.

use std::time::Duration;

use jobvisor::domain::cause::Cause;
use jobvisor::domain::ids::{AttemptNo, Fence, JobId, Term};
use jobvisor::domain::job::{Job, JobState};
use jobvisor::domain::retry::{Backoff, Decision, Next};
use jobvisor::domain::units::Bytes;
use jobvisor::domain::verdict::{Certainty, Ending, Sureness, Verdict};
use jobvisor::store::{
    AttemptRecord, ClaimKind, ClaimRequest, Claimed, Finish, Finished, Identity, NewJob, NewTerm, RowPolicy, Store,
};

pub(crate) const LONG: Duration = Duration::from_secs(3600);
/// Of every term here.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const NOW: Duration = Duration::ZERO;

pub(crate) fn new_job(kind: &str) -> NewJob {
    NewJob {
        kind: kind.to_owned(),
        payload: "{}".to_owned(),
        priority: 0,
        run_at: None,
        tenant: String::new(),
        unique_key: None,
        after: Vec::new(),
        max_attempts: None,
        memory: None,
        policy: None,
        schedule: None,
    }
}

pub(crate) async fn add(store: &dyn Store, job: NewJob) -> JobId {
    store.enqueue(&[job]).await.unwrap()[0].id()
}

pub(crate) fn policy(max_attempts: u32) -> RowPolicy {
    RowPolicy { max_attempts, max_interruptions: 5, memory: Bytes::mib(64), backoff: Backoff::default() }
}

pub(crate) fn wants(kind: &str, free: u32) -> ClaimKind {
    ClaimKind { kind: kind.to_owned(), free, policy: policy(3) }
}

pub(crate) fn request(term: Term, kinds: Vec<ClaimKind>) -> ClaimRequest {
    ClaimRequest { term, seq: 1, kinds, free_memory: Bytes(u64::MAX), whole_budget: Bytes(u64::MAX) }
}

pub(crate) fn new_term() -> NewTerm {
    NewTerm {
        term: Term::new(),
        name: "sup".to_owned(),
        host: "host".to_owned(),
        pid: 4711,
        boot_id: "b00t".to_owned(),
        identity: Identity { state_id: "5ta7e".to_owned(), pid_ns: 1, start_time: 2 },
        version: "0.1.0".to_owned(),
        kinds: vec!["k".to_owned()],
        lease: LEASE,
    }
}

pub(crate) async fn begin(store: &dyn Store) -> Term {
    let new = new_term();
    store.begin_term(&new).await.unwrap();
    new.term
}

pub(crate) async fn claim(store: &dyn Store, term: Term, kind: &str, free: u32) -> Vec<Claimed> {
    store.claim(&request(term, vec![wants(kind, free)])).await.unwrap()
}

/// Adds a job of kind `k` and claims it.
pub(crate) async fn running(store: &dyn Store, term: Term) -> Fence {
    let id = add(store, new_job("k")).await;
    claim_one(store, term, id).await
}

/// Claims the one job that is queued.
pub(crate) async fn claim_one(store: &dyn Store, term: Term, id: JobId) -> Fence {
    let claimed = claim(store, term, "k", 1).await;
    assert_eq!(claimed.iter().map(|c| c.fence.job).collect::<Vec<_>>(), [id]);
    claimed[0].fence
}

pub(crate) fn verdict(ending: Ending) -> Verdict {
    let certainty = Certainty { kill: Sureness::Proved, reason: Sureness::Proved };
    Verdict { ending, certainty, contributing: Vec::new(), flags: Vec::new() }
}

pub(crate) fn decision(next: Next) -> Decision {
    Decision { next, refund: false, interruption: false, breaker: false }
}

pub(crate) fn success(fence: Fence) -> Finish {
    Finish {
        fence,
        decision: decision(Next::Succeeded),
        verdict: Some(verdict(Ending::Succeeded)),
        result: Some("42".to_owned()),
        record: Some(AttemptRecord::default()),
    }
}

pub(crate) fn failure(fence: Fence, cause: Cause, next: Next) -> Finish {
    Finish { decision: decision(next), verdict: Some(verdict(Ending::Failed(cause))), result: None, ..success(fence) }
}

pub(crate) fn refunded(mut finish: Finish, interruption: bool) -> Finish {
    finish.decision.refund = true;
    finish.decision.interruption = interruption;
    finish
}

pub(crate) fn given_back(fence: Fence) -> Finish {
    let finish = Finish { verdict: None, record: None, ..failure(fence, Cause::Drained, Next::PutBack(NOW)) };
    refunded(finish, false)
}

pub(crate) async fn finish(store: &dyn Store, outcome: Finish) -> Finished {
    store.finish(&[outcome]).await.unwrap()[0]
}

pub(crate) async fn job(store: &dyn Store, id: JobId) -> Job {
    store.job(id).await.unwrap().unwrap()
}

pub(crate) async fn state(store: &dyn Store, id: JobId) -> JobState {
    job(store, id).await.state
}

pub(crate) fn next_attempt(fence: Fence) -> Fence {
    Fence { attempt: AttemptNo(fence.attempt.0 + 1), ..fence }
}
