//! How long a supervisor may be trusted to hold its lease, and what its warden does when it may not.

use nix::sys::signal::Signal;
use support::proxy::Proxy;
use support::team::Setup;
use support::team::Team;
use support::wait_until;
use support::world::SOON;

use crate::LEASE;
use crate::ms;
use crate::seconds;
use crate::start;
use crate::until_stands;

#[test]
fn d2_i4_i5_a_supervisor_that_hangs_loses_its_lease_and_its_child_stands_still_before_another_starts() {
    let team = Team::new();
    let a = team.world(&Setup::named("a").kinds(&["work", "left"]));
    let b = team.world(&Setup::named("b"));
    let hung = start(&[&a]).remove(0);
    let job = team.enqueue("work", seconds(40), ms(500));
    let child = team.until_started(job, 1, SOON);
    let rescuer = start(&[&b]).remove(0);
    hung.signal(Signal::SIGSTOP);
    team.until_silent(job, 1, LEASE * 2);
    assert_eq!(team.starts_of(job), 1, "the first attempt stands still before the second one starts");
    team.until_state(job, "succeeded", SOON);
    let other = team.enqueue("left", ms(100), ms(100));
    assert!(team.control.processes_of(job).contains(&child), "it is frozen, and nobody but its supervisor ends it");
    hung.signal(Signal::SIGCONT);
    wait_until("the frozen child is killed", SOON, || {
        let left = team.control.processes_of(job);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}: {}", hung.log())) }
    });
    team.until_state(other, "succeeded", SOON);
    let log = hung.log();
    assert!(log.lines().any(|line| line.contains("declared lost")), "{log}");
    assert_eq!(team.lost_terms("a"), 1);
    assert_eq!(team.database.psql("SELECT count(*) FROM jobvisor.supervisors WHERE name = 'a'"), "2");
    assert_eq!(team.outcomes(job), ["supervisor_lost", "succeeded"]);
    let story = team.control.inspect(job);
    assert_eq!((&story["result"], &story["attempts"][1]["supervisor"]), (&2.into(), &"b".into()), "{story:#}");
    assert_eq!(team.faults("succeeded"), [""; 0]);
    [hung, rescuer].into_iter().for_each(|supervisor| assert!(supervisor.stop(SOON).success()));
}

#[test]
fn i4_a_supervisor_that_comes_back_before_its_lease_is_over_thaws_its_child_and_goes_on() {
    let team = Team::new();
    let setup = Setup::named("a").lease("8s");
    let a = team.world(&setup);
    let hung = start(&[&a]).remove(0);
    let job = team.enqueue("work", seconds(12), ms(100));
    team.until_started(job, 1, SOON);
    let b = team.world(&Setup::named("b").lease("8s"));
    let other = start(&[&b]).remove(0);
    hung.signal(Signal::SIGSTOP);
    team.until_silent(job, 1, SOON);
    hung.signal(Signal::SIGCONT);
    team.until_heard(job, 1, seconds(3));
    team.until_state(job, "succeeded", SOON);
    assert_eq!((team.starts_of(job), team.lost_terms("a")), (1, 0));
    let attempt = &team.control.inspect(job)["attempts"][0];
    assert!(attempt["flags"].to_string().contains("frozen"), "that it stood still is on record: {attempt:#}");
    assert_eq!(team.faults("succeeded"), [""; 0]);
    [hung, other].into_iter().for_each(|supervisor| assert!(supervisor.stop(SOON).success()));
}

#[test]
fn d1_i4_a_job_that_takes_longer_than_three_leases_is_started_once() {
    let team = Team::new();
    let (a, b) = (team.world(&Setup::named("a")), team.world(&Setup::named("b")));
    let supervisors = start(&[&a, &b]);
    let job = team.enqueue("work", LEASE * 3 + seconds(1), ms(100));
    team.until_state(job, "succeeded", SOON);
    assert_eq!(team.outcomes(job), ["succeeded"]);
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert_eq!(team.lost_terms("a") + team.lost_terms("b"), 0);
    supervisors.into_iter().for_each(|supervisor| assert!(supervisor.stop(SOON).success()));
}

#[test]
fn d1_i4_a_database_that_answers_after_a_third_of_the_lease_costs_no_lease() {
    let team = Team::new();
    let proxy = Proxy::before(&team.database.url);
    proxy.delay(LEASE * 3 / 10);
    let url = proxy.url(&team.database.url);
    let (a, b) = (team.world_at(&url, &Setup::named("a")), team.world_at(&url, &Setup::named("b")));
    let supervisors = [a.start(&["run"]), b.start(&["run"])];
    supervisors.iter().for_each(until_stands);
    let job = team.enqueue("work", LEASE * 3 + seconds(1), ms(100));
    team.until_state(job, "succeeded", seconds(60));
    assert_eq!(team.outcomes(job), ["succeeded"]);
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert_eq!(team.lost_terms("a") + team.lost_terms("b"), 0);
    proxy.heal();
    supervisors.into_iter().for_each(|supervisor| assert!(supervisor.stop(SOON).success()));
}

#[test]
fn d1_a_lease_that_is_too_short_to_be_renewed_in_time_is_refused_with_both_numbers() {
    let team = Team::new();
    let output = team.world(&Setup::named("a").lease("1s")).run(&["run"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("lease") && words.contains("1.0 s") && words.contains("3.0 s"), "{words}");
}
