//! What people type: whatever it is, the answer has a reason and the exit status of the contract, never a panic.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use support::world::Lane;
use support::world::World;

const TOML: &str = "[supervisor]\nmax_payload = \"8KiB\"\n\n[kind.ok]\ncommand = [\"true\"]\n";

#[test]
fn bad_words_are_answered_with_a_reason_and_the_status_of_the_contract() {
    let world = World::new(Lane::Auto, TOML);
    world.good(&["enqueue", "ok"]);
    let cases: [(Vec<&str>, i32, &str); 10] = [
        (vec!["enqueue", "ok", "--in", "9999999999h"], 2, "beyond the year 9999"),
        (vec!["enqueue", "ok", "--memory", "1"], 2, "16.0 MiB"),
        (vec!["enqueue", "ok", "--payload", "@/dev/zero"], 2, "max_payload"),
        (vec!["enqueue", "ok", "--payload", "{"], 2, "not JSON"),
        (vec!["enqueue", ""], 2, "no kind"),
        (vec!["list", "--since", "9999999999h"], 0, ""),
        (vec!["inspect", "4711"], 1, "does not exist"),
        (vec!["retry", "--state", "running"], 2, "cannot be retried"),
        (vec!["wait", "1", "--timeout", "10ms"], 4, "timed out"),
        (vec!["list", "--database", "sqlite://none.db"], 3, "no database"),
    ];
    for (args, status, reason) in cases {
        let output = world.run(&args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {errors}");
        assert!(errors.contains(reason), "{args:?}: {errors}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure_and_a_reader_that_left_is_none() {
    let world = World::new(Lane::Auto, TOML);
    let full = File::options().write(true).open("/dev/full").expect("a full device");
    let output = world.command(&["enqueue", "ok"]).stdout(Stdio::from(full)).output().expect("the program runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to stdout"));
    let (reader, writer) = nix::unistd::pipe().expect("a pipe");
    drop(reader);
    let output = world.command(&["list"]).stdout(Stdio::from(writer)).output().expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_dead_job_is_seen_at_the_end_however_many_ended_well_after_it() {
    let world = World::new(
        Lane::Auto,
        "[kind.bad]\ncommand = [\"false\"]\nmax_attempts = 1\n\n[kind.ok]\ncommand = [\"true\"]\nslots = 8\n",
    );
    let id = world.good(&["enqueue", "bad"]);
    world.good(&["enqueue", "ok", "--count", "210"]);
    let output = world.start(&["run", "--until-idle", "--fail-on-dead"]).output(Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("more ended than are shown") && errors.contains(&format!("inspect {id}")), "{errors}");
}

#[test]
fn many_jobs_at_once_are_all_added() {
    let world = World::new(Lane::Auto, TOML);
    let ids = world.good(&["enqueue", "ok", "--count", "10001"]);
    assert_eq!((ids.lines().count(), ids.lines().last()), (10_001, Some("10001")));
}
