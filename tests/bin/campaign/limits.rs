//! What the Postgres store does beside what the database can do: the same server, the same machine, in turns.
//!
//! The limits are pgbench's, with prepared statements on a bare table of the same rough shape and none of our promises: no
//! term, no fence, no budget, no record. The server waits for its disk.

use std::process::Command;
use std::time::Duration;
use std::time::Instant;

use jobvisor::domain::ids::Term;
use jobvisor::domain::retry::Backoff;
use jobvisor::domain::retry::Decision;
use jobvisor::domain::retry::Next;
use jobvisor::domain::units::Bytes;
use jobvisor::domain::verdict::Certainty;
use jobvisor::domain::verdict::Ending;
use jobvisor::domain::verdict::Sureness;
use jobvisor::domain::verdict::Verdict;
use jobvisor::store::ClaimKind;
use jobvisor::store::ClaimRequest;
use jobvisor::store::Claimed;
use jobvisor::store::Finish;
use jobvisor::store::Identity;
use jobvisor::store::NewJob;
use jobvisor::store::NewTerm;
use jobvisor::store::RowPolicy;
use jobvisor::store::Store;
use jobvisor::store::postgres::PostgresStore;
use support::postgres::Cluster;
use support::postgres::Database;

use crate::Scale;
use crate::report::Report;

const BATCH: u32 = 50;
const SETTINGS: [&str; 5] = [
    "fsync=on",
    "shared_buffers=512MB",
    "max_wal_size=4GB",
    "autovacuum_naptime=60s",
    "shared_preload_libraries=pg_stat_statements",
];

const BARE: &str = "
    CREATE TABLE bare(id bigserial PRIMARY KEY, kind text NOT NULL, payload jsonb NOT NULL DEFAULT '{}', state smallint NOT NULL DEFAULT 0,
        priority smallint NOT NULL DEFAULT 0, attempts smallint NOT NULL DEFAULT 0, locked_by text, lease_until timestamptz,
        finished_at timestamptz) WITH (fillfactor=70, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_cost_delay=0);
    CREATE INDEX bare_ready ON bare(priority, id) WHERE state=0;
    CREATE INDEX bare_lease ON bare(lease_until) WHERE state=1;";

const CLAIM: &str = "WITH c AS (UPDATE bare SET state=1, attempts=attempts+1, locked_by='w', lease_until=now()+interval '60 s' \
    WHERE id IN (SELECT id FROM bare WHERE state=0 ORDER BY priority,id LIMIT 50 FOR UPDATE SKIP LOCKED) RETURNING id) \
    SELECT coalesce(array_agg(id),'{}') AS ids FROM c \\gset\n";

/// The rate of draining no-op jobs.
pub(crate) fn drain(scale: Scale, report: &mut Report) {
    let cluster = Cluster::start(&SETTINGS);
    let (rounds, jobs) = (scale.of(5, 1), u32::try_from(scale.of(20_000, 500)).expect("small") / BATCH * BATCH);
    let few = (jobs / 10).max(BATCH);
    let finish_all = format!(
        "{CLAIM}UPDATE bare SET state=2, finished_at=now(), lease_until=NULL WHERE id=ANY(:ids::bigint[]) AND state=1;"
    );
    let one = |n: u32| {
        format!(
            "UPDATE bare SET state=2, finished_at=now(), lease_until=NULL WHERE id=(:ids::bigint[])[{n}] AND state=1;\n"
        )
    };
    let finish_each = format!("{CLAIM}{}", (1..=BATCH).map(one).collect::<String>());
    for round in 1..=rounds {
        let bench = Bench::new(&cluster, jobs);
        let limit = bench.pgbench(&finish_all, 1, jobs / BATCH) * f64::from(BATCH);
        let store = drain_store(&cluster, jobs, BATCH, false);
        let wide = drain_store(&cluster, jobs, BATCH, true);
        let bench = Bench::new(&cluster, few);
        let limit_each = bench.pgbench(&finish_each, 1, few / BATCH) * f64::from(BATCH);
        let each = drain_store(&cluster, few, 1, false);
        report.say(&format!(
            "drain, round {round}, {jobs} jobs, claim 50: finish 50: store {:.0}/s, bare {limit:.0}/s, ratio {:.2}; two lanes at once \
             {:.0}/s, ratio {:.2}; finish 1 ({few} jobs): store {:.0}/s, bare {limit_each:.0}/s, ratio {:.2}",
            store.rate, store.rate / limit, wide.rate, wide.rate / limit, each.rate, each.rate / limit_each
        ));
        report.say(&format!(
            "drain, round {round}: statements a job {:.3} batched, {:.2} one by one; WAL a job {:.0} B batched, {:.0} B one by one, {:.0} B to \
             enqueue",
            store.statements, each.statements, store.wal, each.wal, store.enqueue_wal
        ));
    }
}

