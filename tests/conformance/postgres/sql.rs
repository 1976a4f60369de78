//! The functions for programs in any language, through `psql` and a driver of another language, and who may call them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use ::support::postgres::{Cluster, Database};
use jobvisor::domain::cause::Cause;
use jobvisor::domain::ids::JobId;
use jobvisor::domain::job::JobState;
use jobvisor::domain::retry::Next;
use jobvisor::domain::units::Bytes;
use jobvisor::store::postgres::PostgresStore;
use jobvisor::store::{Acted, Enqueued, Filter, NewJob, Store, StoreError};
use sqlx::postgres::{PgConnection, PgListener};
use sqlx::{AssertSqlSafe, Connection, Executor, Row};

use crate::fixture::{Fixture, Postgres};
use crate::support::{add, begin, claim, failure, finish, job, new_job, running, state, success};

fn keyed() -> NewJob {
    NewJob { unique_key: Some("key".to_owned()), ..new_job("k") }
}

async fn connect(database: &Database) -> PgConnection {
    PgConnection::connect(&database.url).await.unwrap()
}

fn stderr(output: &Output) -> String {
    assert!(!output.status.success(), "it was allowed");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_batch_is_answered_in_order_plain_or_not() {
    let fixture = Postgres::new().await;
    let plain: Vec<NewJob> = (0..100).map(|n| NewJob { payload: n.to_string(), ..new_job("k") }).collect();
    let mut careful = plain.clone();
    careful[50].unique_key = Some("key".to_owned());
    for jobs in [plain, careful] {
        let added = fixture.store().enqueue(&jobs).await.unwrap();
        let ids: Vec<String> = added.iter().map(|added| added.id().to_string()).collect();
        let told = fixture.database.psql(&format!(
            "SELECT string_agg(payload::text, ',' ORDER BY array_position('{{{0}}}'::bigint[], id)) FROM jobvisor.jobs
             WHERE id = ANY('{{{0}}}')",
            ids.join(",")
        ));
        let expected: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        assert_eq!(told, expected.join(","));
    }
    let added = fixture.store().enqueue(&[keyed(), new_job("k"), keyed()]).await.unwrap();
    assert!(matches!(added[..], [Enqueued::Exists(one), Enqueued::New(_), Enqueued::Exists(two)] if one == two));
    let missing = NewJob { after: vec![JobId(4711)], ..new_job("k") };
    let error = fixture.store().enqueue(&[new_job("k"), missing]).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSuchJob(4711)), "{error:?}");
    assert_eq!(fixture.database.psql("SELECT count(*) FROM jobvisor.jobs"), "201");
}

