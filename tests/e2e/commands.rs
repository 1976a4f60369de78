//! The other commands, as the README shows them.

use std::process::Command;
use std::process::Stdio;

use serde_json::Value;
use serde_json::json;
use support::world::Lane;
use support::world::World;
use support::world::text;

const KIND: &str = "[database]\nurl = \"sqlite://jobs.db\"\n\n[kind.fault]\ncommand = [\"{fault}\", \"{payload.mode}\", \"{payload.a}\"]\nmax_attempts = 1\n";

#[test]
fn what_init_writes_works_as_it_stands() {
    let world = World::new(Lane::Auto, KIND);
    std::fs::remove_file(world.path("jobs.toml")).expect("it was there");
    world.good(&["init"]);
    assert!(world.path("jobvisor.db").exists());
    assert!(world.good(&["check"]).contains("is good: 1 kind(s)"));
    let written = std::fs::read_to_string(world.path("jobs.toml")).expect("a file");
    world.good(&["init"]);
    assert_eq!(std::fs::read_to_string(world.path("jobs.toml")).expect("a file"), written, "nothing is overwritten");
    let id = world.enqueue("hello", &json!({ "name": "world" }));
    world.until_idle();
    assert_eq!((world.state(id).as_str(), &world.inspect(id)["result"]), ("succeeded", &json!("hello, world\n")));
    assert!(world.inspect_text(id).contains("hello, world"));
}

#[test]
fn migrate_prints_the_schema_or_brings_a_database_up_to_date() {
    let world = World::new(Lane::Auto, &KIND.replace("jobs.db\"", "jobs.db\"\nmigrate = false"));
    let sql = world.good(&["migrate", "--print-sql"]);
    assert!(sql.contains("CREATE TABLE jobs") && sql.contains("CREATE TABLE attempts"), "{sql}");
    assert!(!world.path("jobs.db").exists(), "printing touches nothing");
    let refused = world.run(&["enqueue", "fault"]);
    assert_eq!(refused.status.code(), Some(2), "the payload lacks what the command needs");
    let payload = json!({ "mode": "exit", "a": 0 }).to_string();
    let refused = world.run(&["enqueue", "fault", "--payload", &payload]);
    assert_eq!(refused.status.code(), Some(3), "the schema is not there and may not be made");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("migrate"));
    world.good(&["migrate"]);
    assert_eq!(world.good(&["enqueue", "fault", "--payload", &payload]), "1\n");
}

#[test]
fn migrate_prints_the_schema_of_the_database_that_is_configured_without_asking_it() {
    let world = World::at(Lane::Auto, KIND, "postgres://app@127.0.0.1:1/app");
    let sql = world.good(&["migrate", "--print-sql"]);
    assert!(sql.contains("CREATE TABLE jobvisor.jobs") && sql.contains("CREATE SCHEMA"), "{sql}");
    let sql = world.good(&["--database", "sqlite://jobs.db", "migrate", "--print-sql"]);
    assert!(sql.contains("CREATE TABLE jobs"), "{sql}");
}

#[test]
fn a_postgres_schema_that_may_not_be_made_is_exit_status_3_until_it_is_migrated_by_name() {
    let world = World::on_postgres(Lane::Auto, "[database]\nmigrate = false\n\n[kind.fault]\ncommand = [\"true\"]\n");
    let refused = world.run(&["list"]);
    assert_eq!(refused.status.code(), Some(3));
    let words = String::from_utf8(refused.stderr).expect("text");
    assert!(words.contains("needs migrating") && words.contains("jobvisor migrate"), "{words}");
    world.good(&["migrate"]);
    assert!(world.good(&["migrate"]).contains("is up to date"));
    let there = "SELECT to_regclass('jobvisor.jobs') IS NOT NULL";
    assert_eq!(world.postgres().psql(there), "t");
}

