//! Nothing outlives its attempt.

use super::*;

#[tokio::test]
async fn i8_a_daemon_is_killed_and_named_before_the_end_is_told() {
    let mut world = World::watchdog();
    for mode in ["leave-session", "leave"] {
        let (key, mut pipes) = world.run(&[mode]);
        let end = world.end(key).await;
        assert_eq!(end.exit, Some(ExitStatus::Exited(0)));
        let [left] = end.leftovers.as_slice() else { panic!("{mode}: {:?}", end.leftovers) };
        assert_eq!(left.comm, "fault-child");
        assert!(!alive(left.pid));
        // The daemon kept our pipes: their end proves that it is gone.
        assert_eq!(read_all(&mut pipes.stdout).await, "");
    }
}

#[tokio::test]
async fn i8_a_chain_of_double_forks_is_stopped() {
    let mut world = World::watchdog();
    let file = world.dir.path().join("chain");
    let (key, _pipes) = world.run(&["chain", file.to_str().unwrap()]);
    let end = world.end(key).await;
    assert_eq!(end.exit, Some(ExitStatus::Exited(0)));
    let generations = length(&file);
    assert!(generations > 10, "only {generations} generations");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(length(&file), generations, "the chain goes on");
    assert!(end.unkillable.is_empty());
}

#[tokio::test]
async fn i8_helpers_die_with_a_job_that_is_stopped() {
    let mut world = World::watchdog();
    let file = world.dir.path().join("helpers");
    let (key, _pipes) = world.run(&["count", file.to_str().unwrap(), "3"]);
    world.running(key).await;
    wait_until("helpers at work", || length(&file) > 100).await;
    world.stop(key, StopReason::Drained, Duration::ZERO);
    world.end(key).await;
    let written = length(&file);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(length(&file), written);
}

#[tokio::test]
async fn i8_what_one_job_leaves_does_not_touch_another() {
    let mut world = World::watchdog();
    let (other, _other_pipes) = world.run(&["hang"]);
    let pid = world.running(other).await;
    let (key, _pipes) = world.run(&["leave"]);
    let end = world.end(key).await;
    assert_eq!(end.leftovers.len(), 1);
    assert!(alive(pid));
    world.stop(other, StopReason::Cancelled, Duration::from_secs(5));
    assert_eq!(world.end(other).await.exit, Some(ExitStatus::Signaled(libc::SIGTERM)));
}
