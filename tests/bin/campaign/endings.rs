//! Many deaths of one kind: each is told as what it was.

use std::collections::BTreeSet;
use std::time::Duration;

use jobvisor::domain::ids::JobId;
use jobvisor::domain::job::JobState;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::json;
use support::wait_until;
use support::world::Lane;
use support::world::SOON;
use support::world::World;

use crate::Scale;
use crate::records::Records;
use crate::records::enqueue;
use crate::records::until_idle;
use crate::report::Report;

const KIND: &str = r#"
[database]
url = "sqlite://jobs.db"

[supervisor]
memory_budget = "1GiB"

[kind.fault]
command = ["{fault}", "{payload.mode}", "{payload.a}"]
slots = 4
memory = "16MiB"
grace = "5s"
timeout = "30s"
max_attempts = 1

[kind.hasty]
command = ["{fault}", "{payload.mode}", "{payload.a}"]
slots = 4
memory = "16MiB"
grace = "5s"
timeout = "100ms"
max_attempts = 1
"#;

/// OOM kills in a row by the job's own limit.
pub(crate) fn oom(scale: Scale, report: &mut Report) {
    if !support::has_cgroup("oom") {
        return report.say("skipped: no memory cgroup can be made here");
    }
    let count = scale.of(1000, 20);
    let world = World::new(Lane::Auto, KIND);
    enqueue(&world, "fault", count, &json!({ "mode": "touch", "a": 32 }));
    until_idle(&world, Duration::from_secs(600));
    let outcomes = Records::open(&world).outcomes();
    let told = outcomes.get("oom_job_limit").copied().unwrap_or(0);
    report.check(
        &format!("{told} of {count} OOM kills are told as oom_job_limit"),
        told == count,
        &format!("{outcomes:?}"),
    );
}

/// Everything that is easily taken for an OOM kill and is none.
pub(crate) fn others(scale: Scale, report: &mut Report) {
    let count = scale.of(200, 4);
    let world = World::new(Lane::Auto, KIND);
    let clean = enqueue(&world, "fault", count, &json!({ "mode": "exit", "a": 0 }));
    let code = enqueue(&world, "fault", count, &json!({ "mode": "exit", "a": 137 }));
    let late = enqueue(&world, "hasty", count, &json!({ "mode": "hang", "a": 0 }));
    let killed = enqueue(&world, "fault", count, &json!({ "mode": "hang", "a": 0 }));
    let cancelled = enqueue(&world, "fault", count, &json!({ "mode": "hang", "a": 0 }));
    let supervisor = world.supervisor();
    let records = Records::open(&world);
    strike(&world, &records, &killed, &cancelled);
    let all = [&clean, &code, &late, &killed, &cancelled];
    let jobs = wait_until("all have ended", Duration::from_secs(300), || {
        let jobs = records.jobs();
        let open = jobs.iter().filter(|job| !job.state.is_final()).count();
        if open == 0 { Ok(jobs) } else { Err(format!("{open} open")) }
    });
    assert!(supervisor.stop(SOON).success(), "it stops");
    let expected = ["-", "exit_nonzero", "timeout", "killed_external", "cancelled"];
    for (ids, cause) in all.into_iter().zip(expected) {
        let ids: BTreeSet<JobId> = ids.iter().copied().collect();
        let of_kind = jobs.iter().filter(|job| ids.contains(&job.id));
        let mut told = std::collections::BTreeMap::new();
        of_kind.for_each(|job| *told.entry(job.cause.map_or("-", |cause| cause.code())).or_insert(0) += 1);
        let good = told.get(cause).copied().unwrap_or(0);
        report.check(&format!("{good} of {count} are told as {cause}"), good == count, &format!("{told:?}"));
        report.check("none of them has an OOM cause", told.keys().all(|cause| !cause.contains("oom")), "");
    }
}

/// Kills from outside what is to be killed, and cancels what is to be cancelled, each once it runs.
fn strike(world: &World, records: &Records, killed: &[JobId], cancelled: &[JobId]) {
    let mut left: BTreeSet<i64> = killed.iter().chain(cancelled).map(|id| id.0).collect();
    wait_until("all have been struck", Duration::from_secs(300), || {
        for start in world.starts() {
            if !left.contains(&start.job) {
                continue;
            }
            let id = JobId(start.job);
            if killed.contains(&id) {
                nix::sys::signal::kill(Pid::from_raw(start.pid), Signal::SIGKILL).expect("it hangs");
            } else if records.job(id).state == JobState::Running {
                records.cancel(id);
            }
            left.remove(&start.job);
        }
        if left.is_empty() { Ok(()) } else { Err(format!("{} left", left.len())) }
    });
}
