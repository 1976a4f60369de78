//! What the statements read of a large table, counted by the server: with statistics of an empty table, and with true ones.

use std::ops::RangeInclusive;
use std::time::Duration;

use ::support::postgres::Database;
use jobvisor::domain::clock;
use jobvisor::domain::ids::Term;
use jobvisor::store::postgres::PostgresStore;
use jobvisor::store::{ClaimRequest, LossProof, Renewed, Retention, Store};

use crate::support::{LONG, NOW, begin, new_term, request, success, wants};

/// Index entries that were read so far, of one index or (`%`) of all of `jobs`.
pub(super) fn counted(database: &Database, index: &str) -> u64 {
    let sql = format!(
        "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'jobs' AND indexrelname LIKE '{index}'"
    );
    database.psql(&sql).parse().unwrap()
}

fn scans(database: &Database) -> u64 {
    database.psql("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'jobs'").parse().unwrap()
}

/// Closes the store and waits until the server has its numbers: a backend tells them when it goes, at the latest.
pub(super) async fn close(database: &Database, store: PostgresStore) {
    store.close().await;
    let left =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobvisor'";
    let began = clock::monotonic();
    while database.psql(left) != "0" {
        assert!(began.elapsed() < Duration::from_secs(20), "connections stay");
    }
}

/// Does something with a store of its own; answers what that read of `jobs`, which must not have been scanned.
async fn reads<T>(
    database: &Database,
    what: &str,
    range: RangeInclusive<u64>,
    work: impl AsyncFnOnce(&PostgresStore) -> T,
) -> T {
    let store = PostgresStore::open(&database.url, false).await.unwrap();
    let before = (scans(database), counted(database, "%"));
    let done = work(&store).await;
    close(database, store).await;
    let after = (scans(database), counted(database, "%"));
    assert_eq!(after.0, before.0, "{what} scanned the table");
    let read = after.1 - before.1;
    assert!(range.contains(&read), "{what} read {read} index entries");
    done
}

fn fill(database: &Database, lost: Term, living: Term) {
    database.execute(&format!(
        "ALTER TABLE jobvisor.jobs SET (autovacuum_enabled = off);
         ANALYZE jobvisor.jobs;
         INSERT INTO jobvisor.jobs (kind, state, payload, attempt, charged, claimed_at, finished_at)
             SELECT 'k' || i % 5, 'succeeded', '{{}}', 1, 1, now(), now() FROM generate_series(1, 1000000) i;
         INSERT INTO jobvisor.jobs (kind, state, payload)
             SELECT 'k' || i % 5, 'queued', '{{}}' FROM generate_series(1, 100000) i;
         INSERT INTO jobvisor.jobs (kind, state, payload, run_at)
             SELECT 'k', 'scheduled', '{{}}', now() + i * interval '1 s' FROM generate_series(-999, 10000) i;
         INSERT INTO jobvisor.jobs (kind, state, payload, attempt, charged, claimed_at, claim_seq, term)
             SELECT 'k', 'running', '{{}}', 1, 1, now(), 1, t::uuid
             FROM generate_series(1, 1000) i, unnest(ARRAY['{lost}', '{living}']) t;
         INSERT INTO jobvisor.jobs (kind, state, payload, waits_for)
             SELECT 'k', 'waiting', '{{}}', 1 FROM generate_series(1, 100) i;
         INSERT INTO jobvisor.dependencies (job, parent)
             SELECT w.id, r.id FROM jobvisor.jobs w, (SELECT max(id) AS id FROM jobvisor.jobs WHERE state = 'running') r
             WHERE w.state = 'waiting'"
    ));
}

#[tokio::test]
async fn no_statement_reads_more_of_a_large_table_than_it_is_about() {
    let database = Database::new();
    let store = PostgresStore::open(&database.url, true).await.unwrap();
    let (lost, living) = (begin(&store).await, begin(&store).await);
    assert!(store.declare_lost(lost, 0, LossProof::ProcessGone).await.unwrap());
    close(&database, store).await;
    fill(&database, lost, living);
    each(&database, lost, living).await;
    database.execute("ANALYZE");
    each(&database, lost, living).await;
}

async fn each(database: &Database, lost: Term, living: Term) {
    let kinds = || (0..5).map(|n| wants(&format!("k{n}"), 10)).collect();
    let ask = || -> ClaimRequest { request(living, kinds()) };
    let claimed = reads(database, "a claim", 50..=400, async |store| store.claim(&ask()).await.unwrap()).await;
    assert_eq!(claimed.len(), 50);
    let outcomes: Vec<_> = claimed.iter().map(|claimed| success(claimed.fence)).collect();
    reads(database, "a finish", 50..=1000, async |store| store.finish(&outcomes).await.unwrap()).await;
    reads(database, "a finish that was recorded before", 50..=1000, async |store| {
        store.finish(&outcomes).await.unwrap()
    })
    .await;
    let renewed = async |store: &PostgresStore| store.renewer().renew(living, Some("{}")).await.unwrap();
    assert_eq!(reads(database, "a renewal", 0..=0, renewed).await, Renewed::Held);
    let rescued = reads(database, "a rescue", 1000..=1100, async |store| store.rescuable(&[]).await.unwrap()).await;
    assert_eq!(rescued.len(), 1000);
    assert!(rescued.iter().all(|row| row.fence.term == lost));
    let own =
        reads(database, "a look at own rows", 1000..=1100, async |store| store.own_rows(living, 9).await.unwrap())
            .await;
    assert_eq!(own.len(), 1000);
    let promoted = reads(database, "a promotion", 200..=1200, async |store| store.promote(100).await.unwrap()).await;
    assert_eq!(promoted.count, 100);
    let young = Retention { succeeded: LONG, cancelled: LONG, dead: LONG };
    assert_eq!(
        reads(database, "a look for old jobs", 10_000..=12_000, async |s| s.prune(&young, 1000).await.unwrap()).await,
        0
    );
    let old = Retention { succeeded: NOW, ..young };
    let removed = reads(database, "a removal", 11_000..=25_000, async |s| s.prune(&old, 1000).await.unwrap()).await;
    assert_eq!(removed, 1000);
    reads(database, "the end of a term", 0..=0, async |store| {
        let new = new_term();
        store.begin_term(&new).await.unwrap();
        store.end_term(new.term).await.unwrap();
    })
    .await;
}
