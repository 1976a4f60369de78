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

use nix::sys::prctl::set_child_subreaper;
use nix::sys::resource::UsageWho;
use nix::sys::resource::getrusage;
use nix::sys::time::TimeValLike;
use nix::sys::wait::wait;
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
        let (mut cpu_supervised, mut cpu_bare) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (rate, cpu) = under_jobvisor(program, slots, jobs);
            supervised.push(rate);
            cpu_supervised.push(cpu);
            let (rate, cpu) = bare_loop(program, slots, jobs);
            bare.push(rate);
            cpu_bare.push(cpu);
        }
        let shown = |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ");
        report.say(&format!("{slots} slots, {jobs} jobs a round: jobvisor {} jobs/s", shown(&supervised)));
        report.say(&format!("{slots} slots, {jobs} jobs a round: bare loop {} a second", shown(&bare)));
        let (ours, theirs) = (median(&mut supervised), median(&mut bare));
        report.say(&format!("{slots} slots: {ours:.0} jobs/s, bare {theirs:.0}: ratio {:.3}", ours / theirs));
        let (ours, theirs) = (median(&mut cpu_supervised), median(&mut cpu_bare));
        report.say(&format!("{slots} slots: {ours:.2} ms of CPU a job, its own included; bare {theirs:.2} ms"));
    }
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Jobs a second, from the first claim to the last record; all were enqueued before. And milliseconds of CPU a job.
fn under_jobvisor(program: &Path, slots: usize, count: usize) -> (f64, f64) {
    let world = World::new(Lane::Auto, &kind(program, slots));
    enqueue(&world, "noop", count, &json!({}));
    let before = cpu();
    // The warden outlives its supervisor by a moment: it comes to us, so that its time counts.
    set_child_subreaper(true).expect("orphans come here");
    until_idle(&world, Duration::from_secs(600));
    while wait().is_ok() {}
    set_child_subreaper(false).expect("and no longer");
    let cpu = cpu().saturating_sub(before);
    let jobs = Records::open(&world).jobs();
    assert!(jobs.iter().all(|job| job.state.to_string() == "succeeded"), "all succeed");
    let first = jobs.iter().filter_map(|job| job.claimed_at).min().expect("a claim");
    let last = jobs.iter().filter_map(|job| job.finished_at).max().expect("an end");
    let time = Duration::try_from(last.duration_since(first)).expect("time goes on");
    (rate(count, time), each(cpu, count))
}

/// As many threads as slots, each starting the program and waiting for it.
#[expect(clippy::disallowed_methods, reason = "the bare loop is what the product is compared with")]
fn bare_loop(program: &Path, threads: usize, count: usize) -> (f64, f64) {
    let begun = AtomicUsize::new(0);
    let (start, before) = (Instant::now(), cpu());
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
    (rate(count, start.elapsed()), each(cpu().saturating_sub(before), count))
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn each(cpu: Duration, count: usize) -> f64 {
    cpu.as_secs_f64() * 1e3 / count as f64
}

/// CPU time of this process and of all that it, or a child of it, has waited for.
fn cpu() -> Duration {
    let of = |who| {
        let usage = getrusage(who).expect("own usage");
        [usage.user_time(), usage.system_time()]
    };
    let times = of(UsageWho::RUSAGE_SELF).into_iter().chain(of(UsageWho::RUSAGE_CHILDREN));
    times.map(|time| Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0))).sum()
}
