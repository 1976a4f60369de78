//! Terms: renewed, silent, declared lost; and what is claimed under them while that happens.

use std::time::Duration;

use jobvisor::domain::cause::Cause;
use jobvisor::domain::ids::{AttemptNo, Fence, JobId, Term};
use jobvisor::domain::job::JobState;
use jobvisor::domain::retry::Next;
use jobvisor::store::{ClaimRequest, Finished, LossProof, Renewed, Store, TermRow};

use crate::fixture::Fixture;
use crate::support::{
    LEASE, NOW, add, begin, claim, failure, finish, given_back, job, new_job, new_term, request, running, state,
    success, wants,
};

pub(crate) async fn row(store: &dyn Store, term: Term) -> TermRow {
    store.terms().await.unwrap().into_iter().find(|row| row.term == term).unwrap()
}

/// Declares a term lost, as one does that saw it silent for a whole lease.
pub(crate) async fn lose(fixture: &dyn Fixture, term: Term) {
    let beat = row(fixture.store(), term).await.beat;
    fixture.elapse(LEASE + Duration::from_secs(1)).await;
    assert!(fixture.store().declare_lost(term, beat, LossProof::Silence).await.unwrap());
}

pub(crate) async fn a_renewal_keeps_a_term(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let mut renewer = store.renewer();
    let before = row(store, term).await;
    assert!(before.is_open() && !before.expired);
    fixture.elapse(LEASE / 2).await;
    assert_eq!(renewer.renew(term, Some(r#"{"running":1}"#)).await.unwrap(), Renewed::Held);
    fixture.elapse(LEASE * 3 / 4).await;
    let held = row(store, term).await;
    assert!(held.is_open() && !held.expired, "the renewal counts for a whole lease: {held:?}");
    assert!(held.beat > before.beat && held.snapshot.as_deref() == Some(r#"{"running":1}"#), "{held:?}");
    let fence = running(store, term).await;
    fixture.elapse(LEASE).await;
    assert_eq!(row(store, term).await.expired, store.is_leased());
    assert_eq!(renewer.renew(term, None).await.unwrap(), Renewed::Held, "nobody has declared it lost");
    let again = row(store, term).await;
    assert!(again.is_open() && !again.expired && again.beat > held.beat, "{again:?}");
    assert_eq!(claim(store, term, "k", 1).await, []);
    assert_eq!(finish(store, success(fence)).await, Finished::Recorded(JobState::Succeeded));
}

pub(crate) async fn i4_a_term_declared_lost_cannot_be_renewed(fixture: &dyn Fixture) {
    let store = fixture.store();
    let (new, other) = (new_term(), begin(store).await);
    store.begin_term(&new).await.unwrap();
    let fence = running(store, new.term).await;
    lose(fixture, new.term).await;
    let mut renewer = store.renewer();
    assert_eq!(renewer.renew(other, None).await.unwrap(), Renewed::Held);
    assert_eq!(renewer.renew(new.term, Some("{}")).await.unwrap(), Renewed::Lost);
    store.begin_term(&new).await.unwrap();
    renewer.begin_term(&new).await.unwrap();
    assert_eq!(renewer.renew(new.term, None).await.unwrap(), Renewed::Lost, "what is lost cannot begin again");
    store.end_term(new.term).await.unwrap();
    let lost = row(store, new.term).await;
    assert!(lost.lost_at.is_some() && lost.ended_at.is_none() && lost.snapshot.is_none(), "{lost:?}");
    assert!(store.declare_lost(new.term, lost.beat + 7, LossProof::Silence).await.unwrap(), "it is lost already");
    let waiting = add(store, new_job("k")).await;
    assert_eq!(claim(store, new.term, "k", 1).await, []);
    assert_eq!(state(store, waiting).await, JobState::Queued);
    let found: Vec<Fence> = store.rescuable(&[other]).await.unwrap().iter().map(|row| row.fence).collect();
    assert_eq!(found, [fence]);
    assert_eq!(claim(store, other, "k", 1).await.len(), 1, "the other one goes on");
}

pub(crate) async fn declaring_lost_needs_the_beat_that_was_seen(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let mut renewer = store.renewer();
    let seen = row(store, term).await.beat;
    assert_eq!(renewer.renew(term, None).await.unwrap(), Renewed::Held);
    fixture.elapse(LEASE * 2).await;
    for proof in [LossProof::Silence, LossProof::ProcessGone] {
        assert!(!store.declare_lost(term, seen, proof).await.unwrap(), "it has been renewed since: {proof:?}");
    }
    assert_eq!(renewer.renew(term, None).await.unwrap(), Renewed::Held);
    let seen = row(store, term).await.beat;
    if store.is_leased() {
        assert!(!store.declare_lost(term, seen, LossProof::Silence).await.unwrap(), "its lease has not run out");
        assert_eq!(renewer.renew(term, None).await.unwrap(), Renewed::Held);
    }
    let seen = row(store, term).await.beat;
    assert!(store.declare_lost(term, seen, LossProof::ProcessGone).await.unwrap(), "a proof needs no silence");
    assert_eq!(renewer.renew(term, None).await.unwrap(), Renewed::Lost);
    let ended = begin(store).await;
    store.end_term(ended).await.unwrap();
    fixture.elapse(LEASE * 2).await;
    for term in [ended, Term::new()] {
        assert!(!store.declare_lost(term, 0, LossProof::Silence).await.unwrap(), "it is over, and not lost");
    }
    assert!(row(store, ended).await.lost_at.is_none());
}

pub(crate) async fn i2_a_claim_whose_reply_was_lost_is_found_and_given_back(fixture: &dyn Fixture) {
    let store = fixture.store();
    let (term, other) = (begin(store).await, begin(store).await);
    let ids = [add(store, new_job("k")).await, add(store, new_job("k")).await, add(store, new_job("k")).await];
    let ask = |term, seq| ClaimRequest { seq, ..request(term, vec![wants("k", 1)]) };
    let held = store.claim(&ask(term, 1)).await.unwrap()[0].fence;
    drop(store.claim(&ask(term, 2)).await.unwrap());
    drop(store.claim(&ask(other, 1)).await.unwrap());
    assert_eq!(store.own_rows(term, 2).await.unwrap(), [(ids[0], AttemptNo(1))], "the second may still be answered");
    let own = store.own_rows(term, 3).await.unwrap();
    assert_eq!(own, [(ids[0], AttemptNo(1)), (ids[1], AttemptNo(1))]);
    let (lost, attempt) = own[1];
    let lost = Fence { job: lost, attempt, term };
    // Sent twice, as when the reply to this is lost too.
    assert_eq!(finish(store, given_back(lost)).await, Finished::Recorded(JobState::Queued));
    assert_eq!(finish(store, given_back(lost)).await, Finished::Already);
    let row = job(store, lost.job).await;
    assert_eq!((row.budget.charged, row.budget.interruptions, row.attempt), (0, 0, AttemptNo(1)));
    let again = store.claim(&ask(term, 3)).await.unwrap();
    assert_eq!(again.iter().map(|c| c.fence).collect::<Vec<_>>(), [Fence { attempt: AttemptNo(2), ..lost }]);
    assert_eq!(finish(store, success(lost)).await, Finished::Stale, "the reply came after all, and too late");
    for fence in [held, again[0].fence] {
        assert_eq!(finish(store, success(fence)).await, Finished::Recorded(JobState::Succeeded));
    }
    assert_eq!(store.own_rows(term, 9).await.unwrap(), []);
    let charged: Vec<bool> = store.attempts(lost.job).await.unwrap().iter().map(|a| a.charged).collect();
    assert_eq!(charged, [false, true]);
}

pub(crate) async fn i4_a_claim_under_a_term_declared_lost_gets_nothing_or_is_rescued(fixture: &dyn Fixture) {
    let (theirs, rescuer) = (fixture.another().await, fixture.another().await);
    let mut rescued = 0;
    for _ in 0..8 {
        let (lost, next) = (begin(fixture.store()).await, begin(fixture.store()).await);
        let mut ids = Vec::new();
        for _ in 0..24 {
            ids.push(add(fixture.store(), new_job("k")).await);
        }
        let claimer = std::sync::Arc::clone(&theirs);
        let claims = tokio::spawn(async move {
            let mut got = Vec::new();
            loop {
                let claimed = claim(&*claimer, lost, "k", 2).await;
                if claimed.is_empty() {
                    return got;
                }
                got.extend(claimed.into_iter().map(|c| c.fence));
            }
        });
        while state(fixture.store(), ids[3]).await == JobState::Queued {}
        let beat = row(fixture.store(), lost).await.beat;
        assert!(rescuer.declare_lost(lost, beat, LossProof::ProcessGone).await.unwrap());
        assert_eq!(claim(&*theirs, lost, "k", 24).await, [], "what is asked for from here on gets nothing");
        // One that was under way meanwhile may still commit: the sweep looks for the state, and finds it too.
        let mut claimed = claims.await.unwrap();
        let mut found: Vec<Fence> = rescuer.rescuable(&[next]).await.unwrap().iter().map(|row| row.fence).collect();
        found.sort_by_key(|fence| fence.job);
        claimed.sort_by_key(|fence| fence.job);
        assert_eq!(found, claimed, "what was claimed under the lost term is there to be rescued, and nothing else");
        rescued += found.len();
        let ends: Vec<_> = found.iter().map(|f| failure(*f, Cause::SupervisorLost, Next::PutBack(NOW))).collect();
        assert_eq!(rescuer.finish(&ends).await.unwrap(), vec![Finished::Recorded(JobState::Queued); found.len()]);
        for fence in &found {
            assert_eq!(finish(&*theirs, success(*fence)).await, Finished::Stale);
        }
        let again: Vec<JobId> = claim(fixture.store(), next, "k", 99).await.iter().map(|c| c.fence.job).collect();
        assert_eq!(again, ids, "each is there once");
        store_all_done(fixture.store(), next, &again).await;
    }
    assert!(rescued >= 8 * 4);
}

async fn store_all_done(store: &dyn Store, term: Term, ids: &[JobId]) {
    for id in ids {
        let attempt = job(store, *id).await.attempt;
        let done = finish(store, success(Fence { job: *id, attempt, term })).await;
        assert_eq!(done, Finished::Recorded(JobState::Succeeded));
    }
}

pub(crate) async fn a_paused_kind_is_not_claimed_until_it_is_resumed(fixture: &dyn Fixture) {
    let (store, another) = (fixture.store(), fixture.another().await);
    let term = begin(store).await;
    let runs = running(store, term).await;
    for kind in ["k", "other"] {
        add(store, new_job(kind)).await;
    }
    let both = || request(term, vec![wants("k", 9), wants("other", 9)]);
    another.pause(&["k".to_owned(), "never heard of".to_owned()], "me").await.unwrap();
    store.pause(&["k".to_owned()], "somebody else").await.unwrap();
    let (paused, now) = (store.paused().await.unwrap(), store.now().await.unwrap());
    let told: Vec<_> = paused.iter().map(|kind| (kind.kind.as_str(), kind.by.as_str())).collect();
    assert_eq!(told, [("k", "me"), ("never heard of", "me")], "who paused it first is told");
    assert!(paused.iter().all(|kind| kind.since <= now));
    let claimed: Vec<String> = store.claim(&both()).await.unwrap().into_iter().map(|c| c.kind).collect();
    assert_eq!(claimed, ["other"]);
    // What runs goes on; what is put back waits with the others.
    let back = failure(runs, Cause::Crash, Next::PutBack(NOW));
    assert_eq!(finish(store, back).await, Finished::Recorded(JobState::Queued));
    assert_eq!(store.claim(&both()).await.unwrap(), []);
    assert_eq!(another.resume(&["k".to_owned(), "other".to_owned()]).await.unwrap(), ["k"]);
    assert_eq!(store.paused().await.unwrap().len(), 1);
    assert_eq!(store.claim(&both()).await.unwrap().len(), 2);
}