#[tokio::test]
async fn every_argument_of_the_functions_arrives() {
    let fixture = Postgres::new().await;
    let (store, psql) = (fixture.store(), |sql: &str| fixture.database.psql(sql));
    assert_eq!(psql("SELECT jobvisor.enqueue('k')"), "1");
    let plain = job(store, JobId(1)).await;
    assert_eq!((plain.state, plain.payload.as_str(), plain.priority), (JobState::Queued, "{}", 0));
    assert_eq!((plain.budget.max_attempts, plain.memory, plain.tenant.as_str()), (3, None, ""));
    let id = psql(
        "SELECT jobvisor.enqueue(kind => 'heavy', payload => '{\"a\": [1, null]}', priority => -5,
             run_at => '2100-01-01T00:00:00Z', max_attempts => 7, memory => 67108864, tenant => 't', unique_key => 'u',
             after => '{1,1}')",
    );
    let full = job(store, id.parse().unwrap()).await;
    assert_eq!((full.kind.as_str(), full.state, full.priority), ("heavy", JobState::Waiting, -5));
    assert_eq!(
        (full.payload.as_str(), full.run_at.to_string().as_str()),
        ("{\"a\": [1, null]}", "2100-01-01T00:00:00Z")
    );
    assert_eq!((full.budget.max_attempts, full.memory), (7, Some(Bytes::mib(64))));
    assert_eq!((full.tenant.as_str(), full.unique_key.as_deref()), ("t", Some("u")));
    assert_eq!(psql("SELECT jobvisor.enqueue('heavy', unique_key => 'u')"), id);
    assert_ne!(psql("SELECT jobvisor.enqueue('light', unique_key => 'u')"), id, "a key is held within its kind");
    assert_eq!(psql("SELECT jobvisor.enqueue('k', run_at => now() - interval '1 day')"), "4");
    assert_eq!(psql("SELECT jobvisor.enqueue('k', 'null', run_at => now() + interval '1 day')"), "5");
    assert_eq!((state(store, JobId(4)).await, state(store, JobId(5)).await), (JobState::Queued, JobState::Scheduled));
    let many = psql(
        "SELECT jobvisor.enqueue_many('k', ARRAY['1', '\"two\"', '{}']::jsonb[], priority => 9, max_attempts => 1,
             memory => 1048576, tenant => 't', after => '{1,4}')",
    );
    assert_eq!(many, "{6,7,8}");
    for (id, payload) in [(6, "1"), (7, "\"two\""), (8, "{}")] {
        let row = job(store, JobId(id)).await;
        assert_eq!((row.payload.as_str(), row.state, row.priority), (payload, JobState::Waiting, 9));
        assert_eq!((row.budget.max_attempts, row.memory, row.tenant.as_str()), (1, Some(Bytes::mib(1)), "t"));
    }
    assert_eq!(psql("SELECT jobvisor.enqueue_many('k', '{}')"), "{}");
    assert_eq!(psql("SELECT jobvisor.cancel(4, 'me')"), "done");
    for id in [6, 7, 8] {
        assert_eq!(state(store, JobId(id)).await, JobState::Cancelled, "it came after 4");
    }
    assert_eq!(psql("SELECT jobvisor.enqueue_many('k', '{1,2}', after => '{4}')"), "{9,10}");
    assert_eq!(state(store, JobId(9)).await, JobState::Cancelled);
    let told = psql("SELECT * FROM jobvisor.cancel_many('{1,4,1,99}')");
    assert_eq!(told, "1|done|cancelled\n4|refused|cancelled\n1|refused|cancelled\n99|missing|");
    let told = psql("SELECT * FROM jobvisor.retry_many('{1,99,1}')");
    assert_eq!(told, "1|done|queued\n99|missing|\n1|refused|queued");
    assert_eq!(psql("SELECT jobvisor.retry(4)"), "done");
    assert_eq!(psql("SELECT cancel_by FROM jobvisor.jobs WHERE id = 6"), "a job that it came after");
}

#[tokio::test]
async fn a_wrong_argument_is_named() {
    let fixture = Postgres::new().await;
    fixture.database.execute("SELECT jobvisor.enqueue('k')");
    for (call, message) in [
        ("enqueue('')", "jobvisor.enqueue: kind must not be empty"),
        ("enqueue(NULL)", "jobvisor.enqueue: kind must not be empty"),
        ("enqueue('k', NULL)", "jobvisor.enqueue: payload must not be null"),
        ("enqueue('k', '{')", "invalid input syntax for type json"),
        ("enqueue('k', priority => NULL)", "jobvisor.enqueue: priority must not be null"),
        ("enqueue('k', max_attempts => 0)", "jobvisor.enqueue: max_attempts must be at least 1"),
        ("enqueue('k', memory => 0)", "jobvisor.enqueue: memory must be at least 1 byte"),
        ("enqueue('k', tenant => NULL)", "jobvisor.enqueue: tenant must not be null"),
        ("enqueue('k', after => NULL)", "jobvisor.enqueue: after must not be or hold null"),
        ("enqueue('k', after => '{1,NULL}')", "jobvisor.enqueue: after must not be or hold null"),
        ("enqueue('k', after => '{1,77}')", "job 77 does not exist"),
        ("enqueue_many('', '{1}')", "jobvisor.enqueue_many: kind must not be empty"),
        ("enqueue_many('k', NULL)", "jobvisor.enqueue_many: payloads must not be or hold null"),
        ("enqueue_many('k', '{1,NULL}')", "jobvisor.enqueue_many: payloads must not be or hold null"),
        ("enqueue_many('k', '{1}', after => '{78}')", "job 78 does not exist"),
        ("cancel_many(NULL)", "jobvisor.cancel_many: ids and by must not be null"),
        ("cancel_many('{1,NULL}')", "jobvisor.cancel_many: ids and by must not be null"),
        ("cancel(1, NULL)", "jobvisor.cancel_many: ids and by must not be null"),
        ("cancel(NULL)", "jobvisor.cancel_many: ids and by must not be null"),
        ("retry_many(NULL)", "jobvisor.retry_many: ids must not be null"),
    ] {
        let told = stderr(&fixture.database.try_psql(&format!("SELECT jobvisor.{call}")));
        assert!(told.contains(message), "{call}: {told}");
    }
    assert_eq!(fixture.database.psql("SELECT count(*), min(state) FROM jobvisor.jobs"), "1|queued");
}

