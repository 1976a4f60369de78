//! Claims beside locks that others hold, beside snapshots, and behind the remembered position; jobs that nobody would wake.

use std::sync::Arc;
use std::time::Duration;

use jobvisor::domain::clock;
use jobvisor::domain::ids::JobId;
use jobvisor::domain::job::JobState;
use jobvisor::store::postgres::PostgresStore;
use jobvisor::store::{NewJob, Promoted, Store};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor};

use super::plans::{close, counted};
use crate::fixture::{Fixture, Postgres};
use crate::support::{LONG, add, begin, claim, finish, new_job, request, running, state, success, wants};

fn ids(claimed: &[jobvisor::store::Claimed]) -> Vec<JobId> {
    claimed.iter().map(|claimed| claimed.fence.job).collect()
}

#[tokio::test]
async fn rows_that_somebody_holds_are_passed_over_and_made_up_for() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let term = begin(store).await;
    let mut added = Vec::new();
    for _ in 0..5 {
        added.push(add(store, new_job("k")).await);
    }
    let mut other = PgConnection::connect(&fixture.database.url).await.unwrap();
    other.execute("BEGIN; SELECT 1 FROM jobvisor.jobs WHERE id IN (1, 3) FOR UPDATE").await.unwrap();
    assert_eq!(ids(&claim(store, term, "k", 2).await), [added[1], added[3]]);
    other.execute("ROLLBACK").await.unwrap();
    assert_eq!(ids(&claim(store, term, "k", 5).await), [added[0], added[2], added[4]]);
}

#[tokio::test]
async fn a_paused_kind_is_not_claimed_and_goes_on_when_it_is_resumed() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let term = begin(store).await;
    let (held, free) = (add(store, new_job("held")).await, add(store, new_job("free")).await);
    let names = ["held".to_owned(), "held".to_owned()];
    store.pause(&names, "me\0").await.unwrap();
    let paused = store.paused().await.unwrap();
    assert_eq!(paused.iter().map(|paused| paused.kind.as_str()).collect::<Vec<_>>(), ["held"]);
    let both = || request(term, vec![wants("held", 5), wants("free", 5)]);
    assert_eq!(ids(&store.claim(&both()).await.unwrap()), [free]);
    assert_eq!(store.resume(&names).await.unwrap(), ["held"]);
    assert_eq!(store.resume(&names).await.unwrap(), <[String; 0]>::default());
    assert_eq!(ids(&store.claim(&both()).await.unwrap()), [held]);
}

#[tokio::test]
async fn what_stands_behind_the_position_is_found_before_a_kind_is_taken_for_empty() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let term = begin(store).await;
    let mut added = Vec::new();
    for _ in 0..4 {
        added.push(add(store, new_job("k")).await);
    }
    assert_eq!(ids(&claim(store, term, "k", 2).await), added[..2]);
    let better = add(store, NewJob { priority: -1, ..new_job("k") }).await;
    assert_eq!(ids(&claim(store, term, "k", 5).await), [better, added[2], added[3]]);
    assert_eq!(ids(&claim(store, term, "k", 5).await), []);
}

#[tokio::test]
async fn better_jobs_are_seen_during_a_backlog_too() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let term = begin(store).await;
    fixture.database.execute(
        "INSERT INTO jobvisor.jobs (kind, state, payload) SELECT 'k', 'queued', '{}' FROM generate_series(1, 20000)",
    );
    claim(store, term, "k", 10).await;
    let better = add(store, NewJob { priority: -1, ..new_job("k") }).await;
    let began = clock::monotonic();
    while !ids(&claim(store, term, "k", 10).await).contains(&better) {
        assert!(began.elapsed() < Duration::from_secs(20), "a claim every 250 ms looks from the beginning");
    }
}

