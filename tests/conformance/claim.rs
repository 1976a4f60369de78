//! Claiming, promoting, and finding running rows.

use std::collections::HashSet;
use std::time::Duration;

use jobvisor::domain::cause::Cause;
use jobvisor::domain::ids::{AttemptNo, JobId, Term};
use jobvisor::domain::job::JobState;
use jobvisor::domain::retry::Next;
use jobvisor::domain::units::Bytes;
use jobvisor::store::{Acted, ClaimKind, ClaimRequest, Finished, LossProof, NewJob, Promoted};

use crate::fixture::Fixture;
use crate::support::{
    LONG, NOW, add, begin, claim, failure, finish, job, new_job, policy, request, running, state, success, wants,
};

pub(crate) async fn lower_priority_numbers_go_first_then_lower_ids(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let mut ids = Vec::new();
    for priority in [5, -1, 0, -1] {
        ids.push(add(store, NewJob { priority, ..new_job("k") }).await);
    }
    let order: Vec<JobId> = claim(store, term, "k", 10).await.iter().map(|c| c.fence.job).collect();
    assert_eq!(order, [ids[1], ids[3], ids[2], ids[0]]);
}

pub(crate) async fn kinds_take_turns_within_one_priority(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    for (kind, priority) in [("a", 0), ("a", 0), ("a", 1), ("b", 0), ("b", 0), ("c", 1)] {
        add(store, NewJob { priority, ..new_job(kind) }).await;
    }
    let kinds = vec![wants("b", 9), wants("a", 9), wants("c", 9)];
    let claimed = store.claim(&request(term, kinds)).await.unwrap();
    let order: Vec<&str> = claimed.iter().map(|c| c.kind.as_str()).collect();
    assert_eq!(order, ["b", "a", "b", "a", "a", "c"]);
}

pub(crate) async fn i1_a_claim_counts_and_charges_the_attempt(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let id = add(store, new_job("k")).await;
    for n in 1..=3 {
        let claimed = claim(store, term, "k", 1).await.remove(0);
        assert_eq!((claimed.fence.attempt, claimed.budget.charged), (AttemptNo(n), n));
        let row = job(store, id).await;
        assert_eq!((row.state, row.attempt, row.budget), (JobState::Running, AttemptNo(n), claimed.budget));
        assert_eq!(row.claimed_at, Some(claimed.claimed_at));
        finish(store, failure(claimed.fence, Cause::Crash, Next::PutBack(NOW))).await;
    }
}

pub(crate) async fn i4_eight_claimers_never_get_one_job_twice(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let jobs: Vec<NewJob> = (0..200).map(|_| new_job("k")).collect();
    store.enqueue(&jobs).await.unwrap();
    let mut claimers = Vec::new();
    for n in 0..8 {
        let store = if n % 2 == 0 { fixture.shared() } else { fixture.another().await };
        claimers.push(tokio::spawn(async move {
            let mut got = Vec::new();
            loop {
                let claimed = claim(&*store, term, "k", 7).await;
                if claimed.is_empty() {
                    return got;
                }
                got.extend(claimed.into_iter().map(|c| c.fence.job));
            }
        }));
    }
    let mut all = Vec::new();
    for claimer in claimers {
        all.extend(claimer.await.unwrap());
    }
    assert_eq!(all.len(), 200);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 200, "a job was claimed twice");
}

pub(crate) async fn a_kind_gets_at_most_its_free_slots(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    for kind in ["a", "a", "a", "b", "b", "c"] {
        add(store, new_job(kind)).await;
    }
    let claimed = store.claim(&request(term, vec![wants("a", 2), wants("b", 1), wants("c", 0)])).await.unwrap();
    let count = |kind: &str| claimed.iter().filter(|c| c.kind == kind).count();
    assert_eq!([count("a"), count("b"), count("c")], [2, 1, 0]);
}

pub(crate) async fn a_claim_is_cut_at_the_first_row_that_does_not_fit(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let mut ids = Vec::new();
    for mib in [60, 60, 10] {
        ids.push(add(store, NewJob { memory: Some(Bytes::mib(mib)), ..new_job("k") }).await);
    }
    let ask = ClaimRequest {
        free_memory: Bytes::mib(100),
        whole_budget: Bytes::mib(100),
        ..request(term, vec![wants("k", 9)])
    };
    let claimed = store.claim(&ask).await.unwrap();
    assert_eq!(claimed.iter().map(|c| (c.fence.job, c.memory)).collect::<Vec<_>>(), [(ids[0], Bytes::mib(60))]);
    assert_eq!(state(store, ids[2]).await, JobState::Queued, "a small job must not overtake a large one");
    assert_eq!(job(store, ids[1]).await.attempt, AttemptNo(0), "admission must not burn an attempt");
}

pub(crate) async fn a_row_above_the_whole_budget_is_passed_over(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let large = add(store, NewJob { memory: Some(Bytes::mib(101)), ..new_job("k") }).await;
    let small = add(store, NewJob { memory: Some(Bytes::mib(100)), ..new_job("k") }).await;
    let ask = ClaimRequest {
        free_memory: Bytes::mib(100),
        whole_budget: Bytes::mib(100),
        ..request(term, vec![wants("k", 1)])
    };
    let claimed = store.claim(&ask).await.unwrap();
    assert_eq!(claimed.iter().map(|c| c.fence.job).collect::<Vec<_>>(), [small]);
    assert_eq!(state(store, large).await, JobState::Queued);
}

