//! What only the SQLite store has: a file, its lock, its schema, and other processes that write to it.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jobvisor::domain::clock::monotonic;
use jobvisor::domain::ids::JobId;
use jobvisor::domain::job::JobState;
use jobvisor::store::sqlite::{OpenMode, SqliteStore};
use jobvisor::store::{AttemptRecord, Enqueued, Filter, Finish, Finished, Store, StoreError};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Executor};

use crate::fixture::{Fixture, Sqlite};
use crate::support::{add, begin, claim, new_job, running, state, success};

async fn raw(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).busy_timeout(Duration::from_secs(10)).connect().await.unwrap()
}

#[tokio::test]
async fn the_schema_refuses_rows_that_cannot_be() {
    let fixture = Sqlite::new().await;
    let term = begin(fixture.store()).await;
    let fence = running(fixture.store(), term).await;
    let mut conn = raw(&fixture.path).await;
    for (change, constraint) in [
        ("state = 'lost'", "state_known"),
        ("state = 'queued'", "running_has_term"),
        ("term = NULL", "running_has_term"),
        ("claim_seq = NULL", "running_was_claimed"),
        ("state = 'dead', term = NULL", "finished_has_time"),
        ("finished_at = 1", "finished_has_time"),
        ("charged = -1", "budget"),
        ("charged = 2", "budget"),
        ("charged = 4, attempt = 4", "budget"),
        ("interruptions = 2", "interruptions_counted"),
        ("max_attempts = 0, charged = 0", "budgets_possible"),
        ("cancel_requested = 2", "cancel_is_asked_while_running"),
        ("cancel_requested = 1, state = 'queued', term = NULL", "cancel_is_asked_while_running"),
        ("kind = ''", "kind_named"),
        ("payload = '{'", "payload_is_json"),
        ("result = 'x'", "result_is_json"),
    ] {
        let statement = sqlx::AssertSqlSafe(format!("UPDATE jobs SET {change}"));
        let error = conn.execute(statement).await.expect_err(change).to_string();
        assert!(error.contains(constraint), "{change}: {error}");
    }
    assert_eq!(state(fixture.store(), fence.job).await, JobState::Running);
}

#[tokio::test]
async fn only_creating_commands_make_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let missing = SqliteStore::open(&path, OpenMode::Existing, true).await.unwrap_err();
    assert!(matches!(missing, StoreError::Missing { .. }), "{missing:?}");
    let steps = SqliteStore::pending(&path).await.unwrap();
    let forbidden = SqliteStore::open(&path, OpenMode::Create, false).await.unwrap_err();
    assert!(matches!(forbidden, StoreError::NotMigrated { missing } if missing == steps), "{forbidden:?}");
    assert!(!path.exists());
    let nowhere = SqliteStore::open(&folder.path().join("no/jobs.db"), OpenMode::Create, true).await.unwrap_err();
    assert!(matches!(nowhere, StoreError::Place { .. }), "{nowhere:?}");
    let is_folder = SqliteStore::open(folder.path(), OpenMode::Create, true).await.unwrap_err();
    assert!(matches!(is_folder, StoreError::Place { .. }), "{is_folder:?}");
    assert_eq!(SqliteStore::migrate(&path).await.unwrap(), steps);
    assert_eq!((SqliteStore::pending(&path).await.unwrap(), SqliteStore::migrate(&path).await.unwrap()), (0, 0));
    SqliteStore::open(&path, OpenMode::Existing, false).await.unwrap();
}

#[tokio::test]
async fn the_printed_steps_make_the_same_schema() {
    let fixture = Sqlite::new().await;
    let by_hand = fixture.path.with_file_name("by_hand.db");
    let mut conn = SqliteConnectOptions::new().filename(&by_hand).create_if_missing(true).connect().await.unwrap();
    conn.execute(sqlx::AssertSqlSafe(SqliteStore::migration_sql())).await.unwrap();
    let schema = "SELECT sql FROM sqlite_schema WHERE name NOT LIKE '%sqlx%' AND sql IS NOT NULL ORDER BY name";
    let printed: Vec<String> = sqlx::query_scalar(schema).fetch_all(&mut conn).await.unwrap();
    let made: Vec<String> = sqlx::query_scalar(schema).fetch_all(&mut raw(&fixture.path).await).await.unwrap();
    assert_eq!(printed, made);
    assert!(printed.len() > 6);
}

