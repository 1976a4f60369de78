//! Recording outcomes by many at once, and what follows for the jobs that come after.

use std::sync::Arc;
use std::time::Duration;

use jobvisor::domain::cause::Cause;
use jobvisor::domain::ids::{Fence, JobId};
use jobvisor::domain::job::JobState;
use jobvisor::domain::retry::Next;
use jobvisor::domain::text::restore;
use jobvisor::store::{AttemptRecord, Finish, Finished, NewJob, Store};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor};

use crate::fixture::{Fixture, Postgres};
use crate::support::{
    LONG, NOW, add, begin, claim, claim_one, failure, finish, job, new_job, refunded, running, state, success,
};

/// `count` jobs that run, in the order of their ids.
async fn run_many(store: &dyn Store, count: u32) -> Vec<Fence> {
    let term = begin(store).await;
    store.enqueue(&vec![new_job("k"); usize::try_from(count).unwrap()]).await.unwrap();
    let claimed = claim(store, term, "k", count).await;
    assert_eq!(u32::try_from(claimed.len()), Ok(count));
    claimed.into_iter().map(|claimed| claimed.fence).collect()
}

async fn after(store: &dyn Store, parents: &[Fence]) -> JobId {
    add(store, NewJob { after: parents.iter().map(|fence| fence.job).collect(), ..new_job("k") }).await
}

#[tokio::test]
async fn a_child_of_two_parents_in_one_batch_is_released_once() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let fences = run_many(store, 3).await;
    let (of_two, of_three) = (after(store, &fences[..2]).await, after(store, &fences).await);
    let grandchild = add(store, NewJob { after: vec![of_two, fences[0].job], ..new_job("k") }).await;
    let batch = [success(fences[1]), success(fences[0])];
    assert_eq!(store.finish(&batch).await.unwrap(), [Finished::Recorded(JobState::Succeeded); 2]);
    let waits = "SELECT string_agg(waits_for::text, ',' ORDER BY id) FROM jobvisor.jobs WHERE id > 3";
    assert_eq!(fixture.database.psql(waits), "0,1,1");
    assert_eq!((state(store, of_two).await, state(store, of_three).await), (JobState::Queued, JobState::Waiting));
    assert_eq!(store.finish(&batch).await.unwrap(), [Finished::Already; 2]);
    assert_eq!(fixture.database.psql(waits), "0,1,1", "what was recorded before moves nothing");
    finish(store, success(fences[2])).await;
    assert_eq!((state(store, of_three).await, state(store, grandchild).await), (JobState::Queued, JobState::Waiting));
}

#[tokio::test]
async fn a_child_released_and_cancelled_by_one_batch_is_cancelled() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let fences = run_many(store, 4).await;
    let child = after(store, &fences[..2]).await;
    let grandchild = add(store, NewJob { after: vec![child], ..new_job("k") }).await;
    let other = after(store, &fences[1..2]).await;
    let asked = after(store, &fences[2..3]).await;
    let put_back = after(store, &fences[3..]).await;
    store.cancel(&[fences[2].job], "me").await.unwrap();
    let batch = [
        failure(fences[3], Cause::Crash, Next::PutBack(LONG)),
        failure(fences[2], Cause::Crash, Next::PutBack(NOW)),
        success(fences[1]),
        failure(fences[0], Cause::Crash, Next::Dead),
    ];
    let states = [JobState::Scheduled, JobState::Cancelled, JobState::Succeeded, JobState::Dead];
    assert_eq!(store.finish(&batch).await.unwrap(), states.map(Finished::Recorded));
    for (id, expected) in [
        (child, JobState::Cancelled),
        (grandchild, JobState::Cancelled),
        (other, JobState::Queued),
        (asked, JobState::Cancelled),
        (put_back, JobState::Waiting),
    ] {
        assert_eq!(state(store, id).await, expected, "job {id}");
    }
}