/// What one drain was.
struct Drained {
    rate: f64,
    statements: f64,
    wal: f64,
    enqueue_wal: f64,
}

#[expect(clippy::disallowed_methods, reason = "a measuring program reads the clock")]
fn drain_store(cluster: &Cluster, jobs: u32, finish: u32, both: bool) -> Drained {
    let database = cluster.database();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = PostgresStore::open(&database.url, true).await.expect("a store");
        let term = begin(&store).await;
        let lsn = wal(&database);
        store.enqueue(&(0..jobs).map(|_| noop()).collect::<Vec<_>>()).await.expect("jobs");
        let enqueue_wal = wal_since(&database, &lsn);
        database.execute("VACUUM ANALYZE");
        database.execute("CHECKPOINT");
        let (lsn, before) = (wal(&database), statements(&database));
        let start = Instant::now();
        let done = if both { overlapped(&store, term).await } else { in_turns(&store, term, finish).await };
        let rate = f64::from(done) / start.elapsed().as_secs_f64();
        assert_eq!(done, jobs, "all of them, once");
        let wal = wal_since(&database, &lsn) / f64::from(jobs);
        let statements = (self::statements(&database) - before) / f64::from(jobs);
        Drained { rate, statements, wal, enqueue_wal: enqueue_wal / f64::from(jobs) }
    })
}

async fn in_turns(store: &PostgresStore, term: Term, finish: u32) -> u32 {
    let mut done = 0;
    for seq in 1.. {
        let claimed = store.claim(&request(term, seq)).await.expect("a claim");
        if claimed.is_empty() {
            break;
        }
        for batch in claimed.chunks(finish as usize) {
            let outcomes: Vec<Finish> = batch.iter().map(succeeded).collect();
            done += u32::try_from(store.finish(&outcomes).await.expect("a finish").len()).expect("few");
        }
    }
    done
}

/// As a supervisor does it: claims go on while outcomes are recorded.
async fn overlapped(store: &PostgresStore, term: Term) -> u32 {
    let (sender, mut outcomes) = tokio::sync::mpsc::channel::<Finish>(500);
    let writer = store.clone();
    let writing = tokio::spawn(async move {
        let (mut done, mut batch) = (0, Vec::new());
        while outcomes.recv_many(&mut batch, 500).await > 0 {
            done += u32::try_from(writer.finish(&batch).await.expect("a finish").len()).expect("few");
            batch.clear();
        }
        done
    });
    for seq in 1.. {
        let claimed = store.claim(&request(term, seq)).await.expect("a claim");
        if claimed.is_empty() {
            break;
        }
        for claimed in &claimed {
            sender.send(succeeded(claimed)).await.expect("a writer");
        }
    }
    drop(sender);
    writing.await.expect("no panic")
}

/// The rate of adding jobs, by 1, 8 and 24 clients.
pub(crate) fn enqueue(scale: Scale, report: &mut Report) {
    let cluster = Cluster::start(&SETTINGS);
    for round in 1..=scale.of(3, 1) {
        for clients in [1, 8, 24] {
            let each = u32::try_from(scale.of(6000, 60)).expect("small") / clients.min(8);
            let bare = Bench::new(&cluster, 0).pgbench(
                "INSERT INTO bare(kind,payload) VALUES ('noop','{\"n\":1}') RETURNING id;",
                clients,
                each,
            );
            let (awake, asleep) = (function(&cluster, false, clients, each), function(&cluster, true, clients, each));
            report.say(&format!(
                "enqueue, round {round}, {clients} client(s): bare INSERT {bare:.0}/s; jobvisor.enqueue {awake:.0}/s, ratio {:.2}; with a sleeper \
                 all along {asleep:.0}/s, ratio {:.2}",
                awake / bare, asleep / bare
            ));
        }
        let many = u32::try_from(scale.of(100_000, 1000)).expect("small");
        report.say(&format!(
            "enqueue, round {round}: {many} rows in batches of 10,000 through the store: {:.0} rows/s",
            bulk(&cluster, many)
        ));
    }
}

