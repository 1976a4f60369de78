//! The database away: at start, at the moment a job ends, and for longer than its supervisor lives.

use std::fs;
use std::io::BufRead;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use support::wait_until;
use support::world::Lane;
use support::world::SOON;
use support::world::World;

const KIND: &str = r#"
[database]
url = "sqlite://jobs.db"

[supervisor]
drain = "300ms"
poll = "200ms"

[kind.fault]
command = ["sh", "-c", 'while [ ! -e go ]; do sleep 0.02; done; exec "$0" exit 0', "{fault}"]
slots = 2
memory = "64MiB"
grace = "1s"
timeout = "60s"
max_attempts = 3
backoff = { first = "100ms", factor = 1.0, max = "100ms", jitter = 0.0 }
"#;

/// Longer than anything that waits for a lock, or for several in a row.
const LOCKED: Duration = Duration::from_secs(90);

/// A stranger that holds the database's write lock until it is dropped: no write succeeds meanwhile.
struct Stranger(Child);

impl Stranger {
    #[expect(clippy::disallowed_methods, reason = "the ban is for the product")]
    fn locks(world: &World) -> Self {
        let script = "import sqlite3, sys\n\
            c = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)\n\
            c.execute('BEGIN IMMEDIATE')\n\
            print('locked', flush=True)\n\
            sys.stdin.read()\n";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(world.path("jobs.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its stdout")).read_line(&mut line).expect("a line");
        assert_eq!(line, "locked\n");
        Self(child)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The outcomes in the journals of this world.
fn journal(world: &World) -> Vec<PathBuf> {
    let mut folders = vec![world.path(".jobvisor")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if folder.ends_with("journal") && path.extension().is_some_and(|end| end == "json") {
                found.push(path);
            }
        }
    }
    found
}

/// Lets jobs end.
fn go(world: &World) {
    fs::write(world.path("go"), "").expect("a file");
}

/// A job that has ended while the database was locked, and whose outcome is in the journal.
fn held(world: &World) -> (i64, support::world::Supervisor, Stranger) {
    let id = world.enqueue("fault", &json!({}));
    let supervisor = world.supervisor();
    world.until_state(id, &["running"], SOON);
    let stranger = Stranger::locks(world);
    go(world);
    wait_until("its outcome is in the journal", SOON, || {
        if journal(world).is_empty() { Err(supervisor.log()) } else { Ok(()) }
    });
    (id, supervisor, stranger)
}

#[test]
fn h3_i10_an_outcome_is_held_while_the_database_is_away_and_recorded_once_when_it_is_back() {
    let world = World::new(Lane::Auto, KIND);
    if !world.is_on_sqlite("h3_i10_an_outcome_is_held_while_the_database_is_away_and_recorded_once_when_it_is_back") {
        return;
    }
    let (id, supervisor, stranger) = held(&world);
    wait_until("the outage is told", LOCKED, || {
        let log = supervisor.log();
        if log.contains("cannot record outcomes") && log.contains("locked") { Ok(()) } else { Err(log) }
    });
    drop(stranger);
    world.until_state(id, &["succeeded"], LOCKED);
    wait_until(
        "the journal is empty",
        SOON,
        || if journal(&world).is_empty() { Ok(()) } else { Err(supervisor.log()) },
    );
    let next = world.enqueue("fault", &json!({}));
    world.until_state(next, &["succeeded"], LOCKED);
    let complaints = supervisor.log().lines().filter(|line| line.contains("cannot record outcomes")).count();
    assert!(complaints <= 6, "a line in ten seconds: {}", supervisor.log());
    assert!(supervisor.stop(SOON).success());
    assert_eq!(world.starts().iter().filter(|start| start.job == id).count(), 1);
}

#[test]
fn i10_i9_an_outcome_that_was_held_survives_a_kill_of_the_supervisor() {
    let world = World::new(Lane::Auto, KIND);
    if !world.is_on_sqlite("i10_i9_an_outcome_that_was_held_survives_a_kill_of_the_supervisor") {
        return;
    }
    let (id, supervisor, stranger) = held(&world);
    supervisor.kill();
    drop(stranger);
    world.until_idle();
    assert_eq!((world.state(id).as_str(), world.causes(id)), ("succeeded", vec!["-".to_owned()]));
    assert_eq!(world.starts().len(), 1, "it is not run again");
    assert_eq!(journal(&world), Vec::<PathBuf>::new());
}

#[test]
fn i10_a_stop_while_the_database_is_away_ends_in_bounded_time_and_says_where_the_outcomes_are() {
    let world = World::new(Lane::Auto, KIND);
    if !world.is_on_sqlite("i10_a_stop_while_the_database_is_away_ends_in_bounded_time_and_says_where_the_outcomes_are")
    {
        return;
    }
    let (id, mut supervisor, stranger) = held(&world);
    supervisor.signal(Signal::SIGTERM);
    let status = supervisor.wait(LOCKED);
    assert_eq!(status.code(), Some(1), "{}", supervisor.log());
    let log = supervisor.log();
    let folder = journal(&world)[0].parent().expect("its folder").display().to_string();
    assert!(log.contains("outcomes could not be recorded") && log.contains(&folder), "{log}");
    drop(stranger);
    assert_eq!(world.state(id), "running");
    world.until_idle();
    assert_eq!((world.state(id).as_str(), world.starts().len()), ("succeeded", 1));
}

#[test]
fn a_database_that_is_away_at_start_is_waited_for_and_the_wait_can_be_stopped() {
    let world = World::new(Lane::Auto, KIND);
    if !world.is_on_sqlite("a_database_that_is_away_at_start_is_waited_for_and_the_wait_can_be_stopped") {
        return;
    }
    go(&world);
    let id = world.enqueue("fault", &json!({}));
    let stranger = Stranger::locks(&world);
    let waits = |supervisor: &support::world::Supervisor| {
        wait_until("it waits", LOCKED, || {
            let log = supervisor.log();
            if log.contains("the database is away; waiting for it") { Ok(()) } else { Err(log) }
        });
    };
    let mut supervisor = world.start(&["run"]);
    waits(&supervisor);
    supervisor.signal(Signal::SIGTERM);
    assert!(supervisor.wait(Duration::from_secs(15)).success(), "{}", supervisor.log());
    let supervisor = world.start(&["run"]);
    waits(&supervisor);
    drop(stranger);
    world.until_state(id, &["succeeded"], LOCKED);
    assert_eq!(world.inspect(id)["charged"], json!(1));
    assert!(supervisor.stop(SOON).success());
}

/// A small file system of its own; unmounted when it is dropped.
struct Disk(PathBuf);

impl Disk {
    /// `None`: this user may not mount one.
    fn mount(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).expect("a folder");
        let options = ["-t", "tmpfs", "-o", "size=24m", "none"];
        let done = Command::new("mount").args(options).arg(&path).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success()).then_some(Self(path))
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).expect("a file");
        let full = loop {
            if let Err(error) = std::io::Write::write_all(&mut file, &[0; 4096]) {
                break error;
            }
        };
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).expect("it is there");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

