//! Jobs that do nothing, beside a bare loop of fork, exec and wait of the same program: what supervision costs.
//!
//! The rounds alternate, so that other load of the host meets both alike; the ratio is of the medians.

use std::path::Path;
use std::process::Command;
use std::process::Stdio;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use serde_json::json;
use support::world::Lane;
use support::world::World;

use crate::Scale;
use crate::records::Records;
use crate::records::enqueue;
use crate::records::until_idle;
use crate::report::Report;

pub(crate) fn kind(program: &Path, slots: usize) -> String {
    format!(
        "[database]\nurl = \"sqlite://jobs.db\"\n[kind.noop]\ncommand = [{:?}]\nslots = {slots}\nmemory = \"16MiB\"\nmax_attempts = 1\n",
        program.display().to_string()
    )
}

pub(crate) fn beside_a_bare_loop(scale: Scale, program: &Path, report: &mut Report) {
    let jobs = scale.of(5000, 100);
    let rounds = scale.of(5, 1);
    for slots in [4, 8] {
        let (mut supervised, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            supervised.push(under_jobvisor(program, slots, jobs));
            bare.push(bare_loop(program, slots, jobs));
        }
        let shown = |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ");
        report.say(&format!("{slots} slots, {jobs} jobs a round: jobvisor {} jobs/s", shown(&supervised)));
        report.say(&format!("{slots} slots, {jobs} jobs a round: bare loop {} a second", shown(&bare)));
        let (ours, theirs) = (median(&mut supervised), median(&mut bare));
        report.say(&format!("{slots} slots: {ours:.0} jobs/s, bare {theirs:.0}: ratio {:.3}", ours / theirs));
    }
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Jobs a second, from the first claim to the last record; all were enqueued before.
fn under_jobvisor(program: &Path, slots: usize, count: usize) -> f64 {
    let world = World::new(Lane::Auto, &kind(program, slots));
    enqueue(&world, "noop", count, &json!({}));
    until_idle(&world, Duration::from_secs(600));
    let jobs = Records::open(&world).jobs();
    assert!(jobs.iter().all(|job| job.state.to_string() == "succeeded"), "all succeed");
    let first = jobs.iter().filter_map(|job| job.claimed_at).min().expect("a claim");
    let last = jobs.iter().filter_map(|job| job.finished_at).max().expect("an end");
    rate(count, Duration::try_from(last.duration_since(first)).expect("time goes on"))
}

/// As many threads as slots, each starting the program and waiting for it.
#[expect(clippy::disallowed_methods, reason = "the bare loop is what the product is compared with")]
fn bare_loop(program: &Path, threads: usize, count: usize) -> f64 {
    let begun = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while begun.fetch_add(1, Ordering::Relaxed) < count {
                    let mut command = Command::new(program);
                    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                    assert!(command.status().expect("it runs").success(), "it succeeds");
                }
            });
        }
    });
    rate(count, start.elapsed())
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}