fn function(cluster: &Cluster, sleeper: bool, clients: u32, each: u32) -> f64 {
    let bench = Bench::new(cluster, 0);
    if sleeper {
        bench.database.execute("UPDATE jobvisor.supervisors SET sleeping = true");
    }
    bench.pgbench("SELECT jobvisor.enqueue('noop', '{\"n\":1}');", clients, each)
}

#[expect(clippy::disallowed_methods, reason = "a measuring program reads the clock")]
fn bulk(cluster: &Cluster, many: u32) -> f64 {
    let database = cluster.database();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = PostgresStore::open(&database.url, true).await.expect("a store");
        let jobs: Vec<NewJob> = (0..many.min(10_000)).map(|_| noop()).collect();
        let start = Instant::now();
        for _ in 0..many.div_ceil(10_000) {
            store.enqueue(&jobs).await.expect("jobs");
        }
        f64::from(many) / start.elapsed().as_secs_f64()
    })
}

/// A database with our schema, one term, and the bare table.
struct Bench {
    database: Database,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(cluster: &Cluster, rows: u32) -> Self {
        let database = cluster.database();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            begin(&PostgresStore::open(&database.url, true).await.expect("a store")).await;
        });
        database.execute(BARE);
        database.execute(&format!("INSERT INTO bare(kind) SELECT 'noop' FROM generate_series(1,{rows})"));
        database.execute("VACUUM ANALYZE");
        database.execute("CHECKPOINT");
        Self { database, folder: tempfile::tempdir().expect("a folder") }
    }

    /// Scripts a second.
    fn pgbench(&self, script: &str, clients: u32, each: u32) -> f64 {
        let file = self.folder.path().join("script.sql");
        std::fs::write(&file, script).expect("a file");
        let told = Command::new(support::postgres::bin("pgbench"))
            .args(["-n", "-M", "prepared", "-j", "1", "-c", &clients.to_string(), "-t", &each.to_string(), "-f"])
            .arg(&file)
            .arg(&self.database.url)
            .output()
            .expect("pgbench");
        let text = String::from_utf8_lossy(&told.stdout);
        let rate = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        rate.unwrap_or_else(|| panic!("pgbench: {text}{}", String::from_utf8_lossy(&told.stderr)))
    }
}

async fn begin(store: &PostgresStore) -> Term {
    let new = NewTerm {
        term: Term::new(),
        name: "campaign".to_owned(),
        host: "here".to_owned(),
        pid: 1,
        boot_id: String::new(),
        identity: Identity::default(),
        version: String::new(),
        kinds: vec!["noop".to_owned()],
        lease: Duration::from_secs(3600),
    };
    store.begin_term(&new).await.expect("a term");
    new.term
}

fn noop() -> NewJob {
    NewJob { kind: "noop".to_owned(), payload: "{\"n\":1}".to_owned(), ..NewJob::default() }
}

fn request(term: Term, seq: u64) -> ClaimRequest {
    let policy = RowPolicy { max_attempts: 3, max_interruptions: 5, memory: Bytes(0), backoff: Backoff::default() };
    let kinds = vec![ClaimKind { kind: "noop".to_owned(), free: BATCH, policy }];
    ClaimRequest { term, seq, kinds, free_memory: Bytes(u64::MAX), whole_budget: Bytes(u64::MAX) }
}

fn succeeded(claimed: &Claimed) -> Finish {
    let certainty = Certainty { kill: Sureness::Proved, reason: Sureness::Proved };
    let verdict = Verdict { ending: Ending::Succeeded, certainty, contributing: Vec::new(), flags: Vec::new() };
    let decision = Decision { next: Next::Succeeded, refund: false, interruption: false, breaker: false };
    Finish { fence: claimed.fence, decision, verdict: Some(verdict), result: None, record: None }
}

fn wal(database: &Database) -> String {
    database.psql("SELECT pg_current_wal_insert_lsn()")
}

fn wal_since(database: &Database, lsn: &str) -> f64 {
    database.psql(&format!("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{lsn}')")).parse().expect("a number")
}

/// Statements that the database has carried out so far.
fn statements(database: &Database) -> f64 {
    database.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements");
    database
        .psql(
            "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
             WHERE d.datname = current_database()",
        )
        .parse()
        .expect("a number")
}
