//! Hearing: what is proven of it, what happens when it ends, who sends notices, and the race for the flag.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ::support::postgres::{Cluster, Database};
use jobvisor::domain::clock::monotonic;
use jobvisor::domain::ids::{JobId, Term};
use jobvisor::store::postgres::PostgresStore;
use jobvisor::store::{Finish, Store};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::proxy::Proxy;
use crate::support::{add, begin, claim, new_job, request, running, success, wants};

/// A probe's interval and patience, and a little for a busy host.
const PROBE: Duration = Duration::from_secs(10 + 2 + 3);

/// A notice, a claim and their round trips on a busy host.
const SOON: Duration = Duration::from_secs(2);

pub(super) async fn until(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let start = monotonic();
    while !holds().await {
        assert!(start.elapsed() < within, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn open(url: &str) -> Arc<PostgresStore> {
    Arc::new(PostgresStore::open(url, true).await.unwrap())
}

/// Waits until it is proven that the store hears.
async fn hearing(store: &Arc<PostgresStore>) {
    let waiter = Arc::clone(store);
    let waiter = tokio::spawn(async move { waiter.changed().await });
    until("the store hears", Duration::from_secs(10), async || store.hears()).await;
    waiter.abort();
}

/// One that claims at the start and whenever something may have changed: without polling, so that only what it hears counts.
struct Follower {
    claimed: mpsc::UnboundedReceiver<(JobId, Instant)>,
    task: JoinHandle<()>,
}

impl Follower {
    fn start(store: &Arc<PostgresStore>, term: Term, free: u32) -> Self {
        let store = Arc::clone(store);
        let (tell, claimed) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            for seq in 1.. {
                let mut request = request(term, vec![wants("k", free)]);
                request.seq = seq;
                let jobs = store.claim(&request).await.unwrap();
                let now = monotonic();
                let ended: Vec<Finish> = jobs.iter().map(|job| success(job.fence)).collect();
                store.finish(&ended).await.unwrap();
                for job in &jobs {
                    tell.send((job.fence.job, now)).ok();
                }
                if jobs.len() < free as usize {
                    store.changed().await;
                }
            }
        });
        Self { claimed, task }
    }

    async fn next(&mut self, within: Duration) -> (JobId, Instant) {
        let next = tokio::time::timeout(within, self.claimed.recv()).await;
        next.unwrap_or_else(|_| panic!("nothing was claimed within {within:?}")).expect("it runs")
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn is_asleep(database: &Database, term: Term) -> bool {
    database.psql(&format!("SELECT sleeping FROM jobvisor.supervisors WHERE term = '{term}'")) == "t"
}

async fn asleep(database: &Database, term: Term) {
    until("the flag is up", SOON, async || is_asleep(database, term)).await;
}

fn over_tcp(database: &Database, port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/{}?sslmode=disable", database.name())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_added_while_the_supervisor_sleeps_is_claimed_at_once() {
    let database = Database::new();
    let store = open(&database.url).await;
    hearing(&store).await;
    let term = begin(&*store).await;
    let mut follower = Follower::start(&store, term, 4);
    asleep(&database, term).await;
    let other = open(&database.url).await;
    let mut took = Vec::new();
    for _ in 0..20 {
        let id = add(&*other, new_job("k")).await;
        let committed = monotonic();
        let (claimed, at) = follower.next(SOON).await;
        assert_eq!(claimed, id);
        took.push(at.saturating_duration_since(committed));
    }
    took.sort();
    println!("commit to claim: p50 {:?}, p95 {:?}", took[10], took[18]);
    assert!(store.hears(), "and it goes on to hear");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g5_a_listener_cut_off_in_silence_is_replaced_within_a_probe() {
    let cluster = Cluster::start(&["listen_addresses=127.0.0.1"]);
    let database = cluster.database();
    let proxy = Proxy::start(cluster.port()).await;
    let store = open(&over_tcp(&database, proxy.port)).await;
    hearing(&store).await;
    let term = begin(&*store).await;
    let mut follower = Follower::start(&store, term, 4);
    asleep(&database, term).await;
    until("soundly asleep", SOON, async || store.hears()).await;

    proxy.black_hole();
    let id = add(&*open(&database.url).await, new_job("k")).await;
    let committed = monotonic();
    let (claimed, at) = follower.next(PROBE).await;
    println!("commit to claim in a black hole: {:?}", at.saturating_duration_since(committed));
    assert_eq!(claimed, id, "found when the silence was");
    until("another one listens", SOON, async || proxy.listeners.load(Ordering::SeqCst) == 2).await;
    until("the new one is proven", SOON, async || store.hears()).await;
    let id = add(&*open(&database.url).await, new_job("k")).await;
    assert_eq!(follower.next(SOON).await.0, id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g5_while_nothing_is_heard_callers_are_told_to_poll() {
    let cluster = Cluster::start(&["listen_addresses=127.0.0.1"]);
    let database = cluster.database();
    let proxy = Proxy::start(cluster.port()).await;
    let store = open(&over_tcp(&database, proxy.port)).await;
    assert!(!store.hears(), "nothing is proven before anybody listens");
    hearing(&store).await;
    let waiter = Arc::clone(&store);
    let waiter = tokio::spawn(async move { waiter.changed().await });
    proxy.black_hole_all();
    until("it is found out", PROBE, async || !store.hears()).await;
    tokio::time::timeout(SOON, waiter).await.expect("those who wait are told").unwrap();
    proxy.heal();
    until("it is heard again", PROBE, async || store.hears()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g5_what_was_sent_while_the_listener_was_away_is_claimed_when_it_is_back() {
    let database = Database::new();
    let store = open(&database.url).await;
    hearing(&store).await;
    let term = begin(&*store).await;
    let mut follower = Follower::start(&store, term, 4);
    for round in 0..5 {
        asleep(&database, term).await;
        until("it hears", SOON, async || store.hears()).await;
        let id = database.psql(
            "DO $$ BEGIN
               PERFORM pg_terminate_backend(pid, 1000) FROM pg_stat_activity
                WHERE datname = current_database() AND query LIKE 'LISTEN%' AND pid <> pg_backend_pid();
             END $$;
             SELECT jobvisor.enqueue('k')",
        );
        let committed = monotonic();
        let (claimed, at) = follower.next(SOON).await;
        println!("round {round}: commit in the gap to claim: {:?}", at.saturating_duration_since(committed));
        assert_eq!(claimed.0.to_string(), id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_enqueuer_saw_nobody_asleep_is_found_soon_after_its_commit() {
    for after in [2, 50, 400, 2_000] {
        let database = Database::new();
        let store = open(&database.url).await;
        hearing(&store).await;
        let term = begin(&*store).await;
        let mut conn = PgConnection::connect(&database.url).await.unwrap();
        let mut tx = conn.begin().await.unwrap();
        let id: i64 = sqlx::query_scalar("SELECT jobvisor.enqueue('k')").fetch_one(&mut *tx).await.unwrap();
        let mut follower = Follower::start(&store, term, 4);
        asleep(&database, term).await;
        tokio::time::sleep(Duration::from_millis(after)).await;
        tx.commit().await.unwrap();
        let committed = monotonic();
        let (claimed, at) = follower.next(SOON).await;
        let took = at.saturating_duration_since(committed);
        println!("committed {after} ms after the flag: claimed {took:?} later");
        assert_eq!(claimed.0, id);
        assert!(took < Duration::from_secs(1), "{after} ms: {took:?}");
    }
}

/// Hears all notices of a database.
struct Counter(PgListener);

impl Counter {
    async fn start(database: &Database) -> Self {
        let pool = PgPoolOptions::new().max_connections(1).connect(&database.url).await.unwrap();
        let mut listener = PgListener::connect_with(&pool).await.unwrap();
        listener.listen("jobvisor").await.unwrap();
        Self(listener)
    }

    /// Payloads of what was sent so far.
    async fn heard(&mut self, database: &Database) -> Vec<String> {
        database.execute("NOTIFY jobvisor, 'that was all'");
        let mut heard = Vec::new();
        loop {
            let notice = self.0.recv().await.unwrap();
            match notice.payload() {
                "that was all" => return heard,
                other => heard.push(other.to_owned()),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g7_notices_are_sent_for_sleepers_only_and_carry_nothing() {
    let database = Database::new();
    let store = open(&database.url).await;
    let other = open(&database.url).await;
    let mut counter = Counter::start(&database).await;
    hearing(&store).await;
    let term = begin(&*store).await;
    for _ in 0..20 {
        add(&*other, new_job("k")).await;
    }
    assert_eq!(counter.heard(&database).await, [""; 0], "awake");

    assert_eq!(claim(&*store, term, "k", 50).await.len(), 20);
    asleep(&database, term).await;
    for _ in 0..3 {
        add(&*other, new_job("k")).await;
    }
    assert_eq!(counter.heard(&database).await, [""; 3], "asleep: one for each transaction");
    let mut conn = PgConnection::connect(&database.url).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    sqlx::raw_sql("SELECT jobvisor.enqueue('k') FROM generate_series(1, 10000)").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(counter.heard(&database).await, [""; 1], "one for ten thousand in one transaction");

    assert_eq!(claim(&*store, term, "k", 50).await.len(), 50, "as many as there was room for");
    until("the flag is down", SOON, async || !is_asleep(&database, term)).await;
    for _ in 0..20 {
        add(&*other, new_job("k")).await;
    }
    assert_eq!(counter.heard(&database).await, [""; 0], "there is work enough");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trickle_of_jobs_does_not_write_the_flag_each_time() {
    let database = Database::new();
    let store = open(&database.url).await;
    hearing(&store).await;
    let term = begin(&*store).await;
    let mut follower = Follower::start(&store, term, 4);
    asleep(&database, term).await;
    let version = || database.psql(&format!("SELECT xmin FROM jobvisor.supervisors WHERE term = '{term}'"));
    let before = version();
    for _ in 0..10 {
        add(&*store, new_job("k")).await;
        follower.next(SOON).await;
    }
    assert_eq!(version(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_term_starts_awake_and_falls_asleep_by_itself() {
    let database = Database::new();
    let store = open(&database.url).await;
    hearing(&store).await;
    let first = begin(&*store).await;
    assert!(claim(&*store, first, "k", 4).await.is_empty());
    asleep(&database, first).await;
    let second = begin(&*store).await;
    assert!(!is_asleep(&database, second));
    assert!(claim(&*store, second, "k", 4).await.is_empty());
    asleep(&database, second).await;
    until("it hears for the new term", SOON, async || store.hears()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_request_is_heard_by_those_who_do_not_sleep_too() {
    let database = Database::new();
    let store = open(&database.url).await;
    hearing(&store).await;
    let term = begin(&*store).await;
    let fence = running(&*store, term).await;
    let waiter = Arc::clone(&store);
    let waiter = tokio::spawn(async move { waiter.changed().await });
    open(&database.url).await.cancel(&[fence.job], "somebody").await.unwrap();
    tokio::time::timeout(SOON, waiter).await.expect("it is heard").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_sleeps_soundly_sends_hardly_any_statement() {
    let cluster = Cluster::start(&["log_statement=all"]);
    let database = cluster.database();
    let store = open(&database.url).await;
    hearing(&store).await;
    let term = begin(&*store).await;
    let _follower = Follower::start(&store, term, 4);
    asleep(&database, term).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let statements = || {
        let log = std::fs::read_to_string(cluster.folder().join("log")).unwrap();
        log.lines().filter(|line| line.contains(" execute ") || line.contains(" statement: ")).count()
    };
    let before = statements();
    tokio::time::sleep(Duration::from_secs(12)).await;
    let sent = statements() - before;
    assert!((1..=2).contains(&sent), "{sent} statements in 12 s; one probe every ten is all");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_dropped_leaves_no_connection() {
    let database = Database::new();
    let store = open(&database.url).await;
    hearing(&store).await;
    let ours = || {
        let told = database.psql(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'jobvisor'",
        );
        told.parse::<u32>().unwrap()
    };
    assert!(ours() >= 2, "the listener and the one that probed it");
    drop(store);
    until("all are gone", SOON, async || ours() == 0).await;
}
