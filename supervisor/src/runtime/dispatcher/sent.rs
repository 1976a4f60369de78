//! Outcomes that the store has taken within the last lease, should it turn out to have forgotten them (I2).

use std::collections::VecDeque;
use std::time::Duration;
use std::time::Instant;

use crate::domain::ids::Fence;
use crate::store::Finish;
use crate::store::Finished;

/// The most that is remembered, in bytes; beyond it the oldest go first, and their jobs would run again.
const MOST: usize = 16 * 1024 * 1024;
/// What an outcome takes beside its texts.
const EACH: usize = 2048;

#[derive(Debug)]
pub(super) struct Sent {
    lease: Duration,
    bytes: usize,
    taken: VecDeque<(Instant, Finish)>,
}

impl Sent {
    pub(super) const fn new(lease: Duration) -> Self {
        Self { lease, bytes: 0, taken: VecDeque::new() }
    }

    /// The store has answered. What it refused was not ours to say.
    pub(super) fn taken(&mut self, now: Instant, finished: Finished, finish: Finish) {
        match finished {
            Finished::Recorded(_) | Finished::Already => {}
            Finished::Stale => return,
        }
        self.bytes += size(&finish);
        self.taken.push_back((now, finish));
        while self.bytes > MOST
            || self.taken.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > self.lease)
        {
            let Some((_, oldest)) = self.taken.pop_front() else { break };
            self.bytes -= size(&oldest);
        }
    }

    /// The outcome of an attempt, if it was taken within the last lease.
    pub(super) fn of(&self, now: Instant, fence: &Fence) -> Option<Finish> {
        let mut found = self.taken.iter().rev().filter(|(_, finish)| finish.fence == *fence);
        let (at, finish) = found.next()?;
        (now.saturating_duration_since(*at) <= self.lease).then(|| finish.clone())
    }
}

fn size(finish: &Finish) -> usize {
    let record = finish.record.as_ref();
    let texts = record.map_or(0, |record| {
        record.output_tail.len() + record.evidence.said.stderr_tail.len() + record.trace.as_ref().map_or(0, String::len)
    });
    let series = record
        .and_then(|record| record.evidence.process.as_ref())
        .map_or(0, |process| process.memory.series.len() * 16);
    EACH + texts + series + finish.result.as_ref().map_or(0, String::len)
}
