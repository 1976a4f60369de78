//! One attempt as the warden holds it, from the fork to `Ended`.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use super::StartSpec;
use super::frost::Frost;
use super::ground::Ground;
use super::message::Key;
use super::tmpdir::Remover;
use super::watchdog::Sampler;
use crate::domain::clock;
use crate::domain::evidence::ProcessEvidence;
use crate::kernel::cgroup::Leaf;

/// Between two looks at something that is about to pass: the kill of a tree, a busy leaf.
pub(super) const SOON: Duration = Duration::from_millis(1);

/// The longest of these pauses; they double from [`SOON`].
pub(super) const LATER: Duration = Duration::from_millis(20);

/// How far an attempt has come.
#[derive(Debug)]
pub(super) enum Phase {
    /// Between fork and the proof of `exec`.
    Starting,
    /// The program runs.
    Running,
    /// The main process is gone and reaped; what it left behind is being killed, until then at most.
    Emptying {
        /// When what is left is declared unkillable.
        until: Instant,
    },
    /// Nobody is left; the leaf and the temporary folder are being removed.
    Removing {
        /// When a busy leaf is given up.
        until: Instant,
        /// What is left of the temporary folder; `None`: it is gone or must stay.
        folder: Option<Remover>,
    },
    /// The evidence is complete.
    Ended,
}

/// One attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) key: Key,
    pub(super) spec: StartSpec,
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    /// Read end of the errno pipe until its end was seen.
    pub(super) errno: Option<OwnedFd>,
    pub(super) leaf: Option<Box<dyn Leaf>>,
    pub(super) folder: PathBuf,
    pub(super) born: Instant,
    pub(super) phase: Phase,
    pub(super) evidence: ProcessEvidence,
    pub(super) sampler: Sampler,
    /// When the program must run, until it does; then when it must have ended.
    pub(super) deadline: Option<Instant>,
    /// When the first signal's grace ends.
    pub(super) kill_at: Option<Instant>,
    /// How it stands with the trust deadline. While it is frozen the two clocks above stand still.
    pub(super) frost: Frost,
    /// `Started` was sent.
    pub(super) announced: bool,
    /// SIGKILL is out; the tree is looked at until it is empty.
    pub(super) killing: bool,
    /// When a main process that does not die of SIGKILL is declared unkillable.
    pub(super) give_up_at: Option<Instant>,
    /// The next look at something that passes by itself, and the pause that led to it.
    pub(super) again: Option<(Instant, Duration)>,
}

impl Attempt {
    /// Seconds since the fork.
    pub(super) fn age(&self) -> f64 {
        self.born.elapsed().as_secs_f64()
    }

    /// Whether the main process has not been seen dead.
    pub(super) const fn is_alive(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Running)
    }

    /// Comes back soon, later each time.
    pub(super) fn come_back(&mut self, now: Instant) {
        let pause = self.again.map_or(SOON, |(_, pause)| (pause * 2).min(LATER));
        self.again = Some((now + pause, pause));
    }

    /// When something has to be done next without anybody calling.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let again = self.again.map(|(at, _)| at);
        let clocks = if self.frost.since.is_some() { [None, None] } else { [self.deadline, self.kill_at] };
        let living = clocks.into_iter().flatten().chain([self.sampler.next()]).filter(|_| self.is_alive());
        living.chain(again).min()
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, ground: &mut Ground, now: Instant) {
        if self.is_alive() {
            self.check_deadlines(ground, now);
            self.sample(ground, now);
        }
        if self.again.is_some_and(|(at, _)| at <= now) {
            match self.phase {
                Phase::Starting if !self.killing => self.check_exec(ground),
                Phase::Starting | Phase::Running => self.kill_step(ground),
                Phase::Emptying { until } => self.empty_step(ground, until),
                Phase::Removing { .. } => self.remove_step(),
                Phase::Ended => {}
            }
        }
    }
}

/// `start` plus so many milliseconds; `None` beyond what a clock can say.
pub(super) fn after(start: Instant, milliseconds: u64) -> Option<Instant> {
    start.checked_add(Duration::from_millis(milliseconds))
}

/// Now, for the loop and its parts.
pub(super) fn now() -> Instant {
    clock::monotonic()
}