pub(crate) async fn a_term_that_is_unknown_or_over_gets_nothing(fixture: &dyn Fixture) {
    let store = fixture.store();
    let over = begin(store).await;
    store.end_term(over).await.unwrap();
    let id = add(store, new_job("k")).await;
    assert_eq!(claim(store, Term::new(), "k", 1).await, []);
    assert_eq!(claim(store, over, "k", 1).await, []);
    assert_eq!(state(store, id).await, JobState::Queued);
}

pub(crate) async fn the_rows_own_overrides_win_over_what_the_kind_says(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let own = NewJob { max_attempts: Some(7), memory: Some(Bytes::mib(9)), policy: Some(policy(2)), ..new_job("k") };
    let own = add(store, own).await;
    let plain = add(store, NewJob { policy: Some(policy(2)), ..new_job("k") }).await;
    let bare = add(store, new_job("k")).await;
    let shown = job(store, own).await;
    assert_eq!((shown.budget.max_attempts, shown.memory), (7, Some(Bytes::mib(9))));
    let shown = job(store, plain).await;
    assert_eq!((shown.budget.max_attempts, shown.memory), (2, Some(Bytes::mib(64))));
    assert_eq!(job(store, bare).await.memory, None);
    let now = ClaimKind { policy: jobvisor::store::RowPolicy { memory: Bytes::mib(32), ..policy(4) }, ..wants("k", 9) };
    let claimed = store.claim(&request(term, vec![now])).await.unwrap();
    let got: Vec<_> = claimed.iter().map(|c| (c.budget.max_attempts, c.memory)).collect();
    assert_eq!(got, [(7, Bytes::mib(9)), (4, Bytes::mib(32)), (4, Bytes::mib(32))]);
    assert_eq!(job(store, bare).await.memory, Some(Bytes::mib(32)));
}

pub(crate) async fn i1_a_lowered_budget_does_not_block_the_claim(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let fence = running(store, term).await;
    finish(store, failure(fence, Cause::Crash, Next::PutBack(NOW))).await;
    let lowered = ClaimKind { policy: policy(1), ..wants("k", 1) };
    let claimed = store.claim(&request(term, vec![lowered])).await.unwrap();
    assert_eq!((claimed[0].budget.charged, claimed[0].budget.max_attempts), (2, 2));
}

pub(crate) async fn i2_own_rows_lie_below_the_sequence_asked_for(fixture: &dyn Fixture) {
    let store = fixture.store();
    let (term, other) = (begin(store).await, begin(store).await);
    let mut ids = Vec::new();
    for (owner, seq) in [(term, 3), (term, 4), (other, 1)] {
        ids.push(add(store, new_job("k")).await);
        let ask = ClaimRequest { seq, ..request(owner, vec![wants("k", 1)]) };
        assert_eq!(store.claim(&ask).await.unwrap().len(), 1);
    }
    assert_eq!(store.own_rows(term, 3).await.unwrap(), []);
    assert_eq!(store.own_rows(term, 4).await.unwrap(), [(ids[0], AttemptNo(1))]);
    assert_eq!(store.own_rows(term, 5).await.unwrap(), [(ids[0], AttemptNo(1)), (ids[1], AttemptNo(1))]);
}

pub(crate) async fn only_rows_of_terms_that_do_not_live_are_rescuable(fixture: &dyn Fixture) {
    let store = fixture.store();
    let (lost, living) = (begin(store).await, begin(store).await);
    let left = running(store, lost).await;
    running(store, living).await;
    let done = running(store, lost).await;
    finish(store, success(done)).await;
    assert_eq!(store.cancel(&[left.job], "me").await.unwrap(), [(left.job, Acted::Requested)]);
    let beat = store.terms().await.unwrap().iter().find(|row| row.term == lost).unwrap().beat;
    assert!(store.declare_lost(lost, beat, LossProof::ProcessGone).await.unwrap());
    let found = store.rescuable(&[living]).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].fence, found[0].kind.as_str()), (left, "k"));
    assert_eq!((found[0].budget.charged, found[0].memory), (1, Bytes::mib(64)));
    assert!(found[0].cancel_requested);
    assert_eq!(found[0].term.as_ref().map(|t| (t.term, t.pid)), Some((lost, 4711)));
    let lost_outcome = failure(left, Cause::SupervisorLost, Next::PutBack(NOW));
    assert_eq!(finish(store, lost_outcome).await, Finished::Recorded(JobState::Cancelled));
    assert!(store.rescuable(&[living]).await.unwrap().is_empty());
}

pub(crate) async fn what_is_due_is_promoted_and_the_next_time_is_told(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    assert_eq!(store.promote(10).await.unwrap(), Promoted::default());
    let later = store.now().await.unwrap() + LONG;
    let future = add(store, NewJob { run_at: Some(later), ..new_job("k") }).await;
    assert_eq!(store.promote(10).await.unwrap(), Promoted { count: 0, next_due: Some(later) });
    let mut due = Vec::new();
    for _ in 0..3 {
        // Due as soon as it is recorded, and scheduled all the same: nothing here depends on the speed of the machine.
        let fence = running(store, term).await;
        let soon = Next::PutBack(Duration::from_micros(1));
        assert_eq!(finish(store, failure(fence, Cause::Crash, soon)).await, Finished::Recorded(JobState::Scheduled));
        due.push(fence.job);
    }
    let last = job(store, due[2]).await.run_at;
    assert_eq!(store.promote(2).await.unwrap(), Promoted { count: 2, next_due: Some(last) });
    assert_eq!(store.promote(2).await.unwrap(), Promoted { count: 1, next_due: Some(later) });
    assert_eq!(state(store, future).await, JobState::Scheduled);
    let claimed: Vec<JobId> = claim(store, term, "k", 10).await.iter().map(|c| c.fence.job).collect();
    assert_eq!(claimed, due);
}