#[tokio::test]
async fn i11_what_the_functions_do_belongs_to_the_callers_transaction() {
    let fixture = Postgres::new().await;
    let psql = |sql: &str| drop(fixture.database.psql(sql));
    psql("BEGIN; SELECT jobvisor.enqueue('k'), jobvisor.enqueue_many('k', '{1,2}'); ROLLBACK");
    assert_eq!(fixture.store().list(&Filter::default()).await.unwrap(), []);
    psql("BEGIN; SELECT jobvisor.enqueue('k'), jobvisor.enqueue_many('k', '{1,2}'); COMMIT");
    let ids: Vec<JobId> = fixture.store().list(&Filter::default()).await.unwrap().iter().map(|job| job.id).collect();
    assert_eq!(ids.len(), 3);
    psql(&format!("BEGIN; SELECT jobvisor.cancel({}); ROLLBACK", ids[0]));
    assert_eq!(state(fixture.store(), ids[0]).await, JobState::Queued);
    psql(&format!("BEGIN; SELECT jobvisor.cancel({}); COMMIT", ids[0]));
    assert_eq!(state(fixture.store(), ids[0]).await, JobState::Cancelled);
    psql(&format!("BEGIN; SELECT jobvisor.retry({}); ROLLBACK", ids[0]));
    assert_eq!(state(fixture.store(), ids[0]).await, JobState::Cancelled);
    let killed = "BEGIN; SELECT jobvisor.enqueue('k'); SELECT pg_terminate_backend(pg_backend_pid())";
    stderr(&fixture.database.try_psql(killed));
    assert_eq!(fixture.store().list(&Filter::default()).await.unwrap().len(), 3);
}

/// A Python with psycopg 3, made once beside the build; `None`: it cannot be.
fn python(test: &str) -> Option<PathBuf> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../test-venv");
    let lock = File::create(place.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let python = place.join("bin/python");
    let works = |program: &Path| tool(program, &["-c", "import psycopg"]).is_some_and(|told| told.status.success());
    if !works(&python) {
        let folder = place.display().to_string();
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "psycopg[binary]"];
        let made = tool(Path::new("python3"), &["-m", "venv", "--clear", &folder]).and_then(|_| tool(&python, &pip));
        if made.is_none() || !works(&python) {
            ::support::skip(test, "psycopg cannot be installed here");
            return None;
        }
    }
    Some(python)
}

fn tool(program: &Path, arguments: &[&str]) -> Option<Output> {
    Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()
}

const PSYCOPG: &str = r#"
import datetime, json, sys
import psycopg
from psycopg.types.json import Jsonb

url = sys.argv[1]
def one(conn, sql, *values):
    return conn.execute(sql, values).fetchone()[0]

with psycopg.connect(url) as conn:
    conn.execute("CREATE TABLE orders (id bigint PRIMARY KEY, job bigint)")
