//! A supervisor is gone: who may say so, when, and what becomes of its jobs.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use support::skip;
use support::team::Setup;
use support::team::Team;
use support::team::now;
use support::wait_until;
use support::world::SOON;
use support::world::text;

use crate::LEASE;
use crate::ms;
use crate::seconds;
use crate::start;

#[test]
fn a2_i1_a_job_that_kills_its_supervisor_is_started_three_times_and_each_loss_is_named() {
    let team = Team::new();
    let world = team.world(&Setup::named("a"));
    let payload = json!({ "mode": "kill-supervisor", "first": "0", "later": "0" });
    let job = team.control.enqueue("work", &payload);
    let mut last = None;
    for _ in 0..6 {
        let mut supervisor = world.start(&["run"]);
        wait_until("it is killed, or the job is dead", SOON, || {
            let ended = supervisor.has_ended() || team.state(job) == "dead";
            if ended { Ok(()) } else { Err(supervisor.log()) }
        });
        last = Some(supervisor);
    }
    assert_eq!(team.starts_of(job), 3);
    assert_eq!((team.state(job).as_str(), team.outcomes(job)), ("dead", vec!["supervisor_lost".to_owned(); 3]));
    let story = team.control.inspect(job);
    for attempt in story["attempts"].as_array().expect("attempts") {
        assert_eq!(attempt["supervisor"], "a");
        assert_eq!(attempt["charged"], true);
        assert!(attempt["evidence"]["loss"]["last_seen"].is_string(), "its last sign of life: {attempt:#}");
        let words = text(&attempt["summary"]).to_lowercase();
        assert!(["heartbeat", "timeout", "memory"].iter().all(|claim| !words.contains(claim)), "{words}");
    }
    assert!(last.expect("six rounds").stop(SOON).success(), "the sixth was not killed");
    assert_eq!(team.faults("dead"), [""; 0]);
}

