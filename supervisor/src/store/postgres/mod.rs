//! The store in a Postgres database (15 and newer), for any number of supervisors on any number of hosts.
//!
//! Called through [`Store`] by everything above; opened by `cli`. Everything stands in the schema `jobvisor`.
//!
//! - **Single statements**: each method is one statement (or one function call) on a connection, in a task that nobody
//!   aborts: a caller that is dropped leaves the call done or not done. The server's clock is the only one (I6).
//! - **Claim and finish have a connection each** (`conn::Lane`) with planner settings of their own; everything else shares a
//!   small pool; renewal has a connection of its own, on the thread that renews (I13).
//! - A call that the server does not answer in time is given up with its connection. Whether it was carried out is then not
//!   known; every write here may be sent again, or is found again (I2).
//! - A term is a lease. A claim requires it to be alive in the same statement; a running row whose term is over can be
//!   rescued by anybody, under its old fence.
//!
//! It does not decide where a job goes after an attempt, and it does not judge who is lost: [`Store::declare_lost`] compares
//! what the caller saw.

mod act;
mod claim;
mod conn;
mod deadlock;
mod depend;
mod doctor;
mod enqueue;
mod finish;
mod late;
mod listen;
mod migrate;
mod pause;
mod position;
mod promote;
mod query;
mod rescue;
mod retention;
mod route;
mod row;
mod sleep;
mod stats;
mod terms;

pub use doctor::{Level, Remark};

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::domain::ids::{AttemptNo, JobId, Term};
use crate::domain::job::Job;
use crate::store::Renewer;
use crate::store::Store;
use crate::store::error::StoreError;
use crate::store::lock;
use crate::store::lock::LockFile;
use crate::store::model::{
    Acted, AttemptRow, CancelRequest, ClaimRequest, Claimed, Count, Enqueued, Filter, Finish, Finished, LossProof,
    NewJob, NewTerm, PausedKind, Promoted, Rescuable, Retention, TermRow,
};

/// Jobs in a Postgres database. Cloning gives another handle on the same connections.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    conns: Arc<conn::Connections>,
    wake: Arc<listen::Wake>,
    positions: Arc<position::Positions>,
    walks: Arc<Walks>,
}

/// Where the walks over the table go on, which take a part at a time: ids of the last rows that were looked at.
#[derive(Debug, Default)]
struct Walks {
    waiting: AtomicI64,
    ended: AtomicI64,
}

impl PostgresStore {
    /// Connects; `migrate` allows to bring the schema up to date.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] while the server does not answer; [`StoreError::NotMigrated`], [`StoreError::TooNew`] as
    /// they say; else what the server answers. No error repeats a password.
    pub async fn open(url: &str, migrate: bool) -> Result<Self, StoreError> {
        let conns = Arc::new(conn::Connections::new(url)?);
        migrate::bring_up(&conns, migrate).await?;
        Ok(Self {
            wake: Arc::new(listen::Wake::new(Arc::clone(&conns))),
            conns,
            positions: Arc::default(),
            walks: Arc::default(),
        })
    }

    /// Looks at the server behind a URL as `jobvisor doctor` does, whether or not it has our schema; changes nothing. A
    /// transaction that has been open for `old` is named.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] while it does not answer; else what it answers.
    pub async fn examine(url: &str, old: Duration) -> Result<Vec<Remark>, StoreError> {
        doctor::examine(url, old).await
    }