#[test]
fn h3_on_a_full_disk_nothing_is_started_for_long_outcomes_are_kept_and_all_goes_on_when_there_is_room() {
    // Results of 800 KB: a database that still has a page to spare for a claim has none for them.
    let script = "while [ ! -e go ]; do sleep 0.02; done; head -c 800000 /dev/zero | tr '\\\\0' x";
    let command = KIND.lines().find(|line| line.starts_with("command")).expect("a command");
    let kind = KIND
        .replace(command, &format!("command = [\"sh\", \"-c\", \"{script}\"]"))
        .replace("sqlite://jobs.db", "sqlite://disk/jobs.db");
    let world = World::new(Lane::Auto, &kind);
    let Some(disk) = Disk::mount(world.path("disk")) else {
        support::skip("h3_on_a_full_disk", "no file system can be mounted here");
        return;
    };
    let ids: Vec<i64> = (0..6).map(|_| world.enqueue("fault", &json!({}))).collect();
    let supervisor = world.supervisor();
    let running = || ids.iter().filter(|id| world.state(**id) == "running").count();
    wait_until("two run", SOON, || if running() == 2 { Ok(()) } else { Err(supervisor.log()) });
    disk.fill();
    go(&world);
    wait_until("the full disk is told", LOCKED, || {
        let log = supervisor.log();
        if log.contains("cannot record outcomes") && log.contains("full") { Ok(()) } else { Err(log) }
    });
    wait_until("outcomes are in the journal", SOON, || {
        if journal(&world).len() >= 2 { Ok(()) } else { Err(supervisor.log()) }
    });
    wait_until("nothing is started any more", SOON, || {
        supervisor.signal(Signal::SIGUSR1);
        let log = supervisor.log();
        if log.contains("(outcomes cannot be recorded): 0 running") { Ok(()) } else { Err(log) }
    });
    let started = supervisor.log().matches("starting job=").count();
    disk.free();
    for id in &ids {
        world.until_state(*id, &["succeeded"], SOON);
        assert_eq!(world.inspect(*id)["charged"], json!(1), "each ran once");
    }
    assert!(started < ids.len(), "{started} were started while nothing could be recorded");
    assert!(supervisor.log().matches("cannot record outcomes").count() <= 3, "{}", supervisor.log());
    assert!(supervisor.stop(SOON).success());
    assert_eq!(journal(&world), Vec::<PathBuf>::new());
}
