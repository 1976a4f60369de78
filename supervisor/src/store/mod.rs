//! Where jobs and attempts are kept: one trait, one implementation a database, one conformance suite for all.
//!
//! Called by `runtime` (claims, outcomes), `inspect` and `cli` (reading, enqueueing, acting). It calls nobody but its
//! database; no SQL stands outside this folder.
//!
//! Invariants held here:
//! - a claim is one transaction that makes the job running *and* counts and charges the attempt (I1);
//! - every write about an attempt compares the fence (job, attempt, term) and is refused when it is stale (I5);
//! - a finish that was recorded before is recognised as such, so it may be sent again after a lost reply (I2);
//! - recording cannot fail for its content: any text is made storable (I10).
//!
//! Decisions are not taken here: `domain::retry::decide` says where a job goes, the store records it. The one thing
//! that only the store knows at that moment is whether a cancel was asked for meanwhile; it turns `PutBack` into `cancelled`.

mod error;
mod lock;
mod model;
mod outcome;
pub mod postgres;
mod schema;
pub mod sqlite;

pub use error::StoreError;
pub use lock::LockFile;
pub use model::*;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::domain::ids::{AttemptNo, JobId, Term};
use crate::domain::job::Job;

/// A database that keeps jobs. All methods may be called at once from any number of tasks; a caller that is dropped
/// mid-call leaves the call either done or not done, never half done.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Registers a new term of a supervisor, whose lease begins now.
    async fn begin_term(&self, supervisor: &NewTerm) -> Result<(), StoreError>;

    /// What renews terms, on a connection of its own that is made when it is first used, in the runtime that uses it.
    fn renewer(&self) -> Box<dyn Renewer>;

    /// Whether a term is a lease that runs out. Otherwise it is a lock that is held as long as anything of the supervisor
    /// lives, and nobody needs to watch the time.
    fn is_leased(&self) -> bool;

    /// Declares a term lost if its `beat` is still this one. Answers whether it is lost now, by whomever. From then on it cannot
    /// be renewed and claims nothing; its running rows are [`rescuable`](Self::rescuable).
    async fn declare_lost(&self, term: Term, beat: u64, proof: LossProof) -> Result<bool, StoreError>;

    /// Ends a term in good order. Its running rows, if any, stay for [`rescuable`](Self::rescuable).
    async fn end_term(&self, term: Term) -> Result<(), StoreError>;

    /// Adds jobs, all or none. Answers their ids in order; for a job whose unique key is held by an unfinished job of its
    /// kind, that job's id. Payloads are checked to be JSON and to fit `max_payload` by the caller.
    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError>;

    /// Makes queued jobs running under a term: lower priority number first, then lower id, kinds taking turns within one
    /// priority; at most `free` of each kind; cut at the first row whose memory no longer fits `free_memory` (rows that are
    /// larger than `whole_budget` are skipped instead: they can never fit). Counts and charges each attempt.
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError>;

    /// Records outcomes. Answers for each, in order, whether it was recorded now, had been before, or is stale.
    async fn finish(&self, outcomes: &[Finish]) -> Result<Vec<Finished>, StoreError>;

    /// Rows that are running under `term` and were claimed with a sequence below `below`: what a supervisor compares with
    /// what it holds, to find claims whose reply was lost.
    async fn own_rows(&self, term: Term, below: u64) -> Result<Vec<(JobId, AttemptNo)>, StoreError>;

    /// Makes scheduled jobs that are due queued, at most `limit`. Answers how many, and when the next one will be due.
    async fn promote(&self, limit: u32) -> Result<Promoted, StoreError>;

    /// Running rows whose term is over (ended, declared lost, or not known; where the lease is a lock: any): attempts whose end
    /// nobody recorded. `living` are terms that must be left alone.
    async fn rescuable(&self, living: &[Term]) -> Result<Vec<Rescuable>, StoreError>;

    /// Asks for cancellation: ends what is not running, marks what is.
    async fn cancel(&self, ids: &[JobId], by: &str) -> Result<Vec<(JobId, Acted)>, StoreError>;

    /// Running jobs of a term for which a cancel was asked.
    async fn cancel_requests(&self, term: Term) -> Result<Vec<CancelRequest>, StoreError>;

    /// Brings ended jobs back to `queued` with a fresh budget; their history stays.
    async fn retry(&self, ids: &[JobId]) -> Result<Vec<(JobId, Acted)>, StoreError>;

    /// Stops kinds from being claimed, by every supervisor.
    async fn pause(&self, kinds: &[String], by: &str) -> Result<(), StoreError>;

    /// Lets kinds be claimed again. Answers those that were paused.
    async fn resume(&self, kinds: &[String]) -> Result<Vec<String>, StoreError>;

    /// The kinds that are paused, by name.
    async fn paused(&self) -> Result<Vec<PausedKind>, StoreError>;

    /// One job.
    async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError>;

    /// The recorded attempts of a job, first to last.
    async fn attempts(&self, id: JobId) -> Result<Vec<AttemptRow>, StoreError>;

    /// Jobs that match, newest first.
    async fn list(&self, filter: &Filter) -> Result<Vec<Job>, StoreError>;

    /// How many jobs stand where, by kind.
    async fn counts(&self) -> Result<Vec<Count>, StoreError>;

    /// Since when the oldest queued job of each kind that has one has been due, by kind.
    async fn oldest_queued(&self) -> Result<Vec<(String, Timestamp)>, StoreError>;

    /// Whether an unfinished job of this schedule exists.
    async fn schedule_has_unfinished(&self, schedule: &str) -> Result<bool, StoreError>;

    /// Removes ended jobs (and their attempts) whose time is over, at most `limit`. Answers how many.
    async fn prune(&self, older_than: &Retention, limit: u32) -> Result<u64, StoreError>;

    /// Waits until something may have been added or changed by another process. May wake without cause, and may
    /// miss a change: callers poll as well.
    async fn changed(&self);

    /// Whether [`changed`](Self::changed) is proven to hear at this moment. Then a poll is needed once a lease only.
    fn hears(&self) -> bool;

    /// The terms that are on record, newest first.
    async fn terms(&self) -> Result<Vec<TermRow>, StoreError>;

    /// The time that decides what is due.
    async fn now(&self) -> Result<Timestamp, StoreError>;
}

/// Renews the lease of a term. It is used by one caller at a time, on a thread that does nothing else (I13). A call may be given
/// up at any point (its future is dropped); the next one then starts on a connection that owes no answer.
#[async_trait]
pub trait Renewer: Send + std::fmt::Debug {
    /// Registers a new term, as [`Store::begin_term`] does.
    async fn begin_term(&mut self, supervisor: &NewTerm) -> Result<(), StoreError>;

    /// Renews a term by its own lease, and leaves word (JSON text) of what runs under it. A lease that has run out is renewed
    /// too, as long as nobody declared the term lost: whoever does so compares the beat, so only one of the two happens.
    async fn renew(&mut self, term: Term, snapshot: Option<&str>) -> Result<Renewed, StoreError>;
}
