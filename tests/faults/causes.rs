//! How each way to end is told, in the same words on every lane.

use serde_json::json;
use support::world::Lane;
use support::world::World;
use support::world::text;

use crate::memory::fault;

const KIND: &str = r#"
[database]
url = "sqlite://jobs.db"

[kind.fault]
command = ["{fault}", "{payload.mode}", "{payload.a}"]
slots = 4
memory = "64MiB"
grace = "500ms"
timeout = "700ms"
max_attempts = 1

[kind.codes]
command = ["{fault}", "exit", "{payload.code}"]
memory = "64MiB"
max_attempts = 3
exit_codes = { retry = [75], permanent = [65], snooze = [99] }
backoff = { first = "200ms", factor = 1.0, max = "200ms", jitter = 0.0 }
"#;

#[test]
fn ways_to_end_and_their_causes() {
    let world = World::new(Lane::Auto, KIND);
    let table = [
        ("exit", "0", "succeeded", "-"),
        ("exit", "3", "dead", "exit_nonzero"),
        ("segv", "", "dead", "crash"),
        ("abort", "", "dead", "crash"),
        ("raise", "31", "dead", "crash"),
        ("raise", "24", "dead", "cpu_limit"),
        ("raise", "15", "dead", "killed_external"),
        ("hang", "", "dead", "timeout"),
    ];
    let ids: Vec<i64> = table.iter().map(|(mode, a, ..)| world.enqueue("fault", &fault(mode, &[a]))).collect();
    world.until_idle();
    for (id, (mode, a, state, cause)) in ids.into_iter().zip(table) {
        assert_eq!((world.state(id).as_str(), world.causes(id)), (state, vec![cause.to_owned()]), "{mode} {a}");
    }
}

#[test]
fn exit_codes_mean_what_the_kind_says() {
    let world = World::new(Lane::Auto, KIND);
    let permanent = world.enqueue("codes", &json!({ "code": 65 }));
    let retry = world.enqueue("codes", &json!({ "code": 75 }));
    let supervisor = world.supervisor();
    let snooze = world.enqueue("codes", &json!({ "code": 99 }));
    world.until_state(retry, &["dead"], support::world::SOON);
    assert_eq!(world.state(permanent), "dead");
    assert_eq!(world.causes(permanent).len(), 1);
    assert_eq!(world.causes(retry).len(), 3);
    support::wait_until("it was snoozed five times", support::world::SOON, || {
        let snoozed = world.starts().iter().filter(|start| start.job == snooze).count();
        if snoozed > 5 { Ok(()) } else { Err(format!("{snoozed} times")) }
    });
    assert_eq!(world.good(&["cancel", &snooze.to_string()]).trim(), snooze.to_string());
    assert!(supervisor.stop(support::world::SOON).success());
    assert_eq!(world.state(snooze), "cancelled");
    assert_eq!(world.inspect(snooze)["charged"], json!(0), "a snooze costs nothing");
}

#[test]
fn a_payload_that_would_become_an_option_is_refused_at_enqueue_and_at_start() {
    let world = World::new(Lane::Auto, KIND);
    let payload = json!({ "mode": "exit", "a": "--help" }).to_string();
    let refused = world.run(&["enqueue", "fault", "--payload", &payload]);
    assert_eq!(refused.status.code(), Some(2));
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("payload.a") && words.contains('-'), "{words}");
    // Somebody who writes to the database without `jobs.toml` gets past that; the attempt is refused, not run.
    let elsewhere = world.path("none.toml").display().to_string();
    let mut command = std::process::Command::new(support::world::program("jobvisor-under-test"));
    command.args(["--config", &elsewhere, "enqueue", "fault", "--payload", &payload]);
    command.env("JOBVISOR_DATABASE_URL", world.database_url());
    let id: i64 =
        String::from_utf8(command.output().expect("it runs").stdout).expect("text").trim().parse().expect("an id");
    world.until_idle();
    assert_eq!(world.state(id), "dead");
    assert_eq!(world.causes(id), ["job_error"]);
    assert!(world.starts().is_empty());
    assert!(text(&world.inspect(id)["attempts"][0]["message"]).contains("payload.a"));
}