#[tokio::test]
async fn a_parent_that_is_run_again_is_waited_for_again() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let term = begin(store).await;
    let (one, two) = (running(store, term).await, running(store, term).await);
    let child = after(store, &[one, two]).await;
    finish(store, success(one)).await;
    let late = after(store, &[one, two]).await;
    store.retry(&[one.job]).await.unwrap();
    let again = claim_one(store, term, one.job).await;
    finish(store, success(again)).await;
    for id in [child, late] {
        assert_eq!(state(store, id).await, JobState::Waiting, "the other parent still runs");
    }
    store.retry(&[one.job]).await.unwrap();
    finish(store, success(two)).await;
    for id in [child, late] {
        assert_eq!(state(store, id).await, JobState::Waiting, "the first parent is to run again");
    }
    let again = claim_one(store, term, one.job).await;
    finish(store, success(again)).await;
    for id in [child, late] {
        assert_eq!(state(store, id).await, JobState::Queued);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_batches_over_the_same_children_at_once_lose_none() {
    const FAMILIES: u32 = 40;
    let fixture = Postgres::new().await;
    let (here, there) = (fixture.shared(), fixture.another().await);
    for round in 0..10 {
        let fences = run_many(&*here, 2 * FAMILIES).await;
        let (left, right) = fences.split_at(fences.len() / 2);
        let mut children = Vec::new();
        for (left, right) in left.iter().zip(right) {
            children.push(after(&*here, &[*left, *right]).await);
        }
        let spoils = |n: usize| n % 4 == 3;
        // One goes through the children from the end.
        let left: Vec<Finish> = left.iter().map(|fence| success(*fence)).collect();
        let right: Vec<Finish> = (0..right.len())
            .rev()
            .map(|n| if spoils(n) { failure(right[n], Cause::Crash, Next::Dead) } else { success(right[n]) })
            .collect();
        let send = |store: &Arc<dyn Store>, batch: Vec<Finish>| {
            let store = Arc::clone(store);
            tokio::spawn(async move { store.finish(&batch).await.unwrap() })
        };
        let (left, right) = (send(&here, left), send(&there, right));
        let recorded = left.await.unwrap().into_iter().chain(right.await.unwrap());
        assert!(recorded.into_iter().all(|finished| matches!(finished, Finished::Recorded(_))));
        for (n, child) in children.iter().enumerate() {
            let expected = if spoils(n) { JobState::Cancelled } else { JobState::Queued };
            assert_eq!(state(&*here, *child).await, expected, "round {round}, child {n}");
        }
        here.cancel(&children, "the next round").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i5_one_batch_may_hold_fences_of_many_terms() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let (old, new) = (begin(store).await, begin(store).await);
    let mut fences = Vec::new();
    for term in [new, old, new, old] {
        fences.push(running(store, term).await);
    }
    store.end_term(old).await.unwrap();
    let stale = Fence { term: new, ..fences[1] };
    let outcomes = [fences[3], stale, fences[0], fences[2], fences[1], fences[1]].map(success);
    let done = store.finish(&outcomes).await.unwrap();
    let recorded = Finished::Recorded(JobState::Succeeded);
    assert_eq!(done, [recorded, Finished::Stale, recorded, recorded, recorded, Finished::Already]);
}

#[tokio::test]
async fn i10_one_row_of_fifty_that_cannot_be_written_is_written_less() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let fences = run_many(store, 50).await;
    let child = after(store, &fences[20..30]).await;
    // A limit of the database that no sanitising knows of.
    fixture
        .database
        .execute("ALTER TABLE jobvisor.attempts ADD CONSTRAINT refused CHECK (message IS DISTINCT FROM 'refused')");
    let outcomes: Vec<Finish> = fences
        .iter()
        .enumerate()
        .map(|(n, fence)| {
            let message = (n == 23).then(|| "refused".to_owned());
            let result = if n == 31 { "{\"a\": \0".to_owned() } else { n.to_string() };
            let record = AttemptRecord { message, output_tail: "out".to_owned(), ..AttemptRecord::default() };
            Finish { record: Some(record), result: Some(result), ..success(*fence) }
        })
        .collect();
    assert_eq!(store.finish(&outcomes).await.unwrap(), [Finished::Recorded(JobState::Succeeded); 50]);
    for (n, fence) in fences.iter().enumerate() {
        let attempt = store.attempts(fence.job).await.unwrap().remove(0);
        let result = job(store, fence.job).await.result;
        let notes = attempt.verdict.unwrap().contributing;
        match n {
            23 => assert!((result.as_deref(), attempt.record.output_tail.as_str()) == (None, "") && notes.len() == 1),
            31 => assert_eq!(result.as_deref(), Some("\"{\\\"a\\\": \\u0000\"")),
            _ => assert_eq!(
                (result, attempt.record.output_tail.as_str(), notes),
                (Some(n.to_string()), "out", Vec::new())
            ),
        }
    }
    assert_eq!(state(store, child).await, JobState::Queued, "no parent was counted twice or forgotten");
    assert_eq!(store.finish(&outcomes).await.unwrap(), [Finished::Already; 50]);
}

#[tokio::test]
async fn g1_a_late_outcome_of_any_bytes_is_kept() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let fence = run_many(store, 1).await[0];
    finish(store, failure(fence, Cause::HostRebooted, Next::PutBack(LONG))).await;
    let raw = "nul \0 bell \x07 back\\x00";
    let record =
        AttemptRecord { message: Some(raw.to_owned()), output_tail: raw.to_owned(), ..AttemptRecord::default() };
    let late = Finish { record: Some(record), result: Some(raw.to_owned()), ..success(fence) };
    assert_eq!(finish(store, late).await, Finished::Stale);
    let kept = store.attempts(fence.job).await.unwrap().remove(0).late_outcome.unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    for field in ["message", "output_tail", "result"] {
        assert_eq!(restore(kept[field].as_str().unwrap()), raw.as_bytes(), "{field}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i2_a_finish_whose_connection_dies_is_sent_again() {
    let fixture = Postgres::new().await;
    let store = fixture.shared();
    let fences = run_many(&*store, 2).await;
    let late = refunded(failure(fences[1], Cause::OomHost, Next::PutBack(LONG)), true);
    let outcomes = [success(fences[0]), late];
    // Somebody holds the rows; then the connection of who waits for them is cut.
    let mut holder = PgConnection::connect(&fixture.database.url).await.unwrap();
    holder.execute("BEGIN; SELECT 1 FROM jobvisor.jobs FOR UPDATE").await.unwrap();
    let (again, batch) = (Arc::clone(&store), outcomes.clone());
    let sent = tokio::spawn(async move { again.finish(&batch).await });
    let blocked =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    ::support::wait_until("the finish waits", Duration::from_secs(10), || {
        let waiting = fixture.database.psql(blocked);
        if waiting == "1" { Ok(()) } else { Err(waiting) }
    });
    fixture.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    );
    assert!(sent.await.unwrap().unwrap_err().is_unavailable());
    holder.execute("ROLLBACK").await.unwrap();
    let recorded = [JobState::Succeeded, JobState::Scheduled].map(Finished::Recorded);
    assert_eq!(store.finish(&outcomes).await.unwrap(), recorded, "by a new connection");
    assert_eq!(store.finish(&outcomes).await.unwrap(), [Finished::Already; 2]);
    let budget = job(&*store, fences[1].job).await.budget;
    assert_eq!((budget.charged, budget.interruptions), (0, 1));
}

/// Rows of `jobs` that were read so far, by index and by scan.
fn rows_read(fixture: &Postgres) -> u64 {
    let read = "SELECT seq_tup_read + idx_tup_fetch + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes
             WHERE relid = s.relid) FROM pg_stat_user_tables s WHERE relid = 'jobvisor.jobs'::regclass";
    fixture.database.psql(read).parse().unwrap()
}

