//! When `--until-idle` ends: what it waits for, and what nobody living can run. Jobs of paused kinds are left aside: they
//! are nobody's to run for now, and no reason to stay.

use std::collections::BTreeSet;
use std::time::Instant;

use super::Dispatcher;
use super::Phase;
use crate::domain::ids::Term;
use crate::domain::job::JobState;
use crate::runtime::event::Action;
use crate::runtime::event::ExitReason;
use crate::store::Count;
use crate::store::PausedKind;
use crate::store::TermRow;

/// The kinds that somebody other than `own` runs who lives, as far as the database knows.
#[must_use]
pub fn run_elsewhere(terms: &[TermRow], own: Option<Term>) -> BTreeSet<String> {
    let others = terms.iter().filter(|row| row.is_open() && !row.expired && Some(row.term) != own);
    others.flat_map(|row| row.kinds.iter().cloned()).collect()
}

/// What is left of the counts for `--until-idle`: all but the kinds that are paused.
#[must_use]
pub fn of_unpaused(mut counts: Vec<Count>, paused: &[PausedKind]) -> Vec<Count> {
    counts.retain(|count| paused.iter().all(|paused| paused.kind != count.kind));
    counts
}

impl Dispatcher {
    pub(super) fn counts(
        &mut self,
        counts: &[Count],
        elsewhere: &BTreeSet<String>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        self.idle_check_under_way = false;
        let quiet = self.attempts.is_empty() && self.unrecorded.is_empty() && self.claim_under_way.is_none();
        if !quiet || self.phase > Phase::Working {
            return;
        }
        let mut stuck = Vec::new();
        let mut waiting = Vec::new();
        let mut later = false;
        for count in counts.iter().filter(|count| count.jobs > 0 && !count.state.is_final()) {
            // What this one cannot run, another one may.
            match self.hopeless(count).filter(|_| !elsewhere.contains(&count.kind)) {
                Some(why) => stuck.push(why),
                None if count.state == JobState::Waiting => waiting.push(count),
                None if waits_for(count) => {
                    // Still to be done; a claim right away only where one can succeed, else the next poll looks again.
                    let claimable = count.state == JobState::Queued
                        && self
                            .config
                            .kinds
                            .get(&count.kind)
                            .is_some_and(|kind| self.free_slots(&kind.name, kind.slots, now) > 0);
                    self.claim_again |= claimable;
                    return;
                }
                None => later = true,
            }
        }
        // What waits goes on when another job succeeds: one that is due later still can, one that is stuck never will.
        if later && !waiting.is_empty() {
            return;
        }
        let behind = |count: &&Count| format!("{} job(s) of kind `{}` that wait for others", count.jobs, count.kind);
        stuck.extend(waiting.iter().map(behind));
        actions.push(Action::Exit(ExitReason::Idle { stuck }));
    }

    /// Why nobody living can run these jobs; `None`: somebody can, or nobody needs to.
    fn hopeless(&self, count: &Count) -> Option<String> {
        if count.state != JobState::Queued && !(count.state == JobState::Scheduled && count.attempted > 0) {
            return None;
        }
        let jobs = count.jobs;
        let Some(kind) = self.config.kinds.get(&count.kind) else {
            return Some(format!(
                "{jobs} job(s) of kind `{}`, which {} does not know",
                count.kind,
                self.config.path.display()
            ));
        };
        if self.breakers.has_given_up(&kind.name) {
            return Some(format!("{jobs} job(s) of kind `{}`, whose child cannot be started", count.kind));
        }
        if self.retired_of(&kind.name) >= kind.slots {
            return Some(format!(
                "{jobs} job(s) of kind `{}`, whose slots are held by processes that cannot be killed",
                count.kind
            ));
        }
        let smallest = count.smallest.unwrap_or(kind.memory);
        (smallest > self.identity.budget).then(|| {
            format!(
                "{jobs} job(s) of kind `{}` that need {smallest}; the memory budget is {}",
                count.kind, self.identity.budget
            )
        })
    }
}

/// Whether `--until-idle` waits for these jobs: all but those that were scheduled for later and never tried.
fn waits_for(count: &Count) -> bool {
    match count.state {
        JobState::Queued | JobState::Running | JobState::Waiting => true,
        JobState::Scheduled => count.attempted > 0,
        JobState::Succeeded | JobState::Cancelled | JobState::Dead => false,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn paused_kinds_are_left_aside_whatever_the_state_of_their_jobs() {
        let count = |kind: &str, state| Count { kind: kind.to_owned(), state, attempted: 0, jobs: 1, smallest: None };
        let all: Vec<Count> =
            JobState::ALL.into_iter().flat_map(|state| [count("a", state), count("b", state)]).collect();
        let paused = PausedKind { kind: "b".to_owned(), since: Timestamp::UNIX_EPOCH, by: "me".to_owned() };
        let left = of_unpaused(all.clone(), std::slice::from_ref(&paused));
        assert_eq!(left.len(), JobState::ALL.len());
        assert!(left.iter().all(|count| count.kind == "a"));
        assert_eq!(of_unpaused(all.clone(), &[]), all);
    }
}