#[test]
fn i4_what_a_killed_supervisor_of_another_host_ran_is_rescued_after_its_lease_not_before_and_once() {
    let team = Team::new();
    let a = team.world(&Setup::named("a"));
    let others = [team.world(&Setup::named("b").slots(2)), team.world(&Setup::named("c").slots(2))];
    let killed = start(&[&a]).remove(0);
    let jobs: Vec<i64> = (0..4).map(|_| team.enqueue("work", seconds(40), ms(100))).collect();
    jobs.iter().for_each(|job| _ = team.until_started(*job, 1, SOON));
    let rescuers = start(&[&others[0], &others[1]]);
    let at = now();
    killed.kill();
    wait_until("nothing of the killed one's is left", seconds(2), || {
        let left: Vec<i32> = jobs.iter().flat_map(|job| team.control.processes_of(*job)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    team.until_all_ended(SOON);
    for job in &jobs {
        assert_eq!(team.outcomes(*job), ["supervisor_lost", "succeeded"]);
        let began = Duration::from_millis(team.spans(*job)[&2].0 - at);
        // The last renewal was at most a fifth of the lease before the kill.
        assert!(began > LEASE * 3 / 4, "job {job} ran again after {began:?}");
        assert!(began < LEASE * 3, "job {job} ran again only after {began:?}");
    }
    let early = "SELECT count(*) FROM jobvisor.supervisors WHERE lost_at < expires_at";
    assert_eq!(team.database.psql(early), "0", "declared lost before the lease had run out");
    assert_eq!(team.faults("succeeded"), [""; 0]);
    rescuers.into_iter().for_each(|rescuer| assert!(rescuer.stop(SOON).success()));
}

#[test]
fn i4_a_supervisor_that_finds_its_predecessor_dead_on_the_same_host_does_not_wait_for_the_lease() {
    let team = Team::new();
    let a = team.world(&Setup::named("a").lease("60s"));
    let supervisor = start(&[&a]).remove(0);
    let job = team.enqueue("work", seconds(40), ms(100));
    team.until_started(job, 1, SOON);
    supervisor.kill();
    let at = now();
    let successor = start(&[&a]).remove(0);
    team.until_state(job, "succeeded", SOON);
    let took = Duration::from_millis(team.spans(job)[&2].0 - at);
    assert!(took < seconds(10), "the job ran again only after {took:?}");
    assert_eq!(team.outcomes(job), ["supervisor_lost", "succeeded"]);
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert!(successor.stop(SOON).success());
}

#[test]
fn d6_i4_a_restart_with_the_same_name_and_pid_is_not_taken_for_the_old_one() {
    const TEST: &str = "d6";
    if !nix::unistd::geteuid().is_root() {
        return skip(TEST, "a pid namespace needs root");
    }
    let team = Team::new();
    let setup = Setup::named("a").slots(1);
    let a = team.world(&setup).through(&["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    let supervisor = start(&[&a]).remove(0);
    let lost = team.enqueue("work", seconds(40), seconds(40));
    let next = team.enqueue("work", ms(100), ms(100));
    team.until_started(lost, 1, SOON);
    let term = "SELECT term FROM jobvisor.supervisors ORDER BY started_at LIMIT 1";
    let term = team.database.psql(term);
    supervisor.kill();
    let beat = format!("SELECT beat FROM jobvisor.supervisors WHERE term = '{term}'");
    // Whatever it had sent has arrived once the server has dropped its connections.
    team.until(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'jobvisor' AND datname = current_database()",
        "0",
        SOON,
    );
    let before = team.database.psql(&beat);
    let at = now();
    let successor = start(&[&a]).remove(0);
    assert_eq!(team.database.psql("SELECT string_agg(DISTINCT pid::text, ',') FROM jobvisor.supervisors"), "1");
    team.until(
        &format!("SELECT outcome FROM jobvisor.attempts WHERE job_id = {lost} AND attempt = 1"),
        "supervisor_lost",
        SOON,
    );
    assert_eq!(team.database.psql(&beat), before, "the old lease was renewed");
    // Its only slot is free: the next job is not held up by a job that runs nowhere.
    team.until_started(lost, 2, SOON);
    let took = Duration::from_millis(now() - at);
    assert!(took < LEASE * 3, "{took:?}");
    team.control.good(&["cancel", &lost.to_string()]);
    team.until_state(next, "succeeded", SOON);
    assert_eq!(team.outcomes(lost), ["supervisor_lost", "cancelled"]);
    drop(successor);
}

#[test]
fn d4_i4_a_supervisor_records_the_loss_of_a_kind_that_it_does_not_run_and_never_runs_it() {
    let team = Team::new();
    let a = team.world(&Setup::named("a").kinds(&["left"]));
    let b = team.world(&Setup::named("b").kinds(&["right"]));
    let left = start(&[&a]).remove(0);
    let right = start(&[&b]).remove(0);
    let job = team.enqueue("right", seconds(40), ms(100));
    team.until_started(job, 1, SOON);
    right.kill();
    team.until(&format!("SELECT outcome FROM jobvisor.attempts WHERE job_id = {job}"), "supervisor_lost", SOON);
    // The one that is left is offered the job, and busy with its own kind all the time.
    for _ in 0..3 {
        let own = team.enqueue("left", ms(100), ms(100));
        team.until_state(own, "succeeded", SOON);
    }
    team.until_state(job, "queued", SOON);
    assert_eq!(team.starts_of(job), 1);
    let right = start(&[&b]).remove(0);
    team.until_state(job, "succeeded", SOON);
    let ran =
        format!("SELECT string_agg(supervisor, ',' ORDER BY attempt) FROM jobvisor.attempts WHERE job_id = {job}");
    assert_eq!(team.database.psql(&ran), "b,b");
    assert_eq!(team.faults("succeeded"), [""; 0]);
    [left, right].into_iter().for_each(|supervisor| assert!(supervisor.stop(SOON).success()));
}

#[test]
fn i5_a_rescue_carries_out_the_cancel_that_the_lost_supervisor_could_not() {
    let team = Team::new();
    let (a, b) = (team.world(&Setup::named("a")), team.world(&Setup::named("b")));
    let killed = start(&[&a]).remove(0);
    let job = team.enqueue("work", seconds(40), seconds(40));
    team.until_started(job, 1, SOON);
    let rescuer = start(&[&b]).remove(0);
    // It is stopped first, so that it cannot hear of the cancel.
    killed.signal(Signal::SIGSTOP);
    let cancel = team.control.start(&["cancel", &job.to_string()]);
    team.until(&format!("SELECT cancel_requested FROM jobvisor.jobs WHERE id = {job}"), "t", SOON);
    killed.kill();
    team.until_state(job, "cancelled", SOON);
    assert_eq!(team.starts_of(job), 1);
    let output = cancel.output(SOON);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(rescuer.stop(SOON).success());
}
