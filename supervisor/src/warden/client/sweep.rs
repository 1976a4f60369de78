//! What a dead warden left to its supervisor.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::wait_for;
use crate::kernel::proc::Proc;
use crate::kernel::proc::Stat;
use crate::kernel::process;
use crate::kernel::reap;

/// How long [`sweep_orphans`] tries.
const SWEEP: Duration = Duration::from_secs(10);

/// A look at `/proc` can miss who was born during it. One that finds nobody while nobody was born on the whole host is the
/// proof; where others keep being born, so many in a row are.
const EMPTY: u32 = 5;

/// After the death of a warden: kills and reaps everything that came to this process as an orphan, its descendants
/// included, until nobody is found. `keep` are children of this process that are none (a new warden). Blocks for
/// milliseconds, at most 10 s; answers how many processes were killed. What is in leaves is swept by the next warden.
#[must_use]
pub fn sweep_orphans(keep: &[i32]) -> usize {
    let proc = Proc::default();
    let own = process::own_pid();
    let (mut killed, mut empty) = (0, 0);
    let pass = || {
        let before = proc.last_pid();
        let family = descendants(&proc, own, keep);
        killed += family.iter().filter(|stat| stat.is_alive() && kill(&proc, stat)).count();
        for stat in family.iter().filter(|stat| stat.ppid == own) {
            // Not dead yet: the next pass takes it.
            reap::reap_pid(stat.pid).map(drop).unwrap_or_default();
        }
        empty = if family.is_empty() { empty + 1 } else { 0 };
        empty == EMPTY || (empty > 0 && proc.last_pid() == before)
    };
    wait_for(pass, SWEEP);
    killed
}

/// Everybody below `own`, without `keep` and what is below those.
fn descendants(proc: &Proc, own: i32, keep: &[i32]) -> Vec<Stat> {
    let mut strangers = proc.scan();
    // Parents are older than their children, but clock ticks are coarse: hence the passes.
    strangers.sort_unstable_by_key(|stat| (stat.start, stat.pid));
    let mut family: Vec<Stat> = Vec::new();
    loop {
        let known = family.len();
        strangers.retain(|stat| {
            let child = stat.ppid == own && !keep.contains(&stat.pid);
            let ours = child || family.iter().any(|member| member.pid == stat.ppid);
            if ours {
                family.push(stat.clone());
            }
            !ours
        });
        if family.len() == known {
            return family;
        }
    }
}

/// Kills who has this number only if it is still the same process; `true`: the signal went out.
fn kill(proc: &Proc, stat: &Stat) -> bool {
    let Ok(pidfd) = process::pidfd_open(stat.pid) else { return false };
    let same = proc.stat(stat.pid).is_some_and(|now| now.start == stat.start);
    same && process::pidfd_signal(pidfd.as_fd(), Signal::SIGKILL as i32).is_ok()
}
