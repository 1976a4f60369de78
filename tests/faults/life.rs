//! Stops, losses and cancels: what a job is charged for, and that every claim ends on record once.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::json;
use support::wait_until;
use support::world::Lane;
use support::world::SOON;
use support::world::Supervisor;
use support::world::World;
use support::world::text;

use crate::memory::fault;
use crate::scaled;

const KIND: &str = r#"
[database]
url = "sqlite://jobs.db"

[supervisor]
drain = "300ms"

[kind.fault]
command = ["{fault}", "{payload.mode}", "{payload.a}", "{payload.b}"]
slots = 4
memory = "64MiB"
grace = "1s"
timeout = "30s"
max_attempts = 3
backoff = { first = "100ms", factor = 1.0, max = "100ms", jitter = 0.0 }
"#;

fn until_started(world: &World, job: i64, times: usize) {
    wait_until("the job has started", SOON, || {
        let starts = world.starts().iter().filter(|start| start.job == job).count();
        if starts >= times { Ok(()) } else { Err(format!("{starts} starts")) }
    });
}

fn warden_of(supervisor: &Supervisor) -> Pid {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", supervisor.pid())).expect("children");
    Pid::from_raw(children.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a warden"))
}

fn stop_warden(supervisor: &Supervisor) {
    nix::sys::signal::kill(warden_of(supervisor), Signal::SIGSTOP).expect("it is there");
}

#[test]
fn a2_i1_a_job_that_kills_its_supervisor_is_started_three_times_and_the_loss_is_named() {
    let world = World::new(Lane::Auto, KIND);
    let pid_file = world.path("pid");
    fs::write(&pid_file, "0").expect("a file");
    let id = world.enqueue("fault", &fault("kill-pid-in", &[&pid_file.display().to_string()]));
    for _ in 0..6 {
        if world.state(id) == "dead" {
            break;
        }
        let mut supervisor = world.start(&["run"]);
        fs::write(&pid_file, supervisor.pid().to_string()).expect("a file");
        wait_until("the supervisor is killed, or has nothing left to do", SOON, || {
            let lost = world.causes(id).len();
            if lost >= 3 { Ok(()) } else { Err(supervisor.log()) }
                .or_else(|log| supervisor.has_ended().then_some(()).ok_or(log))
        });
    }
    world.until_idle();
    assert_eq!(world.starts().len(), 3);
    assert_eq!(world.state(id), "dead");
    assert_eq!(world.causes(id), ["supervisor_lost"; 3]);
    let attempt = &world.inspect(id)["attempts"][0];
    assert!(!text(&attempt["supervisor"]).is_empty());
    assert!(attempt["evidence"]["loss"]["last_seen"].is_string(), "{attempt:#}");
}

#[test]
fn j2_i9_four_deploys_cost_nothing_and_four_kills_use_up_the_budget() {
    let world = World::new(Lane::Auto, KIND);
    let drained = world.enqueue("fault", &fault("exit-after", &["3000"]));
    for round in 1..=4 {
        let supervisor = world.supervisor();
        until_started(&world, drained, round);
        assert!(supervisor.stop(SOON).success());
    }
    let supervisor = world.supervisor();
    world.until_state(drained, &["succeeded"], SOON);
    assert_eq!(world.causes(drained), ["drained", "drained", "drained", "drained", "-"]);
    assert_eq!(world.inspect(drained)["charged"], json!(1));
    assert_eq!(world.inspect(drained)["interruptions"], json!(0), "a deploy uses up nothing");
    assert!(supervisor.stop(SOON).success());

    let killed = world.enqueue("fault", &fault("hang", &[]));
    for round in 1..=3 {
        let supervisor = world.supervisor();
        until_started(&world, killed, round);
        supervisor.kill();
    }
    world.until_idle();
    assert_eq!(world.state(killed), "dead");
    assert_eq!(world.causes(killed), ["supervisor_lost"; 3]);
}

#[test]
fn j2_i9_a_job_with_a_single_attempt_survives_a_deploy() {
    let world = World::new(Lane::Auto, &KIND.replace("max_attempts = 3", "max_attempts = 1"));
    let id = world.enqueue("fault", &fault("exit-after", &["1500"]));
    let supervisor = world.supervisor();
    until_started(&world, id, 1);
    assert!(supervisor.stop(SOON).success());
    world.until_idle();
    assert_eq!((world.state(id).as_str(), world.causes(id)), ("succeeded", vec!["drained".to_owned(), "-".to_owned()]));
}

#[test]
fn j1_i9_a_stop_signal_to_supervisor_and_children_alike_costs_nothing() {
    let world = World::new(Lane::Auto, KIND);
    let ids: Vec<i64> = (0..4).map(|_| world.enqueue("fault", &fault("hang", &[]))).collect();
    let mut supervisor = world.supervisor();
    ids.iter().for_each(|id| until_started(&world, *id, 1));
    for start in world.starts() {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(start.pid), Signal::SIGTERM).expect("it runs");
    }
    supervisor.signal(Signal::SIGTERM);
    assert!(supervisor.wait(SOON).success());
    for id in ids {
        assert_eq!((world.state(id).as_str(), world.causes(id)), ("queued", vec!["drained".to_owned()]));
        assert_eq!(world.inspect(id)["charged"], json!(0));
    }
}

