//! One attempt that stands still: what is asked of its processes, and what becomes of its clocks.

use std::os::fd::AsFd;
use std::time::Instant;

use nix::sys::signal::Signal;

use super::attempt::Attempt;
use crate::kernel::cgroup::Leaf;
use crate::kernel::process;

/// What an attempt has to do with the trust deadline.
#[derive(Debug, Default)]
pub(super) struct Frost {
    /// Since when it is frozen, if it is.
    pub(super) since: Option<Instant>,
    /// Its leaf has not yet reached what was last asked of it.
    pending: bool,
}

impl Attempt {
    /// Whether it runs, or will, and nothing keeps it from that.
    pub(super) fn may_freeze(&self) -> bool {
        self.is_alive() && !self.killing && self.frost.since.is_none()
    }

    /// Sets out to keep it from running; [`Self::frost_step`] and the forest bring it about.
    pub(super) fn freeze(&mut self, now: Instant) {
        if !self.may_freeze() {
            return;
        }
        self.frost = Frost { since: Some(now), pending: self.leaf.is_some() };
        if self.leaf.is_none() {
            // Atomic with respect to forks: plain trees stop here. The main process is not reaped, so the number is its own.
            process::signal_group(self.pid, Signal::SIGSTOP).unwrap_or_default();
            process::pidfd_signal(self.pidfd.as_fd(), Signal::SIGSTOP as i32).unwrap_or_default();
        }
    }

    /// Lets it go on, with the time that it had left.
    pub(super) fn thaw(&mut self, now: Instant) {
        let Some(since) = self.frost.since else { return };
        self.end_frost(now);
        self.frost.pending = self.leaf.is_some();
        let span = now.saturating_duration_since(since);
        for clock in [&mut self.deadline, &mut self.kill_at] {
            *clock = clock.and_then(|at| at.checked_add(span));
        }
    }

    /// It is no longer frozen by our will, or no longer alive: the span is noted.
    pub(super) fn end_frost(&mut self, now: Instant) {
        if let Some(since) = self.frost.since.take() {
            self.evidence.frozen_s += now.saturating_duration_since(since).as_secs_f64();
        }
        self.frost.pending = false;
    }

    /// One step of a leaf towards what was asked of it; `true`: it is there, or there is nothing to ask.
    pub(super) fn frost_step(&mut self) -> bool {
        if !self.frost.pending || !self.is_alive() || self.killing {
            return true;
        }
        let frozen = self.frost.since.is_some();
        let reached = self.leaf.as_deref().is_none_or(|leaf| if frozen { freeze_leaf(leaf) } else { thaw_leaf(leaf) });
        self.frost.pending = !reached;
        reached
    }
}

/// Where a leaf's own way fails, each process is signalled.
fn freeze_leaf(leaf: &dyn Leaf) -> bool {
    leaf.freeze().unwrap_or_else(|_| {
        signal_each(leaf, Signal::SIGSTOP);
        // Who was forked meanwhile is met by the next step.
        false
    })
}

fn thaw_leaf(leaf: &dyn Leaf) -> bool {
    leaf.thaw().unwrap_or_else(|_| {
        signal_each(leaf, Signal::SIGCONT);
        true
    })
}

fn signal_each(leaf: &dyn Leaf, signal: Signal) {
    for pid in leaf.procs().unwrap_or_default() {
        let Ok(pidfd) = process::pidfd_open(pid) else { continue };
        process::pidfd_signal(pidfd.as_fd(), signal as i32).unwrap_or_default();
    }
}
