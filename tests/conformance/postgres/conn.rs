//! Connections that end, and servers that refuse for a while.

use std::time::Duration;

use ::support::postgres::{Cluster, Database};
use jobvisor::store::postgres::PostgresStore;
use jobvisor::store::{Store, StoreError};

use super::listen::until;
use crate::support::{add, begin, claim, finish, new_job, request, success, wants};

/// Longer than a connection is taken to live without being asked.
const IDLE: Duration = Duration::from_millis(300);

fn terminate_all(database: &Database) {
    database.execute("SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobvisor'");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_for_an_idle_connection_that_has_ended() {
    let database = Database::new();
    let store = PostgresStore::open(&database.url, true).await.unwrap();
    let term = begin(&store).await;
    for _ in 0..5 {
        tokio::time::sleep(IDLE).await;
        terminate_all(&database);
        let id = add(&store, new_job("k")).await;
        let claimed = claim(&store, term, "k", 1).await;
        assert_eq!(claimed[0].fence.job, id);
        finish(&store, success(claimed[0].fence)).await;
        assert_eq!(store.counts().await.unwrap().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashed_is_found_again_by_every_kind_of_call() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database();
    let store = PostgresStore::open(&database.url, true).await.unwrap();
    let term = begin(&store).await;
    add(&store, new_job("k")).await;
    let fence = claim(&store, term, "k", 1).await[0].fence;
    cluster.stop("immediate");
    for error in [
        store.enqueue(&[new_job("k")]).await.unwrap_err(),
        store.finish(&[success(fence)]).await.unwrap_err(),
        store.counts().await.unwrap_err(),
    ] {
        assert!(error.is_unavailable(), "{error:?}");
    }
    cluster.resume();
    // A connection that was used a moment ago is taken to live: each lane may find one of those broken, once.
    let (outcome, job, wanted) = ([success(fence)], [new_job("k")], request(term, vec![wants("k", 1)]));
    twice(async || store.finish(&outcome).await).await;
    let id = twice(async || store.enqueue(&job).await).await[0].id();
    assert_eq!(twice(async || store.claim(&wanted).await).await[0].fence.job, id);
}

/// A call that may meet a broken connection, and no second one.
async fn twice<T>(call: impl AsyncFn() -> Result<T, StoreError>) -> T {
    match call().await {
        Ok(done) => done,
        Err(error) => {
            assert!(error.is_unavailable(), "{error:?}");
            call().await.unwrap()
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_only_reads_for_a_while_is_left_for_the_one_that_writes() {
    let database = Database::new();
    let store = PostgresStore::open(&database.url, true).await.unwrap();
    database.execute(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name()));
    tokio::time::sleep(IDLE).await;
    terminate_all(&database);
    let error = store.enqueue(&[new_job("k")]).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    // Connections made meanwhile stay read-only: it must be a new one that writes.
    let writes = format!("ALTER DATABASE {} RESET default_transaction_read_only", database.name());
    ::support::postgres::execute(::support::postgres::shared(), &writes);
    add(&store, new_job("k")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_meets_a_lock_is_given_up_by_server_and_store_alike() {
    let database = Database::new();
    let store = PostgresStore::open(&database.url, true).await.unwrap();
    add(&store, new_job("k")).await;
    let url = database.url.clone();
    let holder = std::thread::spawn(move || {
        ::support::postgres::psql(&url, "BEGIN; LOCK TABLE jobvisor.jobs; SELECT pg_sleep(20); ROLLBACK")
    });
    until("it is held", Duration::from_secs(5), async || {
        database.psql("SELECT count(*) FROM pg_locks WHERE relation = 'jobvisor.jobs'::regclass AND mode = 'AccessExclusiveLock' AND granted") == "1"
    })
    .await;
    let error = store.enqueue(&[new_job("late")]).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    // The server gave it up too: it is not carried out when the lock is gone.
    assert_eq!(database.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'jobvisor' AND datname = current_database() AND wait_event_type = 'Lock'"), "0");
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'BEGIN; LOCK TABLE%' AND datname = current_database()");
    holder.join().unwrap();
    add(&store, new_job("k")).await;
    let counts = store.counts().await.unwrap();
    assert!(counts.iter().all(|count| count.kind == "k"), "{counts:?}");
}
