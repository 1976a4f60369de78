//! The example that a new user runs first, from a copy of its folder.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use serde_json::json;
use support::world::Lane;
use support::world::World;
use support::world::text;

const FILES: i64 = 11;

/// What becomes of each document: its state, and the causes of its attempts (`-`: it succeeded).
fn expected() -> BTreeMap<&'static str, (&'static str, Vec<&'static str>)> {
    let bomb = Lane::Auto.own_limit();
    BTreeMap::from([
        ("documents/access.log.gz", ("succeeded", vec!["-"])),
        ("documents/damaged.zip", ("dead", vec!["exit_nonzero"])),
        ("documents/export.csv.gz", ("dead", vec![bomb, bomb, bomb])),
        ("documents/feed.url", ("dead", vec!["timeout", "timeout"])),
        ("documents/guide.html", ("succeeded", vec!["-"])),
        ("documents/harbour.txt", ("succeeded", vec!["-"])),
        ("documents/letters.txt.gz", ("succeeded", vec!["-"])),
        ("documents/minutes.zip", ("succeeded", vec!["-"])),
        ("documents/scan.img", ("dead", vec!["crash", "crash", "crash"])),
        ("documents/tides.csv", ("succeeded", vec!["-"])),
        ("documents/upload.txt", ("succeeded", vec!["exit_nonzero", "-"])),
    ])
}

/// Stdout and stderr of one run.
fn run(world: &World) -> (String, String) {
    let output = world.start(&["run", "--until-idle"]).output(Duration::from_secs(60));
    let words = |bytes| String::from_utf8(bytes).expect("text");
    let (stdout, stderr) = (words(output.stdout), words(output.stderr));
    assert!(output.status.success(), "{}: {stderr}", output.status);
    (stdout, stderr)
}

#[test]
fn every_document_ends_as_the_readme_says_and_a_second_run_says_what_it_found() {
    let world = World::of_example("quickstart");
    let (stdout, stderr) = run(&world);
    check_jobs(&world, 1);
    check_words(&stdout, &stderr);
    assert!(!stderr.contains("found jobs of earlier runs"), "{stderr}");
    check_story(&world.inspect(3));
    check_text(&world.inspect_text(3));
    assert_eq!(std::fs::read_dir(world.path("index")).expect("an index").count(), 7, "one file a document");

    let first: Vec<Value> = (1..=FILES).map(|id| world.inspect(id)).collect();
    let (stdout, stderr) = run(&world);
    assert!(stderr.contains("found jobs of earlier runs") && stderr.contains("7 succeeded, 4 dead"), "{stderr}");
    check_words(&stdout, &stderr);
    check_jobs(&world, FILES + 1);
    let again: Vec<Value> = (1..=FILES).map(|id| world.inspect(id)).collect();
    assert_eq!(first, again, "the first run's jobs stay as they were");
}

/// The eleven jobs from this id on.
fn check_jobs(world: &World, first: i64) {
    let mut left = expected();
    for id in first..first + FILES {
        let story = world.inspect(id);
        let file = text(&story["payload"]["file"]);
        let (state, causes) = left.remove(file.as_str()).unwrap_or_else(|| panic!("job {id} has {file}"));
        assert_eq!((text(&story["state"]).as_str(), world.causes(id)), (state, owned(&causes)), "{file}: {story:#}");
    }
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(
        world.good(&["list", "--json", "--limit", "1000"]).lines().count(),
        usize::try_from(first + FILES - 1).expect("few")
    );
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// The table on stdout, and nothing else; on stderr the command to type next, which works as it stands.
fn check_words(stdout: &str, stderr: &str) {
    let bomb = Lane::Auto.own_limit();
    let heads: Vec<&str> = stdout.lines().next().expect("a table").split_whitespace().collect();
    assert_eq!(heads, ["id", "kind", "state", "attempts", "cause", "peak", "/", "limit", "took"]);
    let row = stdout.lines().find(|line| line.contains(bomb)).expect("the bomb's line");
    assert!(row.contains("dead") && row.contains("3 of 3") && row.contains("/ 64.0 MiB"), "{row}");
    let last = stdout.trim_end().lines().last().expect("a summary");
    assert!(last.starts_with("11 jobs: 7 succeeded, 4 dead (") && last.contains(&format!("1 {bomb}")), "{last}");
    let next = stderr.lines().find(|line| line.starts_with("next: jobvisor --config ")).expect("what to type next");
    assert!(next.contains("jobs.toml inspect "), "{next}");
}

/// `inspect --json` is a contract: every key is there, times are RFC 3339, sizes are integers.
fn check_story(story: &Value) {
    const JOB: &[&str] = &[
        "id",
        "kind",
        "state",
        "priority",
        "tenant",
        "payload",
        "result",
        "attempt",
        "charged",
        "max_attempts",
        "interruptions",
        "created_at",
        "run_at",
        "finished_at",
        "attempts",
    ];
    const ATTEMPT: &[&str] = &[
        "attempt",
        "cause",
        "summary",
        "certainty",
        "contributing",
        "flags",
        "charged",
        "claimed_at",
        "started_at",
        "finished_at",
        "duration_s",
        "exit_code",
        "signal",
        "supervisor",
        "host",
        "pid",
        "enforcement",
        "memory",
        "cpu_s",
        "major_faults",
        "message",
        "trace",
        "output_tail",
        "late_outcome",
        "evidence",
    ];
    assert_eq!(keys(story), sorted(JOB));
    let times = |value: &Value, names: &[&str]| {
        for name in names {
            text(&value[name]).parse::<jiff::Timestamp>().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(text(&value[name]).ends_with('Z'), "{name} is in UTC");
        }
    };
    times(story, &["created_at", "run_at", "finished_at"]);
    assert_eq!((&story["attempt"], &story["charged"], &story["max_attempts"]), (&json!(3), &json!(3), &json!(3)));
    let attempts = story["attempts"].as_array().expect("attempts");
    for attempt in attempts {
        assert_eq!(keys(attempt), sorted(ATTEMPT));
        times(attempt, &["claimed_at", "started_at", "finished_at"]);
        assert_eq!(keys(&attempt["certainty"]), sorted(&["kill", "reason"]));
        let memory = &attempt["memory"];
        assert_eq!(keys(memory), sorted(&["limit", "peak", "source", "series", "oom_kills"]));
        assert_eq!(memory["limit"], json!(64 << 20));
        assert!(memory["peak"].as_u64().is_some_and(|peak| peak > 60 << 20), "{memory}");
        for point in memory["series"].as_array().expect("a series") {
            assert!(point[0].is_number() && point[1].is_u64(), "{point}");
        }
        let proof = if Lane::Auto.is_kernels() {
            memory["oom_kills"].as_u64() > Some(0)
        } else {
            attempt["evidence"]["process"]["watchdog"].is_object()
        };
        assert!(proof, "{attempt:#}");
        assert!(attempt["duration_s"].is_f64() && attempt["cpu_s"].is_f64(), "{attempt:#}");
        assert_eq!(attempt["signal"], json!(9));
    }
}

fn keys(value: &Value) -> Vec<String> {
    value.as_object().unwrap_or_else(|| panic!("{value} is no object")).keys().cloned().collect()
}

fn sorted(names: &[&str]) -> Vec<String> {
    let mut names = owned(names);
    names.sort();
    names
}

fn check_text(story: &str) {
    for word in [Lane::Auto.own_limit(), "documents/export.csv.gz", "64.0 MiB", "raise `memory`"] {
        assert!(story.contains(word), "no `{word}` in: {story}");
    }
}
