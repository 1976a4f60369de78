//! Deaths of the supervisor and of the warden itself.

use super::*;

#[tokio::test]
async fn a_warden_without_work_ends_with_its_supervisor() {
    let mut world = World::watchdog();
    assert_eq!(world.close().await, Some(ExitStatus::Exited(0)));
    assert!(ends::read_all(world.dir.path()).unwrap().is_empty());
}

#[tokio::test]
async fn i2_when_the_supervisor_goes_every_tree_dies_and_its_end_is_written() {
    let mut world = World::watchdog();
    let file = world.dir.path().join("helpers");
    let spec = world.spec(&["count", file.to_str().unwrap(), "2"]);
    let (key, _pipes) = world.start(&spec);
    let pid = world.running(key).await;
    wait_until("helpers at work", || length(&file) > 10).await;
    let begun = monotonic();
    assert_eq!(world.close().await, Some(ExitStatus::Exited(0)));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(!alive(pid));
    let written = length(&file);
    let ends = ends::read_all(world.dir.path()).unwrap();
    let [end] = ends.as_slice() else { panic!("{ends:?}") };
    assert_eq!(end.fence, spec.fence);
    assert_eq!(end.process.intent.as_ref().map(|intent| intent.reason), Some(IntentReason::SupervisorGone));
    assert_eq!(end.process.exit, Some(ExitStatus::Signaled(libc::SIGKILL)));
    ends::remove(world.dir.path(), &end.fence).unwrap();
    assert!(ends::read_all(world.dir.path()).unwrap().is_empty());
    assert_eq!(length(&file), written, "a helper goes on");
}

#[tokio::test]
async fn i2_an_end_that_the_supervisor_may_have_taken_along_is_written_as_well() {
    let mut world = World::watchdog();
    let spec = world.spec(&["exit", "3"]);
    let (key, _pipes) = world.start(&spec);
    world.end(key).await;
    world.close().await;
    let ends = ends::read_all(world.dir.path()).unwrap();
    let [end] = ends.as_slice() else { panic!("{ends:?}") };
    assert_eq!((end.fence, end.process.exit), (spec.fence, Some(ExitStatus::Exited(3))));
}

#[tokio::test]
async fn a_warden_that_does_not_end_is_killed_after_two_seconds() {
    let mut world = World::watchdog();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(world.pid), nix::sys::signal::Signal::SIGSTOP).unwrap();
    let begun = monotonic();
    assert_eq!(world.close().await, Some(ExitStatus::Signaled(libc::SIGKILL)));
    assert!((1.9..6.0).contains(&begun.elapsed().as_secs_f64()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn i2_no_end_is_lost_while_the_supervisor_does_not_listen() {
    let mut world = World::watchdog();
    let marks = world.dir.path().join("marks");
    std::fs::create_dir(&marks).unwrap();
    let count = 150;
    for n in 0..count {
        let mut spec = world.spec(&[]);
        spec.argv = ["/bin/mkdir", &marks.join(n.to_string()).to_string_lossy()].map(str::to_owned).to_vec();
        drop(world.start(&spec));
        // The writing task takes the descriptors of the start with it.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // All have run and nobody has read a frame.
    wait_until("all marks", || std::fs::read_dir(&marks).unwrap().count() == count).await;
    world.until("all ends", |world| world.ended.len() == count).await;
    assert!(world.ended.values().all(|end| end.exit == Some(ExitStatus::Exited(0))));
}

#[tokio::test]
async fn signals_do_not_end_a_warden() {
    let mut world = World::watchdog();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP] {
        let signal = nix::sys::signal::Signal::try_from(signal).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(world.pid), signal).unwrap();
    }
    let (key, _pipes) = world.run(&["exit", "0"]);
    assert_eq!(world.end(key).await.exit, Some(ExitStatus::Exited(0)));
}

/// In a process of its own: it becomes a subreaper and sweeps all that it inherits.
#[tokio::test]
async fn i8_when_the_warden_is_killed_its_children_die_and_orphans_are_swept() {
    const NAME: &str = "losses::i8_when_the_warden_is_killed_its_children_die_and_orphans_are_swept";
    if std::env::var_os("JOBVISOR_TEST_ALONE").is_none() {
        let own = std::env::current_exe().unwrap();
        let run = std::process::Command::new(own).args(["--exact", NAME]).env("JOBVISOR_TEST_ALONE", "1").output();
        let run = run.unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
        assert!(String::from_utf8_lossy(&run.stdout).contains("1 passed"));
        return;
    }
    let mut world = World::watchdog();
    let file = world.dir.path().join("helpers");
    let (key, _pipes) = world.run(&["count", file.to_str().unwrap(), "2"]);
    let pid = world.running(key).await;
    wait_until("helpers at work", || length(&file) > 10).await;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(world.pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    world.until("the loss", |world| world.lost.is_some()).await;
    assert_eq!(world.lost, Some(Some(ExitStatus::Signaled(libc::SIGKILL))));
    wait_until("the parent-death signal", || !alive(pid)).await;
    assert!(world.handle.as_ref().unwrap().stop(key, StopReason::Cancelled, Duration::ZERO).is_ok());
    assert_eq!(sweep_orphans(&[]), 2, "two helpers were left");
    let written = length(&file);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(length(&file), written);
    let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).unwrap();
    assert_eq!(children.trim(), "");
}
