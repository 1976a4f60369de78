//! `status` and the socket behind it: what it tells, who may ask, and that no asker hurts a supervisor.

use std::io::Read;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use serde_json::json;
use support::wait_until;
use support::world::Lane;
use support::world::SOON;
use support::world::World;
use support::world::text;

const KINDS: &str = "[database]\nurl = \"sqlite://jobs.db\"\n\n[supervisor]\nname = \"w1\"\n\n[kind.fault]\ncommand = [\"{fault}\", \"{payload.mode}\", \"{payload.a}\"]\nmemory = \"64MiB\"\n";

fn hanging() -> Value {
    json!({ "mode": "hang", "a": 0 })
}

fn status(world: &World) -> Value {
    serde_json::from_str(&world.good(&["status", "--json"])).expect("JSON")
}

/// The socket of the world's one supervisor.
fn socket(world: &World) -> PathBuf {
    let base = world.path(".jobvisor/w1");
    let folders = std::fs::read_dir(base).expect("a state folder").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = folders.map(|folder| folder.join("control")).filter(|path| path.exists()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn status_tells_what_runs_and_what_works_in_the_background() {
    let world = World::new(Lane::Auto, KINDS);
    let supervisor = world.supervisor();
    let job = world.enqueue("fault", &hanging());
    world.until_state(job, &["running"], SOON);
    let told = wait_until("the child runs, and every piece has run", SOON, || {
        let told = status(&world);
        let pieces = told["pieces"].as_array().map_or(0, Vec::len);
        if told["running"][0]["pid"].is_u64() && pieces >= 4 { Ok(told) } else { Err(told.to_string()) }
    });
    let expected = [
        "budget",
        "held",
        "host",
        "listener",
        "name",
        "phase",
        "pid",
        "pieces",
        "reserved",
        "retired",
        "running",
        "term",
        "trust_left_s",
        "version",
        "warden",
    ];
    assert_eq!(keys(&told), expected);
    assert_eq!((&told["name"], &told["phase"], &told["warden"]), (&json!("w1"), &json!("working"), &json!(true)));
    assert_eq!((&told["pid"], &told["reserved"]), (&json!(supervisor.pid()), &json!(64 << 20)));
    assert_eq!(told["held"], json!([]));
    assert_eq!(told["trust_left_s"].is_null(), !world.is_on_postgres(), "a lock does not run out: {told}");
    let running = &told["running"][0];
    assert_eq!(keys(running), ["attempt", "job", "kind", "memory", "pid", "since", "stopping"]);
    assert_eq!((&running["job"], &running["attempt"], &running["stopping"]), (&json!(job), &json!(1), &Value::Null));
    assert_eq!(running["pid"], json!(world.starts()[0].pid));
    text(&running["since"]).parse::<jiff::Timestamp>().expect("a time");
    for piece in told["pieces"].as_array().expect("a list") {
        assert_eq!(keys(piece), ["age_s", "error", "piece"]);
        assert_eq!(piece["error"], Value::Null, "{piece}");
    }
    let page = world.good(&["status"]);
    assert!(page.contains("1 running:") && page.contains("64.0 MiB of ") && page.contains("background:"), "{page}");

    supervisor.signal(Signal::SIGTERM);
    wait_until("it drains, and still answers", SOON, || {
        let told = status(&world);
        if told["phase"] == "draining" { Ok(()) } else { Err(told.to_string()) }
    });
    supervisor.signal(Signal::SIGTERM);
    assert!(supervisor.stop(SOON).success());
    let (code, words) = failing(&world);
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("no supervisor runs here"), "{words}");
}

fn failing(world: &World) -> (Option<i32>, String) {
    let output = world.run(&["status"]);
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn a_dead_ones_socket_is_nobody_and_the_next_supervisor_replaces_it() {
    let world = World::new(Lane::Auto, KINDS);
    assert_eq!(failing(&world).0, Some(1), "there never was one");
    let first = world.supervisor();
    let path = socket(&world);
    assert_eq!(path.metadata().expect("a socket").permissions().mode() & 0o777, 0o600);
    first.kill();
    assert!(path.exists(), "a killed one leaves it");
    assert_eq!(failing(&world).0, Some(1));
    let second = world.supervisor();
    assert_eq!(status(&world)["pid"], json!(second.pid()));
    assert!(second.stop(SOON).success());
    assert!(!path.exists(), "one that leaves takes it away");
}

#[test]
fn a_stopped_supervisor_is_not_waited_for_without_end() {
    let world = World::new(Lane::Auto, KINDS);
    let supervisor = world.supervisor();
    supervisor.signal(Signal::SIGSTOP);
    let (code, words) = failing(&world);
    supervisor.signal(Signal::SIGCONT);
    assert_eq!(code, Some(4), "{words}");
    assert!(words.contains("does not answer"), "{words}");
    assert!(supervisor.stop(SOON).success());
}

#[test]
fn a_state_folder_longer_than_any_address_works() {
    let deep = format!("{}/{}", "a".repeat(80), "b".repeat(80));
    let world =
        World::new(Lane::Auto, &KINDS.replace("name = \"w1\"", &format!("name = \"w1\"\nstate_dir = \"{deep}\"")));
    let supervisor = world.supervisor();
    assert_eq!(status(&world)["pid"], json!(supervisor.pid()));
    assert!(supervisor.stop(SOON).success());
}

#[test]
fn i7_askers_who_say_nothing_or_too_much_hurt_nobody() {
    let world = World::new(Lane::Auto, KINDS);
    let supervisor = world.supervisor();
    let path = socket(&world);
    // Twice as many as are let in at once; they hold their places until their time is over.
    let silent: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(&path).expect("a place in the queue")).collect();
    for stream in &silent {
        let mut stream = stream;
        stream.write_all(b"sta").expect("it is open");
    }
    let job = world.enqueue("fault", &json!({ "mode": "exit", "a": 0 }));
    world.until_state(job, &["succeeded"], SOON);
    assert_eq!(status(&world)["phase"], "working");
    drop(silent);

    let answer = |question: &[u8]| {
        let mut stream = UnixStream::connect(&path).expect("a place in the queue");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        // It stops reading, and may hang up in between.
        stream.write_all(question).ok();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    let nonsense = answer(b"kill everything\n").expect("an answer");
    assert!(nonsense.contains("the only question known here is `status`"), "{nonsense}");
    assert!(answer(b"status\r\n").expect("an answer").starts_with("{\"name\":\"w1\""));
    for question in [&vec![b'x'; 1 << 20][..], b"\xff\xfe\n", b"\0\0\0\n", b"\n", b"status status\n"] {
        let told = answer(question).unwrap_or_default();
        assert!(!told.contains("\"term\""), "{told}");
    }
    // A reader that takes nothing of the answer is given up, too.
    let mut deaf = UnixStream::connect(&path).expect("a place in the queue");
    deaf.write_all(b"status\n").expect("it is open");
    assert_eq!(status(&world)["phase"], "working");
    let job = world.enqueue("fault", &json!({ "mode": "exit", "a": 0 }));
    world.until_state(job, &["succeeded"], SOON);
    assert!(supervisor.stop(SOON).success());
}
