//! From the first sign of an end to complete evidence, in an order in which nothing is lost:
//!
//! errno pipe → look (the zombie stays) → kernel flags → counters → who is left → reap → kill what is left
//! → counters again → groups above → remove leaf and folder → `Ended`.
//!
//! The main process is reaped at once, because its zombie would stand before those of orphans; its process group is
//! signalled before that, while its number is certainly its own.

use std::os::fd::AsFd;
use std::time::Duration;
use std::time::Instant;

use nix::sys::signal::Signal;

use super::attempt::Attempt;
use super::attempt::Phase;
use super::attempt::after;
use super::attempt::now;
use super::ground::Ground;
use super::stop::kill_leaf;
use super::tmpdir::REMOVED;
use super::tmpdir::Remover;
use super::tree::Felled;
use crate::domain::clock;
use crate::domain::evidence::Counters;
use crate::domain::evidence::Leftover;
use crate::domain::evidence::PeakSource;
use crate::domain::evidence::Stage;
use crate::domain::evidence::StartFailure;
use crate::domain::units::Bytes;
use crate::kernel::cgroup::KillState;
use crate::kernel::process;
use crate::kernel::reap;
use crate::kernel::reap::Reaped;
use crate::kernel::spawn::ErrnoPipe;
use crate::kernel::spawn::read_errno;

/// How long a tree may take to die of SIGKILL, and an empty leaf to be removable.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Most processes listed by name.
const LISTED: usize = 32;

impl Attempt {
    /// Reads the errno pipe. A failure is noted; its end leads to the proof of `exec`.
    pub(super) fn read_errno(&mut self, ground: &Ground) {
        let Some(pipe) = &self.errno else { return };
        match read_errno(pipe.as_fd()) {
            ErrnoPipe::Open => {}
            ErrnoPipe::Closed => {
                self.errno = None;
                self.check_exec(ground);
            }
            ErrnoPipe::Failed(failure) => {
                self.errno = None;
                let object = self.object_of(failure.step);
                let error = std::io::Error::from_raw_os_error(failure.errno);
                let message = format!("{}{object}: {error}", failure.step);
                self.evidence.start_failure =
                    Some(StartFailure { step: failure.step.to_owned(), errno: failure.errno, message });
            }
        }
    }

    /// What a step was about, for people.
    fn object_of(&self, step: &str) -> String {
        match step {
            "exec" => self.spec.argv.first().map(|program| format!(" `{program}`")).unwrap_or_default(),
            "cwd" => format!(" `{}`", self.spec.cwd.display()),
            "user" => self.spec.user.as_ref().map(|user| format!(" `{user}`")).unwrap_or_default(),
            _ => String::new(),
        }
    }

    /// The errno pipe has ended: the program runs only if the kernel says that `exec` was done and the process lives.
    pub(super) fn check_exec(&mut self, ground: &Ground) {
        self.again = None;
        if self.killing || self.evidence.start_failure.is_some() || self.is_dead() {
            return;
        }
        match ground.proc.stat(self.pid) {
            Some(stat) if !stat.before_exec() => {
                self.phase = Phase::Running;
                // Frozen, its time begins with the thaw, which adds the span.
                let begun = self.frost.since.unwrap_or_else(now);
                self.deadline = match self.evidence.intent {
                    None => self.spec.timeout_ms.and_then(|timeout| after(begun, timeout)),
                    Some(_) => None,
                };
            }
            Some(_) | None => self.come_back(now()),
        }
    }

    fn is_dead(&self) -> bool {
        !matches!(reap::peek(self.pidfd.as_fd()), Ok(None))
    }

    /// The main process may have ended: sees to it if so.
    pub(super) fn look_at_end(&mut self, ground: &mut Ground) {
        if !self.is_alive() {
            return;
        }
        self.read_errno(ground);
        match reap::peek(self.pidfd.as_fd()) {
            Ok(None) => return,
            Ok(exit) => self.evidence.exit = exit,
            // Somebody else took it away; what can be said without its status is said.
            Err(_) => self.evidence.exit = None,
        }
        self.note_end(ground);
        let reaped = reap::reap(self.pidfd.as_fd()).ok().flatten();
        self.note_usage(reaped, ground.own_rss);
        let begun = now();
        self.again = None;
        self.empty_step(ground, begun + PATIENCE);
    }

    /// What can only be read while the zombie is there, and what must be read before anything is killed.
    fn note_end(&mut self, ground: &mut Ground) {
        self.end_frost(now());
        let before_exec = ground.proc.stat(self.pid).map_or(self.errno.is_some(), |stat| stat.before_exec());
        self.evidence.stage = if before_exec { Stage::BeforeExec } else { Stage::AfterExec };
        self.evidence.ended_at = Some(clock::now());
        self.evidence.wall_s = Some(self.age());
        self.evidence.at_exit = self.leaf.as_ref().map_or_else(Counters::default, |leaf| leaf.counters());
        let living = match &self.leaf {
            Some(leaf) => {
                let left = leaf.procs().unwrap_or_default();
                left.into_iter().filter(|pid| *pid != self.pid).filter_map(|pid| ground.proc.stat(pid)).collect()
            }
            None => {
                ground.forest.look();
                ground.forest.living(self.key).to_vec()
            }
        };
        // After our own kill of the whole tree they are not left over, only slower to die.
        if !self.killing {
            let left = living.into_iter().filter(|stat| stat.pid != self.pid && stat.is_alive());
            let named = left.map(|stat| Leftover { pid: stat.pid, comm: stat.comm, stuck_in: None });
            self.evidence.leftovers = named.take(LISTED).collect();
        }
        if self.leaf.is_none() {
            process::signal_group(self.pid, Signal::SIGKILL).unwrap_or_default();
        }
    }

