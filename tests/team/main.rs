//! What only a team shows: several supervisors on one Postgres, leases that run out, servers that go away. Real servers,
//! real processes, real signals; what the jobs wrote is the oracle.

mod outages;
mod rescue;
mod several;
mod stop;
mod trust;

use std::time::Duration;

use support::wait_until;
use support::world::Supervisor;
use support::world::World;

/// The lease that most of these tests use: the shortest.
const LEASE: Duration = Duration::from_secs(3);

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Starts supervisors, and waits until each takes jobs. Their worlds must live as long as they do: their folders go with them.
fn start(worlds: &[&World]) -> Vec<Supervisor> {
    let started: Vec<Supervisor> = worlds.iter().map(|world| world.start(&["run"])).collect();
    started.iter().for_each(until_stands);
    started
}

fn until_stands(supervisor: &Supervisor) {
    until_said(supervisor, "taking jobs");
}

fn until_said(supervisor: &Supervisor, words: &str) {
    wait_until(&format!("it has said `{words}`"), seconds(30), || {
        let log = supervisor.log();
        if log.contains(words) { Ok(()) } else { Err(log) }
    });
}

/// The lines of a log that are warnings or errors.
fn complaints(supervisor: &Supervisor) -> Vec<String> {
    let log = supervisor.log();
    let loud = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR"));
    loud.map(str::to_owned).collect()
}
