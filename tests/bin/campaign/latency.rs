//! From the death of a main process to the record that a reader sees. The dying job stamps the time as its last act.

use std::collections::HashMap;
use std::time::Duration;

use jobvisor::domain::ids::JobId;
use jobvisor::domain::job::Job;
use serde_json::json;
use support::wait_until;
use support::world::Lane;
use support::world::SOON;
use support::world::World;

use crate::Scale;
use crate::records::Records;
use crate::records::enqueue;
use crate::report::Report;
use crate::report::quantiles;

const KIND: &str = r#"
[database]
url = "sqlite://jobs.db"

[kind.fault]
command = ["{fault}", "stamp", "{payload.file}", "{payload.after}", "{payload.how}"]
slots = 4
memory = "16MiB"
max_attempts = 1
"#;

/// The goal for 95 of 100, on an otherwise idle host.
const GOAL: Duration = Duration::from_millis(100);

pub(crate) fn death_to_record(scale: Scale, report: &mut Report) {
    for lane in [Lane::Auto, Lane::Watchdog] {
        for (at_once, how) in [(1, "kill"), (1, "exit"), (4, "kill")] {
            let samples = scale.of(if at_once == 1 { 100 } else { 50 }, 3);
            let mut taken = sample(lane, at_once, how, samples);
            let p95 = {
                taken.visible.sort_unstable();
                taken.visible[(taken.visible.len() * 95 / 100).min(taken.visible.len() - 1)]
            };
            let name = format!("{lane:?} {how}, {at_once} at once");
            report.say(&format!("{name}: death to end seen by the warden {}", quantiles(&mut taken.seen)));
            report.say(&format!("{name}: death to record {}", quantiles(&mut taken.recorded)));
            report.say(&format!("{name}: death to visible for a reader {}", quantiles(&mut taken.visible)));
            if scale.percent == 100 {
                report.check(&format!("{name}: p95 within {GOAL:?}"), p95 < GOAL, "");
            }
        }
    }
}

#[derive(Default)]
struct Taken {
    seen: Vec<Duration>,
    recorded: Vec<Duration>,
    visible: Vec<Duration>,
}

fn sample(lane: Lane, at_once: usize, how: &str, samples: usize) -> Taken {
    let world = World::new(lane, KIND);
    let supervisor = world.supervisor();
    let records = Records::open(&world);
    let file = world.path("stamps").display().to_string();
    let mut taken = Taken::default();
    let mut visible: HashMap<JobId, i64> = HashMap::new();
    for _ in 0..samples {
        // Late enough that the enqueueing process is gone and all of them run.
        let ids = enqueue(&world, "fault", at_once, &json!({ "file": file, "after": 60, "how": how }));
        wait_until("they are on record", SOON, || {
            for id in &ids {
                if !visible.contains_key(id) && records.job(*id).state.is_final() {
                    visible.insert(*id, jobvisor::domain::clock::now().as_microsecond());
                }
            }
            if ids.iter().all(|id| visible.contains_key(id)) { Ok(()) } else { Err("not".to_owned()) }
        });
    }
    assert!(supervisor.stop(SOON).success(), "it stops");
    let stamps = std::fs::read_to_string(&file).expect("stamps");
    let stamps: HashMap<i64, i64> = stamps
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(job, at)| (job.parse().expect("a job"), at.parse().expect("a time")))
        .collect();
    for Job { id, finished_at, .. } in records.jobs() {
        let since = |at: i64| Duration::from_micros(u64::try_from(at - stamps[&id.0]).unwrap_or(0));
        taken.recorded.push(since(finished_at.expect("an end").as_microsecond()));
        taken.visible.push(since(visible[&id]));
        let ended = records.attempts(id).last().and_then(|attempt| attempt.record.evidence.process.as_ref()?.ended_at);
        taken.seen.push(since(ended.expect("evidence").as_microsecond()));
    }
    taken
}