#[test]
fn three_signals_drain_stop_and_kill() {
    let world = World::new(Lane::Auto, &KIND.replace("300ms", "60s").replace("grace = \"1s\"", "grace = \"60s\""));
    let file = world.path("appended").display().to_string();
    let id = world.enqueue("fault", &fault("ignore-term", &[&file, "0"]));
    let mut supervisor = world.supervisor();
    until_started(&world, id, 1);
    for word in ["draining", "stopping"] {
        supervisor.signal(Signal::SIGTERM);
        supervisor.signal(Signal::SIGUSR1);
        wait_until("the state is reported", SOON, || {
            let log = supervisor.log();
            if log.contains(&format!("{word}: 1 running")) {
                Ok(())
            } else {
                supervisor.signal(Signal::SIGUSR1);
                Err(log)
            }
        });
    }
    supervisor.signal(Signal::SIGINT);
    assert!(supervisor.wait(SOON).success());
    assert!(supervisor.log().contains(&format!("from pid {}", std::process::id())), "who asked is on record");
    assert_eq!(world.causes(id), ["drained"]);
    assert_eq!(world.state(id), "queued");
}

#[test]
fn j3_a_cancel_is_kept_or_comes_too_late_but_never_both() {
    let world = World::new(Lane::Auto, KIND);
    let supervisor = world.supervisor();
    let mut told = BTreeMap::new();
    for round in 0..scaled(12) {
        let id = world.enqueue("fault", &fault("exit-after", &[&(round * 25 % 300).to_string()]));
        let output = world.run(&["cancel", &id.to_string()]);
        told.insert(id, output.status.success());
    }
    let stubborn = world.enqueue("fault", &fault("ignore-term", &[&world.path("appended").display().to_string(), "2"]));
    until_started(&world, stubborn, 1);
    world.good(&["cancel", &stubborn.to_string()]);
    assert!(world.processes_of(stubborn).is_empty(), "no process is left");
    told.insert(stubborn, true);
    assert!(supervisor.stop(SOON).success());
    for (id, cancelled) in told {
        let state = world.state(id);
        assert_eq!(state == "cancelled", cancelled, "job {id} is {state}");
        assert!(state == "cancelled" || state == "succeeded", "{state}");
        assert!(world.starts().iter().filter(|start| start.job == id).count() <= 1, "no retry");
    }
}

