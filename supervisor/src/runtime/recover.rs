//! What a supervisor does before it begins a term, in this order and as often as the store has to be waited for:
//!
//! 1. the journal of its predecessors' outcomes, then what their wardens saw (`ends/`), recorded under the fences of then:
//!    these know more than anybody who rescues (I9). Where somebody was first, the store keeps them as `late_outcome` (I10);
//! 2. predecessors that are *proven* gone ([`Here::has_survived`]) are declared lost without waiting for their leases;
//! 3. the rows of all terms that are over are ended.
//!
//! It runs under the lock of the state folder, which the predecessor's warden held until its last child was gone. Where the lease is a
//! lock, all other terms are over. Idempotent: a file is removed only after the store has taken it, and the
//! store recognises what it has taken.

use std::collections::HashMap;
use std::path::Path;

use crate::config::Config;
use crate::domain::clock;
use crate::domain::ids::Term;
use crate::domain::retry::Backoff;
use crate::kernel::proc::Proc;
use crate::runtime::here::Here;
use crate::runtime::journal;
use crate::runtime::rescue;
use crate::store::Finish;
use crate::store::Finished;
use crate::store::LossProof;
use crate::store::Rescuable;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::TermRow;
use crate::warden::EndFile;
use crate::warden::ends;

/// Outcomes recorded at once.
const BATCH: usize = 500;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Outcomes that a predecessor held.
    pub journaled: usize,
    /// Ends that its warden had seen.
    pub seen: usize,
    /// Attempts of which nothing but the loss is known.
    pub unseen: usize,
}

/// Records the ends of all attempts that predecessors left open.
///
/// # Errors
/// The store cannot be reached. What was recorded stays recorded; the rest is found again next time.
pub async fn recover(store: &dyn Store, config: &Config, here: &Here, own: Term) -> Result<Recovered, StoreError> {
    let journaled = replay_journal(store, &config.supervisor.state_dir).await?;
    let terms = store.terms().await?;
    let seen = replay_ends(store, config, here, &terms).await?;
    // Our own may stand there: it was begun by a try before this one, whose answer was lost.
    for row in terms.iter().filter(|row| row.is_open() && row.term != own) {
        let gone = !store.is_leased() || here.has_survived(row, &Proc::default());
        if gone && store.declare_lost(row.term, row.beat, LossProof::ProcessGone).await? {
            tracing::warn!(term = %row.term, pid = row.pid, "the supervisor before this one is gone; its term is lost");
        }
    }
    let unseen = rescue::sweep(store, config, here, &[own]).await?;
    Ok(Recovered { journaled, seen, unseen })
}

async fn replay_journal(store: &dyn Store, state_dir: &Path) -> Result<usize, StoreError> {
    let outcomes = journal::read_all(state_dir).unwrap_or_else(|error| {
        tracing::error!(%error, "the journal of outcomes cannot be read; their attempts count as lost");
        Vec::new()
    });
    replay(store, &outcomes, |finish| journal::remove(state_dir, &finish.fence)).await
}

async fn replay_ends(store: &dyn Store, config: &Config, here: &Here, terms: &[TermRow]) -> Result<usize, StoreError> {
    let state_dir = &config.supervisor.state_dir;
    let ends = ends::read_all(state_dir).unwrap_or_else(|error| {
        tracing::error!(%error, "what the warden before this one saw cannot be read; its attempts count as lost");
        Vec::new()
    });
    let terms: HashMap<Term, &TermRow> = terms.iter().map(|row| (row.term, row)).collect();
    let mut finishes = Vec::with_capacity(ends.len());
    for EndFile { fence, process } in ends {
        let Some(job) = store.job(fence.job).await? else {
            // Deleted meanwhile: nobody wants to know any more.
            left_behind(ends::remove(state_dir, &fence));
            continue;
        };
        // The row's budget holds the charge of this attempt while it is the one that runs. Of one that somebody else has ended only what is
        // given back matters, and the store does not do that twice.
        let row = Rescuable {
            fence,
            backoff: config.kinds.get(&job.kind).map_or_else(Backoff::default, |kind| kind.backoff),
            kind: job.kind,
            budget: job.budget,
            memory: job.memory.unwrap_or_default(),
            claimed_at: job.claimed_at.unwrap_or(job.run_at),
            term: terms.get(&fence.term).map(|row| (*row).clone()),
            cancel_requested: job.cancel_requested,
        };
        finishes.push(rescue::end_of(&row, Some(process), config, here, clock::now()));
    }
    replay(store, &finishes, |finish| ends::remove(state_dir, &finish.fence)).await
}

/// Records outcomes and forgets those that were taken. Answers how many were not on record yet.
async fn replay(
    store: &dyn Store,
    finishes: &[Finish],
    forget: impl Fn(&Finish) -> std::io::Result<()>,
) -> Result<usize, StoreError> {
    let mut recorded = 0;
    for batch in finishes.chunks(BATCH) {
        let taken = rescue::deliver(store, batch).await?;
        for (finish, taken) in batch.iter().zip(taken) {
            recorded += usize::from(matches!(taken, Some(Finished::Recorded(_))));
            if taken.is_some() {
                left_behind(forget(finish));
            }
        }
    }
    Ok(recorded)
}

fn left_behind(removed: std::io::Result<()>) {
    if let Err(error) = removed {
        tracing::warn!(%error, "the record of an end stays behind; it will be recognised next time");
    }
}

#[cfg(test)]
mod tests;
