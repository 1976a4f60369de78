//! Memory: limits that are in force, and deaths by them that are told apart from all others.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use serde_json::json;
use support::has_cgroup;
use support::wait_until;
use support::world::Lane;
use support::world::SOON;
use support::world::WATCHDOG;
use support::world::World;
use support::world::in_force;
use support::world::text;

use crate::scaled;

const KIND: &str = r#"
[database]
url = "sqlite://jobs.db"

[supervisor]
memory_budget = "2GiB"

[kind.fault]
command = ["{fault}", "{payload.mode}", "{payload.a}", "{payload.b}", "{payload.c}"]
slots = 4
memory = "64MiB"
grace = "1s"
timeout = "20s"
max_attempts = 3
backoff = { first = "100ms", factor = 1.0, max = "100ms", jitter = 0.0 }
"#;

pub(crate) fn fault(mode: &str, arguments: &[&str]) -> Value {
    let argument = |at: usize| arguments.get(at).copied().unwrap_or("0");
    json!({ "mode": mode, "a": argument(0), "b": argument(1), "c": argument(2) })
}

#[test]
fn a1_i1_a_job_that_is_killed_by_its_limit_is_started_as_often_as_allowed_and_never_again() {
    for lane in Lane::all() {
        let world = World::new(lane, KIND);
        let id = world.enqueue("fault", &fault("hog", &["1"]));
        let supervisor = world.supervisor();
        wait_until("a first attempt is on record", SOON, || {
            if world.causes(id).is_empty() { Err("none") } else { Ok(()) }.map_err(str::to_owned)
        });
        assert!(supervisor.stop(SOON).success());
        let supervisor = world.supervisor();
        world.until_state(id, &["dead"], SOON);
        assert!(supervisor.stop(SOON).success());
        // A third start of the supervisor finds nothing to do: the job stays dead.
        world.until_idle();
        let story = world.inspect(id);
        let charged: Vec<bool> = attempts(&story).iter().map(|attempt| attempt["charged"] == json!(true)).collect();
        assert_eq!(charged.iter().filter(|charged| **charged).count(), 3, "{story:#}");
        let oom: Vec<&Value> = attempts(&story).iter().filter(|attempt| attempt["charged"] == json!(true)).collect();
        for attempt in oom {
            assert_eq!(text(&attempt["cause"]), lane.own_limit());
            assert_eq!(attempt["memory"]["limit"], json!(64 << 20));
            assert!(attempt["memory"]["peak"].as_u64().is_some_and(|peak| peak > 60 << 20), "{attempt:#}");
        }
        // One that a stop gave back before its process was made has no start.
        let made = attempts(&story).iter().filter(|attempt| attempt["pid"].is_number()).count();
        assert_eq!(world.starts().len(), made, "{story:#}");
    }
}

fn attempts(story: &Value) -> &Vec<Value> {
    story["attempts"].as_array().expect("attempts")
}

#[test]
fn b1_i3_a_kill_by_us_by_a_stranger_or_by_an_own_helper_is_never_called_oom() {
    for lane in Lane::all() {
        let world = World::new(
            lane,
            &KIND.replace("timeout = \"20s\"", "timeout = \"1s\"").replace("max_attempts = 3", "max_attempts = 1"),
        );
        let file = world.path("appended");
        let stubborn = world.enqueue("fault", &fault("ignore-term", &[&file.display().to_string(), "0"]));
        let stranger = world.enqueue("fault", &fault("hang", &[]));
        let helper = world.enqueue("fault", &fault("killed-by-helper", &[]));
        let code = world.enqueue("fault", &fault("exit", &["137"]));
        let supervisor = world.supervisor();
        let pid = wait_until("the job runs", SOON, || {
            world
                .starts()
                .iter()
                .find(|start| start.job == stranger)
                .map(|start| start.pid)
                .ok_or_else(|| "not".to_owned())
        });
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).expect("it runs");
        for id in [stubborn, stranger, helper, code] {
            world.until_state(id, &["dead"], SOON);
        }
        assert!(supervisor.stop(SOON).success());
        assert_eq!(world.causes(stubborn), ["timeout"]);
        let by_stranger = if lane.is_kernels() { "killed_external" } else { "killed_unknown" };
        assert_eq!(world.causes(stranger), [by_stranger]);
        assert_eq!(world.causes(helper), [by_stranger]);
        assert_eq!(world.causes(code), ["exit_nonzero"]);
        assert_eq!(world.inspect(code)["attempts"][0]["exit_code"], json!(137));
        assert_eq!(world.inspect(stubborn)["attempts"][0]["signal"], json!(9));
        for id in [stubborn, stranger, helper, code] {
            let summary = text(&world.inspect(id)["attempts"][0]["summary"]).to_lowercase();
            assert!(!summary.contains("oom") && !summary.contains("out of memory"), "{summary}");
        }
    }
}

#[test]
fn b3_the_oom_kill_of_a_helper_is_no_success_although_the_main_process_exits_0() {
    if !has_cgroup("b3") {
        return;
    }
    let world = World::new(Lane::Auto, &KIND.replace("max_attempts = 3", "max_attempts = 1"));
    let id = world.enqueue("fault", &fault("hog-in-child", &[]));
    world.until_idle();
    assert_eq!(world.state(id), "dead");
    let story = world.inspect(id);
    let attempt = &attempts(&story)[0];
    // With `memory.oom.group` (v2) the kernel takes the whole group, main process and all.
    let cause = text(&attempt["cause"]);
    assert!(["oom_descendant", "oom_job_limit"].contains(&cause.as_str()), "{attempt:#}");
    assert!(attempt["memory"]["oom_kills"].as_u64().is_some_and(|kills| kills > 0), "{attempt:#}");
}

