//! With a cgroup of each attempt's own: what the kernel counts, limits and kills.

use super::*;
use jobvisor::domain::evidence::PeakSource;

fn kill(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn i3_a_kill_by_the_own_limit_moves_the_own_counters() {
    let Some(mut world) = World::cgroup() else { return };
    let spec = StartSpec { memory: 64 * MIB, require_cgroup: true, ..world.spec(&["fill", "256"]) };
    let (key, _pipes) = world.start(&spec);
    let end = world.end(key).await;
    assert_eq!((end.exit, &end.intent), (Some(ExitStatus::Signaled(libc::SIGKILL)), &None));
    assert!(end.counters_readable);
    assert!(end.delta(|counters| counters.oom_kill).is_some_and(|kills| kills > 0), "{end:?}");
    assert_eq!((end.enforcement, end.memory.source), (world.capabilities.enforcement, PeakSource::Cgroup));
    assert!(end.memory.peak.is_some_and(|peak| peak.0 > 60 * MIB && peak.0 <= 65 * MIB), "{:?}", end.memory.peak);
    world.close().await;
}

#[tokio::test]
async fn i3_a_kill_by_hand_moves_no_counter() {
    let Some(mut world) = World::cgroup() else { return };
    let (key, _pipes) = world.run(&["raise", "9"]);
    let end = world.end(key).await;
    assert_eq!((end.exit, &end.intent), (Some(ExitStatus::Signaled(libc::SIGKILL)), &None));
    assert!(end.counters_readable);
    assert_eq!(end.delta(|counters| counters.oom_kill), Some(0));
    world.close().await;
}

#[tokio::test]
async fn i8_a_leaf_is_emptied_whatever_sessions_its_processes_made() {
    let Some(mut world) = World::cgroup() else { return };
    let file = world.dir.path().join("chain");
    let (key, _pipes) = world.run(&["chain", file.to_str().unwrap()]);
    world.end(key).await;
    let generations = length(&file);
    assert!(generations > 10, "only {generations} generations");
    let (key, mut pipes) = world.run(&["leave-session"]);
    let end = world.end(key).await;
    let [left] = end.leftovers.as_slice() else { panic!("{:?}", end.leftovers) };
    assert!(!alive(left.pid));
    assert_eq!(read_all(&mut pipes.stdout).await, "");
    assert_eq!(length(&file), generations, "the chain goes on");
    world.close().await;
}

#[tokio::test]
async fn a_hundred_jobs_at_once_have_a_leaf_each_and_leave_none() {
    let Some(mut world) = World::cgroup() else { return };
    let jobs: Vec<_> = (0..100).map(|_| world.run(&["exit-after", "300"])).collect();
    for (key, pipes) in jobs {
        drop(pipes);
        let end = world.end(key).await;
        assert_eq!((end.exit, end.start_failure), (Some(ExitStatus::Exited(0)), None));
        assert!(end.counters_readable);
    }
    let jobs = world.capabilities.jobs_group.clone().unwrap();
    assert_eq!(world.close().await, Some(ExitStatus::Exited(0)));
    assert_eq!(groups(&jobs), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_stopped_job_with_helpers_leaves_an_empty_group_that_is_removed() {
    let Some(mut world) = World::cgroup() else { return };
    let file = world.dir.path().join("helpers");
    let (key, _pipes) = world.run(&["count", file.to_str().unwrap(), "3"]);
    world.running(key).await;
    wait_until("helpers at work", || length(&file) > 100).await;
    world.stop(key, StopReason::Fenced, Duration::ZERO);
    let end = world.end(key).await;
    assert_eq!(end.intent.map(|intent| intent.reason), Some(IntentReason::Fenced));
    let written = length(&file);
    let jobs = world.capabilities.jobs_group.clone().unwrap();
    assert_eq!(world.close().await, Some(ExitStatus::Exited(0)));
    assert_eq!(length(&file), written);
    assert_eq!(groups(&jobs), Vec::<PathBuf>::new(), "the jobs group stayed");
}

#[tokio::test]
async fn a_kind_may_ask_for_the_watchdog_where_there_is_a_cgroup() {
    let Some(mut world) = World::cgroup() else { return };
    let (other, _pipes) = world.run(&["leave-session"]);
    let spec = StartSpec { memory: 64 * MIB, watchdog: true, ..world.spec(&["fill", "1024"]) };
    let (key, _pipes) = world.start(&spec);
    let end = world.end(key).await;
    assert!(end.watchdog.is_some());
    assert_eq!((end.enforcement, end.counters_readable), (Enforcement::Watchdog, false));
    assert_eq!(world.end(other).await.exit, Some(ExitStatus::Exited(0)));
    world.close().await;
}

#[tokio::test]
async fn i8_the_next_warden_sweeps_the_leaves_of_a_dead_one() {
    let Some(mut world) = World::cgroup() else { return };
    let file = world.dir.path().join("helpers");
    let (key, _pipes) = world.run(&["count", file.to_str().unwrap(), "2"]);
    world.running(key).await;
    wait_until("helpers at work", || length(&file) > 10).await;
    let jobs = world.capabilities.jobs_group.clone().unwrap();
    kill(world.pid);
    world.until("the loss", |world| world.lost.is_some()).await;
    let mut next = World::launch(tempfile::tempdir().unwrap(), false);
    assert_ne!(next.capabilities.jobs_group, Some(jobs.clone()));
    wait_until("the sweep", || groups(&jobs).is_empty()).await;
    let written = length(&file);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(length(&file), written, "a helper goes on");
    assert_eq!(next.close().await, Some(ExitStatus::Exited(0)));
}

/// Groups of this name that exist in any tree below `/sys/fs/cgroup`.
fn groups(jobs: &str) -> Vec<PathBuf> {
    let jobs = Path::new(jobs);
    let name = jobs.file_name().expect("a name").to_owned();
    let mut found = Vec::new();
    let mut stack = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = stack.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name() == name {
                    found.push(entry.path());
                }
                stack.push(entry.path());
            }
        }
    }
    found
}
