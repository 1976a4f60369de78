//! Cancel and retry.

use jobvisor::domain::cause::Cause;
use jobvisor::domain::ids::{AttemptNo, JobId};
use jobvisor::domain::job::JobState;
use jobvisor::domain::retry::Next;
use jobvisor::store::{Acted, CancelRequest, Finished, NewJob};

use crate::fixture::Fixture;
use crate::support::{LONG, NOW, add, begin, claim_one, failure, finish, job, new_job, running, state, success};

pub(crate) async fn cancel_does_what_each_state_allows(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let done = running(store, term).await;
    finish(store, success(done)).await;
    let dead = running(store, term).await;
    finish(store, failure(dead, Cause::Crash, Next::Dead)).await;
    let runs = running(store, term).await;
    let queued = add(store, new_job("k")).await;
    let later = store.now().await.unwrap() + LONG;
    let scheduled = add(store, NewJob { run_at: Some(later), ..new_job("k") }).await;
    let waiting = add(store, NewJob { after: vec![runs.job], ..new_job("k") }).await;
    let ids = [done.job, dead.job, runs.job, queued, scheduled, waiting, JobId(999)];
    let acted = store.cancel(&ids, "me").await.unwrap();
    let expected = [
        Acted::Refused(JobState::Succeeded),
        Acted::Refused(JobState::Dead),
        Acted::Requested,
        Acted::Done,
        Acted::Done,
        Acted::Done,
        Acted::Missing,
    ];
    assert_eq!(acted, ids.into_iter().zip(expected).collect::<Vec<_>>());
    for id in [queued, scheduled, waiting] {
        let row = job(store, id).await;
        assert!(row.state == JobState::Cancelled && row.finished_at.is_some());
    }
    let row = job(store, runs.job).await;
    assert!(row.state == JobState::Running && row.cancel_requested);
    assert_eq!(store.cancel(&[queued], "me").await.unwrap(), [(queued, Acted::Refused(JobState::Cancelled))]);
}

pub(crate) async fn a_job_put_back_after_a_cancel_request_is_cancelled(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    for (next, expected) in [
        (Next::PutBack(LONG), JobState::Cancelled),
        (Next::PutBack(NOW), JobState::Cancelled),
        (Next::Cancelled, JobState::Cancelled),
        (Next::Dead, JobState::Dead),
    ] {
        let fence = running(store, term).await;
        store.cancel(&[fence.job], "me").await.unwrap();
        assert_eq!(finish(store, failure(fence, Cause::Crash, next)).await, Finished::Recorded(expected));
        let row = job(store, fence.job).await;
        assert!(!row.cancel_requested && row.finished_at.is_some());
    }
    let fence = running(store, term).await;
    store.cancel(&[fence.job], "me").await.unwrap();
    assert_eq!(finish(store, success(fence)).await, Finished::Recorded(JobState::Succeeded), "it was done before");
}

pub(crate) async fn cancel_requests_are_those_of_the_term(fixture: &dyn Fixture) {
    let store = fixture.store();
    let (term, other) = (begin(store).await, begin(store).await);
    let (mine, others) = (running(store, term).await, running(store, other).await);
    running(store, term).await;
    store.cancel(&[mine.job, others.job], "first").await.unwrap();
    store.cancel(&[mine.job], "second").await.unwrap();
    let expected = CancelRequest { job: mine.job, attempt: mine.attempt, by: "first".to_owned() };
    assert_eq!(store.cancel_requests(term).await.unwrap(), [expected]);
    finish(store, failure(mine, Cause::Cancelled, Next::Cancelled)).await;
    assert_eq!(store.cancel_requests(term).await.unwrap(), []);
}

pub(crate) async fn retry_gives_a_fresh_budget_and_keeps_the_history(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let id = add(store, new_job("k")).await;
    for next in [Next::PutBack(NOW), Next::PutBack(NOW), Next::Dead] {
        let fence = claim_one(store, term, id).await;
        finish(store, failure(fence, Cause::Crash, next)).await;
    }
    assert_eq!(store.retry(&[id, JobId(99)]).await.unwrap(), [(id, Acted::Done), (JobId(99), Acted::Missing)]);
    let row = job(store, id).await;
    assert_eq!((row.state, row.budget.charged, row.attempt), (JobState::Queued, 0, AttemptNo(3)));
    assert_eq!((row.finished_at, row.cause), (None, Some(Cause::Crash)));
    assert_eq!(store.retry(&[id]).await.unwrap(), [(id, Acted::Refused(JobState::Queued))]);
    let fence = claim_one(store, term, id).await;
    assert_eq!(fence.attempt, AttemptNo(4));
    assert_eq!(store.retry(&[id]).await.unwrap(), [(id, Acted::Refused(JobState::Running))]);
    finish(store, success(fence)).await;
    let numbers: Vec<u32> = store.attempts(id).await.unwrap().iter().map(|a| a.attempt.0).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    let parent = add(store, new_job("k")).await;
    let child = add(store, NewJob { after: vec![parent], ..new_job("k") }).await;
    store.cancel(&[child], "me").await.unwrap();
    store.retry(&[child]).await.unwrap();
    assert_eq!(state(store, child).await, JobState::Queued, "a retry ignores what the job came after");
}

pub(crate) async fn retry_is_refused_while_another_job_holds_the_key(fixture: &dyn Fixture) {
    let store = fixture.store();
    let keyed = || NewJob { unique_key: Some("one".to_owned()), ..new_job("k") };
    let (first, second) = {
        let first = add(store, keyed()).await;
        store.cancel(&[first], "me").await.unwrap();
        let second = add(store, keyed()).await;
        store.cancel(&[second], "me").await.unwrap();
        (first, second)
    };
    assert_ne!(first, second);
    let acted = store.retry(&[first, second]).await.unwrap();
    assert_eq!(acted, [(first, Acted::Done), (second, Acted::Refused(JobState::Cancelled))]);
}