#[tokio::test]
async fn a_newer_schema_says_whom_it_serves() {
    let fixture = Sqlite::new().await;
    let mut conn = raw(&fixture.path).await;
    conn.execute(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9000, 'from the future', TRUE, x'00', 0)",
    )
    .await
    .unwrap();
    let store = SqliteStore::open(&fixture.path, OpenMode::Existing, true).await.unwrap();
    add(&store, new_job("k")).await;
    conn.execute("UPDATE meta SET value = '900.0.0' WHERE key = 'min_binary'").await.unwrap();
    let error = SqliteStore::open(&fixture.path, OpenMode::Existing, true).await.unwrap_err();
    let expected = ("900.0.0".to_owned(), 9000);
    assert!(matches!(&error, StoreError::TooNew { found, min_binary, .. } if (min_binary.clone(), *found) == expected));
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    std::fs::write(&path, "these are notes, not a database; they must stay as they are").unwrap();
    let error = SqliteStore::open(&path, OpenMode::Create, true).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("these are notes"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_a_lock_that_is_held_too_long_is_unavailable_and_reading_goes_on() {
    let fixture = Sqlite::new().await;
    let (store, term) = (fixture.shared(), begin(fixture.store()).await);
    let mut outside = raw(&fixture.path).await;
    outside.execute("BEGIN IMMEDIATE").await.unwrap();
    let writer = fixture.shared();
    let blocked = tokio::spawn(async move { writer.enqueue(&[new_job("k")]).await });
    assert_eq!(claim(&*store, term, "k", 1).await, [], "an idle poll needs no lock");
    assert_eq!(store.list(&Filter::default()).await.unwrap(), []);
    let error = blocked.await.unwrap().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    outside.execute("COMMIT").await.unwrap();
    add(&*store, new_job("k")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_is_dropped_leaves_the_write_done() {
    let fixture = Sqlite::new().await;
    let mut outside = raw(&fixture.path).await;
    outside.execute("BEGIN IMMEDIATE").await.unwrap();
    for _ in 0..3 {
        let job = [new_job("k")];
        let dropped = tokio::time::timeout(Duration::from_millis(20), fixture.store().enqueue(&job)).await;
        assert!(dropped.is_err());
    }
    outside.execute("COMMIT").await.unwrap();
    add(fixture.store(), new_job("k")).await;
    assert_eq!(fixture.store().list(&Filter::default()).await.unwrap().len(), 4);
}

#[test]
fn i4_one_supervisor_holds_the_lock_until_the_last_copy_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let lock = SqliteStore::lock_for_supervisor(&path, "first").unwrap();
    let held = || match SqliteStore::lock_for_supervisor(&path, "second") {
        Err(StoreError::Locked { pid, name, .. }) => (u32::try_from(pid).unwrap(), name),
        other => panic!("{other:?}"),
    };
    assert_eq!(held(), (std::process::id(), "first".to_owned()));
    let wardens_copy = lock.as_fd().try_clone_to_owned().unwrap();
    drop(lock);
    assert_eq!(held(), (std::process::id(), "first".to_owned()));
    drop(wardens_copy);
    SqliteStore::lock_for_supervisor(&path, "second").unwrap();
}

#[test]
fn what_a_dead_supervisor_left_behind_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let mut gone = start(Command::new("true"));
    let zombie = i32::try_from(gone.id()).unwrap();
    wait_for_zombie(zombie);
    let lock = SqliteStore::lock_for_supervisor(&path, "first").unwrap();
    let signed = std::fs::read_to_string(lock.path()).unwrap();
    let mut holder: serde_json::Value = serde_json::from_str(&signed).unwrap();
    (holder["pid"], holder["start_time"]) = (zombie.into(), start_time(zombie).into());
    std::fs::write(lock.path(), holder.to_string()).unwrap();
    let until = monotonic() + Duration::from_millis(300);
    let left = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(lock);
    });
    SqliteStore::lock_for_supervisor(&path, "second").unwrap();
    assert!(monotonic() >= until, "the lock was taken while it was held");
    left.join().unwrap();
    gone.wait().unwrap();
}