#[test]
fn i1_i3_a_kill_at_the_limit_of_a_group_above_is_told_so_and_costs_an_interruption_first() {
    if !has_cgroup("ancestor") {
        return;
    }
    let toml = KIND
        .replace("memory = \"64MiB\"", "memory = \"300MiB\"")
        .replace("max_attempts = 3", "max_attempts = 1\nmax_interruptions = 1");
    let world = World::new(Lane::Auto, &toml).within(96 << 20);
    let id = world.enqueue("fault", &fault("hog", &["1"]));
    world.until_idle();
    assert_eq!((world.state(id).as_str(), world.causes(id)), ("dead", vec!["oom_ancestor_limit".to_owned(); 2]));
    let story = world.inspect(id);
    assert_eq!((&story["charged"], &story["interruptions"]), (&json!(1), &json!(1)));
    for attempt in attempts(&story) {
        let guilty = attempt["evidence"]["process"]["ancestors"]
            .as_array()
            .expect("groups above")
            .iter()
            .find(|group| group["oom_after"].as_u64() > group["oom_before"].as_u64());
        assert!(guilty.is_some_and(|group| text(&group["path"]).contains("jvtest")), "{attempt:#}");
        assert!(attempt["memory"]["peak"].as_u64().is_some_and(|peak| peak < 300 << 20), "{attempt:#}");
    }
}

#[test]
fn b4_every_oom_at_first_touch_is_told_and_no_clean_exit_is() {
    if !has_cgroup("b4") {
        return;
    }
    let count = scaled(20);
    let world = World::new(Lane::Auto, &KIND.replace("max_attempts = 3", "max_attempts = 1"));
    let burners: Vec<_> = (0..2).map(|_| Burner::start()).collect();
    let many = |payload: &Value| {
        let ids = world.good(&["enqueue", "fault", "--count", &count.to_string(), "--payload", &payload.to_string()]);
        ids.lines().map(|line| line.parse().expect("an id")).collect::<Vec<i64>>()
    };
    let killed = many(&fault("touch", &["128"]));
    let clean = many(&fault("exit", &["0"]));
    world.until_idle();
    drop(burners);
    for id in killed {
        assert_eq!(world.causes(id), ["oom_job_limit"], "job {id}");
    }
    for id in clean {
        assert_eq!(world.causes(id), ["-"], "job {id}");
    }
}

/// A thread that spins.
struct Burner(std::sync::Arc<std::sync::atomic::AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Burner {
    fn start() -> Self {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || while !seen.load(std::sync::atomic::Ordering::Relaxed) {});
        Self(stop, Some(thread))
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        self.1.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn c1_i14_what_is_in_force_is_said_and_a_protective_oom_score_is_not_inherited() {
    if !has_cgroup("c1") {
        return;
    }
    let world = World::new(Lane::Auto, KIND);
    let score = world.enqueue("fault", &fault("print-file", &["/proc/self/oom_score_adj"]));
    let hog = world.enqueue("fault", &fault("hog", &["1"]));
    let supervisor = world.supervisor();
    world.until_state(hog, &["dead"], SOON);
    world.until_state(score, &["succeeded"], SOON);
    assert!(supervisor.log().contains("memory limits are the kernel's"), "{}", supervisor.log());
    assert!(supervisor.stop(SOON).success());
    assert!(world.inspect(score)["result"].as_i64().is_some_and(|score| score >= 500), "{:#}", world.inspect(score));
    let enforcement = text(&world.inspect(hog)["attempts"][0]["enforcement"]);
    assert!(enforcement.starts_with("cgroup"), "{enforcement}");
}

#[test]
fn c1_i14_a_kind_that_demands_a_cgroup_is_not_started_without_one() {
    let strict = KIND.replace("grace = \"1s\"", "grace = \"1s\"\nenforce = \"cgroup\"");
    let world = World::new(Lane::Auto, &strict);
    if in_force() != WATCHDOG {
        support::skip("c1-strict", "a cgroup can be had here; the lane without rights shows it");
        return;
    }
    let id = world.enqueue("fault", &fault("hang", &[]));
    let output = world.start(&["run", "--until-idle"]).output(Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(world.starts().is_empty(), "it never ran");
    assert!(world.causes(id).iter().all(|cause| cause == "limit_setup_failed"), "{:?}", world.causes(id));
    assert_eq!(world.inspect(id)["charged"], json!(0));
}

#[test]
fn c2_the_watchdog_does_not_take_page_cache_for_the_jobs_memory() {
    let world = World::new(Lane::Watchdog, KIND);
    let file = world.path("large");
    fs::write(&file, vec![7; 256 << 20]).expect("a large file");
    let id = world.enqueue("fault", &fault("stream", &[&file.display().to_string()]));
    world.until_idle();
    assert_eq!(world.state(id), "succeeded", "{:#}", world.inspect(id));
}

#[test]
fn c2_a_short_spike_is_in_the_recorded_peak_whatever_the_verdict() {
    let world = World::new(Lane::Watchdog, &KIND.replace("max_attempts = 3", "max_attempts = 1"));
    let id = world.enqueue("fault", &fault("spike", &["128", "30", "2000"]));
    world.until_idle();
    let story = world.inspect(id);
    let attempt = &attempts(&story)[0];
    let struck = text(&story["state"]) == "dead";
    let peak = attempt["memory"]["peak"].as_u64().expect("a peak");
    // Struck on its way up, it was killed before it could reach its full height.
    assert!(if struck { peak > 64 << 20 } else { peak >= 128 << 20 }, "{attempt:#}");
    assert_eq!(text(&attempt["memory"]["source"]), "sampled");
}