#[test]
fn g1_i10_any_bytes_that_a_job_writes_or_is_given_end_on_record() {
    let world = World::new(Lane::Auto, KIND);
    let bytes = [
        ("stdout", "00", "succeeded"),
        ("stdout", "7b2261223a20225c7530303030227d", "succeeded"),
        ("stdout", "7b225c7530303030223a20317d", "succeeded"),
        ("stdout", "225c75643830302022", "succeeded"),
        ("stderr", "00ff1b5b324a", "succeeded"),
    ];
    let ids: Vec<i64> =
        bytes.iter().map(|(stream, hex, _)| world.enqueue("fault", &fault("write", &[stream, hex]))).collect();
    let nul = world.enqueue("fault", &json!({ "mode": "exit", "a": 0, "b": 0, "text": "a\u{0}b" }));
    world.until_idle();
    for (id, (stream, hex, state)) in ids.into_iter().zip(bytes) {
        assert_eq!(world.state(id), state, "{stream} {hex}");
        assert_eq!(world.starts().iter().filter(|start| start.job == id).count(), 1);
    }
    assert_eq!(world.inspect(nul)["payload"]["text"], json!("a\u{0}b"), "it comes back as it was given");
    let shown = world.inspect_text(nul);
    assert!(!shown.contains('\0') && !shown.contains('\u{1b}'), "nothing that a terminal would obey");
}

#[test]
fn a_second_supervisor_is_refused_and_told_who_is_there() {
    let world = World::new(Lane::Auto, KIND);
    let supervisor = world.supervisor();
    let output = world.start(&["run"]).output(SOON);
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains(&supervisor.pid().to_string()), "{words}");
    assert!(supervisor.stop(SOON).success());
}

#[test]
fn the_wardens_death_ends_its_attempts_uncharged_and_another_warden_goes_on() {
    let world = World::new(Lane::Auto, KIND);
    let id = world.enqueue("fault", &fault("exit-after", &["1500"]));
    let supervisor = world.supervisor();
    until_started(&world, id, 1);
    nix::sys::signal::kill(warden_of(&supervisor), Signal::SIGKILL).expect("it is there");
    world.until_state(id, &["succeeded"], Duration::from_secs(60));
    assert_eq!(world.causes(id), ["warden_lost", "-"]);
    let story = world.inspect(id);
    assert_eq!((&story["charged"], &story["interruptions"]), (&json!(1), &json!(1)));
    assert!(supervisor.stop(SOON).success());
}

#[test]
fn a_reload_takes_a_good_file_whole_refuses_a_bad_one_whole_and_leaves_what_runs_alone() {
    let world = World::new(Lane::Auto, KIND);
    let running = world.enqueue("fault", &fault("exit-after", &["2000"]));
    let supervisor = world.supervisor();
    until_started(&world, running, 1);
    let said = |words: &str| {
        wait_until("it was read again", SOON, || {
            if supervisor.log().contains(words) { Ok(()) } else { Err(supervisor.log()) }
        });
    };
    world.write_config(&KIND.replace("slots = 4", "slots = 0").replace("[kind.fault]", "[kind.other]"));
    supervisor.signal(Signal::SIGHUP);
    said("kept the old configuration");
    assert!(supervisor.log().contains("slots"), "the error is named");
    world.write_config(&KIND.replace("[kind.fault]", "[kind.other]"));
    supervisor.signal(Signal::SIGHUP);
    said("read again");
    let other = world.enqueue("other", &fault("exit", &["0"]));
    world.until_state(other, &["succeeded"], SOON);
    world.until_state(running, &["succeeded"], SOON);
    assert_eq!(world.starts().iter().filter(|start| start.job == running).count(), 1);
    assert!(supervisor.stop(SOON).success());
}

