//! A supervisor is told to stop while the database is away.

use std::time::Duration;

use nix::sys::signal::Signal;
use support::postgres::Cluster;
use support::team::Setup;
use support::team::Team;
use support::team::now;
use support::wait_until;
use support::world::SOON;

use crate::ms;
use crate::seconds;
use crate::start;

#[test]
fn i9_i10_what_ends_while_the_database_is_away_is_kept_over_a_stop_and_recorded_under_its_old_fence() {
    let cluster = Cluster::start(&[]);
    let team = Team::of(&cluster);
    let a = team.world(&Setup::named("a"));
    let mut supervisor = start(&[&a]).remove(0);
    let done = team.enqueue("work", seconds(1), ms(100));
    let drained = team.enqueue("work", seconds(40), ms(100));
    team.until_started(done, 1, SOON);
    team.until_started(drained, 1, SOON);
    cluster.stop("fast");
    wait_until("the job has ended", SOON, || {
        let left = team.control.processes_of(done);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    let asked = now();
    supervisor.signal(Signal::SIGTERM);
    let status = supervisor.wait(SOON);
    let took = Duration::from_millis(now() - asked);
    // It stops, and says that something is left to do.
    assert_eq!(status.code(), Some(1), "{}", supervisor.log());
    assert!(supervisor.log().contains("journal"), "{}", supervisor.log());
    assert!(took < seconds(20), "a stop without a database took {took:?}");
    assert!(team.control.processes_of(drained).is_empty());
    cluster.resume();
    let successor = start(&[&a]).remove(0);
    team.until_all_ended(SOON);
    assert_eq!(team.outcomes(done), ["succeeded"], "its outcome was kept");
    assert_eq!(team.starts_of(done), 1);
    assert_eq!(team.outcomes(drained), ["drained", "succeeded"]);
    assert_eq!(team.database.psql("SELECT max(charged) FROM jobvisor.jobs"), "1", "an interruption is not charged");
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert!(successor.stop(SOON).success());
}

#[test]
fn i9_i5_a_kept_outcome_that_comes_after_a_rescue_is_a_late_one() {
    let team = Team::new();
    let proxy = support::proxy::Proxy::before(&team.database.url);
    let a = team.world_at(&proxy.url(&team.database.url), &Setup::named("a"));
    let mut supervisor = start(&[&a]).remove(0);
    let job = team.enqueue("work", ms(700), ms(100));
    team.until_started(job, 1, SOON);
    proxy.refuse();
    wait_until("the job has ended", SOON, || {
        let left = team.control.processes_of(job);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.wait(SOON).code(), Some(1), "{}", supervisor.log());
    let b = team.world(&Setup::named("b"));
    let other = start(&[&b]).remove(0);
    team.until_state(job, "succeeded", SOON);
    assert_eq!(team.outcomes(job), ["supervisor_lost", "succeeded"]);
    proxy.heal();
    let successor = start(&[&a]).remove(0);
    let late = format!("SELECT late_outcome IS NOT NULL FROM jobvisor.attempts WHERE job_id = {job} AND attempt = 1");
    team.until(&late, "t", SOON);
    assert_eq!(team.faults("succeeded"), [""; 0]);
    [other, successor].into_iter().for_each(|supervisor| assert!(supervisor.stop(SOON).success()));
}
