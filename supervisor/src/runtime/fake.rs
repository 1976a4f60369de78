//! A store whose terms are leases, and that can go away: SQLite underneath, so that it records as a store does.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::domain::ids::AttemptNo;
use crate::domain::ids::JobId;
use crate::domain::ids::Term;
use crate::domain::job::Job;
use crate::store::sqlite::OpenMode;
use crate::store::sqlite::SqliteStore;
use crate::store::*;

/// How it takes outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    All,
    /// It is away.
    None,
    /// It does not answer.
    Silent,
}

#[derive(Debug)]
pub(super) struct FakeStore {
    pub(super) inner: SqliteStore,
    pub(super) leased: bool,
    pub(super) takes: Mutex<Takes>,
    /// Jobs whose outcomes it refuses though it answers.
    pub(super) refuses: Mutex<HashSet<JobId>>,
    /// Terms whose lease has run out by its clock.
    pub(super) expired: Mutex<HashSet<Term>>,
    /// Every batch that it was given.
    pub(super) batches: Mutex<Vec<usize>>,
}

impl FakeStore {
    pub(super) async fn open(folder: &std::path::Path, leased: bool) -> Arc<Self> {
        let inner = SqliteStore::open(&folder.join("jobs.db"), OpenMode::Create, true).await.unwrap();
        Arc::new(Self {
            inner,
            leased,
            takes: Mutex::new(Takes::All),
            refuses: Mutex::default(),
            expired: Mutex::default(),
            batches: Mutex::default(),
        })
    }

    pub(super) fn take(&self, takes: Takes) {
        *self.takes.lock().unwrap() = takes;
    }

    /// Adds a job of kind `a` and claims it under `term`.
    pub(super) async fn running(&self, term: Term) -> Claimed {
        let job = NewJob { kind: "a".to_owned(), payload: "{}".to_owned(), ..NewJob::default() };
        self.inner.enqueue(&[job]).await.unwrap();
        let policy = RowPolicy {
            max_attempts: 3,
            max_interruptions: 5,
            memory: crate::domain::units::Bytes::mib(64),
            backoff: crate::domain::retry::Backoff::default(),
        };
        let request = ClaimRequest {
            term,
            seq: 1,
            kinds: vec![ClaimKind { kind: "a".to_owned(), free: 1, policy }],
            free_memory: crate::domain::units::Bytes::mib(1000),
            whole_budget: crate::domain::units::Bytes::mib(1000),
        };
        self.inner.claim(&request).await.unwrap().pop().unwrap()
    }

    pub(super) async fn state(&self, id: JobId) -> crate::domain::job::JobState {
        self.inner.job(id).await.unwrap().unwrap().state
    }

    /// The cause of each attempt; `-` for none.
    pub(super) async fn causes(&self, id: JobId) -> Vec<&'static str> {
        let cause = |row: &AttemptRow| row.verdict.as_ref().and_then(|verdict| verdict.ending.cause());
        let attempts = self.inner.attempts(id).await.unwrap();
        attempts.iter().map(|row| cause(row).map_or("-", crate::domain::cause::Cause::code)).collect()
    }
}

#[async_trait]
impl Store for FakeStore {
    async fn begin_term(&self, supervisor: &NewTerm) -> Result<(), StoreError> {
        self.inner.begin_term(supervisor).await
    }

    fn renewer(&self) -> Box<dyn Renewer> {
        self.inner.renewer()
    }

    fn is_leased(&self) -> bool {
        self.leased
    }

    async fn declare_lost(&self, term: Term, beat: u64, proof: LossProof) -> Result<bool, StoreError> {
        let expired = self.expired.lock().unwrap().contains(&term);
        if proof == LossProof::Silence && !expired {
            return Ok(false);
        }
        self.inner.declare_lost(term, beat, proof).await
    }

    async fn end_term(&self, term: Term) -> Result<(), StoreError> {
        self.inner.end_term(term).await
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
        self.inner.enqueue(jobs).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        self.inner.claim(request).await
    }

    async fn finish(&self, outcomes: &[Finish]) -> Result<Vec<Finished>, StoreError> {
        self.batches.lock().unwrap().push(outcomes.len());
        let takes = *self.takes.lock().unwrap();
        match takes {
            Takes::All => {}
            Takes::None => {
                return Err(StoreError::Unavailable { step: "record outcomes", source: sqlx::Error::PoolTimedOut });
            }
            Takes::Silent => std::future::pending().await,
        }
        let refused = outcomes.iter().any(|outcome| self.refuses.lock().unwrap().contains(&outcome.fence.job));
        if refused {
            return Err(StoreError::Refused { step: "record outcomes", source: sqlx::Error::RowNotFound });
        }
        self.inner.finish(outcomes).await
    }

    async fn own_rows(&self, term: Term, below: u64) -> Result<Vec<(JobId, AttemptNo)>, StoreError> {
        self.inner.own_rows(term, below).await
    }

    async fn promote(&self, limit: u32) -> Result<Promoted, StoreError> {
        self.inner.promote(limit).await
    }

    async fn rescuable(&self, living: &[Term]) -> Result<Vec<Rescuable>, StoreError> {
        let mut rows = self.inner.rescuable(living).await?;
        rows.retain(|row| !self.leased || row.term.as_ref().is_none_or(|term| !term.is_open()));
        Ok(rows)
    }

    async fn cancel(&self, ids: &[JobId], by: &str) -> Result<Vec<(JobId, Acted)>, StoreError> {
        self.inner.cancel(ids, by).await
    }

    async fn cancel_requests(&self, term: Term) -> Result<Vec<CancelRequest>, StoreError> {
        self.inner.cancel_requests(term).await
    }

    async fn retry(&self, ids: &[JobId]) -> Result<Vec<(JobId, Acted)>, StoreError> {
        self.inner.retry(ids).await
    }

    async fn pause(&self, kinds: &[String], by: &str) -> Result<(), StoreError> {
        self.inner.pause(kinds, by).await
    }

    async fn resume(&self, kinds: &[String]) -> Result<Vec<String>, StoreError> {
        self.inner.resume(kinds).await
    }

    async fn paused(&self) -> Result<Vec<PausedKind>, StoreError> {
        self.inner.paused().await
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        self.inner.job(id).await
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<AttemptRow>, StoreError> {
        self.inner.attempts(id).await
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Job>, StoreError> {
        self.inner.list(filter).await
    }

    async fn counts(&self) -> Result<Vec<Count>, StoreError> {
        self.inner.counts().await
    }

    async fn oldest_queued(&self) -> Result<Vec<(String, Timestamp)>, StoreError> {
        self.inner.oldest_queued().await
    }

    async fn schedule_has_unfinished(&self, schedule: &str) -> Result<bool, StoreError> {
        self.inner.schedule_has_unfinished(schedule).await
    }

    async fn prune(&self, older_than: &Retention, limit: u32) -> Result<u64, StoreError> {
        self.inner.prune(older_than, limit).await
    }

    async fn changed(&self) {
        self.inner.changed().await;
    }

    fn hears(&self) -> bool {
        self.inner.hears()
    }

    async fn terms(&self) -> Result<Vec<TermRow>, StoreError> {
        let mut rows = self.inner.terms().await?;
        let expired = self.expired.lock().unwrap();
        rows.iter_mut().for_each(|row| row.expired = expired.contains(&row.term));
        Ok(rows)
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.inner.now().await
    }
}
