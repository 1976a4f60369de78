//! Where the claims of a kind go on from.
//!
//! What stands behind a position is not seen: a job of better priority, a job that was promoted or put back. So a kind is looked at from
//! its beginning ("a full look") once in max([`FULL_EVERY`], [`REST`] times what the last full look took), and before a claim
//! comes back with nothing. Full looks that are cheap are not saved on: a kind that was found empty is looked at in full the
//! next time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How old a full look may be.
const FULL_EVERY: Duration = Duration::from_millis(250);

/// Full looks take at most one part in so many of the time.
const REST: u32 = 20;

/// A full look that takes longer walks over what a snapshot keeps from vacuum.
const DEAR: Duration = Duration::from_millis(5);

/// Priority and id of a row.
pub(super) type Place = (i32, i64);

/// What is remembered of one kind.
#[derive(Debug, Clone, Copy)]
struct Memory {
    /// The last row that was claimed in the order of claims; `None`: begin at the beginning.
    at: Option<Place>,
    full_at: Instant,
    took: Duration,
}

/// What is remembered of all kinds.
#[derive(Debug, Default)]
pub(super) struct Positions(Mutex<HashMap<String, Memory>>);

/// What a look at one kind found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Where it began; `None`: it was a full look.
    pub(super) after: Option<Place>,
    /// The last row that was claimed.
    pub(super) last: Option<Place>,
    /// There was nothing more.
    pub(super) exhausted: bool,
    /// When it ended.
    pub(super) ended: Instant,
    /// How long it took.
    pub(super) took: Duration,
}

impl Positions {
    /// Where a look at `kind` begins; `None`: a full look.
    pub(super) fn of(&self, kind: &str, now: Instant) -> Option<Place> {
        let memories = self.lock();
        let memory = memories.get(kind)?;
        let fresh = FULL_EVERY.max(memory.took.saturating_mul(REST));
        if now.saturating_duration_since(memory.full_at) < fresh { memory.at } else { None }
    }

    /// Whether a full look at `kind` costs little.
    pub(super) fn is_cheap(&self, kind: &str) -> bool {
        self.lock().get(kind).is_none_or(|memory| memory.took < DEAR)
    }

    /// Notes what a look at `kind` found.
    pub(super) fn note(&self, kind: &str, seen: Seen) {
        let mut memories = self.lock();
        let before = memories.get(kind).copied();
        let memory = match (seen.after, before) {
            // Where nothing was claimed it goes on from where it began.
            (Some(_), Some(before)) => Memory { at: seen.last.or(before.at), ..before },
            (Some(_), None) => return,
            (None, _) => {
                let at = match (seen.exhausted, seen.took < DEAR) {
                    (true, true) => None,
                    (true, false) => seen.last.or_else(|| before.and_then(|before| before.at)),
                    (false, _) => seen.last,
                };
                Memory { at, full_at: seen.ended, took: seen.took }
            }
        };
        memories.insert(kind.to_owned(), memory);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::clock;

    const QUICK: Duration = Duration::from_millis(1);
    const SLOW: Duration = Duration::from_millis(50);

    fn full(last: Option<Place>, exhausted: bool, took: Duration, ended: Instant) -> Seen {
        Seen { after: None, last, exhausted, ended, took }
    }

    #[test]
    fn claims_go_on_from_the_last_row_until_a_full_look_is_due() {
        let (positions, now) = (Positions::default(), clock::monotonic());
        assert_eq!(positions.of("k", now), None);
        positions.note("k", full(Some((0, 50)), false, QUICK, now));
        assert_eq!(positions.of("k", now), Some((0, 50)));
        positions
            .note("k", Seen { after: Some((0, 50)), last: Some((0, 90)), exhausted: false, ended: now, took: QUICK });
        positions.note("k", Seen { after: Some((0, 90)), last: None, exhausted: true, ended: now, took: QUICK });
        assert_eq!(positions.of("k", now + FULL_EVERY - QUICK), Some((0, 90)));
        assert_eq!(positions.of("k", now + FULL_EVERY), None);
        assert_eq!(positions.of("other", now), None);
    }

    #[test]
    fn a_dear_full_look_is_rested_from_and_a_cheap_one_is_not_saved_on() {
        let (positions, now) = (Positions::default(), clock::monotonic());
        positions.note("k", full(Some((0, 50)), false, SLOW, now));
        assert_eq!(positions.of("k", now + SLOW * (REST - 1)), Some((0, 50)));
        assert_eq!(positions.of("k", now + SLOW * REST), None);
        assert!(!positions.is_cheap("k"));
        positions.note("k", full(None, true, SLOW, now));
        assert_eq!(positions.of("k", now), Some((0, 50)), "what a snapshot keeps is not walked over at each claim");
        positions.note("k", full(Some((0, 60)), true, QUICK, now));
        assert_eq!(positions.of("k", now), None, "an empty kind is looked at in full");
    }

    #[test]
    fn a_full_look_that_finds_better_ones_goes_on_from_those() {
        let (positions, now) = (Positions::default(), clock::monotonic());
        positions.note("k", full(Some((0, 50)), false, QUICK, now));
        positions.note("k", full(Some((-1, 70)), false, QUICK, now));
        assert_eq!(positions.of("k", now), Some((-1, 70)));
    }
}
