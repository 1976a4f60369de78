//! Reading, retention and the wake-up.

use std::time::Duration;

use jobvisor::domain::cause::Cause;
use jobvisor::domain::ids::JobId;
use jobvisor::domain::job::JobState;
use jobvisor::domain::retry::Next;
use jobvisor::domain::units::Bytes;
use jobvisor::store::{Count, Filter, NewJob, Renewed, Retention, Store};

use crate::fixture::Fixture;
use crate::support::{
    LONG, NOW, add, begin, failure, finish, new_job, new_term, policy, request, running, state, success, wants,
};

async fn listed(store: &dyn Store, filter: Filter) -> Vec<JobId> {
    store.list(&filter).await.unwrap().iter().map(|job| job.id).collect()
}

pub(crate) async fn a_list_is_filtered_by_every_field(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let (done, dead) = (running(store, term).await, running(store, term).await);
    finish(store, success(done)).await;
    let middle = store.now().await.unwrap();
    finish(store, failure(dead, Cause::Timeout, Next::Dead)).await;
    let queued = add(store, new_job("other")).await;
    let (done, dead) = (done.job, dead.job);
    let all = Filter::default;
    assert_eq!(listed(store, all()).await, [queued, dead, done]);
    let two = vec![JobState::Succeeded, JobState::Queued];
    assert_eq!(listed(store, Filter { states: two, ..all() }).await, [queued, done]);
    assert_eq!(listed(store, Filter { kind: Some("k".to_owned()), ..all() }).await, [dead, done]);
    assert_eq!(listed(store, Filter { cause: Some(Cause::Timeout), ..all() }).await, [dead]);
    assert_eq!(listed(store, Filter { since: Some(middle), ..all() }).await, [queued, dead]);
    assert_eq!(listed(store, Filter { limit: Some(1), ..all() }).await, [queued]);
    assert_eq!(listed(store, Filter { after_id: Some(done), ..all() }).await, [queued, dead]);
    assert_eq!(store.job(JobId(4711)).await.unwrap(), None);
}

pub(crate) async fn counts_say_how_many_stand_where(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let later = store.now().await.unwrap() + LONG;
    let fence = running(store, term).await;
    finish(store, failure(fence, Cause::Crash, Next::PutBack(LONG))).await;
    for mib in [None, Some(5), Some(7)] {
        let memory = mib.map(Bytes::mib);
        add(store, NewJob { run_at: Some(later), memory, ..new_job("k") }).await;
    }
    add(store, NewJob { policy: Some(policy(3)), ..new_job("a") }).await;
    add(store, NewJob { policy: Some(policy(3)), memory: Some(Bytes::mib(9)), ..new_job("b") }).await;
    let counts = store.counts().await.unwrap();
    let expected = [
        // What its kind said at enqueue is not what a claim will go by.
        Count { kind: "a".to_owned(), state: JobState::Queued, attempted: 0, jobs: 1, smallest: None },
        Count { kind: "b".to_owned(), state: JobState::Queued, attempted: 0, jobs: 1, smallest: Some(Bytes::mib(9)) },
        Count {
            kind: "k".to_owned(),
            state: JobState::Scheduled,
            attempted: 1,
            jobs: 4,
            // Two of them take what their kind says.
            smallest: None,
        },
    ];
    assert_eq!(counts, expected);
    let oldest = store.oldest_queued().await.unwrap();
    let due = store.list(&Filter { kind: Some("a".to_owned()), ..Filter::default() }).await.unwrap();
    assert_eq!(oldest[0], ("a".to_owned(), due[0].run_at));
    assert_eq!(oldest.len(), 2, "only what is queued: {oldest:?}");
}