fn stat_fields(pid: i32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().map(str::to_owned).collect()
}

fn start_time(pid: i32) -> u64 {
    stat_fields(pid)[19].parse().unwrap()
}

fn wait_for_zombie(pid: i32) {
    while stat_fields(pid)[0] != "Z" {
        std::thread::yield_now();
    }
}

#[expect(clippy::disallowed_methods, reason = "a plain process of the test, not a job")]
fn start(mut command: Command) -> Child {
    command.spawn().unwrap()
}

/// Starts one of the ignored tests below as a process of its own.
fn start_self(test: &str, path: &Path, count: u32) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("CHILD_DB", path)
        .env("CHILD_COUNT", count.to_string())
        .stdout(Stdio::piped());
    start(command)
}

/// Starts a process that adds jobs; it says each id that it was given.
fn start_enqueuer(path: &Path, count: u32) -> Child {
    start_self("sqlite::child_that_enqueues", path, count)
}

/// The ids that an enqueuer has been given so far.
fn ids_of(child: &mut Child) -> impl Iterator<Item = JobId> + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("added ")?.parse().ok())
}

#[tokio::test]
#[ignore = "no test of its own: the process that other tests start"]
async fn child_that_enqueues() {
    let Some(path) = std::env::var_os("CHILD_DB").map(PathBuf::from) else { return };
    let count: u32 = std::env::var("CHILD_COUNT").unwrap().parse().unwrap();
    let store = SqliteStore::open(&path, OpenMode::Create, true).await.unwrap();
    let mut out = std::io::stdout();
    for n in 0..count {
        match store.enqueue(&[new_job("k")]).await.unwrap()[0] {
            // The first line break ends what the test runner has begun to write.
            Enqueued::New(id) => writeln!(out, "{}added {id}", if n == 0 { "\n" } else { "" }).unwrap(),
            Enqueued::Exists(id) => panic!("{id} was there"),
        }
        out.flush().unwrap();
    }
}

/// Threads of this process that listen for changes.
fn listeners() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "store-wake").count()
}

#[tokio::test]
#[ignore = "no test of its own: the process that other tests start"]
async fn child_that_listens() {
    let Some(path) = std::env::var_os("CHILD_DB").map(PathBuf::from) else { return };
    let store = SqliteStore::open(&path, OpenMode::Create, true).await.unwrap();
    assert_eq!(listeners(), 0, "nobody waits yet");
    for _ in 0..2 {
        tokio::time::timeout(Duration::from_millis(50), store.changed()).await.unwrap_err();
        assert_eq!(listeners(), 1);
    }
    drop(store);
    let until = monotonic() + Duration::from_secs(10);
    while listeners() > 0 {
        assert!(monotonic() < until, "the thread outlives its store");
        std::thread::yield_now();
    }
}

#[test]
fn the_thread_that_listens_lives_only_while_it_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start_self("sqlite::child_that_listens", &folder.path().join("jobs.db"), 0);
    assert!(child.wait().unwrap().success());
    assert!(folder.path().join("jobs.db").exists(), "the child did not run");
}