#[tokio::test]
async fn a_finish_reads_no_more_rows_than_it_changes_whatever_runs_and_waits() {
    for statistics in ["", "ANALYZE"] {
        reads_no_more_than_it_changes(statistics).await;
    }
}

async fn reads_no_more_than_it_changes(statistics: &str) {
    // Less than any walk through what runs or what waits; what was read a while ago may be told only now.
    const SCAN: u64 = 10_000;
    let fixture = Postgres::new().await;
    let store = fixture.store();
    // The statement is planned while there is next to nothing, and stays so.
    fixture.database.execute(
        "ALTER TABLE jobvisor.jobs SET (autovacuum_enabled = off);
         ALTER TABLE jobvisor.dependencies SET (autovacuum_enabled = off)",
    );
    fixture.database.execute(
        "INSERT INTO jobvisor.jobs (kind, state, payload, finished_at) SELECT 'k', 'succeeded', '1', now()
             FROM generate_series(1, 300)",
    );
    fixture.database.execute(statistics);
    for _ in 0..6 {
        let fence = run_many(store, 1).await[0];
        let child = after(store, &[fence]).await;
        finish(store, failure(fence, Cause::Crash, Next::Dead)).await;
        assert_eq!(state(store, child).await, JobState::Cancelled);
    }
    let fences = run_many(store, 200).await;
    let released = after(store, &fences[..1]).await;
    let child = after(store, &fences[199..]).await;
    let grandchild = add(store, NewJob { after: vec![child], ..new_job("k") }).await;
    fixture.database.execute(
        "INSERT INTO jobvisor.jobs (kind, state, payload, waits_for) SELECT 'k', 'waiting', '1', 1 FROM generate_series(1, 30000);
         INSERT INTO jobvisor.jobs (kind, state, payload, term, claim_seq, claimed_at, attempt, charged)
             SELECT 'k', 'running', '1', (SELECT term FROM jobvisor.jobs WHERE state = 'running' LIMIT 1), 1, now(), 1, 1
             FROM generate_series(1, 30000)",
    );
    let settled = |from: u64| {
        // Sessions tell what they read when they end a transaction, once a second, or after ten seconds of idleness.
        let mut last = u64::MAX;
        ::support::wait_until("statistics", Duration::from_secs(40), || {
            std::thread::sleep(Duration::from_millis(1200));
            let now = rows_read(&fixture);
            let before = std::mem::replace(&mut last, now);
            if now == before && now > from { Ok(now) } else { Err(format!("{before} became {now}")) }
        })
    };
    let before = settled(0);
    let (good, bad) = fences.split_at(100);
    let bad = bad.iter().map(|fence| failure(*fence, Cause::Crash, Next::Dead));
    let outcomes: Vec<Finish> = good.iter().map(|fence| success(*fence)).chain(bad).collect();
    assert_eq!(store.finish(&outcomes).await.unwrap()[100..], [Finished::Recorded(JobState::Dead); 100]);
    let read = settled(before + 199) - before;
    assert!((200..SCAN).contains(&read), "{read} rows were read {statistics}");
    for (id, expected) in
        [(released, JobState::Queued), (child, JobState::Cancelled), (grandchild, JobState::Cancelled)]
    {
        assert_eq!(state(store, id).await, expected);
    }
    // A person's cancel goes the same way.
    let parent = add(store, new_job("k")).await;
    add(store, NewJob { after: vec![parent], ..new_job("k") }).await;
    let before = settled(0);
    store.cancel(&[parent], "me").await.unwrap();
    let read = settled(before + 1) - before;
    assert!((2..SCAN).contains(&read), "{read} rows were read {statistics}");
}
