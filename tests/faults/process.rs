//! Processes and pipes: what a job starts is all ended, and what it writes hurts nobody.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

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
max_result = "1MiB"

[kind.fault]
command = ["{fault}", "{payload.mode}", "{payload.a}", "{payload.b}", "{payload.c}"]
slots = 4
memory = "64MiB"
grace = "1s"
timeout = "30s"
max_attempts = 2
backoff = { first = "100ms", factor = 1.0, max = "100ms", jitter = 0.0 }
"#;

/// `ATTEMPT PID MILLISECONDS` as `append` writes them.
fn appended(world: &World) -> Vec<(u32, i32, u64)> {
    let text = fs::read_to_string(world.path("appended")).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[test]
fn d8_i4_i8_children_of_a_killed_supervisor_die_before_the_next_attempt_starts() {
    for lane in Lane::all() {
        let world = World::new(lane, KIND);
        let file = world.path("appended").display().to_string();
        let id = world.enqueue("fault", &fault("append", &[&file, "1"]));
        let supervisor = world.supervisor();
        wait_until("both writers write", SOON, || {
            let pids: BTreeSet<i32> = appended(&world).iter().map(|line| line.1).collect();
            if pids.len() == 2 { Ok(()) } else { Err(format!("{} writers", pids.len())) }
        });
        supervisor.kill();
        wait_until("nothing of the job is left", Duration::from_secs(2), || {
            let left = world.processes_of(id);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        let supervisor = world.supervisor();
        wait_until("a second attempt writes", SOON, || {
            if appended(&world).iter().any(|line| line.0 == 2) { Ok(()) } else { Err("not yet".to_owned()) }
        });
        let lines = appended(&world);
        let last_of_first = lines.iter().filter(|line| line.0 == 1).map(|line| line.2).max().expect("lines");
        let first_of_second = lines.iter().filter(|line| line.0 == 2).map(|line| line.2).min().expect("lines");
        assert!(last_of_first < first_of_second, "{last_of_first} … {first_of_second}");
        assert_eq!(world.causes(id)[0], "supervisor_lost");
        world.good(&["cancel", &id.to_string()]);
        assert!(supervisor.stop(SOON).success());
    }
}

#[test]
fn e1_i7_floods_of_any_kind_are_drained_bounded_and_recorded() {
    let world = World::new(Lane::Auto, KIND);
    let supervisor = world.supervisor();
    let before = resident(supervisor.pid());
    let mut ids = vec![
        world.enqueue("fault", &fault("flood-stderr", &["5242880", "lines"])),
        world.enqueue("fault", &fault("write", &["stderr", "fffe00", "0"])),
        world.enqueue("fault", &fault("flood-stderr", &["314572800", "raw"])),
    ];
    let result = world.enqueue("fault", &fault("flood-stdout", &["314572800", "raw"]));
    ids.push(result);
    for id in &ids {
        world.until_state(*id, &["succeeded"], Duration::from_secs(60));
        let tail = text(&world.inspect(*id)["attempts"][0]["output_tail"]);
        assert!(tail.len() <= 128 * 1024, "{} bytes kept", tail.len());
    }
    let grown = resident(supervisor.pid()).saturating_sub(before);
    assert!(grown < 16 << 20, "the supervisor grew by {grown} bytes");
    let flags = world.inspect(result)["attempts"][0]["flags"].to_string();
    assert!(flags.contains("truncated"), "{flags}");
    assert!(supervisor.stop(SOON).success());
}

#[test]
fn e1_a_strict_kind_is_ended_at_its_limit() {
    let world = World::new(Lane::Auto, &KIND.replace("max_attempts = 2", "max_attempts = 1\noutput = \"strict\""));
    let long = world.enqueue("fault", &fault("flood-stdout", &["314572800", "raw"]));
    // It ends by itself before anybody can stop it; half of what it said is lost all the same.
    let short = world.enqueue("fault", &fault("flood-stdout", &["1048600", "raw"]));
    world.until_idle();
    for id in [long, short] {
        assert_eq!(world.causes(id), ["output_limit"], "{:#}", world.inspect(id));
    }
}

/// Resident memory of a process in bytes.
fn resident(pid: i32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("it lives");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
}

#[test]
fn e2_i8_a_daemon_that_holds_the_pipes_keeps_nobody_waiting_and_is_ended() {
    for lane in Lane::all() {
        let world = World::new(lane, KIND);
        let id = world.enqueue("fault", &fault("daemon", &[]));
        let supervisor = world.supervisor();
        world.until_state(id, &["succeeded"], SOON);
        assert!(world.processes_of(id).is_empty(), "the daemon lives on");
        assert!(supervisor.stop(SOON).success());
        let attempt = &world.inspect(id)["attempts"][0];
        assert!(attempt["duration_s"].as_f64().is_some_and(|seconds| seconds < 3.0), "{attempt:#}");
        assert!(attempt["flags"].to_string().contains("leaked"), "{attempt:#}");
        assert_eq!(world.inspect(id)["result"], json!("done\n"));
    }
}

#[test]
fn f1_i8_a_timeout_ends_the_whole_tree_before_the_next_attempt() {
    for lane in Lane::all() {
        let world = World::new(lane, &KIND.replace("timeout = \"30s\"", "timeout = \"1s\""));
        let file = world.path("appended").display().to_string();
        let id = world.enqueue("fault", &fault("ignore-term", &[&file, "3"]));
        world.until_idle();
        assert_eq!(world.causes(id), ["timeout", "timeout"]);
        assert!(world.processes_of(id).is_empty());
        let lines = appended(&world);
        let writers: BTreeSet<(u32, i32)> = lines.iter().map(|line| (line.0, line.1)).collect();
        assert_eq!(writers.len(), 8, "four writers in each attempt: {writers:?}");
        let last_of_first = lines.iter().filter(|line| line.0 == 1).map(|line| line.2).max().expect("lines");
        let first_of_second = lines.iter().filter(|line| line.0 == 2).map(|line| line.2).min().expect("lines");
        assert!(last_of_first < first_of_second);
    }
}

/// What a supervisor holds: descriptors, threads, zombies among its children and its warden's, groups of jobs.
fn holdings(supervisor: &Supervisor) -> (usize, usize, usize) {
    let pid = supervisor.pid();
    let count = |path: String| fs::read_dir(path).map_or(0, Iterator::count);
    let family: Vec<i32> = std::iter::once(pid).chain(children(pid)).collect();
    let descriptors = family.iter().map(|pid| count(format!("/proc/{pid}/fd"))).sum();
    let threads = family.iter().map(|pid| count(format!("/proc/{pid}/task"))).sum();
    let zombies = family.iter().flat_map(|pid| children(*pid)).filter(|child| state(*child) == "Z").count();
    (descriptors, threads, zombies)
}

fn children(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    found
}

fn state(pid: i32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or("gone").to_owned()
}

#[test]
fn f5_many_short_jobs_leave_nothing_behind_and_inherit_nothing() {
    let count = scaled(100).to_string();
    let world = World::new(Lane::Auto, &KIND.replace("max_attempts = 2", "max_attempts = 1"));
    let supervisor = world.supervisor();
    let fds = world.enqueue("fault", &fault("print-fds", &[]));
    world.until_state(fds, &["succeeded"], SOON);
    assert_eq!(world.inspect(fds)["result"], json!([0, 1, 2]));
    let before = holdings(&supervisor);
    let mut last = 0;
    for payload in [fault("exit", &["0"]), fault("killed-by-helper", &[]), fault("daemon", &[])] {
        let ids = world.good(&["enqueue", "fault", "--count", &count, "--payload", &payload.to_string()]);
        last = ids.lines().last().and_then(|line| line.parse().ok()).expect("ids");
    }
    wait_until("all have ended", Duration::from_secs(300), || {
        let open = world.good(&["list", "--state", "queued", "--state", "running", "--json"]);
        if open.is_empty() { Ok(()) } else { Err(format!("{} open", open.lines().count())) }
    });
    assert!(["succeeded", "dead"].contains(&world.state(last).as_str()));
    let after = wait_until("what was held is given back", SOON, || {
        let now = holdings(&supervisor);
        let same = now.0.abs_diff(before.0) <= 2 && now.1.abs_diff(before.1) <= 2 && now.2 == 0;
        if same { Ok(now) } else { Err(format!("{before:?} before, {now:?} now")) }
    });
    assert_eq!(after.2, 0);
    let within = |path: &Path| fs::read_dir(path).expect("a folder").flatten().map(|entry| entry.path());
    let supervisors = within(&world.path(".jobvisor")).collect::<Vec<_>>();
    let databases = supervisors.iter().flat_map(|path| within(path)).collect::<Vec<_>>();
    assert_eq!(databases.len(), 1, "{databases:?}");
    assert_eq!(within(&databases[0].join("tmp")).count(), 0, "temporary folders of attempts are removed");
    assert!(supervisor.stop(SOON).success());
}

#[test]
fn f9_a_program_that_is_not_there_is_tried_rarely_burns_no_attempt_and_leaves_others_alone() {
    let broken = format!(
        "{KIND}\n[kind.broken]\ncommand = [\"/nonexistent/program\"]\nmemory = \"64MiB\"\nslots = 2\nbackoff = {{ first = \"10ms\", factor = 1.0, max = \"10ms\", jitter = 0.0 }}\n"
    );
    let world = World::new(Lane::Auto, &broken);
    let ids = world.good(&["enqueue", "broken", "--count", "10"]);
    let first: i64 = ids.lines().next().and_then(|line| line.parse().ok()).expect("an id");
    let supervisor = world.supervisor();
    let healthy = world.enqueue("fault", &fault("exit", &["0"]));
    world.until_state(healthy, &["succeeded"], SOON);
    wait_until("it was tried four times", SOON, || {
        let tried = supervisor.log().matches("spawn_failed").count();
        if tried >= 4 { Ok(()) } else { Err(format!("{tried} times")) }
    });
    assert!(supervisor.stop(SOON).success());
    let story = world.inspect(first);
    assert_eq!(story["charged"], json!(0), "{story:#}");
    let causes: BTreeSet<String> = world.causes(first).into_iter().collect();
    assert_eq!(causes, BTreeSet::from(["spawn_failed".to_owned()]));
    assert!(text(&story["attempts"][0]["message"]).contains("/nonexistent/program"), "{story:#}");
    // It ends by itself where nobody waits for a person: exit status 1, and the kind is named.
    let output = world.start(&["run", "--until-idle"]).output(Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("`broken`"));
}
