//! Samples of an attempt's memory: the series that `inspect` draws, news for the supervisor, and, where no kernel limit is in force, the verdict.
//!
//! With a leaf only the series is kept. Without one the resident size of the tree is read the more often the nearer it
//! is to the limit (a process can touch some 6 GiB a second): between 5 ms and 200 ms. Shared pages count in each
//! process that maps them, so a tree of forks is judged strictly. A strike is noted, with what was seen, before its SIGKILL.

use std::time::Duration;
use std::time::Instant;

use super::attempt::Attempt;
use super::ground::Ground;
use super::tree::LOOK_EVERY;
use crate::domain::evidence::IntentReason;
use crate::domain::evidence::WatchdogStrike;

/// Most points of a series.
const POINTS: usize = 120;

/// Bytes a process can touch in a second.
const GROWTH: u64 = 6 << 30;

const FASTEST: Duration = Duration::from_millis(5);

/// How often the supervisor is told what an attempt holds.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The pause that lets nobody grow from `seen` past `limit` unseen, within the bounds.
fn pause(seen: u64, limit: u64) -> Duration {
    let headroom = limit.saturating_sub(seen);
    Duration::from_micros(headroom.saturating_mul(1000) / (GROWTH / 1000)).clamp(FASTEST, LOOK_EVERY)
}

/// When to sample, and what was seen.
#[derive(Debug)]
pub(super) struct Sampler {
    next_look: Instant,
    /// `None`: the kernel holds the limit.
    next_check: Option<Instant>,
    next_point: Instant,
    next_tell: Instant,
    spacing: Duration,
    /// For the supervisor, if it can take it: it is told or forgotten.
    pub(super) news: Option<u64>,
    /// The highest value seen.
    pub(super) peak: u64,
    /// (seconds, bytes)
    pub(super) series: Vec<(f64, u64)>,
}

impl Sampler {
    /// For an attempt that starts now; `watches`: there is no leaf.
    pub(super) fn new(now: Instant, watches: bool) -> Self {
        let next_check = watches.then_some(now + FASTEST);
        let soon = now + FASTEST;
        Self {
            next_look: soon,
            next_check,
            next_point: soon,
            next_tell: now + TELL_EVERY,
            spacing: LOOK_EVERY,
            news: None,
            peak: 0,
            series: Vec::new(),
        }
    }

    /// When the next sample is due.
    pub(super) fn next(&self) -> Instant {
        let always = self.next_point.min(self.next_tell);
        match self.next_check {
            Some(check) => check.min(self.next_look).min(always),
            None => always,
        }
    }

    /// Adds a point; a full series loses every second one and goes on at half the pace.
    fn add(&mut self, at_s: f64, bytes: u64) {
        if self.series.len() >= POINTS {
            let mut keep = false;
            self.series.retain(|_| {
                keep = !keep;
                keep
            });
            self.spacing *= 2;
        }
        self.series.push((at_s, bytes));
    }
}

impl Attempt {
    /// Takes the samples that are due.
    pub(super) fn sample(&mut self, ground: &mut Ground, now: Instant) {
        let mut seen = None;
        if self.sampler.next_check.is_some() {
            if self.sampler.next_look <= now {
                ground.forest.look_if_due();
                self.sampler.next_look = now + LOOK_EVERY;
                self.note_high_water(ground);
            }
            if self.sampler.next_check.is_some_and(|at| at <= now) {
                seen = Some(self.check(ground, now));
            }
        }
        let (point, tell) = (self.sampler.next_point <= now, self.sampler.next_tell <= now);
        if !point && !tell {
            return;
        }
        let usage = match &self.leaf {
            Some(leaf) => leaf.usage(),
            None => seen.or_else(|| Some(ground.forest.resident(self.key))),
        };
        if tell {
            self.sampler.news = usage;
            self.sampler.next_tell = now + TELL_EVERY;
        }
        if point {
            self.note_point(usage);
            self.sampler.next_point = now + self.sampler.spacing;
        }
    }

    fn note_point(&mut self, usage: Option<u64>) {
        let age = self.age();
        if let Some(bytes) = usage {
            self.sampler.peak = self.sampler.peak.max(bytes);
            self.sampler.add(age, bytes);
        }
    }

    /// Holds the tree against its limit.
    fn check(&mut self, ground: &mut Ground, now: Instant) -> u64 {
        let limit = self.spec.memory;
        let mut seen = ground.forest.resident(self.key);
        if seen > limit && !self.killing {
            // The verdict is about who is a member now.
            ground.forest.look();
            seen = ground.forest.resident(self.key);
            if seen > limit {
                self.strike(ground, seen);
            }
        }
        self.sampler.peak = self.sampler.peak.max(seen);
        self.sampler.next_check = Some(now + pause(seen, limit));
        seen
    }

    fn strike(&mut self, ground: &mut Ground, seen: u64) {
        let at_s = self.age();
        if self.intend(IntentReason::MemWatchdog) {
            self.evidence.watchdog = Some(WatchdogStrike { seen, limit: self.spec.memory, at_s });
        }
        self.note_high_water(ground);
        self.sampler.add(at_s, seen);
        self.kill_now(ground);
    }

    fn note_high_water(&mut self, ground: &Ground) {
        self.sampler.peak = self.sampler.peak.max(ground.forest.high_water(self.key).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::clock;

    #[test]
    fn the_pause_shrinks_with_the_headroom_within_its_bounds() {
        assert_eq!(pause(0, 64 << 30), LOOK_EVERY);
        assert_eq!(pause(0, 600 << 20), Duration::from_micros(97_656));
        assert_eq!(pause(100 << 20, 101 << 20), FASTEST);
        assert_eq!(pause(200 << 20, 100 << 20), FASTEST);
        assert_eq!(pause(0, u64::MAX), LOOK_EVERY);
    }

    #[test]
    fn a_full_series_is_thinned_and_keeps_its_first_point_and_its_order() {
        let mut sampler = Sampler::new(clock::monotonic(), true);
        for n in 0..1000_u32 {
            sampler.add(f64::from(n), u64::from(n));
            assert!(sampler.series.len() <= POINTS);
        }
        assert_eq!(sampler.series.first(), Some(&(0.0, 0)));
        assert_eq!(sampler.series.last(), Some(&(999.0, 999)));
        assert!(sampler.series.is_sorted_by(|a, b| a.0 < b.0));
        assert!(sampler.spacing > LOOK_EVERY);
    }
}
