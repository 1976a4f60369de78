//! Several supervisors share the work: pauses, cancels, deploys, wrong clocks.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use support::skip;
use support::team::Random;
use support::team::Setup;
use support::team::Team;
use support::team::now;
use support::team::rolling_restarts;
use support::wait_until;
use support::world::SOON;

use crate::ms;
use crate::seconds;
use crate::start;

#[test]
fn a_pause_holds_for_every_supervisor_until_it_is_taken_back() {
    let team = Team::new();
    let both = ["work", "left"];
    let worlds = [team.world(&Setup::named("a").kinds(&both)), team.world(&Setup::named("b").kinds(&both))];
    let supervisors = start(&[&worlds[0], &worlds[1]]);
    team.control.good(&["pause", "work"]);
    let held = team.enqueue_many(4, ms(50), &[]);
    // Each supervisor claims again and again meanwhile.
    for _ in 0..4 {
        let other = team.enqueue("left", ms(50), ms(50));
        team.until_state(other, "succeeded", SOON);
    }
    assert!(held.iter().all(|job| team.starts_of(*job) == 0), "{:?}", team.control.starts());
    let resumed = now();
    worlds[1].good(&["resume", "work"]);
    team.until_all_ended(SOON);
    let took = Duration::from_millis(now() - resumed);
    assert!(took < seconds(4) * support::patience(), "{took:?}");
    assert_eq!(team.faults("succeeded"), [""; 0]);
    supervisors.into_iter().for_each(|supervisor| assert!(supervisor.stop(SOON).success()));
}

#[test]
fn j3_a_cancel_reaches_a_job_of_another_supervisor_within_a_second() {
    let team = Team::new();
    // It does not look by itself: it is told.
    let a = team.world(&Setup::named("a").lease("60s").poll("30s"));
    let supervisor = start(&[&a]).remove(0);
    let other = team.world(&Setup::named("b").kinds(&["left"]));
    let idle = start(&[&other]).remove(0);
    for _ in 0..3 {
        let job = team.enqueue("work", seconds(40), seconds(40));
        team.until_started(job, 1, SOON);
        let asked = now();
        let cancel = other.start(&["cancel", &job.to_string()]);
        wait_until("its processes are gone", SOON, || {
            let left = team.control.processes_of(job);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        let took = Duration::from_millis(now() - asked);
        assert!(took < seconds(1) * support::patience(), "{took:?}");
        assert!(cancel.output(SOON).status.success());
        assert_eq!((team.state(job).as_str(), team.outcomes(job)), ("cancelled", vec!["cancelled".to_owned()]));
    }
    [supervisor, idle].into_iter().for_each(|supervisor| assert!(supervisor.stop(SOON).success()));
}

#[test]
fn j3_i5_a_cancel_at_any_moment_is_kept_or_comes_too_late_but_never_both() {
    let team = Team::new();
    let worlds = [team.world(&Setup::named("a")), team.world(&Setup::named("b"))];
    let supervisors = start(&[&worlds[0], &worlds[1]]);
    let mut random = Random::new();
    let mut told = Vec::new();
    for _ in 0..15 {
        let for_ms = ms(random.below(300));
        let job = team.enqueue("work", for_ms, for_ms);
        let until = now() + random.below(300);
        wait_until("its moment", SOON, || if now() >= until { Ok(()) } else { Err(String::new()) });
        told.push((job, team.control.run(&["cancel", &job.to_string()]).status.success()));
    }
    team.until_all_ended(SOON);
    for (job, cancelled) in told {
        let state = team.state(job);
        assert_eq!(state, if cancelled { "cancelled" } else { "succeeded" }, "job {job}");
        assert!(team.starts_of(job) <= 1, "no retry");
        assert!(team.control.processes_of(job).is_empty());
    }
    supervisors.into_iter().for_each(|supervisor| assert!(supervisor.stop(SOON).success()));
}

#[test]
fn j2_i9_four_deploys_cost_nothing_and_four_kills_use_up_the_budget() {
    let team = Team::new();
    let worlds = [team.world(&Setup::named("a")), team.world(&Setup::named("b"))];
    let job = team.enqueue("work", seconds(40), seconds(2));
    let mut supervisor = start(&[&worlds[0]]).remove(0);
    for round in 1..=4 {
        team.until_started(job, round, SOON);
        let next = start(&[&worlds[round % 2]]);
        supervisor.signal(Signal::SIGTERM);
        assert!(supervisor.wait(SOON).success(), "{}", supervisor.log());
        supervisor = next.into_iter().next().expect("one");
    }
    team.until_state(job, "succeeded", SOON);
    assert_eq!(team.outcomes(job), ["drained", "drained", "drained", "drained", "succeeded"]);
    assert_eq!(
        team.database.psql(&format!("SELECT charged, interruptions FROM jobvisor.jobs WHERE id = {job}")),
        "1|0"
    );
    let killed = team.enqueue("work", seconds(40), seconds(40));
    for round in 1..=3 {
        team.until_started(killed, round, SOON);
        supervisor.kill();
        supervisor = start(&[&worlds[0]]).remove(0);
    }
    team.until_state(killed, "dead", SOON);
    assert_eq!(team.outcomes(killed), ["supervisor_lost"; 3]);
    assert_eq!(team.starts_of(killed), 3);
    assert!(supervisor.stop(SOON).success());
}

#[test]
fn d7_i6_supervisors_with_wrong_clocks_start_each_job_once_and_by_the_databases_time() {
    const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
    if !Path::new(LIBRARY).exists() {
        return skip("d7", "no `faketime` here");
    }
    let team = Team::new();
    let preload = format!("LD_PRELOAD={LIBRARY}");
    let skewed = |name, by: &str| {
        let time = format!("FAKETIME={by}");
        let prefix = ["env", &preload, &time, "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_NO_CACHE=1"];
        team.world(&Setup::named(name).lease("5s")).through(&prefix)
    };
    let (fast, slow) = (skewed("fast", "+15m"), skewed("slow", "-5m"));
    let supervisors = start(&[&fast, &slow]);
    team.enqueue_many(40, ms(300), &[]);
    let later = |world: &support::world::World| {
        let payload = support::team::payload(ms(100), ms(100)).to_string();
        world.good(&["enqueue", "work", "--count", "10", "--in", "3s", "--payload", &payload]);
    };
    later(&fast);
    later(&slow);
    team.until_all_ended(seconds(60));
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert_eq!(team.database.psql("SELECT max(attempt), count(*) FROM jobvisor.jobs"), "1|60");
    assert_eq!(team.lost_terms("fast") + team.lost_terms("slow"), 0);
    let wrong = "SELECT count(*) FROM jobvisor.jobs WHERE claimed_at < run_at OR run_at > created_at + interval '5 s' \
        OR finished_at > run_at + interval '40 s' OR finished_at < claimed_at";
    assert_eq!(team.database.psql(wrong), "0", "the database's clock decides");
    supervisors.into_iter().for_each(|supervisor| assert!(supervisor.stop(SOON).success()));
}

#[test]
fn j2_i9_rolling_restarts_under_load_charge_nothing_lose_nothing_and_run_nothing_twice_at_once() {
    assert_eq!(rolling_restarts(6), [""; 0]);
}