pub(crate) async fn prune_keeps_what_is_unfinished_and_what_is_young(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let mut done = Vec::new();
    for _ in 0..3 {
        let fence = running(store, term).await;
        finish(store, success(fence)).await;
        done.push(fence.job);
    }
    let dead = running(store, term).await;
    finish(store, failure(dead, Cause::Crash, Next::Dead)).await;
    let runs = running(store, term).await;
    let waiting = add(store, NewJob { after: vec![runs.job, done[0]], ..new_job("k") }).await;
    let queued = add(store, new_job("k")).await;
    let keep_all = Retention { succeeded: LONG, cancelled: LONG, dead: Duration::MAX };
    assert_eq!(store.prune(&keep_all, 100).await.unwrap(), 0);
    let ended_before = store.now().await.unwrap();
    while store.now().await.unwrap() <= ended_before {}
    let at_once = Retention { succeeded: NOW, cancelled: NOW, dead: LONG };
    assert_eq!(store.prune(&at_once, 2).await.unwrap(), 2);
    assert_eq!(listed(store, Filter::default()).await, [queued, waiting, runs.job, dead.job, done[2]]);
    assert_eq!(store.attempts(done[0]).await.unwrap(), []);
    assert_eq!(store.attempts(done[2]).await.unwrap().len(), 1);
    assert_eq!(store.prune(&at_once, 100).await.unwrap(), 1);
    assert_eq!(store.prune(&at_once, 100).await.unwrap(), 0);
    finish(store, success(runs)).await;
    assert_eq!(state(store, waiting).await, JobState::Queued, "a parent that was removed had succeeded");
}

pub(crate) async fn the_term_that_claims_is_never_forgotten(fixture: &dyn Fixture) {
    let store = fixture.store();
    let old = begin(store).await;
    store.end_term(old).await.unwrap();
    let new = begin(store).await;
    add(store, new_job("k")).await;
    // As after a step of the clock: every sign of life looks older than what is kept.
    let began = store.now().await.unwrap();
    while store.now().await.unwrap() <= began {}
    let nothing_kept = Retention { succeeded: NOW, cancelled: NOW, dead: NOW };
    store.prune(&nothing_kept, 100).await.unwrap();
    assert_eq!(store.terms().await.unwrap().iter().map(|row| row.term).collect::<Vec<_>>(), [new], "not {old}");
    assert_eq!(store.claim(&request(new, vec![wants("k", 1)])).await.unwrap().len(), 1);
}

pub(crate) async fn terms_are_told_newest_first_with_their_end(fixture: &dyn Fixture) {
    let store = fixture.store();
    let (old, new) = (new_term(), new_term());
    store.begin_term(&old).await.unwrap();
    store.begin_term(&new).await.unwrap();
    store.begin_term(&new).await.unwrap();
    store.end_term(old.term).await.unwrap();
    let ended = store.terms().await.unwrap()[1].last_seen;
    let mut renewer = store.renewer();
    assert_eq!(renewer.renew(old.term, None).await.unwrap(), Renewed::Lost);
    assert_eq!(renewer.renew(new.term, Some("{}")).await.unwrap(), Renewed::Held);
    let rows = store.terms().await.unwrap();
    assert_eq!(rows.iter().map(|r| r.term).collect::<Vec<_>>(), [new.term, old.term]);
    assert_eq!((rows[1].ended_at, rows[1].last_seen), (Some(ended), ended), "a term that has ended stays ended");
    assert_eq!(rows[0].ended_at, None);
    assert!(rows[0].last_seen > rows[0].started_at);
    assert_eq!((rows[0].name.as_str(), rows[0].host.as_str(), rows[0].pid), ("sup", "host", 4711));
}

pub(crate) async fn a_schedule_knows_its_unfinished_jobs(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    assert!(!store.schedule_has_unfinished("nightly").await.unwrap());
    let id = add(store, NewJob { schedule: Some("nightly".to_owned()), ..new_job("k") }).await;
    assert!(store.schedule_has_unfinished("nightly").await.unwrap());
    assert!(!store.schedule_has_unfinished("hourly").await.unwrap());
    let fence = crate::support::claim_one(store, term, id).await;
    assert!(store.schedule_has_unfinished("nightly").await.unwrap());
    finish(store, success(fence)).await;
    assert!(!store.schedule_has_unfinished("nightly").await.unwrap());
}
