//! Adding jobs.

use jobvisor::domain::cause::Cause;
use jobvisor::domain::ids::JobId;
use jobvisor::domain::job::JobState;
use jobvisor::domain::retry::Next;
use jobvisor::store::{Enqueued, Filter, NewJob, Retention, StoreError};

use crate::fixture::Fixture;
use crate::support::{LONG, NOW, add, begin, claim_one, failure, finish, job, new_job, running, state, success};

fn keyed(kind: &str) -> NewJob {
    NewJob { unique_key: Some("key".to_owned()), ..new_job(kind) }
}

pub(crate) async fn a_unique_key_is_held_by_one_of_twenty_at_once(fixture: &dyn Fixture) {
    let mut adders = Vec::new();
    for n in 0..20 {
        let store = if n % 5 == 0 { fixture.another().await } else { fixture.shared() };
        adders.push(tokio::spawn(async move { store.enqueue(&[keyed("k")]).await.unwrap()[0] }));
    }
    let mut answers = Vec::new();
    for adder in adders {
        answers.push(adder.await.unwrap());
    }
    let new: Vec<&Enqueued> = answers.iter().filter(|a| matches!(a, Enqueued::New(_))).collect();
    assert_eq!(new.len(), 1, "{answers:?}");
    assert!(answers.iter().all(|answer| answer.id() == new[0].id()));
    assert_eq!(fixture.store().list(&Filter::default()).await.unwrap().len(), 1);
    let other_kind = fixture.store().enqueue(&[keyed("other")]).await.unwrap();
    assert!(matches!(other_kind[0], Enqueued::New(_)));
}

pub(crate) async fn a_unique_key_is_free_again_when_its_job_has_ended(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let both = store.enqueue(&[keyed("k"), keyed("k")]).await.unwrap();
    assert_eq!(both[1], Enqueued::Exists(both[0].id()));
    let fence = claim_one(store, term, both[0].id()).await;
    assert_eq!(store.enqueue(&[keyed("k")]).await.unwrap(), [Enqueued::Exists(fence.job)]);
    finish(store, success(fence)).await;
    assert!(matches!(store.enqueue(&[keyed("k")]).await.unwrap()[0], Enqueued::New(_)));
}

pub(crate) async fn i11_a_batch_is_added_whole_or_not_at_all(fixture: &dyn Fixture) {
    let store = fixture.store();
    let missing = NewJob { after: vec![JobId(4711)], ..new_job("k") };
    let error = store.enqueue(&[new_job("k"), keyed("k"), missing]).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSuchJob(4711)), "{error:?}");
    assert_eq!(store.list(&Filter::default()).await.unwrap(), []);
    assert_eq!(store.enqueue(&[]).await.unwrap(), []);
    let added = store.enqueue(&[new_job("k"), keyed("k")]).await.unwrap();
    assert!(added[0].id() < added[1].id());
}

pub(crate) async fn jobs_wait_until_all_before_them_have_succeeded(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let (one, two) = (running(store, term).await, running(store, term).await);
    let child = add(store, NewJob { after: vec![one.job, two.job, one.job], ..new_job("k") }).await;
    let grandchild = add(store, NewJob { after: vec![child], ..new_job("k") }).await;
    assert_eq!(state(store, child).await, JobState::Waiting);
    finish(store, success(one)).await;
    assert_eq!(state(store, child).await, JobState::Waiting);
    finish(store, failure(two, Cause::Crash, Next::PutBack(NOW))).await;
    assert_eq!(state(store, child).await, JobState::Waiting);
    let two = claim_one(store, term, two.job).await;
    finish(store, success(two)).await;
    assert_eq!((state(store, child).await, state(store, grandchild).await), (JobState::Queued, JobState::Waiting));
    let child = claim_one(store, term, child).await;
    finish(store, success(child)).await;
    assert_eq!(state(store, grandchild).await, JobState::Queued);
    let late = add(store, NewJob { after: vec![one.job, two.job], ..new_job("k") }).await;
    assert_eq!(state(store, late).await, JobState::Queued, "what it comes after is done already");
}

pub(crate) async fn a_job_after_one_that_failed_is_cancelled_with_all_after_it(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    for next in [Next::Dead, Next::Cancelled] {
        let parent = running(store, term).await;
        let child = add(store, NewJob { after: vec![parent.job], ..new_job("k") }).await;
        let grandchild = add(store, NewJob { after: vec![child], ..new_job("k") }).await;
        finish(store, failure(parent, Cause::Crash, next)).await;
        for id in [child, grandchild] {
            assert_eq!(state(store, id).await, JobState::Cancelled);
        }
        let late = add(store, NewJob { after: vec![parent.job], ..new_job("k") }).await;
        let row = job(store, late).await;
        assert!(row.state == JobState::Cancelled && row.finished_at.is_some());
    }
    let queued = add(store, new_job("k")).await;
    let child = add(store, NewJob { after: vec![queued], ..new_job("k") }).await;
    store.cancel(&[queued], "me").await.unwrap();
    assert_eq!(state(store, child).await, JobState::Cancelled);
}

pub(crate) async fn a_waiting_job_keeps_its_later_due_time(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let parent = running(store, term).await;
    let later = store.now().await.unwrap() + LONG;
    let child = add(store, NewJob { after: vec![parent.job], run_at: Some(later), ..new_job("k") }).await;
    finish(store, success(parent)).await;
    let row = job(store, child).await;
    assert_eq!((row.state, row.run_at), (JobState::Scheduled, later));
}

pub(crate) async fn a_payload_of_one_mebibyte_comes_back_unchanged(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let payload = format!("\"{}\"", "\u{e4}\\u0041x".repeat((1 << 20) / 9));
    let id = add(store, NewJob { payload: payload.clone(), ..new_job("k") }).await;
    let claimed = crate::support::claim(store, term, "k", 1).await.remove(0);
    assert!(claimed.payload == payload, "the payload changed on its way to the claim");
    let result = Some(payload.clone());
    finish(store, jobvisor::store::Finish { result, ..success(claimed.fence) }).await;
    let row = job(store, id).await;
    assert!(row.payload == payload && row.result.as_ref() == Some(&payload), "the payload or result changed");
}

pub(crate) async fn g1_escapes_in_json_come_back_unchanged(fixture: &dyn Fixture) {
    let store = fixture.store();
    for payload in
        [r#"{"a":"\u0000"}"#, r#"{"\u0000":1}"#, r#""\ud800""#, r#"[1e400, -0.0, 123456789012345678901234567890]"#]
    {
        let id = add(store, NewJob { payload: payload.to_owned(), ..new_job("k") }).await;
        assert_eq!(job(store, id).await.payload, payload);
    }
}

pub(crate) async fn ids_are_never_used_again(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let fence = running(store, term).await;
    finish(store, success(fence)).await;
    let at_once = Retention { succeeded: NOW, cancelled: NOW, dead: LONG };
    while store.prune(&at_once, 10).await.unwrap() == 0 {}
    assert_eq!(store.job(fence.job).await.unwrap(), None);
    assert!(add(store, new_job("k")).await > fence.job);
}
