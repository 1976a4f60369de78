//! The kill ladder: intent, SIGTERM to the main process, grace, SIGKILL of everything until nobody is left.

use std::os::fd::AsFd;
use std::time::Instant;

use nix::sys::signal::Signal;

use super::attempt::Attempt;
use super::attempt::Phase;
use super::attempt::after;
use super::attempt::now;
use super::death::PATIENCE;
use super::ground::Ground;
use super::message::StopReason;
use crate::domain::evidence::Intent;
use crate::domain::evidence::IntentReason;
use crate::kernel::cgroup::KillState;
use crate::kernel::cgroup::Leaf;
use crate::kernel::process;

impl From<StopReason> for IntentReason {
    fn from(reason: StopReason) -> Self {
        match reason {
            StopReason::Cancelled => Self::Cancelled,
            StopReason::Drained => Self::Drained,
            StopReason::OutputLimit => Self::OutputLimit,
            StopReason::Fenced => Self::Fenced,
            StopReason::ProtocolError => Self::ProtocolError,
            StopReason::Linger => Self::Linger,
        }
    }
}

impl Attempt {
    /// Notes why we end it; `true`: nothing was noted before. The first reason stays.
    pub(super) fn intend(&mut self, reason: IntentReason) -> bool {
        let first = self.evidence.intent.is_none();
        if first {
            self.evidence.intent = Some(Intent { reason, at_s: self.age(), signals: Vec::new() });
        }
        first
    }

    /// Sets out to end it. A second call can only shorten the grace, and what is frozen has none: it could not use it. One whose main process has died is left to its death.
    pub(super) fn stop(&mut self, ground: &mut Ground, reason: IntentReason, grace_ms: u64) {
        if !self.is_alive() {
            return;
        }
        let first = self.intend(reason);
        let grace_ms = if self.frost.since.is_some() { 0 } else { grace_ms };
        let at = after(now(), grace_ms);
        self.kill_at = [self.kill_at, at].into_iter().flatten().min();
        if grace_ms == 0 {
            self.kill_now(ground);
        } else if first {
            self.signal(Signal::SIGTERM);
        }
    }

    /// Kills the tree without grace. The intent was noted before.
    pub(super) fn kill_now(&mut self, ground: &mut Ground) {
        if !self.is_alive() || self.killing {
            return;
        }
        self.killing = true;
        self.end_frost(now());
        self.give_up_at = Some(now() + PATIENCE);
        self.kill_at = None;
        self.deadline = None;
        if self.leaf.is_none() {
            // Atomic with respect to forks: plain trees end here. The main process is not reaped, so the number is its own.
            process::signal_group(self.pid, Signal::SIGKILL).unwrap_or_default();
            self.signal(Signal::SIGKILL);
        } else {
            self.note_signal(Signal::SIGKILL);
        }
        self.kill_step(ground);
    }

    /// One step of the kill while the main process is not seen dead.
    pub(super) fn kill_step(&mut self, ground: &mut Ground) {
        match self.leaf.as_deref() {
            None => drop(ground.forest.fell(self.key)),
            Some(leaf) => {
                if kill_leaf(leaf) == KillState::Empty {
                    // It may not have entered yet, or have left: as root a job can.
                    process::pidfd_signal(self.pidfd.as_fd(), Signal::SIGKILL as i32).unwrap_or_default();
                }
            }
        }
        if self.give_up_at.is_some_and(|at| at <= now()) && self.is_alive() {
            return self.give_up(ground);
        }
        self.come_back(now());
    }

    /// Applies the attempt's own deadlines, unless they stand still.
    pub(super) fn check_deadlines(&mut self, ground: &mut Ground, now: Instant) {
        if self.frost.since.is_some() {
            return;
        }
        if self.deadline.is_some_and(|at| at <= now) {
            self.deadline = None;
            match self.phase {
                Phase::Starting => self.stop(ground, IntentReason::StartTimeout, 0),
                Phase::Running | Phase::Emptying { .. } | Phase::Removing { .. } | Phase::Ended => {
                    self.stop(ground, IntentReason::Timeout, self.spec.grace_ms);
                }
            }
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_now(ground);
        }
    }

    fn signal(&mut self, signal: Signal) {
        self.note_signal(signal);
        // Dead already: its end is on its way to us.
        process::pidfd_signal(self.pidfd.as_fd(), signal as i32).unwrap_or_default();
    }

    fn note_signal(&mut self, signal: Signal) {
        let at_s = self.age();
        if let Some(intent) = &mut self.evidence.intent {
            intent.signals.push((signal as i32, at_s));
        }
    }
}

/// One step of killing a leaf; where its own way fails, each process is signalled.
pub(super) fn kill_leaf(leaf: &dyn Leaf) -> KillState {
    match leaf.kill() {
        Ok(state) => state,
        Err(_) => {
            let left = leaf.procs().unwrap_or_default();
            for pid in &left {
                let Ok(pidfd) = process::pidfd_open(*pid) else { continue };
                process::pidfd_signal(pidfd.as_fd(), Signal::SIGKILL as i32).unwrap_or_default();
            }
            if left.is_empty() { KillState::Empty } else { KillState::Dying }
        }
    }
}
