//! Behind pgbouncer, which lends sessions for a transaction at a time, refuses settings at the start, and (1.18) knows no statements by
//! name. Skipped, and said so, where it is not installed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ::support::postgres::{Cluster, Database};
use jobvisor::domain::cause::Cause;
use jobvisor::domain::clock::monotonic;
use jobvisor::domain::ids::Fence;
use jobvisor::domain::job::JobState;
use jobvisor::domain::retry::Next;
use jobvisor::store::postgres::PostgresStore;
use jobvisor::store::{Finish, Finished, LossProof, Renewed, Store};

use super::listen::until;
use crate::support::{add, begin, failure, new_job, new_term, request, state, success, wants};

/// A pooler before a server, with three sessions.
struct Pooler {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Pooler {
    fn start(cluster: &Cluster, more: &str) -> Option<Self> {
        let program = program()?;
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = folder.path().join("pgbouncer.ini");
        let mut file = std::fs::File::create(&config).unwrap();
        writeln!(
            file,
            "[databases]\n* = host={} port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 100\n{more}",
            cluster.folder().display(),
            cluster.port(),
        )
        .unwrap();
        drop(file);
        Some(Self { child: run(program, &config), port, folder })
    }

    /// Kills it and starts another in its place.
    fn restart(&mut self) {
        self.end();
        self.child = run(program().expect("it is there"), &self.folder.path().join("pgbouncer.ini"));
    }

    fn end(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    fn url(&self, database: &Database) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{}?sslmode=disable", self.port, database.name())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.end();
    }
}

fn program() -> Option<&'static str> {
    ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].into_iter().find(|path| std::fs::exists(path).is_ok_and(|is| is))
}

/// Runs as an unprivileged user, since it refuses to be root.
fn run(program: &str, config: &Path) -> Child {
    let mut command = Command::new(program);
    if nix::unistd::geteuid().is_root() {
        command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", program]);
    }
    command.arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    #[expect(clippy::disallowed_methods, reason = "tests run their tools themselves")]
    let mut child = command.spawn().expect("pgbouncer");
    let stderr = BufReader::new(child.stderr.take().expect("piped"));
    let (tell, is_up) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in stderr.lines().map_while(Result::ok) {
            if line.contains("process up") {
                tell.send(()).ok();
            }
        }
    });
    is_up.recv_timeout(Duration::from_secs(10)).expect("pgbouncer starts");
    child
}

#[expect(clippy::print_stderr, reason = "a test that proves nothing must say so")]
fn is_missing() {
    eprintln!("skipped: there is no pgbouncer");
}

/// What a session that the pooler lends says to somebody else.
fn left_behind(url: &str, sql: &str) -> String {
    let told = ::support::postgres::psql(url, sql);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    String::from_utf8_lossy(&told.stdout).trim_end().to_owned()
}

