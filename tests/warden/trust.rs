//! The trust deadline: past it nobody runs, with a leaf and without.

use std::time::Duration;

use jobvisor::domain::cause::Cause;
use jobvisor::domain::clock;
use jobvisor::domain::clock::BootInstant;
use jobvisor::domain::evidence::Evidence;
use jobvisor::domain::verdict::Ending;
use jobvisor::domain::verdict::Flag;
use jobvisor::domain::verdict::judge;
use nix::sys::signal::Signal;

use super::*;

const FAR: Duration = Duration::from_secs(600);

/// Each of these in both lanes: by signals, and by the freezer where there is one.
macro_rules! lanes {
    ($($name:ident),* $(,)?) => {
        mod by_signals {
            use super::*;
            $(#[tokio::test] async fn $name() { super::$name(World::watchdog()).await; })*
        }
        mod by_the_freezer {
            use super::*;
            $(#[tokio::test] async fn $name() {
                let Some(world) = World::cgroup() else { return };
                super::$name(world).await;
            })*
        }
    };
}

lanes![
    i4_past_the_deadline_nobody_runs_and_a_later_one_lets_them_go_on,
    i4_a_timeout_stands_still_while_frozen,
    i4_a_grace_stands_still_while_frozen,
    i4_a_stop_kills_what_is_frozen_and_does_not_let_it_run_again,
    i4_no_start_is_taken_past_the_deadline,
    i4_a_renewal_that_lies_in_the_socket_counts,
    i4_when_the_supervisor_goes_what_is_frozen_dies,
    i4_chains_of_forks_stand_still,
    i4_many_attempts_are_frozen_and_thawed_together,
    i4_a_start_at_the_very_deadline_is_frozen_or_refused,
];