/// Without the position, a claim reads an index entry for each row that was claimed before it: about 50 + 100 + … + 5000.
#[tokio::test]
async fn g8_a_snapshot_that_is_held_does_not_make_claims_read_more() {
    const ROUNDS: u32 = 100;
    const EACH: u32 = 50;
    let fixture = Postgres::new().await;
    let database = &fixture.database;
    database.execute(&format!(
        "INSERT INTO jobvisor.jobs (kind, state, payload) SELECT 'k', 'queued', '{{}}' FROM generate_series(1, {})",
        ROUNDS * EACH + EACH
    ));
    let mut other = PgConnection::connect(&database.url).await.unwrap();
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobvisor.jobs").await.unwrap();
    let store = PostgresStore::open(&database.url, false).await.unwrap();
    let term = begin(&store).await;
    let before = counted(database, "jobs_ready");
    let began = clock::monotonic();
    for _ in 0..ROUNDS {
        let claimed = claim(&store, term, "k", EACH).await;
        assert_eq!(claimed.len(), 50);
        let outcomes: Vec<_> = claimed.iter().map(|claimed| success(claimed.fence)).collect();
        store.finish(&outcomes).await.unwrap();
    }
    let took = began.elapsed();
    close(database, store).await;
    let read = counted(database, "jobs_ready") - before;
    let full_looks = u64::try_from(took.as_millis() / 250).unwrap() + 1;
    let (claimed, most) = (u64::from(ROUNDS * EACH), u64::from(ROUNDS * EACH + EACH));
    assert!(read <= 2 * claimed + full_looks * most, "{read} entries read in {took:?}");
    other.execute("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn a_job_that_was_added_while_its_parent_ended_does_not_wait_for_ever() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let term = begin(store).await;
    let (done, runs, other) = (running(store, term).await, running(store, term).await, running(store, term).await);
    let waits = add(store, NewJob { after: vec![runs.job], ..new_job("k") }).await;
    finish(store, success(done)).await;
    let cancelled = add(store, new_job("k")).await;
    store.cancel(&[cancelled], "me").await.unwrap();
    // As one who did not see the end of the job before it leaves it.
    let missed = |parent: JobId, due: &str| {
        fixture.database.psql(&format!(
            "WITH j AS (INSERT INTO jobvisor.jobs (kind, state, waits_for, payload, run_at)
                 VALUES ('k', 'waiting', 1, '{{}}', {due}) RETURNING id),
             d AS (INSERT INTO jobvisor.dependencies (job, parent) SELECT id, {parent} FROM j)
             SELECT id FROM j"
        ))
    };
    let id = |text: String| text.parse::<JobId>().unwrap();
    let due = id(missed(done.job, "now()"));
    let later = id(missed(done.job, "now() + interval '1 hour'"));
    let lost = id(missed(cancelled, "now()"));
    let grandchild = id(missed(lost, "now()"));
    let waits_too = id(missed(other.job, "now()"));
    let promoted = store.promote(10).await.unwrap();
    assert_eq!(promoted.count, 1);
    assert_eq!(state(store, due).await, JobState::Queued);
    assert_eq!(state(store, later).await, JobState::Scheduled);
    assert_eq!(state(store, lost).await, JobState::Cancelled);
    for _ in 0..2 {
        store.promote(10).await.unwrap();
    }
    assert_eq!(state(store, grandchild).await, JobState::Cancelled);
    assert_eq!([state(store, waits).await, state(store, waits_too).await], [JobState::Waiting; 2]);
    finish(store, success(runs)).await;
    finish(store, success(other)).await;
    assert_eq!([state(store, waits).await, state(store, waits_too).await], [JobState::Queued; 2]);
}

#[tokio::test]
async fn a_due_job_that_somebody_holds_is_asked_for_again_soon_and_not_at_once() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let later = store.now().await.unwrap() + LONG;
    let held = add(store, NewJob { run_at: Some(later), ..new_job("k") }).await;
    fixture.database.execute("UPDATE jobvisor.jobs SET run_at = now() - interval '1 minute'");
    let mut other = PgConnection::connect(&fixture.database.url).await.unwrap();
    other.execute("BEGIN; SELECT 1 FROM jobvisor.jobs FOR UPDATE").await.unwrap();
    let asked = store.now().await.unwrap();
    let promoted = store.promote(10).await.unwrap();
    assert_eq!(promoted.count, 0);
    assert!(promoted.next_due.unwrap() > asked, "a due time in the past is asked for at once, and again");
    other.execute("ROLLBACK").await.unwrap();
    assert_eq!(store.promote(10).await.unwrap(), Promoted { count: 1, next_due: None });
    assert_eq!(state(store, held).await, JobState::Queued);
}

#[tokio::test]
async fn four_promoters_promote_each_job_once() {
    let fixture = Postgres::new().await;
    fixture.database.execute(
        "INSERT INTO jobvisor.jobs (kind, state, payload, run_at)
         SELECT 'k', 'scheduled', '{}', now() - interval '1 s' FROM generate_series(1, 1000)",
    );
    let mut promoters = Vec::new();
    for _ in 0..4 {
        let store: Arc<dyn Store> = fixture.another().await;
        promoters.push(tokio::spawn(async move {
            let mut sum = 0;
            while let Promoted { count, next_due: Some(_) } = store.promote(37).await.unwrap() {
                sum += count;
            }
            sum
        }));
    }
    let mut sum = 0;
    for promoter in promoters {
        sum += promoter.await.unwrap();
    }
    let queued = fixture.database.psql("SELECT count(*) FROM jobvisor.jobs WHERE state = 'queued'");
    assert_eq!(queued, "1000");
    assert!(sum <= 1000, "{sum}: a job was counted twice");
}
