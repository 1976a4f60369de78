//! The trust deadline (I4): past it nobody knows whether the supervisor still holds its jobs, so nobody runs.
//!
//! The supervisor says how long it may be trusted ([`Down::Trust`](super::message::Down::Trust)); a timer of `CLOCK_BOOTTIME`,
//! which goes on while the host is suspended, wakes the loop. The loop then reads the socket before it believes the timer,
//! because a renewal may lie in it. Past the deadline every child that is not being killed is frozen and starts are
//! refused; the newest word counts, and only one that lies in the future thaws.
//!
//! By phase: *starting* is frozen, not killed: it has run no code of the job and goes on where it was; *running* is frozen;
//! one whose kill is under way, *emptying* and *removing* go on, for they only end what must not run; a `Stop`, and
//! the end of the supervisor, kill a frozen tree at once and without a thaw. Timeout, grace and start timeout stand still.
//!
//! Each leaf is asked until it stands still, then left to the kernel. Trees without a leaf are stopped by signals and looked
//! at again every 20 ms.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use std::time::Instant;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::ClockId;
use nix::sys::timerfd::Expiration;
use nix::sys::timerfd::TimerFd;
use nix::sys::timerfd::TimerFlags;
use nix::sys::timerfd::TimerSetTimeFlags;

use super::attempt::Attempt;
use super::attempt::LATER;
use super::attempt::SOON;
use super::attempt::now;
use super::ground::Ground;
use super::message::Key;
use crate::domain::clock;
use crate::domain::clock::BootInstant;

/// How long the supervisor is trusted, and what was made of it.
#[derive(Debug)]
pub(super) struct Trust {
    timer: TimerFd,
    /// `None`: it never said; there is no deadline.
    until: Option<BootInstant>,
    /// What was last asked of the children: to stand still, or to run.
    frozen: bool,
    /// The next step towards that, and the pause that led to it; `None`: all are there.
    again: Option<(Instant, Duration)>,
}

impl Trust {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        Ok(Self { timer, until: None, frozen: false, again: None })
    }

    /// Readable when the deadline has come.
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// The timer spoke: it says no more until the next deadline.
    pub(super) fn hush(&self) {
        // The kernel refuses only what is no timer.
        self.timer.unset().unwrap_or_default();
    }

    /// The supervisor's newest word.
    pub(super) fn set(&mut self, until: BootInstant) {
        self.until = Some(until);
        if self.is_past() {
            return self.hush();
        }
        let at = TimeSpec::from(Duration::from_nanos(until.0));
        let armed = self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME);
        if armed.is_err() {
            // A deadline that nothing would wake us for must not be believed in.
            self.until = Some(BootInstant(0));
        }
    }

    /// Whether the deadline has come, by the clock and not by the timer.
    pub(super) fn is_past(&self) -> bool {
        self.until.is_some_and(|until| until <= clock::boottime())
    }

    /// Whether a child may be started; `renewed`: a newer word that is read but whose turn has not come.
    pub(super) fn allows_start(&self, renewed: Option<BootInstant>) -> bool {
        !self.is_past() || renewed.is_some_and(|until| until > clock::boottime())
    }

    /// When [`Self::keep`] has something to do.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.again.map(|(at, _)| at)
    }

    /// Freezes or thaws, as the clock says, and does the step that is due.
    pub(super) fn keep(&mut self, attempts: &mut BTreeMap<Key, Attempt>, ground: &mut Ground) {
        let now = now();
        let past = self.is_past();
        if past && attempts.values().any(Attempt::may_freeze) {
            if !self.frozen {
                ground.forest.note_resting();
            }
            attempts.values_mut().for_each(|attempt| attempt.freeze(now));
            self.again = Some((now, SOON));
        } else if !past && self.frozen {
            attempts.values_mut().for_each(|attempt| attempt.thaw(now));
            self.again = Some((now, SOON));
        }
        self.frozen = past;
        if self.again.is_some_and(|(at, _)| at <= now) {
            self.step(attempts, ground, now);
        }
    }

    fn step(&mut self, attempts: &mut BTreeMap<Key, Attempt>, ground: &mut Ground, now: Instant) {
        let mut leaves = true;
        for attempt in attempts.values_mut() {
            leaves &= attempt.frost_step();
        }
        let trees = ground.forest.is_empty() || if self.frozen { ground.forest.halt() } else { ground.forest.resume() };
        let pause = match (leaves && trees, self.frozen && !ground.forest.is_empty()) {
            (true, false) => None,
            (true, true) => Some(LATER),
            (false, _) => Some(self.again.map_or(SOON, |(_, pause)| (pause * 2).min(LATER))),
        };
        self.again = pause.map(|pause| (now + pause, pause));
    }
}