async fn work(store: &Arc<PostgresStore>) {
    let term = begin(&**store).await;
    let jobs: Vec<_> = (0..200).map(|_| new_job("k")).collect();
    let added = store.enqueue(&jobs).await.unwrap();
    assert_eq!(added.len(), 200);
    let mut renewer = store.renewer();
    let mut fences: Vec<Fence> = Vec::new();
    for seq in 1..=4 {
        let mut request = request(term, vec![wants("k", 50)]);
        request.seq = seq;
        fences.extend(store.claim(&request).await.unwrap().iter().map(|job| job.fence));
        assert_eq!(renewer.renew(term, Some("{}")).await.unwrap(), Renewed::Held);
    }
    assert_eq!(fences.len(), 200);
    let (bad, good) = fences.split_first().unwrap();
    let outcomes: Vec<Finish> = good[..149].iter().map(|fence| success(*fence)).collect();
    // Many at once, on more connections than the pooler has sessions.
    let finishing = outcomes.chunks(10).map(|chunk| {
        let (store, chunk) = (Arc::clone(store), chunk.to_vec());
        tokio::spawn(async move { store.finish(&chunk).await.unwrap() })
    });
    for done in finishing.collect::<Vec<_>>() {
        assert!(done.await.unwrap().iter().all(|done| matches!(done, Finished::Recorded(JobState::Succeeded))));
    }
    // An outcome that is refused as it is spoils neither its batch nor its transaction.
    let mut spoiled = success(*bad);
    spoiled.result = Some("not json".to_owned());
    let batch = [spoiled, failure(good[149], Cause::JobError, Next::Dead)];
    let done = store.finish(&batch).await.unwrap();
    assert!(done.iter().all(|done| matches!(done, Finished::Recorded(_))), "{done:?}");
    assert_eq!(state(&**store, good[149].job).await, JobState::Dead);

    let lost = store.terms().await.unwrap().into_iter().find(|row| row.term == term).unwrap();
    assert!(store.declare_lost(term, lost.beat, LossProof::ProcessGone).await.unwrap());
    assert_eq!(renewer.renew(term, None).await.unwrap(), Renewed::Lost);
    let rescuable = store.rescuable(&[]).await.unwrap();
    assert_eq!(rescuable.len(), 49);
    let rescued: Vec<Finish> =
        rescuable.iter().map(|row| failure(row.fence, Cause::SupervisorLost, Next::Dead)).collect();
    assert!(
        store.finish(&rescued).await.unwrap().iter().all(|done| matches!(done, Finished::Recorded(JobState::Dead)))
    );
    let id = add(&**store, new_job("k")).await;
    store.cancel(&[id], "somebody").await.unwrap();
    store.retry(&[id]).await.unwrap();
    store.cancel(&[id], "somebody").await.unwrap();
    store.pause(&["k".to_owned()], "somebody").await.unwrap();
    assert_eq!(store.paused().await.unwrap().len(), 1);
    store.resume(&["k".to_owned()]).await.unwrap();
    store.promote(100).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_all_works_behind_a_transaction_pooler_and_nothing_stays_on_its_sessions() {
    // It refuses settings; it drops them.
    for more in ["", "ignore_startup_parameters = options"] {
        let cluster = Cluster::start(&[]);
        let database = cluster.database();
        let Some(pooler) = Pooler::start(&cluster, more) else { return is_missing() };
        let url = pooler.url(&database);
        let store = Arc::new(PostgresStore::open(&url, true).await.unwrap());
        let others: Vec<_> = (0..2).map(|_| PostgresStore::open(&url, false)).collect();
        work(&store).await;
        for other in others {
            work(&Arc::new(other.await.unwrap())).await;
        }

        let waiter = Arc::clone(&store);
        let waiter = tokio::spawn(async move { waiter.changed().await });
        let start = monotonic();
        while start.elapsed() < Duration::from_secs(3) {
            assert!(!store.hears(), "nobody can listen here");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        waiter.abort();

        let sessions = "FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'";
        let told = database.psql(&format!("SELECT count(*) {sessions} AND state LIKE 'idle in transaction%'"));
        assert_eq!(told, "0");
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        assert_eq!(database.psql(locks), "0");
        let ours = format!("SELECT count(*) {sessions} AND application_name = 'jobvisor'");
        let pooled: u32 = database.psql(&ours).parse().unwrap();
        assert!((1..=3).contains(&pooled), "{pooled} sessions");
        // Each session of the pooler in turn, while the others are held.
        let look = "BEGIN;
            SELECT current_setting('statement_timeout'), current_setting('enable_seqscan'), current_setting('plan_cache_mode'),
                   (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels());
            SELECT pg_sleep(0.5); COMMIT";
        let looks: Vec<_> = (0..3)
            .map(|_| {
                let (url, look) = (url.clone(), look.to_owned());
                std::thread::spawn(move || left_behind(&url, &look))
            })
            .collect();
        for look in looks {
            assert_eq!(look.join().unwrap().trim(), "0|on|auto|0|0");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_a_pooler_that_is_restarted_and_sessions_that_end_behind_it_are_found_again() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database();
    let Some(mut pooler) = Pooler::start(&cluster, "") else { return is_missing() };
    let store = PostgresStore::open(&pooler.url(&database), true).await.unwrap();
    store.begin_term(&new_term()).await.unwrap();
    pooler.restart();
    until("it goes on", Duration::from_secs(10), async || store.begin_term(&new_term()).await.is_ok()).await;
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'jobvisor'");
    until("it goes on", Duration::from_secs(10), async || store.begin_term(&new_term()).await.is_ok()).await;
    add(&store, new_job("k")).await;
    assert_eq!(store.counts().await.unwrap().len(), 1);
}
