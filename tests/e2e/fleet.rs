//! Who runs what: `supervisors`, `stats`, `kinds`, `pause`, `resume`, and what a pause means to a run.

use std::time::Duration;

use serde_json::Value;
use serde_json::json;
use support::world::Lane;
use support::world::SOON;
use support::world::World;
use support::world::text;

const KINDS: &str = "[database]\nurl = \"sqlite://jobs.db\"\n\n[supervisor]\nname = \"w1\"\nlease = \"5s\"\n\n[kind.fault]\ncommand = [\"{fault}\", \"{payload.mode}\", \"{payload.a}\"]\nmemory = \"64MiB\"\nmax_attempts = 1\n\n[kind.other]\ncommand = [\"true\"]\n";

fn world() -> World {
    World::new(Lane::Auto, KINDS)
}

fn quick() -> Value {
    json!({ "mode": "exit", "a": 0 })
}

/// The objects of a command's JSON lines.
fn lines(world: &World, arguments: &[&str]) -> Vec<Value> {
    let told = world.good(&[arguments, &["--json"]].concat());
    told.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

fn line_of(world: &World, command: &str, kind: &str) -> Value {
    let found = lines(world, &[command]).into_iter().find(|line| line["kind"] == *kind);
    found.unwrap_or_else(|| panic!("`{command}` has no line of `{kind}`"))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn stderr(world: &World, arguments: &[&str]) -> String {
    let output = world.run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", output.status);
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn supervisors_tells_the_living_from_the_dead_and_the_ended() {
    let world = world();
    world.good(&["migrate"]);
    assert_eq!(lines(&world, &["supervisors"]), [Value::Null; 0]);
    let first = world.supervisor();
    let told = lines(&world, &["supervisors"]);
    let expected = [
        "ended_at",
        "host",
        "kinds",
        "last_seen",
        "lease_s",
        "lost_at",
        "name",
        "pid",
        "since",
        "state",
        "term",
        "version",
    ];
    assert_eq!((told.len(), keys(&told[0])), (1, expected.to_vec()));
    let line = &told[0];
    assert_eq!((&line["name"], &line["state"], &line["pid"]), (&json!("w1"), &json!("living"), &json!(first.pid())));
    assert_eq!((&line["kinds"], &line["lease_s"]), (&json!(["fault", "other"]), &json!(5.0)));
    for name in ["since", "last_seen"] {
        text(&line[name]).parse::<jiff::Timestamp>().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    first.kill();
    // What it left behind lets go of the lock when the last child is gone.
    support::wait_until("the killed one is known to be gone", SOON, || {
        let state = text(&lines(&world, &["supervisors"])[0]["state"]);
        if matches!(state.as_str(), "expired" | "lost") { Ok(()) } else { Err(state) }
    });
    let second = world.supervisor();
    let states = |world: &World| -> Vec<String> {
        lines(world, &["supervisors"]).iter().map(|line| text(&line["state"])).collect()
    };
    let told = states(&world);
    assert!(told[0] == "living" && told[1..].iter().all(|state| state != "living"), "{told:?}");
    assert!(second.stop(SOON).success());
    assert_eq!(states(&world)[0], "ended");
    let table = world.good(&["supervisors"]);
    let heads: Vec<&str> = table.lines().next().expect("a head").split_whitespace().collect();
    assert_eq!(heads, ["name", "host", "pid", "state", "since", "last", "seen", "lease", "version", "kinds", "term"]);
    let open = |state: &String| state == "expired" || state == "living";
    let shown = 1 + states(&world)[1..].iter().filter(|state| open(state)).count();
    assert_eq!(lines(&world, &["supervisors", "--limit", "1"]).len(), shown, "open ones are always shown");
}

#[test]
fn stats_counts_by_kind_and_names_what_nobody_living_runs() {
    let world = world();
    world.enqueue("fault", &quick());
    world.enqueue("fault", &json!({ "mode": "exit", "a": 3 }));
    world.until_idle();
    world.enqueue("fault", &quick());
    world.good(&["enqueue", "fault", "--payload", &quick().to_string(), "--in", "1h"]);
    let line = line_of(&world, "stats", "fault");
    let expected = [
        "cancelled",
        "dead",
        "kind",
        "oldest_queued_at",
        "oldest_queued_s",
        "paused_at",
        "paused_by",
        "queued",
        "running",
        "scheduled",
        "succeeded",
        "supervisors",
        "unserved",
        "waiting",
    ];
    assert_eq!(keys(&line), expected);
    let numbers = ["succeeded", "dead", "queued", "scheduled", "running", "waiting", "cancelled"];
    assert_eq!(numbers.map(|name| line[name].as_u64()), [1, 1, 1, 1, 0, 0, 0].map(Some));
    assert!(line["oldest_queued_s"].as_f64().is_some_and(|age| (0.0..3600.0).contains(&age)), "{line}");
    assert_eq!((&line["unserved"], &line["supervisors"]), (&json!(true), &json!([])));
    let warning = stderr(&world, &["stats"]);
    assert!(warning.contains("no living supervisor runs kind `fault`: 1 job(s)"), "{warning}");
    assert!(world.good(&["stats"]).contains("NOBODY"));

    world.good(&["pause", "fault"]);
    let supervisor = world.supervisor();
    let line = line_of(&world, "stats", "fault");
    assert_eq!((&line["unserved"], &line["supervisors"]), (&json!(false), &json!(["w1"])));
    assert_eq!(stderr(&world, &["stats"]), "");
    assert!(supervisor.stop(SOON).success());
}

#[test]
fn a_paused_kind_is_not_claimed_by_a_running_supervisor_until_it_is_resumed() {
    let world = world();
    world.good(&["migrate"]);
    let supervisor = world.supervisor();
    assert_eq!(world.good(&["pause", "fault"]), "fault\n");
    let held = world.enqueue("fault", &quick());
    let free = world.enqueue("other", &json!({}));
    world.until_state(free, &["succeeded"], SOON);
    assert_eq!(world.state(held), "queued");
    let line = line_of(&world, "kinds", "fault");
    assert_eq!(keys(&line), ["kind", "memory", "paused_at", "paused_by", "queued", "running", "slots"]);
    assert_eq!((&line["queued"], &line["memory"], &line["slots"]), (&json!(1), &json!(64 << 20), &json!(2)));
    text(&line["paused_at"]).parse::<jiff::Timestamp>().expect("a time");
    assert!(text(&line["paused_by"]).contains('@'), "{line}");
    assert!(world.good(&["kinds"]).contains("since 20"));
    assert_eq!(line_of(&world, "kinds", "other")["paused_at"], Value::Null);
    assert_eq!(world.good(&["resume", "fault"]), "fault\n");
    world.until_state(held, &["succeeded"], SOON);
    assert!(supervisor.stop(SOON).success());
}

#[test]
fn pause_and_resume_say_what_was_so_before_and_take_any_name() {
    let world = world();
    world.good(&["migrate"]);
    assert_eq!(world.good(&["pause", "other", "fault", "other"]), "fault\nother\n");
    let again = stderr(&world, &["pause", "fault"]);
    assert!(again.contains("`fault` was paused already, by "), "{again}");
    let unknown = stderr(&world, &["pause", "fautl\u{1b}[2J"]);
    assert!(unknown.contains("has no kind `fautl") && unknown.contains("fault, other"), "{unknown}");
    assert!(!unknown.contains('\u{1b}'), "{unknown:?}");
    assert_eq!(lines(&world, &["resume", "fault"]), [json!({ "kind": "fault", "paused": false })]);
    assert_eq!(world.good(&["resume", "fault"]), "");
    assert!(stderr(&world, &["resume", "fault"]).contains("was not paused"));
    for arguments in [&["pause"][..], &["resume"], &["pause", ""], &["supervisors", "--limit", "x"]] {
        assert_eq!(world.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn until_idle_does_not_wait_for_paused_kinds_and_says_what_it_left() {
    let world = world();
    let held = world.enqueue("fault", &quick());
    let free = world.enqueue("other", &json!({}));
    world.good(&["pause", "fault", "unknown"]);
    let output = world.start(&["run", "--until-idle"]).output(Duration::from_secs(60));
    let words = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{words}");
    assert!(words.contains("kind `fault` is paused") && words.contains("1 job(s) of it are left"), "{words}");
    assert!(!words.contains("`unknown`"), "nothing of it is left: {words}");
    assert_eq!((world.state(held).as_str(), world.state(free).as_str()), ("queued", "succeeded"));
    world.good(&["resume", "fault"]);
    world.until_idle();
    assert_eq!(world.state(held), "succeeded");
}

#[test]
fn kinds_needs_a_configuration_and_everything_else_only_a_database() {
    let world = world();
    world.good(&["--database", "sqlite://alone.db", "migrate"]);
    std::fs::remove_file(world.path("jobs.toml")).expect("it was there");
    for (command, code) in [("kinds", 2), ("status", 2), ("stats", 0), ("supervisors", 0)] {
        let output = world.run(&["--database", "sqlite://alone.db", command]);
        assert_eq!(output.status.code(), Some(code), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn shells_and_manuals_get_every_command_that_is_shown() {
    let world = world();
    for (shell, mark) in
        [("bash", "complete -F _jobvisor"), ("zsh", "#compdef jobvisor"), ("fish", "complete -c jobvisor")]
    {
        let script = world.good(&["completions", shell]);
        assert!(script.contains(mark) && script.contains("supervisors"), "{shell}");
    }
    assert_eq!(world.run(&["completions", "tcl"]).status.code(), Some(2));
    let page = world.good(&["man"]);
    assert!(page.contains(".TH jobvisor 1") && page.contains("jobvisor\\-supervisors") && !page.contains("warden"));
    assert!(world.good(&["man", "pause"]).contains(".TH jobvisor-pause 1"));
    for name in ["nosuch", "warden"] {
        assert_eq!(world.run(&["man", name]).status.code(), Some(2), "{name}");
    }
}