#[test]
fn a_service_manager_is_told_that_it_takes_jobs_that_it_lives_and_that_it_stops() {
    let world = World::new(Lane::Auto, KIND);
    let path = world.path("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(SOON)).expect("a limit");
    let hear = |word: &str| {
        let mut buffer = [0; 4096];
        wait_until(word, SOON, || {
            let count = manager.recv(&mut buffer).expect("a message");
            let message = String::from_utf8_lossy(&buffer[..count]).into_owned();
            if message.lines().any(|line| line == word) { Ok(message) } else { Err(message) }
        })
    };
    let socket = path.display().to_string();
    let mut supervisor = world.start_with(&["run"], &[("NOTIFY_SOCKET", &socket), ("WATCHDOG_USEC", "200000")]);
    hear("READY=1");
    let alive = hear("WATCHDOG=1");
    assert!(alive.contains("STATUS=working: 0 running"), "{alive}");
    supervisor.signal(Signal::SIGTERM);
    hear("STOPPING=1");
    assert!(supervisor.wait(SOON).success());
}

/// Runs a statement on the world's file from outside.
fn in_sqlite(world: &World, statement: &str) {
    let script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit()";
    let database = world.path("jobs.db").display().to_string();
    let done = std::process::Command::new("python3").args(["-c", script, &database, statement]).status();
    assert!(done.expect("python3").success(), "{statement}");
}

#[test]
fn i10_an_outcome_that_the_database_refuses_holds_up_no_other_and_is_recorded_when_it_can_be() {
    let world = World::new(Lane::Auto, KIND);
    let refused = world.enqueue("fault", &fault("exit", &["0"]));
    if world.is_on_postgres() {
        world.postgres().execute(&format!(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'refused by the test'; END$$;
             CREATE TRIGGER no BEFORE UPDATE ON jobvisor.jobs FOR EACH ROW
                 WHEN (old.id = {refused} AND old.state = 'running') EXECUTE FUNCTION no()"
        ));
    } else {
        in_sqlite(
            &world,
            &format!(
                "CREATE TRIGGER no BEFORE UPDATE ON jobs WHEN old.id = {refused} AND old.state = 'running' \
                 BEGIN SELECT RAISE(ABORT, 'refused by the test'); END"
            ),
        );
    }
    let supervisor = world.supervisor();
    until_started(&world, refused, 1);
    let other = world.enqueue("fault", &fault("exit", &["0"]));
    world.until_state(other, &["succeeded"], SOON);
    assert_eq!(world.state(refused), "running");
    assert!(supervisor.log().contains("refused by the test"), "{}", supervisor.log());
    if world.is_on_postgres() {
        world.postgres().execute("DROP TRIGGER no ON jobvisor.jobs");
    } else {
        in_sqlite(&world, "DROP TRIGGER no");
    }
    world.until_state(refused, &["succeeded"], SOON);
    assert!(supervisor.stop(SOON).success());
    assert_eq!(world.starts().iter().filter(|start| start.job == refused).count(), 1);
}

#[test]
fn a_watched_job_is_told_at_every_change_until_it_has_ended() {
    let world = World::new(Lane::Auto, KIND);
    let id = world.enqueue("fault", &fault("exit-after", &["300"]));
    let watch = world.start(&["inspect", &id.to_string(), "--watch", "--json"]);
    wait_until("the queued job was told of", SOON, || {
        if watch.data().is_empty() { Err("not yet".to_owned()) } else { Ok(()) }
    });
    let supervisor = world.supervisor();
    let told = watch.output(SOON);
    let states: Vec<String> = String::from_utf8_lossy(&told.stdout)
        .lines()
        .map(|line| text(&serde_json::from_str::<serde_json::Value>(line).expect("JSON")["state"]))
        .collect();
    assert_eq!(states.first().map(String::as_str), Some("queued"), "{states:?}");
    assert_eq!(states.last().map(String::as_str), Some("succeeded"), "{states:?}");
    assert!(told.status.success() && states.iter().filter(|state| *state == "succeeded").count() == 1, "{states:?}");
    assert!(supervisor.stop(SOON).success());
}

#[test]
fn a_payload_of_any_allowed_size_arrives_and_a_larger_one_is_refused_with_the_limit() {
    let world = World::new(
        Lane::Auto,
        &KIND.replace("drain = \"300ms\"", "drain = \"300ms\"\nmax_payload = \"8MiB\"\nmax_result = \"16MiB\""),
    );
    for size in [131_071, 131_072, 7 << 20] {
        let payload = json!({ "mode": "echo-stdin", "a": 0, "b": 0, "text": "x".repeat(size) });
        let file = world.path("payload.json");
        fs::write(&file, payload.to_string()).expect("a file");
        let id: i64 = world
            .good(&["enqueue", "fault", "--payload", &format!("@{}", file.display())])
            .trim()
            .parse()
            .expect("an id");
        world.until_idle();
        assert_eq!(world.inspect(id)["result"], payload, "{size} bytes");
    }
    let file = world.path("payload.json");
    fs::write(&file, json!("x".repeat(8 << 20)).to_string()).expect("a file");
    let output = world.run(&["enqueue", "fault", "--payload", &format!("@{}", file.display())]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("8.0 MiB"));
}

#[test]
fn i4_a_database_has_one_supervisor_whatever_links_lead_to_it() {
    let world = World::new(Lane::Auto, KIND);
    if !world.is_on_sqlite("i4_a_database_has_one_supervisor_whatever_links_lead_to_it") {
        return;
    }
    let id = world.enqueue("fault", &fault("exit-after", &["2000"]));
    std::os::unix::fs::symlink("jobs.db", world.path("link.db")).expect("a link");
    let supervisor = world.supervisor();
    until_started(&world, id, 1);
    let second = world.run(&["--database", "sqlite://link.db", "run", "--until-idle"]);
    assert_eq!(second.status.code(), Some(2), "{}", String::from_utf8_lossy(&second.stderr));
    assert!(String::from_utf8_lossy(&second.stderr).contains(&supervisor.pid().to_string()));
    world.until_state(id, &["succeeded"], SOON);
    assert_eq!(world.starts().len(), 1);
}

#[test]
fn two_supervisors_of_one_name_work_on_two_databases_without_touching_each_other() {
    let script = "echo x > $TMPDIR/x; touch ready; while [ ! -e go ]; do sleep 0.02; done; cat $TMPDIR/x";
    let world = World::new(
        Lane::Auto,
        &KIND.replace(
            r#""{fault}", "{payload.mode}", "{payload.a}", "{payload.b}""#,
            &format!("\"sh\", \"-c\", \"{script}\""),
        ),
    );
    let id = world.enqueue("fault", &json!({}));
    let supervisor = world.supervisor();
    wait_until("the job has a file in its folder", SOON, || {
        if world.path("ready").exists() { Ok(()) } else { Err(supervisor.log()) }
    });
    let other = world.run(&["--database", "sqlite://other.db", "run", "--until-idle"]);
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
    fs::write(world.path("go"), "").expect("a file");
    world.until_state(id, &["succeeded", "scheduled", "dead"], SOON);
    assert_eq!(world.inspect(id)["result"], json!("x\n"), "{:#}", world.inspect(id));
}

#[test]
fn i9_a_warden_that_does_not_answer_cannot_hold_up_a_stop() {
    let world = World::new(Lane::Auto, KIND);
    let id = world.enqueue("fault", &fault("hang", &[]));
    let mut supervisor = world.supervisor();
    until_started(&world, id, 1);
    stop_warden(&supervisor);
    supervisor.signal(Signal::SIGTERM);
    // 300 ms of drain, 1 s of grace, 15 s for the warden.
    assert!(supervisor.wait(Duration::from_secs(60)).success());
    assert_eq!(world.causes(id), ["warden_lost"]);
    assert_eq!(world.inspect(id)["charged"], json!(0));
    assert_eq!(world.processes_of(id), Vec::<i32>::new());
    // One that holds nothing does not outlive its supervisor either, and the lock is free.
    world.good(&["cancel", &id.to_string()]);
    let supervisor = world.supervisor();
    stop_warden(&supervisor);
    assert!(supervisor.stop(SOON).success());
    let next = world.start(&["run", "--until-idle"]).output(Duration::from_secs(10));
    assert!(next.status.success(), "{}", String::from_utf8_lossy(&next.stderr));
}

#[test]
fn i7_a_reader_of_the_log_that_goes_away_ends_nothing() {
    let world = World::new(Lane::Auto, KIND);
    let id = world.enqueue("fault", &fault("exit-after", &["500"]));
    let (reader, writer) = nix::unistd::pipe().expect("a pipe");
    drop(reader);
    let gone = world.command(&["run", "--until-idle"]).stderr(writer).output().expect("the program runs");
    assert!(gone.status.success(), "{}", gone.status);
    assert_eq!(world.state(id), "succeeded");
}