ids = []
try:
    with psycopg.connect(url) as conn:
        ids.append(one(conn, "SELECT jobvisor.enqueue(%s, %s)", "mail", Jsonb({"order": 1})))
        conn.execute("INSERT INTO orders VALUES (1, %s)", (ids[0],))
        raise RuntimeError("the application fails")
except RuntimeError:
    pass
with psycopg.connect(url) as conn:
    assert one(conn, "SELECT count(*) FROM jobvisor.jobs") == 0
    assert one(conn, "SELECT count(*) FROM orders") == 0
with psycopg.connect(url) as conn:
    job = one(conn, "SELECT jobvisor.enqueue(%s, %s, tenant => %s, memory => %s)", "mail", Jsonb({"\u00e4": [1]}), "t", 1 << 26)
    conn.execute("INSERT INTO orders VALUES (2, %s)", (job,))
    when = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
    late = one(conn, "SELECT jobvisor.enqueue(kind => %s, run_at => %s, after => %s, unique_key => %s)", "mail", when, [job], "u")
    same = one(conn, "SELECT jobvisor.enqueue(kind => %s, unique_key => %s)", "mail", "u")
    assert late == same
    many = one(conn, "SELECT jobvisor.enqueue_many(%s, %s)", "bulk", [Jsonb(n) for n in range(1000)])
    assert many == sorted(many) and len(many) == 1000
with psycopg.connect(url, autocommit=True) as conn:
    try:
        one(conn, "SELECT jobvisor.enqueue(%s)", "")
        raise SystemExit("an empty kind was taken")
    except psycopg.errors.InvalidParameterValue as error:
        assert "kind must not be empty" in str(error)
    assert one(conn, "SELECT jobvisor.cancel(%s, %s)", many[0], "me") == "done"
    rows = conn.execute("SELECT * FROM jobvisor.cancel_many(%s)", (many[:2],)).fetchall()
    assert [row[1] for row in rows] == ["refused", "done"], rows
    assert one(conn, "SELECT jobvisor.retry(%s)", many[0]) == "done"
    rows = conn.execute("SELECT * FROM jobvisor.retry_many(%s)", ([many[1], 10 ** 12],)).fetchall()
    assert [row[1] for row in rows] == ["done", "missing"], rows
print(json.dumps([job, late]))
"#;