    /// How many steps the schema lacks.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn pending(url: &str) -> Result<usize, StoreError> {
        migrate::pending(&conn::Connections::new(url)?).await
    }

    /// The SQL of all steps, as `migrate --print-sql` shows it.
    #[must_use]
    pub fn migration_sql() -> String {
        migrate::sql()
    }

    /// Takes the lock that makes this process the only one of this name that works on the database from this host's `state_dir`,
    /// and makes the folder that goes with it; call it before any thread exists. It is held until the returned file *and every
    /// copy of its descriptor* are closed: who gets it knows that nothing of its predecessor lives.
    ///
    /// # Errors
    /// As [`SqliteStore::lock_for_supervisor`](crate::store::sqlite::SqliteStore::lock_for_supervisor).
    pub fn lock_for_supervisor(url: &str, state_dir: &Path, name: &str) -> Result<LockFile, StoreError> {
        let folder = Self::state_folder(url)?;
        let path = state_dir.join(&folder);
        std::fs::create_dir_all(&path).map_err(|source| StoreError::Io { step: "make", path: path.clone(), source })?;
        lock::take(path.join("lock"), &path, folder, name)
    }

    /// The subfolder of `state_dir` that a supervisor of this database uses.
    ///
    /// # Errors
    /// The URL cannot be read.
    pub fn state_folder(url: &str) -> Result<String, StoreError> {
        let (database, identity) = route::identity(url)?;
        Ok(lock::folder_name("pg", &database, identity.as_bytes()))
    }

    /// Closes all connections. Other handles fail from then on.
    pub async fn close(self) {
        self.wake.close();
        self.conns.close().await;
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn begin_term(&self, supervisor: &NewTerm) -> Result<(), StoreError> {
        terms::begin(self, supervisor.clone()).await
    }

    fn renewer(&self) -> Box<dyn Renewer> {
        terms::renewer(self)
    }

    fn is_leased(&self) -> bool {
        true
    }

    async fn declare_lost(&self, term: Term, beat: u64, proof: LossProof) -> Result<bool, StoreError> {
        terms::declare_lost(self, term, beat, proof).await
    }

    async fn end_term(&self, term: Term) -> Result<(), StoreError> {
        terms::end(self, term).await
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
        enqueue::enqueue(self, jobs.to_vec()).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        claim::claim(self, request.clone()).await
    }

    async fn finish(&self, outcomes: &[Finish]) -> Result<Vec<Finished>, StoreError> {
        finish::finish(self, outcomes).await
    }

    async fn own_rows(&self, term: Term, below: u64) -> Result<Vec<(JobId, AttemptNo)>, StoreError> {
        rescue::own_rows(self, term, below).await
    }

    async fn promote(&self, limit: u32) -> Result<Promoted, StoreError> {
        promote::promote(self, limit).await
    }

    async fn rescuable(&self, living: &[Term]) -> Result<Vec<Rescuable>, StoreError> {
        rescue::rescuable(self, living).await
    }

    async fn cancel(&self, ids: &[JobId], by: &str) -> Result<Vec<(JobId, Acted)>, StoreError> {
        act::cancel(self, ids.to_vec(), by).await
    }

    async fn cancel_requests(&self, term: Term) -> Result<Vec<CancelRequest>, StoreError> {
        act::cancel_requests(self, term).await
    }

    async fn retry(&self, ids: &[JobId]) -> Result<Vec<(JobId, Acted)>, StoreError> {
        act::retry(self, ids.to_vec()).await
    }

    async fn pause(&self, kinds: &[String], by: &str) -> Result<(), StoreError> {
        pause::pause(self, kinds.to_vec(), by).await
    }

    async fn resume(&self, kinds: &[String]) -> Result<Vec<String>, StoreError> {
        pause::resume(self, kinds.to_vec()).await
    }

    async fn paused(&self) -> Result<Vec<PausedKind>, StoreError> {
        pause::all(self).await
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        query::job(self, id).await
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<AttemptRow>, StoreError> {
        query::attempts(self, id).await
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Job>, StoreError> {
        query::list(self, filter.clone()).await
    }

    async fn counts(&self) -> Result<Vec<Count>, StoreError> {
        query::counts(self).await
    }

    async fn oldest_queued(&self) -> Result<Vec<(String, Timestamp)>, StoreError> {
        stats::oldest_queued(self).await
    }

    async fn schedule_has_unfinished(&self, schedule: &str) -> Result<bool, StoreError> {
        query::schedule_has_unfinished(self, schedule).await
    }

    async fn prune(&self, older_than: &Retention, limit: u32) -> Result<u64, StoreError> {
        retention::prune(self, *older_than, limit).await
    }

    async fn changed(&self) {
        self.wake.changed().await;
    }

    fn hears(&self) -> bool {
        self.wake.hears()
    }

    async fn terms(&self) -> Result<Vec<TermRow>, StoreError> {
        terms::all(self).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        query::now(self).await
    }
}
