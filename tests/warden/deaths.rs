//! How children end: by themselves, by their limits, by our hand.

use super::*;

#[tokio::test]
async fn a_signal_is_told_as_it_was() {
    let mut world = World::watchdog();
    for (args, signal) in
        [(&["abort"][..], libc::SIGABRT), (&["segv"], libc::SIGSEGV), (&["raise", "9"], libc::SIGKILL)]
    {
        let (key, _pipes) = world.run(args);
        let end = world.end(key).await;
        assert_eq!((end.exit, end.intent), (Some(ExitStatus::Signaled(signal)), None), "{args:?}");
    }
}

#[tokio::test]
async fn a_timeout_is_noted_then_asks_and_then_kills() {
    let mut world = World::watchdog();
    let spec = StartSpec { timeout_ms: Some(300), grace_ms: 200, ..world.spec(&["ignore-term"]) };
    let (key, _pipes) = world.start(&spec);
    let end = world.end(key).await;
    let intent = end.intent.expect("an intent");
    assert_eq!((intent.reason, end.exit), (IntentReason::Timeout, Some(ExitStatus::Signaled(libc::SIGKILL))));
    let [(first, asked), (second, killed)] = intent.signals.try_into().expect("two signals");
    assert_eq!((first, second), (libc::SIGTERM, libc::SIGKILL));
    assert!(intent.at_s <= asked && asked >= 0.3 && killed >= asked + 0.2, "{asked} {killed}");
    assert!(end.wall_s.is_some_and(|wall| wall < 3.0));
}

#[tokio::test]
async fn a_job_that_obeys_sigterm_is_not_killed() {
    let mut world = World::watchdog();
    let (key, _pipes) = world.run(&["hang"]);
    world.running(key).await;
    world.stop(key, StopReason::Cancelled, Duration::from_secs(10));
    let end = world.end(key).await;
    let intent = end.intent.expect("an intent");
    assert_eq!((intent.reason, end.exit), (IntentReason::Cancelled, Some(ExitStatus::Signaled(libc::SIGTERM))));
    assert_eq!(intent.signals.len(), 1);
}

#[tokio::test]
async fn a_second_stop_keeps_the_reason_and_shortens_the_grace() {
    let mut world = World::watchdog();
    let (key, mut pipes) = world.run(&["ignore-term"]);
    let mut ready = [0; 6];
    pipes.stdout.read_exact(&mut ready).await.unwrap();
    world.running(key).await;
    world.stop(key, StopReason::Cancelled, Duration::from_secs(60));
    world.stop(key, StopReason::Drained, Duration::ZERO);
    let end = world.end(key).await;
    assert_eq!(end.intent.map(|intent| intent.reason), Some(IntentReason::Cancelled));
    assert_eq!(end.exit, Some(ExitStatus::Signaled(libc::SIGKILL)));
}

#[tokio::test]
async fn the_watchdog_strikes_and_says_what_it_saw() {
    let mut world = World::watchdog();
    let spec = StartSpec { memory: 64 * MIB, ..world.spec(&["fill", "1024"]) };
    let (key, _pipes) = world.start(&spec);
    let end = world.end(key).await;
    let strike = end.watchdog.expect("a strike");
    assert_eq!(end.intent.map(|intent| intent.reason), Some(IntentReason::MemWatchdog));
    assert_eq!((strike.limit, end.exit), (64 * MIB, Some(ExitStatus::Signaled(libc::SIGKILL))));
    assert!(strike.seen > 64 * MIB && strike.seen < 256 * MIB, "{}", strike.seen);
    let peak = end.memory.peak.expect("a peak").0;
    assert!(peak >= strike.seen, "{peak} < {}", strike.seen);
    assert!(!end.memory.series.is_empty() && end.memory.series.len() <= 120);
    assert_eq!(end.memory.limit.map(|limit| limit.0), Some(64 * MIB));
}

#[tokio::test]
async fn memory_of_a_helper_counts_against_the_job() {
    let mut world = World::watchdog();
    let spec = StartSpec { memory: 64 * MIB, ..world.spec(&["fill-in-child", "1024"]) };
    let (key, _pipes) = world.start(&spec);
    let end = world.end(key).await;
    assert!(end.watchdog.is_some_and(|strike| strike.seen > 64 * MIB));
    assert_eq!(end.exit, Some(ExitStatus::Signaled(libc::SIGKILL)));
}

#[tokio::test]
async fn a_job_within_its_limit_is_left_alone_and_its_peak_is_known() {
    let mut world = World::watchdog();
    let spec = StartSpec { memory: 256 * MIB, ..world.spec(&["fill", "100"]) };
    let (key, mut pipes) = world.start(&spec);
    let mut full = [0; 5];
    tokio::time::timeout(LIMIT, pipes.stdout.read_exact(&mut full)).await.unwrap().unwrap();
    // Long enough for two points of the series.
    tokio::time::sleep(Duration::from_millis(450)).await;
    world.stop(key, StopReason::Cancelled, Duration::from_secs(10));
    let end = world.end(key).await;
    assert_eq!(end.watchdog, None);
    assert!(end.memory.peak.is_some_and(|peak| peak.0 > 90 * MIB && peak.0 < 160 * MIB), "{:?}", end.memory.peak);
    assert!(end.memory.series.len() >= 2, "{:?}", end.memory.series);
}

#[tokio::test]
async fn a_warden_without_attempts_sleeps() {
    let mut world = World::watchdog();
    let (key, _pipes) = world.run(&["exit", "0"]);
    world.end(key).await;
    let switches = |pid: i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let before = switches(world.pid);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(switches(world.pid) <= before + 2, "it woke {} times", switches(world.pid) - before);
}

/// A group of the v1 freezer, which holds even against SIGKILL; thawed and removed when dropped.
struct Freezer(std::path::PathBuf);

impl Freezer {
    fn new() -> Option<Self> {
        let group = Path::new("/sys/fs/cgroup/freezer").join(format!("jvtest-{}", std::process::id()));
        if !group.parent()?.join("tasks").exists() || std::fs::create_dir(&group).is_err() {
            eprintln!("skipped: no v1 freezer to use here");
            return None;
        }
        Some(Self(group))
    }

    fn freeze(&self, pid: i32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(self.0.join("freezer.state"), "FROZEN").unwrap();
    }

    fn thaw(&self) {
        std::fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        let begun = jobvisor::domain::clock::monotonic();
        while std::fs::remove_dir(&self.0).is_err() && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[tokio::test]
async fn i8_a_main_process_that_does_not_die_of_sigkill_is_told_as_unkillable_and_reaped_later() {
    let Some(freezer) = Freezer::new() else { return };
    let mut world = World::watchdog();
    let (key, _pipes) = world.run(&["hang"]);
    let pid = world.running(key).await;
    freezer.freeze(pid);
    world.stop(key, StopReason::Cancelled, Duration::from_millis(100));
    let end = world.end(key).await;
    assert_eq!(end.unkillable.iter().map(|stuck| stuck.pid).collect::<Vec<_>>(), [pid], "{end:?}");
    assert!(end.unkillable[0].stuck_in.is_some() && end.exit.is_none());
    assert!(alive(pid));
    freezer.thaw();
    wait_until("the end of the process", || !Path::new(&format!("/proc/{pid}")).exists()).await;
}
