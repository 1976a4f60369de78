//! What `doctor` finds out about a Postgres server.

use std::time::Duration;

use jobvisor::store::postgres::Level;
use jobvisor::store::postgres::PostgresStore;
use jobvisor::store::postgres::Remark;
use serde_json::Value;
use sqlx::Connection;
use sqlx::PgConnection;
use support::postgres::Cluster;
use support::postgres::Database;
use support::postgres::execute;
use support::wait_until;
use support::world::Lane;
use support::world::SOON;
use support::world::World;

const KIND: &str = "[kind.fault]\ncommand = [\"{fault}\", \"exit\", \"0\"]\n";

fn examine(url: &str, old: Duration) -> Vec<Remark> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(PostgresStore::examine(url, old)).expect("a server that answers")
}

fn find<'r>(remarks: &'r [Remark], part: &str) -> &'r Remark {
    remarks.iter().find(|remark| remark.what.contains(part)).unwrap_or_else(|| panic!("no `{part}` in {remarks:#?}"))
}

#[test]
fn a_server_that_is_as_it_should_be_gets_a_line_for_each_thing_looked_at() {
    let world = World::on_postgres(Lane::Auto, KIND);
    let told = String::from_utf8(world.run(&["doctor", "--json"]).stdout).expect("text");
    let findings: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for part in [
        "Postgres 1",
        "every session is our own",
        "a round trip takes",
        "the clocks of host and database agree",
        "connections are in use",
        "no old transaction",
    ] {
        let finding = findings.iter().find(|finding| finding["what"].as_str().is_some_and(|what| what.contains(part)));
        let finding = finding.unwrap_or_else(|| panic!("no `{part}` in {told}"));
        assert!(finding["good"] == true && finding["hint"].is_null(), "{finding}");
    }
    assert!(told.contains("there is no schema `jobvisor` yet") || told.contains("schema version"), "{told}");
    world.good(&["migrate"]);
    let told = String::from_utf8(world.run(&["doctor"]).stdout).expect("text");
    assert!(told.contains("[ok] schema version 1, which serves jobvisor 0.1.0 and newer"), "{told}");
}

#[tokio::test]
async fn g8_an_old_transaction_is_named_with_its_pid_and_a_young_one_is_not() {
    let database = Database::new();
    let mut reader = PgConnection::connect(&database.url).await.expect("a connection");
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut reader).await.expect("a pid");
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL application_name = 'report\x07'; SELECT 1";
    sqlx::raw_sql(begin).execute(&mut reader).await.expect("a snapshot");
    let old = |limit| {
        let url = database.url.clone();
        async move { PostgresStore::examine(&url, limit).await.expect("a server that answers") }
    };
    let remarks = old(Duration::from_secs(60)).await;
    assert_eq!(find(&remarks, "no old transaction").level, Level::Good);
    let remarks = old(Duration::ZERO).await;
    let found = find(&remarks, &format!("pid {pid} "));
    assert!(found.level == Level::Trouble && found.what.contains("idle in transaction"), "{found:?}");
    assert!(found.hint.as_ref().is_some_and(|hint| hint.contains("pg_terminate_backend")), "{found:?}");
    assert!(remarks.iter().all(|remark| !remark.what.contains("no old transaction")), "{remarks:?}");
    sqlx::raw_sql("COMMIT").execute(&mut reader).await.expect("its end");
    assert_eq!(find(&old(Duration::ZERO).await, "no old transaction").level, Level::Good);

    // Without a snapshot it holds nothing but what it has locked.
    sqlx::raw_sql("BEGIN").execute(&mut reader).await.expect("a transaction");
    let remarks = old(Duration::ZERO).await;
    assert_eq!(find(&remarks, &format!("pid {pid} ")).level, Level::Note);
}

#[test]
fn what_keeps_a_server_from_being_used_is_trouble() {
    let cluster = Cluster::start(&["max_connections=12", "max_prepared_transactions=2"]);
    let database = cluster.database();
    let remarks = examine(&database.url, Duration::ZERO);
    assert_eq!(find(&remarks, "connections are in use").level, Level::Trouble);
    database.execute("CREATE TABLE t (n int)");
    let prepare = database.try_psql("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'left'");
    assert!(prepare.status.success(), "{}", String::from_utf8_lossy(&prepare.stderr));
    let remarks = examine(&database.url, Duration::ZERO);
    assert_eq!(find(&remarks, "transaction `left` of postgres was prepared").level, Level::Trouble);
    database.execute("ROLLBACK PREPARED 'left'");

    execute(&cluster.url("postgres"), "CREATE ROLE nosy LOGIN");
    let theirs = database.url.replace("postgres@", "nosy@");
    let holder = std::thread::spawn({
        let url = database.url.clone();
        move || execute(&url, "SELECT pg_sleep(600)")
    });
    wait_until("somebody else's session is there", SOON, || {
        let there = database.psql(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND pid <> pg_backend_pid()",
        );
        if there == "1" { Ok(()) } else { Err(there) }
    });
    assert_eq!(find(&examine(&theirs, Duration::ZERO), "may not look into").level, Level::Note);
    let killed = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND pid <> pg_backend_pid()";
    assert_eq!(database.psql(killed), "t");
    assert!(holder.join().is_err(), "its session was ended");

    database.execute(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name()));
    assert_eq!(find(&examine(&database.url, Duration::ZERO), "read-only by default").level, Level::Trouble);
    cluster.stop("fast");
    std::fs::write(cluster.folder().join("data/standby.signal"), "").expect("a file");
    cluster.resume();
    assert_eq!(find(&examine(&database.url, Duration::ZERO), "is a standby").level, Level::Trouble);
}

/// A pooler in front of a server, which lends sessions for a transaction.
struct Pooler {
    process: std::process::Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Pooler {
    /// `None`: there is no pgbouncer here.
    #[expect(clippy::disallowed_methods, reason = "tests start their servers themselves")]
    fn start(cluster: &Cluster) -> Option<Self> {
        let folder = tempfile::Builder::new().prefix("jobvisor-pooler-").tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let config = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = transaction\nignore_startup_parameters = extra_float_digits\n",
            cluster.folder().display(),
            cluster.port()
        );
        let config = config.replace("* = host", "* = user=postgres host");
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, config).expect("a file");
        let mut command = std::process::Command::new("pgbouncer");
        command.arg("-q").args(nix::unistd::geteuid().is_root().then_some(["-u", "postgres"]).into_iter().flatten());
        let process = command.arg(&file).stdin(std::process::Stdio::null()).spawn().ok()?;
        let pooler = Self { process, port, _folder: folder };
        wait_until("the pooler listens", SOON, || {
            std::net::TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| error.to_string())
        });
        Some(pooler)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[test]
fn g6_a_pooler_that_lends_out_sessions_is_found() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database();
    let Some(pooler) = Pooler::start(&cluster) else {
        support::skip("g6_a_pooler_that_lends_out_sessions_is_found", "there is no pgbouncer here");
        return;
    };
    let url = format!("postgres://postgres@127.0.0.1:{}/{}", pooler.port, database.name());
    let remarks = examine(&url, Duration::from_secs(60));
    assert_eq!(find(&remarks, "a pooler lends out sessions").level, Level::Note);
    assert!(remarks.iter().all(|remark| remark.level != Level::Trouble), "{remarks:#?}");
    assert_eq!(find(&examine(&database.url, Duration::from_secs(60)), "every session is our own").level, Level::Good);
}