#[tokio::test]
async fn i11_another_languages_driver_enqueues_in_its_own_transactions() {
    let Some(python) = python("i11_another_languages_driver_enqueues_in_its_own_transactions") else { return };
    let fixture = Postgres::new().await;
    let told = tool(&python, &["-c", PSYCOPG, &fixture.database.url]).unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let [done, late]: [i64; 2] = serde_json::from_slice(&told.stdout).unwrap();
    let row = job(fixture.store(), JobId(done)).await;
    assert_eq!((row.payload.as_str(), row.tenant.as_str()), ("{\"\u{e4}\": [1]}", "t"));
    assert_eq!(state(fixture.store(), JobId(late)).await, JobState::Waiting);
    assert_eq!(fixture.store().list(&Filter::default()).await.unwrap().len(), 1002);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k5_a_key_whose_first_holder_rolls_back_goes_to_one_of_the_others() {
    let fixture = Postgres::new().await;
    let mut first = connect(&fixture.database).await;
    first.execute("BEGIN").await.unwrap();
    first.execute("SELECT jobvisor.enqueue('k', unique_key => 'key')").await.unwrap();
    let mut others = Vec::new();
    for n in 0..19 {
        let mut conn = connect(&fixture.database).await;
        let store = fixture.another().await;
        others.push(tokio::spawn(async move {
            if n % 2 == 0 {
                return store.enqueue(&[keyed()]).await.unwrap()[0].id().0;
            }
            sqlx::query_scalar("SELECT jobvisor.enqueue('k', unique_key => 'key')").fetch_one(&mut conn).await.unwrap()
        }));
    }
    ::support::wait_until("nineteen wait for the first", Duration::from_secs(20), || {
        let waiting = fixture.database.psql(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        );
        if waiting == "19" { Ok(()) } else { Err(format!("{waiting} wait")) }
    });
    first.execute("ROLLBACK").await.unwrap();
    let mut ids = Vec::new();
    for other in others {
        ids.push(other.await.unwrap());
    }
    let jobs = fixture.store().list(&Filter::default()).await.unwrap();
    assert_eq!(jobs.len(), 1);
    assert!(ids.iter().all(|id| *id == jobs[0].id.0), "{ids:?}");
}

/// Notices that have come by now: those of this one's own end mark before it.
async fn notices(listener: &mut PgListener, database: &Database) -> Vec<String> {
    database.execute("SELECT pg_notify('jobvisor', 'the end')");
    let mut heard = Vec::new();
    loop {
        let notice = listener.recv().await.unwrap().payload().to_owned();
        if notice == "the end" {
            return heard;
        }
        heard.push(notice);
    }
}

async fn listen(database: &Database) -> PgListener {
    let mut listener = PgListener::connect(&database.url).await.unwrap();
    listener.listen("jobvisor").await.unwrap();
    listener
}

#[tokio::test]
async fn g7_a_large_payload_and_ten_thousand_rows_cause_few_notices() {
    let fixture = Postgres::new().await;
    begin(fixture.store()).await;
    let (mut listener, mut conn) = (listen(&fixture.database).await, connect(&fixture.database).await);
    let mut busy = async |conn: &mut PgConnection| {
        let big = format!("{{\"a\":\"{}\"}}", "x".repeat(1 << 20));
        sqlx::query("SELECT jobvisor.enqueue('k', $1::text::jsonb)").bind(&big).execute(&mut *conn).await.unwrap();
        conn.execute("BEGIN; SELECT jobvisor.enqueue('k', to_jsonb(n)) FROM generate_series(1, 9000) n").await.unwrap();
        conn.execute(
            "SELECT jobvisor.enqueue_many('k', array_agg(to_jsonb(n))) FROM generate_series(1, 1000) n; COMMIT",
        )
        .await
        .unwrap();
        fixture.store().enqueue(&vec![NewJob { payload: big, ..new_job("k") }; 3]).await.unwrap();
        notices(&mut listener, &fixture.database).await
    };
    assert_eq!(busy(&mut conn).await, Vec::<String>::new(), "nobody sleeps");
    fixture.database.execute("UPDATE jobvisor.supervisors SET sleeping = true");
    assert_eq!(busy(&mut conn).await, [""; 3], "one for each transaction, and nothing in it");
    fixture.database.execute("UPDATE jobvisor.supervisors SET lost_at = now()");
    assert_eq!(busy(&mut conn).await, Vec::<String>::new(), "who is lost hears nothing");
    assert_eq!(fixture.database.psql("SELECT count(*) FROM jobvisor.jobs"), "30012");
}

#[tokio::test]
async fn sleepers_are_told_of_all_that_becomes_due() {
    let fixture = Postgres::new().await;
    let (store, database) = (fixture.store(), &fixture.database);
    let term = begin(store).await;
    let (mut listener, nothing) = (listen(database).await, Vec::<String>::new());
    database.execute("UPDATE jobvisor.supervisors SET sleeping = true");
    let parent = running(store, term).await;
    let child = add(store, NewJob { after: vec![parent.job], ..new_job("k") }).await;
    notices(&mut listener, database).await;
    store
        .enqueue(&[NewJob { run_at: Some(store.now().await.unwrap() + Duration::from_secs(60)), ..new_job("k") }])
        .await
        .unwrap();
    assert_eq!(notices(&mut listener, database).await, [""], "a scheduled job may be earlier than what is known");
    finish(store, success(parent)).await;
    assert_eq!(
        (notices(&mut listener, database).await, state(store, child).await),
        (vec![String::new()], JobState::Queued)
    );
    let claimed = claim(store, term, "k", 1).await.remove(0).fence;
    assert_eq!(store.cancel(&[claimed.job], "me").await.unwrap(), [(claimed.job, Acted::Requested)]);
    assert_eq!(notices(&mut listener, database).await, ["cancel"]);
    database.execute("UPDATE jobvisor.supervisors SET sleeping = false");
    store.cancel(&[claimed.job], "me").await.unwrap();
    assert_eq!(notices(&mut listener, database).await, ["cancel"], "whether anybody sleeps or not");
    database.execute("UPDATE jobvisor.supervisors SET sleeping = true");
    finish(store, failure(claimed, Cause::Cancelled, Next::Cancelled)).await;
    assert_eq!(notices(&mut listener, database).await, nothing, "nothing became due");
    store.retry(&[claimed.job]).await.unwrap();
    assert_eq!(notices(&mut listener, database).await, [""]);
}

/// As a member of `role`, whoever the tests are.
fn as_role(role: &str, sql: &str) -> String {
    format!("SET ROLE {role}; {sql}")
}

#[tokio::test]
async fn roles_may_do_what_they_are_named_for_and_nothing_else() {
    let fixture = Postgres::new().await;
    let database = &fixture.database;
    database.execute("SELECT jobvisor.enqueue_many('k', '{1,2,3}')");
    let calls = [
        ("enqueue", "SELECT jobvisor.enqueue('k', after => '{1}', unique_key => 'u')"),
        ("enqueue_many", "SELECT jobvisor.enqueue_many('k', '{1}')"),
        ("cancel", "SELECT jobvisor.cancel(2)"),
        ("cancel_many", "SELECT jobvisor.cancel_many('{2}')"),
        ("retry", "SELECT jobvisor.retry(2)"),
        ("retry_many", "SELECT jobvisor.retry_many('{2}')"),
        ("pause", "INSERT INTO jobvisor.kinds (name, paused_by) VALUES ('k', 'me') ON CONFLICT DO NOTHING"),
        ("resume", "DELETE FROM jobvisor.kinds"),
        ("read", "SELECT count(*) FROM jobvisor.jobs, jobvisor.attempts, jobvisor.supervisors, jobvisor.kinds"),
        ("add_job", "SELECT jobvisor.add_job(NULL, 'k', '1', 0, NULL, '', NULL, '{}', NULL, 1, 1, 1, 1, 1, NULL)"),
        ("insert", "INSERT INTO jobvisor.jobs (kind, state, payload) VALUES ('k', 'queued', '1')"),
        ("update", "UPDATE jobvisor.jobs SET priority = 1"),
        ("delete", "DELETE FROM jobvisor.jobs WHERE id = 3"),
        ("attempts", "DELETE FROM jobvisor.attempts"),
        ("terms", "UPDATE jobvisor.supervisors SET sleeping = true"),
        ("meta", "UPDATE jobvisor.meta SET value = '9'"),
        ("migrations", "DELETE FROM jobvisor.migrations"),
        ("alter", "ALTER TABLE jobvisor.jobs ADD COLUMN x int"),
        ("create", "CREATE TABLE jobvisor.mine (x int)"),
    ];
    let operator = ["cancel", "cancel_many", "retry", "retry_many", "pause", "resume", "read"].as_slice();
    let never = ["meta", "migrations", "alter", "create"];
    let everything: Vec<&str> = calls.iter().map(|(name, _)| *name).filter(|name| !never.contains(name)).collect();
    for (role, allowed) in [
        ("jobvisor_enqueuer", ["enqueue", "enqueue_many"].as_slice()),
        ("jobvisor_operator", operator),
        ("jobvisor_reader", ["read"].as_slice()),
        ("jobvisor_supervisor", &everything),
    ] {
        for (name, sql) in calls {
            let told = database.try_psql(&as_role(role, sql));
            let why = String::from_utf8_lossy(&told.stderr);
            assert_eq!(told.status.success(), allowed.contains(&name), "{role}: {name}: {why}");
            assert!(
                told.status.success() || why.contains("permission denied") || why.contains("must be owner"),
                "{why}"
            );
        }
    }
    // A caller's own functions and operators do not get into those that run as somebody else.
    database.execute("CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC");
    for (name, arguments, returns) in
        [("now", "", "timestamptz"), ("unnest", "anyarray", "anyelement"), ("cardinality", "anyarray", "int")]
    {
        database.execute(&format!(
            "CREATE FUNCTION evil.{name}({arguments}) RETURNS {returns} LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'called as %', current_user; END $$"
        ));
    }
    let path = "SET search_path = evil, pg_catalog; SET ROLE jobvisor_enqueuer";
    database.execute(&format!(
        "{path}; SELECT jobvisor.enqueue('k', after => '{{1}}'), jobvisor.enqueue_many('k', '{{1}}')"
    ));
    let told = stderr(&database.try_psql(&format!("{path}; SELECT now()")));
    assert!(told.contains("called as jobvisor_enqueuer"), "{told}");
}

#[tokio::test]
async fn a_supervisor_needs_no_more_than_its_role() {
    let fixture = Postgres::new().await;
    let joint = if fixture.database.url.contains('?') { '&' } else { '?' };
    let url = format!("{}{joint}options=-c%20role%3Djobvisor_supervisor", fixture.database.url);
    let store = PostgresStore::open(&url, true).await.unwrap();
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let row = conn.fetch_one("SELECT current_user::text").await.unwrap();
    assert_eq!(row.get::<String, _>(0), "jobvisor_supervisor");
    let term = begin(&store).await;
    let fence = running(&store, term).await;
    let child = add(&store, NewJob { after: vec![fence.job], schedule: Some("s".to_owned()), ..keyed() }).await;
    finish(&store, success(fence)).await;
    assert_eq!(state(&store, child).await, JobState::Queued);
    assert_eq!(store.cancel(&[child], "me").await.unwrap(), [(child, Acted::Done)]);
    assert_eq!(store.retry(&[child]).await.unwrap(), [(child, Acted::Done)]);
    store.pause(&["k".to_owned()], "me").await.unwrap();
    store.resume(&["k".to_owned()]).await.unwrap();
    store.promote(10).await.unwrap();
    store.end_term(term).await.unwrap();
}

#[tokio::test]
async fn a_user_who_may_not_make_roles_gets_the_schema_without_them() {
    let cluster = Cluster::start(&[]);
    ::support::postgres::execute(&cluster.url("postgres"), "CREATE ROLE app LOGIN");
    ::support::postgres::execute(&cluster.url("postgres"), "CREATE DATABASE app OWNER app");
    let url = cluster.url("app").replace("postgres@", "app@");
    let store = PostgresStore::open(&url, true).await.unwrap();
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let id: i64 = sqlx::query_scalar("SELECT jobvisor.enqueue('k')").fetch_one(&mut conn).await.unwrap();
    assert_eq!(state(&store, JobId(id)).await, JobState::Queued);
    let roles = "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'jobvisor%'";
    let roles: i64 = sqlx::query_scalar(AssertSqlSafe(roles)).fetch_one(&mut conn).await.unwrap();
    assert_eq!(roles, 0);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_take_the_same_keys_in_opposite_order_all_succeed() {
    let fixture = Postgres::new().await;
    let batch: Vec<NewJob> = (0..40).map(|n| NewJob { unique_key: Some(format!("key {n}")), ..new_job("k") }).collect();
    let mut senders = Vec::new();
    for n in 0..4 {
        let (store, mut batch) = (fixture.another().await, batch.clone());
        if n % 2 == 1 {
            batch.reverse();
        }
        senders.push(tokio::spawn(async move { store.enqueue(&batch).await.unwrap().len() }));
    }
    for sender in senders {
        assert_eq!(sender.await.unwrap(), 40);
    }
    assert_eq!(fixture.store().list(&Filter::default()).await.unwrap().len(), 40);
}
