//! Resident memory of supervisor and warden: idle, and after many jobs.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use support::wait_until;
use support::world::Lane;
use support::world::SOON;
use support::world::Supervisor;
use support::world::World;

use crate::Scale;
use crate::noop::kind;
use crate::records::Records;
use crate::records::enqueue;
use crate::records::warden;
use crate::report::Report;

pub(crate) fn resident(scale: Scale, program: &Path, report: &mut Report) {
    let world = World::new(Lane::Auto, &kind(program, 8));
    let supervisor = world.supervisor();
    let records = Records::open(&world);
    report.say(&format!("idle: {}", both(&supervisor)));
    let count = scale.of(20_000, 200);
    for done in 1..=4 {
        enqueue(&world, "noop", count / 4, &json!({}));
        let last = enqueue(&world, "noop", 1, &json!({}))[0];
        wait_until("all are done", Duration::from_secs(300), || {
            if records.job(last).state.is_final() { Ok(()) } else { Err("not".to_owned()) }
        });
        report.say(&format!("after {} jobs: {}", done * (count / 4 + 1), both(&supervisor)));
    }
    assert!(supervisor.stop(SOON).success(), "it stops");
}

fn both(supervisor: &Supervisor) -> String {
    let warden = warden(supervisor).expect("a warden");
    format!("supervisor {}, warden {}", one(supervisor.pid()), one(warden))
}

fn one(pid: i32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it lives, and we may look");
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0)
    };
    format!("RSS {} KiB, PSS {} KiB, anonymous {} KiB", kib("Rss:"), kib("Pss:"), kib("Anonymous:"))
}