#[tokio::test]
async fn i10_an_outcome_that_is_refused_in_every_form_is_recorded_minimally() {
    let fixture = Sqlite::new().await;
    let store = fixture.store();
    let term = begin(store).await;
    let (good, bad) = (running(store, term).await, running(store, term).await);
    raw(&fixture.path)
        .await
        .execute(
            "CREATE TRIGGER picky BEFORE INSERT ON attempts WHEN new.output_tail = 'bad'
             BEGIN SELECT raise(ABORT, 'I do not like it'); END",
        )
        .await
        .unwrap();
    let told = |fence, tail: &str| {
        let record =
            AttemptRecord { output_tail: tail.to_owned(), supervisor: "sup".to_owned(), ..AttemptRecord::default() };
        Finish { record: Some(record), ..success(fence) }
    };
    let done = store.finish(&[told(good, "good"), told(bad, "bad")]).await.unwrap();
    assert_eq!(done, [Finished::Recorded(JobState::Succeeded); 2]);
    let attempt = store.attempts(bad.job).await.unwrap().remove(0);
    assert_eq!((attempt.record.output_tail.as_str(), attempt.record.supervisor.as_str()), ("", "sup"));
    assert!(attempt.verdict.unwrap().contributing[0].contains("left out"));
    assert_eq!(store.attempts(good.job).await.unwrap()[0].record.output_tail, "good");
}

#[tokio::test]
async fn i11_what_was_committed_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let mut child = start_enqueuer(&path, u32::MAX);
    let mut ids = ids_of(&mut child);
    let mut told: Vec<JobId> = ids.by_ref().take(50).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    told.extend(ids);
    assert!(told.len() >= 50);
    let store = SqliteStore::open(&path, OpenMode::Existing, true).await.unwrap();
    for id in told {
        assert_eq!(store.job(id).await.unwrap().map(|job| job.state), Some(JobState::Queued), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_no_lock_error_reaches_a_caller_beside_four_writers_and_a_held_lock() {
    const EACH: u32 = 100;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let children: Vec<Child> = (0..4).map(|_| start_enqueuer(&path, EACH)).collect();
    let store = SqliteStore::open(&path, OpenMode::Create, true).await.unwrap();
    let term = begin(&store).await;
    let mut outside = raw(&path).await;
    let holder = tokio::spawn(async move {
        outside.execute("BEGIN IMMEDIATE").await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        outside.execute("COMMIT").await.unwrap();
    });
    let added =
        tokio::task::spawn_blocking(move || children.into_iter().flat_map(finish_child).collect::<Vec<JobId>>());
    let mut done = Vec::new();
    loop {
        let all_added = added.is_finished();
        let claimed = claim(&store, term, "k", 16).await;
        if claimed.is_empty() && all_added {
            break;
        }
        if claimed.is_empty() {
            tokio::time::timeout(Duration::from_secs(1), store.changed()).await.unwrap_or_default();
        }
        let outcomes: Vec<Finish> = claimed.iter().map(|c| success(c.fence)).collect();
        let recorded = store.finish(&outcomes).await.unwrap();
        assert!(recorded.iter().all(|r| *r == Finished::Recorded(JobState::Succeeded)), "{recorded:?}");
        done.extend(claimed.iter().map(|c| c.fence.job));
    }
    let mut added = added.await.unwrap();
    holder.await.unwrap();
    added.sort_unstable();
    done.sort_unstable();
    assert_eq!(u32::try_from(added.len()), Ok(4 * EACH));
    assert_eq!(added, done, "lost or doubled");
}

fn finish_child(mut child: Child) -> Vec<JobId> {
    let ids = ids_of(&mut child).collect();
    assert!(child.wait().unwrap().success(), "an enqueuing process failed");
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_s_commit_wakes_and_an_own_one_does_not() {
    let fixture = Sqlite::new().await;
    let store = fixture.shared();
    let other = fixture.another().await;
    let wake = |store: std::sync::Arc<dyn Store>| tokio::spawn(async move { store.changed().await });
    // What the other one did while opening may have been a change: one wake is its due.
    let _drained = tokio::time::timeout(Duration::from_millis(200), store.changed()).await;
    let waiter = wake(std::sync::Arc::clone(&store));
    for _ in 0..20 {
        add(&*store, new_job("k")).await;
    }
    assert!(!waiter.is_finished(), "an own write is no news");
    add(&*other, new_job("k")).await;
    tokio::time::timeout(Duration::from_secs(10), waiter).await.expect("the other's write must wake").unwrap();
    add(&*other, new_job("k")).await;
    let before_waiting = wake(store);
    tokio::time::timeout(Duration::from_secs(10), before_waiting).await.expect("also one that came before").unwrap();
}