    fn note_usage(&mut self, reaped: Option<Reaped>, own_rss: u64) {
        let of_leaf = self.leaf.as_ref().and_then(|leaf| leaf.cpu_seconds());
        self.evidence.cpu_s = of_leaf.or(reaped.map(|reaped| reaped.cpu_s));
        self.evidence.major_faults = reaped.map(|reaped| reaped.major_faults);
        // A fork begins with the maximum of the warden; only what lies above it is the job's own.
        let own = reaped.map_or(0, |reaped| reaped.max_rss);
        if own > own_rss {
            self.sampler.peak = self.sampler.peak.max(own);
        }
    }

    /// Kills what is left, until nobody is or patience ends.
    pub(super) fn empty_step(&mut self, ground: &mut Ground, until: Instant) {
        self.phase = Phase::Emptying { until };
        let begun = self.killing || self.again.is_some();
        let empty = match self.leaf.as_deref() {
            // A v1 leaf in the middle of a kill is frozen: only `kill` itself can say that it is done.
            Some(leaf) if !begun && leaf.procs().is_ok_and(|left| left.is_empty()) => true,
            Some(leaf) => kill_leaf(leaf) == KillState::Empty,
            None => ground.forest.fell(self.key) == Felled::Gone,
        };
        if empty {
            self.finish(ground, true);
        } else if until <= now() {
            self.note_unkillable(ground);
            self.finish(ground, false);
        } else {
            self.come_back(now());
        }
    }

    /// The main process itself does not die. It stays our child, and is reaped with the orphans should it ever end.
    pub(super) fn give_up(&mut self, ground: &mut Ground) {
        self.note_end(ground);
        self.note_usage(None, ground.own_rss);
        self.note_unkillable(ground);
        self.finish(ground, false);
    }

    fn note_unkillable(&mut self, ground: &mut Ground) {
        let mut left: Vec<i32> = match &self.leaf {
            Some(leaf) => leaf.procs().unwrap_or_default(),
            None => ground.forest.living(self.key).iter().map(|stat| stat.pid).collect(),
        };
        // It may have left its leaf: as root a job can.
        if self.is_alive() && !left.contains(&self.pid) {
            left.push(self.pid);
        }
        let stats = left.into_iter().filter_map(|pid| ground.proc.stat(pid));
        let named = stats.map(|stat| {
            let channel = ground.proc.wait_channel(stat.pid).map(|name| format!(" {name}")).unwrap_or_default();
            Leftover { pid: stat.pid, comm: stat.comm, stuck_in: Some(format!("{}{channel}", stat.state)) }
        });
        self.evidence.unkillable = named.take(LISTED).collect();
    }

    /// The last readings; then the removal, unless somebody still lives in there.
    fn finish(&mut self, ground: &mut Ground, empty: bool) {
        if let Some(leaf) = &self.leaf {
            self.evidence.after_kill = leaf.counters();
            leaf.read_ancestors_again(&mut self.evidence.ancestors);
        }
        let readable = |counters: &Counters| counters.oom_kill.is_some();
        self.evidence.counters_readable = readable(&self.evidence.baseline) && readable(&self.evidence.at_exit);
        self.evidence.host_oom_kills.1 = ground.proc.oom_kills();
        self.note_memory();
        ground.forest.uproot(self.key);
        self.again = None;
        if empty {
            let until = now() + PATIENCE;
            self.phase = Phase::Removing { until, folder: Some(Remover::new(self.folder.clone())) };
            self.remove_step();
        } else {
            self.phase = Phase::Ended;
        }
    }

    fn note_memory(&mut self) {
        let counted = [self.evidence.at_exit.peak, self.evidence.after_kill.peak].into_iter().flatten().max();
        let sampled = (self.sampler.peak > 0).then_some(self.sampler.peak);
        let memory = &mut self.evidence.memory;
        memory.limit = Some(Bytes(self.spec.memory));
        memory.series = std::mem::take(&mut self.sampler.series);
        (memory.peak, memory.source) = match counted {
            Some(peak) => (Some(Bytes(peak)), PeakSource::Cgroup),
            None => (sampled.map(Bytes), PeakSource::Sampled),
        };
    }

    /// Removes leaf and folder a piece at a time. A leaf stays busy for a moment after its last process.
    pub(super) fn remove_step(&mut self) {
        let Phase::Removing { until, folder } = &mut self.phase else { return };
        if folder.as_mut().is_some_and(|remover| remover.step(REMOVED)) {
            *folder = None;
        }
        let late = *until <= now();
        let folder_gone = folder.is_none();
        if self.leaf.as_ref().is_none_or(|leaf| leaf.remove().is_ok() || late) {
            self.leaf = None;
        }
        if self.leaf.is_none() && (folder_gone || late) {
            self.phase = Phase::Ended;
        } else {
            self.come_back(now());
        }
    }
}