#[test]
fn doctor_is_exit_status_0_only_where_the_kernel_enforces() {
    let world = World::new(Lane::Auto, KIND);
    let output = world.run(&["doctor"]);
    let told = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(1), "there is no database yet: {told}");
    assert!(told.contains("hint: `jobvisor init`"), "{told}");
    world.good(&["migrate"]);
    let output = world.run(&["doctor"]);
    let told = String::from_utf8(output.stdout).expect("text");
    let kernel = Lane::Auto.is_kernels();
    assert_eq!(output.status.code(), Some(if kernel { 0 } else { 1 }), "{told}");
    let sentence = if kernel { "[ok] memory limits by cgroup" } else { "[!!] memory limits by the watchdog only" };
    assert!(told.contains(sentence), "{told}");
    assert!(kernel || told.contains("Delegate=yes"), "{told}");
}

#[test]
fn jobs_are_found_by_state_kind_and_cause_and_run_again() {
    let world = World::new(Lane::Auto, KIND);
    let good = world.enqueue("fault", &json!({ "mode": "exit", "a": 0 }));
    let bad = world.enqueue("fault", &json!({ "mode": "exit", "a": 3 }));
    assert_eq!(world.run(&["run", "--until-idle", "--fail-on-dead"]).status.code(), Some(1), "one is dead");
    let ids = |arguments: &[&str]| -> Vec<i64> {
        let told = world.good(&[&["list", "--json"], arguments].concat());
        told.lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["id"].as_i64().expect("an id"))
            .collect()
    };
    assert_eq!(ids(&["--state", "dead"]), [bad]);
    assert_eq!(ids(&["--state", "succeeded"]), [good]);
    assert_eq!(ids(&["--cause", "exit_nonzero"]), [bad]);
    assert_eq!(ids(&["--cause", "timeout"]), [0_i64; 0]);
    assert_eq!(ids(&["--kind", "fault", "--since", "1h"]).len(), 2);
    assert_eq!(world.run(&["wait", &bad.to_string()]).status.code(), Some(1), "not all succeeded");
    assert_eq!(world.good(&["retry", "--state", "dead", "--dry-run"]).trim(), bad.to_string());
    assert_eq!(world.state(bad), "dead", "a dry run does nothing");
    assert_eq!(world.good(&["retry", "--state", "dead"]).trim(), bad.to_string());
    assert_eq!(world.state(bad), "queued");
    assert_eq!(world.good(&["cancel", &bad.to_string()]).trim(), bad.to_string());
    assert_eq!(world.state(bad), "cancelled");
    assert_eq!(world.causes(bad), ["exit_nonzero"], "its history stays");
}

#[test]
fn enqueue_takes_a_file_stdin_a_count_a_key_and_an_order() {
    let world = World::new(Lane::Auto, KIND);
    let payload = json!({ "mode": "exit", "a": 0 }).to_string();
    std::fs::write(world.path("payload.json"), &payload).expect("a file");
    assert_eq!(world.good(&["enqueue", "fault", "--payload", "@payload.json", "--count", "3"]), "1\n2\n3\n");
    let mut reading = world.command(&["enqueue", "fault", "--payload", "-"]);
    reading.stdin(Stdio::from(std::fs::File::open(world.path("payload.json")).expect("a file")));
    assert_eq!(answer(&mut reading), "4\n");
    let unique = ["enqueue", "fault", "--payload", &payload, "--unique", "one"];
    assert_eq!((world.good(&unique), world.good(&unique)), ("5\n".to_owned(), "5\n".to_owned()));
    assert_eq!(world.good(&["enqueue", "fault", "--payload", &payload, "--after", "5"]), "6\n");
    assert_eq!(world.good(&["enqueue", "fault", "--payload", &payload, "--in", "1h"]), "7\n");
    assert_eq!((world.state(6).as_str(), world.state(7).as_str()), ("waiting", "scheduled"));
    world.good(&["cancel", "7"]);
    world.until_idle();
    assert!((1..=6).all(|id| world.state(id) == "succeeded"));
    let finished = |id| text(&world.inspect(id)["finished_at"]);
    assert!(finished(6) > finished(5), "after means after");
}

fn answer(command: &mut Command) -> String {
    String::from_utf8(command.output().expect("the program runs").stdout).expect("text")
}
