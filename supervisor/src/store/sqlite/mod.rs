//! The store in one SQLite file, for a single host: the default.
//!
//! Called through [`Store`] by everything above; opened by `cli`, which also takes the lock before any thread exists.
//!
//! - WAL, `synchronous = FULL`: what was committed survives the host (I11).
//! - **One writer connection**, and every write is one `BEGIN IMMEDIATE` transaction on it: a transaction that reads
//!   first and writes later cannot find its snapshot overtaken, so the only lock error that is left is a wait of more
//!   than 10 s for another process. Each write runs in a task that nobody aborts: a caller that is dropped
//!   leaves the write either done or not done, and never an open transaction on the connection.
//! - **Readers apart**: a small pool of read-only connections; every read is one statement that is fetched whole, so no
//!   snapshot is held and the WAL can be checkpointed.
//! - **One supervisor a file**: the lock beside the database (`lock`) is the lease; terms are told apart by it, and
//!   every running row of a term that is not among the living can be rescued at once.
//! - This host's clock is the database's clock ([`clock::now`]), bound into the statements.
//!
//! A child (`after`) of a job that ends `dead` or `cancelled` is `cancelled` in the same transaction, and its children
//! with it: it could never become due. A person can still `retry` it, which ignores what it came after.
//!
//! It does not decide where a job goes after an attempt, and it does not watch the lock: whoever lost it must stop.

mod act;
mod claim;
mod depend;
mod enqueue;
mod finish;
mod late;
mod migrate;
mod open;
mod pause;
mod query;
mod rescue;
mod retention;
mod row;
mod terms;
mod wake;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool};
use tokio::sync::Mutex;

pub use open::OpenMode;

use crate::domain::clock;
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

/// Jobs in a SQLite file. Cloning gives another handle on the same connections.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    path: Arc<Path>,
    /// What a new writer connection is made of, should the old one break.
    options: Arc<SqliteConnectOptions>,
    writer: Arc<Mutex<SqliteConnection>>,
    readers: SqlitePool,
    wake: Arc<wake::Wake>,
}

impl SqliteStore {
    /// The database file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock that makes this process the one supervisor of the database; call it before any thread exists.
    /// It is held until the returned file *and every copy of its descriptor* are closed.
    ///
    /// # Errors
    /// [`StoreError::Locked`] at once if the supervisor that holds it lives; [`StoreError::LockLeft`] if it is gone but
    /// what it left behind did not let go within 15 s; [`StoreError::Place`] on a network filesystem;
    /// [`StoreError::Io`] if the file cannot be made.
    pub fn lock_for_supervisor(path: &Path, name: &str) -> Result<LockFile, StoreError> {
        open::refuse_network(path)?;
        let folder = Self::state_folder(path)?;
        lock::take(lock_file(path)?, path, folder, name)
    }

    /// The subfolder of `state_dir` that a supervisor of this database uses.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the database's folder cannot be found.
    pub fn state_folder(path: &Path) -> Result<String, StoreError> {
        let file = lock_file(path)?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(lock::folder_name("db", &stem, file.as_os_str().as_bytes()))
    }

    /// Whether a supervisor, or what one left behind, holds the database now. Asking takes the lock for an instant at most,
    /// which a supervisor that is just starting waits out.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the lock cannot be looked at.
    pub fn is_held(path: &Path) -> Result<bool, StoreError> {
        lock::is_held(&lock_file(path)?)
    }

    /// Opens a database; `migrate` allows to bring its schema up to date.
    ///
    /// # Errors
    /// [`StoreError::Missing`] for a file that is not there in [`OpenMode::Existing`]; [`StoreError::NotMigrated`],
    /// [`StoreError::TooNew`], [`StoreError::Place`] as they say; else what the database answers.
    pub async fn open(path: &Path, mode: OpenMode, migrate: bool) -> Result<Self, StoreError> {
        open::open(path, mode, migrate).await
    }

    /// How many steps the schema of the database at `path` lacks; all of them if there is no file.
    ///
    /// # Errors
    /// As the database answers.
    pub async fn pending(path: &Path) -> Result<usize, StoreError> {
        migrate::pending_at(path).await
    }

    /// Brings the schema at `path` up to date, making the file if needed. Answers how many steps were taken.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn migrate(path: &Path) -> Result<usize, StoreError> {
        let missing = migrate::pending_at(path).await?;
        let store = Self::open(path, OpenMode::Create, true).await?;
        store.close().await;
        Ok(missing)
    }

    /// The SQL of all steps, as `migrate --print-sql` shows it.
    #[must_use]
    pub fn migration_sql() -> String {
        migrate::sql()
    }

    /// Closes the readers and waits for a write that is under way. Other handles fail from then on.
    pub async fn close(self) {
        self.readers.close().await;
        drop(self.writer.lock().await);
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn begin_term(&self, supervisor: &NewTerm) -> Result<(), StoreError> {
        terms::begin(self, supervisor.clone()).await
    }

    fn renewer(&self) -> Box<dyn Renewer> {
        Box::new(terms::SqliteRenewer(self.clone()))
    }

    fn is_leased(&self) -> bool {
        false
    }

    async fn declare_lost(&self, term: Term, beat: u64, _: LossProof) -> Result<bool, StoreError> {
        terms::declare_lost(self, term, beat).await
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
        claim::promote(self, limit).await
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
        query::list(self, filter).await
    }

    async fn counts(&self) -> Result<Vec<Count>, StoreError> {
        query::counts(self).await
    }

    async fn oldest_queued(&self) -> Result<Vec<(String, Timestamp)>, StoreError> {
        query::oldest_queued(self).await
    }

    async fn schedule_has_unfinished(&self, schedule: &str) -> Result<bool, StoreError> {
        query::schedule_has_unfinished(self, schedule).await
    }

    async fn prune(&self, older_than: &Retention, limit: u32) -> Result<u64, StoreError> {
        retention::prune(self, *older_than, limit).await
    }

    async fn changed(&self) {
        wake::changed(self).await;
    }

    fn hears(&self) -> bool {
        // The bell may be missed between two looks; a poll of a local file costs nothing.
        false
    }

    async fn terms(&self) -> Result<Vec<TermRow>, StoreError> {
        terms::all(self).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(clock::now())
    }
}

/// `-wal` and `.lock` stand beside the database: the same path with something at its end.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn lock_file(database: &Path) -> Result<PathBuf, StoreError> {
    Ok(beside(&resolved(database)?, ".lock"))
}

/// Where the file is, whatever links lead to it: one database has one lock. One that is not there yet: where it will be.
fn resolved(database: &Path) -> Result<PathBuf, StoreError> {
    let found = database.canonicalize().or_else(|error| {
        let name = database.file_name().ok_or(error)?;
        let folder = database.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(folder.canonicalize()?.join(name))
    });
    found.map_err(|source: std::io::Error| StoreError::Io { step: "find", path: database.to_owned(), source })
}