impl World {
    /// Trusts for so long from now.
    fn trust(&self, span: Duration) -> BootInstant {
        let until = clock::boottime().plus(span);
        self.handle.as_ref().unwrap().trust(until).unwrap();
        until
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn counter(&mut self, mode: &str, name: &str, how_many: &str) -> (u64, i32, ParentPipes, PathBuf) {
        let file = self.file(name);
        let (key, pipes) = self.run(&[mode, file.to_str().unwrap(), how_many]);
        let pid = self.running(key).await;
        wait_until("a counter at work", || length(&file) > 100).await;
        (key, pid, pipes, file)
    }
}

/// Waits until the file stands still, which must be soon, and then for a while; the length.
async fn standstill(file: &Path) -> u64 {
    let mut last = (length(file), monotonic());
    let begun = monotonic();
    while last.1.elapsed() < Duration::from_millis(150) {
        assert!(begun.elapsed() < patience(2000), "it goes on");
        tokio::time::sleep(Duration::from_millis(5)).await;
        let now = length(file);
        if now != last.0 {
            last = (now, monotonic());
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(length(file), last.0, "it went on after it had stood still");
    last.0
}

/// So many milliseconds, more on a machine that the lane knows to be slow.
fn patience(milliseconds: u64) -> Duration {
    let factor = std::env::var("JOBVISOR_TEST_PATIENCE").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    Duration::from_millis(milliseconds * factor)
}

async fn i4_past_the_deadline_nobody_runs_and_a_later_one_lets_them_go_on(mut world: World) {
    let (key, _, _pipes, file) = world.counter("count", "dots", "3").await;
    let until = world.trust(Duration::from_millis(200));
    let wall = clock::now() + until.since(clock::boottime());
    wait_until("the deadline", || clock::boottime() > until.plus(patience(250))).await;
    let frozen_at = length(&file);
    let last = jiff::Timestamp::try_from(std::fs::metadata(&file).unwrap().modified().unwrap()).unwrap();
    let late = last.duration_since(wall).as_secs_f64() * 1e3;
    assert!(late > -100.0, "it stood still before its deadline: {late} ms");
    assert!(late < patience(100).as_secs_f64() * 1e3, "it ran for {late} ms after its deadline");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(length(&file), frozen_at);
    // A deadline that has passed thaws nobody.
    world.trust(Duration::ZERO);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(length(&file), frozen_at);
    world.trust(FAR);
    wait_until("it goes on", || length(&file) > frozen_at + 100).await;
    world.stop(key, StopReason::Cancelled, Duration::from_secs(20));
    let end = world.end(key).await;
    assert_eq!(end.exit, Some(ExitStatus::Signaled(libc::SIGTERM)));
    assert!(end.frozen_s > 0.7 && end.frozen_s < 10.0, "{}", end.frozen_s);
    let verdict = judge(&Evidence { process: Some(end), ..Evidence::default() });
    assert!(verdict.flags.contains(&Flag::Frozen), "{verdict:?}");
    assert!(verdict.contributing.iter().any(|fact| fact.starts_with("frozen for ")), "{verdict:?}");
}

async fn i4_a_timeout_stands_still_while_frozen(mut world: World) {
    let timeout = patience(600);
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap();
    let spec = StartSpec { timeout_ms: Some(timeout_ms), ..world.spec(&["hang"]) };
    let (key, _pipes) = world.start(&spec);
    let pid = world.running(key).await;
    world.trust(Duration::ZERO);
    tokio::time::sleep(timeout * 2).await;
    assert!(alive(pid));
    world.trust(FAR);
    let end = world.end(key).await;
    let intent = end.intent.expect("an intent");
    assert_eq!(intent.reason, IntentReason::Timeout);
    let (timeout, ran) = (timeout.as_secs_f64(), intent.at_s - end.frozen_s);
    assert!(end.frozen_s > 1.8 * timeout, "{}", end.frozen_s);
    assert!(ran >= timeout && ran < 2.0 * timeout + 0.5, "{ran}");
}

async fn i4_a_grace_stands_still_while_frozen(mut world: World) {
    let (key, mut pipes) = world.run(&["ignore-term"]);
    world.running(key).await;
    let mut ready = [0; 6];
    pipes.stdout.read_exact(&mut ready).await.unwrap();
    world.stop(key, StopReason::Cancelled, Duration::from_millis(500));
    world.trust(Duration::ZERO);
    tokio::time::sleep(Duration::from_millis(1000)).await;
    world.trust(FAR);
    let end = world.end(key).await;
    let [(15, asked), (9, killed)] = end.intent.expect("an intent").signals[..] else { panic!("other signals") };
    assert!(end.frozen_s > 0.9 && killed - asked >= end.frozen_s + 0.5, "{asked} {killed} {}", end.frozen_s);
}

async fn i4_a_stop_kills_what_is_frozen_and_does_not_let_it_run_again(mut world: World) {
    for (n, reason) in [StopReason::Fenced, StopReason::Drained].into_iter().enumerate() {
        let (key, pid, _pipes, file) = world.counter("count", &n.to_string(), "2").await;
        world.trust(Duration::ZERO);
        let dots = standstill(&file).await;
        let begun = monotonic();
        world.stop(key, reason, Duration::from_secs(30));
        // The supervisor is back under a new term, and has let go of what it lost before it says so.
        world.trust(FAR);
        let end = world.end(key).await;
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert!(!alive(pid));
        assert_eq!(length(&file), dots, "it ran once more");
        let intent = end.intent.expect("an intent");
        assert_eq!((intent.reason, end.exit), (reason.into(), Some(ExitStatus::Signaled(libc::SIGKILL))));
        assert_eq!(intent.signals.iter().map(|(signal, _)| *signal).collect::<Vec<_>>(), [libc::SIGKILL]);
        assert!(end.frozen_s > 0.5 && end.leftovers.is_empty(), "{} {:?}", end.frozen_s, end.leftovers);
    }
}

async fn i4_no_start_is_taken_past_the_deadline(mut world: World) {
    let file = world.file("dots");
    world.trust(Duration::ZERO);
    let (key, _pipes) = world.run(&["count", file.to_str().unwrap(), "0"]);
    let end = world.end(key).await;
    assert_eq!(end.start_failure.as_ref().map(|failure| failure.step.as_str()), Some("trust"));
    assert_eq!((end.stage, end.pid, length(&file)), (Stage::NotForked, None, 0));
    let verdict = judge(&Evidence { process: Some(end), ..Evidence::default() });
    assert_eq!(verdict.ending, Ending::Failed(Cause::Fenced));
    world.trust(FAR);
    let (key, _pipes) = world.run(&["exit", "0"]);
    assert_eq!(world.end(key).await.exit, Some(ExitStatus::Exited(0)));
}

async fn i4_a_renewal_that_lies_in_the_socket_counts(mut world: World) {
    let (running, _pipes) = world.run(&["hang"]);
    world.running(running).await;
    let warden = nix::unistd::Pid::from_raw(world.pid);
    let until = world.trust(Duration::from_millis(100));
    nix::sys::signal::kill(warden, Signal::SIGSTOP).unwrap();
    wait_until("the deadline", || clock::boottime() > until).await;
    let (started, _other_pipes) = world.run(&["exit", "0"]);
    world.trust(FAR);
    // The writing task has to have written both.
    tokio::time::sleep(Duration::from_millis(50)).await;
    nix::sys::signal::kill(warden, Signal::SIGCONT).unwrap();
    let end = world.end(started).await;
    assert_eq!((end.exit, end.start_failure), (Some(ExitStatus::Exited(0)), None));
    world.stop(running, StopReason::Cancelled, Duration::from_secs(20));
    let end = world.end(running).await;
    assert!(end.frozen_s.abs() < f64::EPSILON, "{}", end.frozen_s);
}

async fn i4_when_the_supervisor_goes_what_is_frozen_dies(mut world: World) {
    let (_key, pid, _pipes, file) = world.counter("count", "dots", "2").await;
    world.trust(Duration::ZERO);
    let dots = standstill(&file).await;
    assert_eq!(world.close().await, Some(ExitStatus::Exited(0)));
    assert!(!alive(pid));
    assert_eq!(length(&file), dots, "it ran once more");
    let ends = ends::read_all(world.dir.path()).unwrap();
    let [end] = ends.as_slice() else { panic!("{ends:?}") };
    assert_eq!(end.process.intent.as_ref().map(|intent| intent.reason), Some(IntentReason::SupervisorGone));
    assert!(end.process.frozen_s > 0.5 && end.process.unkillable.is_empty());
}

async fn i4_chains_of_forks_stand_still(mut world: World) {
    let (key, _, _pipes, file) = world.counter("chains", "dots", "4").await;
    world.trust(Duration::ZERO);
    let dots = standstill(&file).await;
    world.trust(FAR);
    wait_until("the chains go on", || length(&file) > dots + 100).await;
    world.trust(Duration::ZERO);
    let dots = standstill(&file).await;
    world.stop(key, StopReason::Fenced, Duration::ZERO);
    let end = world.end(key).await;
    assert_eq!(length(&file), dots, "a chain went on");
    assert!(end.unkillable.is_empty());
}

async fn i4_many_attempts_are_frozen_and_thawed_together(mut world: World) {
    let mut all = Vec::new();
    for n in 0..8 {
        all.push(world.counter("count", &n.to_string(), "1").await);
    }
    for _ in 0..2 {
        world.trust(Duration::ZERO);
        let mut dots = Vec::new();
        for (_, _, _, file) in &all {
            dots.push(standstill(file).await);
        }
        world.trust(FAR);
        for ((_, _, _, file), dots) in all.iter().zip(&dots) {
            wait_until("each goes on", || length(file) > dots + 20).await;
        }
    }
    for (key, ..) in &all {
        world.stop(*key, StopReason::Drained, Duration::from_secs(20));
    }
    for (key, ..) in &all {
        assert_eq!(world.end(*key).await.exit, Some(ExitStatus::Signaled(libc::SIGTERM)));
    }
}

/// Starts while the deadline comes: whichever way it fell, nobody runs past it, and all end well after it was renewed.
async fn i4_a_start_at_the_very_deadline_is_frozen_or_refused(mut world: World) {
    let marks = world.file("marks");
    std::fs::create_dir(&marks).unwrap();
    let until = world.trust(Duration::from_millis(60));
    let mut keys = Vec::new();
    while clock::boottime() < until.plus(Duration::from_millis(20)) {
        let mut spec = world.spec(&[]);
        spec.argv = ["/bin/mkdir", &marks.join(keys.len().to_string()).to_string_lossy()].map(str::to_owned).to_vec();
        keys.push(world.start(&spec).0);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let count = || std::fs::read_dir(&marks).unwrap().count();
    tokio::time::sleep(patience(300)).await;
    let made = count();
    tokio::time::sleep(patience(300)).await;
    assert_eq!(count(), made, "somebody runs");
    world.trust(FAR);
    for key in &keys {
        world.end(*key).await;
    }
    let refused = world.ended.values().filter(|end| end.start_failure.is_some()).count();
    let well = world.ended.values().filter(|end| end.exit == Some(ExitStatus::Exited(0))).count();
    assert_eq!((refused + well, count()), (keys.len(), well));
    assert!(refused > 0, "the last came 20 ms after the deadline");
}

#[tokio::test]
async fn i4_what_had_stopped_itself_stays_stopped() {
    let mut world = World::watchdog();
    let file = world.file("marks");
    let (key, _pipes) = world.run(&["rest", file.to_str().unwrap()]);
    world.running(key).await;
    wait_until("it has stopped itself", || length(&file) == 1).await;
    // The warden looks for helpers every 200 ms.
    tokio::time::sleep(Duration::from_millis(600)).await;
    world.trust(Duration::ZERO);
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.trust(FAR);
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(length(&file), 1, "it was woken");
    world.stop(key, StopReason::Cancelled, Duration::ZERO);
    world.end(key).await;
}

#[tokio::test]
async fn a_sample_of_a_running_attempt_comes_at_most_once_a_second() {
    let mut world = World::watchdog();
    let (key, _pipes) = world.run(&["fill", "64"]);
    world.running(key).await;
    let begun = monotonic();
    world.until("three samples", |world| world.samples.len() == 3).await;
    assert!(begun.elapsed() > Duration::from_millis(2500), "{:?}", begun.elapsed());
    assert!(world.samples.iter().all(|(of, bytes)| *of == key && *bytes > MIB), "{:?}", world.samples);
    assert!(world.samples.iter().any(|(_, bytes)| *bytes > 60 * MIB), "{:?}", world.samples);
    world.stop(key, StopReason::Cancelled, Duration::ZERO);
    world.end(key).await;
    assert_eq!(world.close().await, Some(ExitStatus::Exited(0)));
}
