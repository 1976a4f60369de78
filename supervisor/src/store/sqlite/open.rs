//! Opening a database, and the one way in which everything here writes to it.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::statfs::statfs;
use nix::unistd::{AccessFlags, access};
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use tokio::sync::Mutex;

use super::{SqliteStore, migrate, wake};
use crate::domain::clock;
use crate::store::error::StoreError;

/// How long a statement waits for another process's write lock.
pub(super) const BUSY: Duration = Duration::from_secs(10);

/// Readers: a long `list` must not hold up a short `job`, and more than two cores' worth of reads gains nothing.
const READERS: u32 = 3;

/// Between two attempts to open a file that another process is just making.
const REOPEN: Duration = Duration::from_millis(20);

/// NFS, SMB, CIFS, SMB2, 9p: file locks there are not those of this host.
const NETWORK: [(i64, &str); 5] =
    [(0x6969, "NFS"), (0x517B, "SMB"), (0xFF53_4D42, "CIFS"), (0xFE53_4D42, "SMB2"), (0x0102_1997, "9p")];

/// FUSE may be anything, a network included.
const FUSE: i64 = 0x6573_5546;

/// Whether a missing file is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// `run`, `enqueue`, `migrate` and `init` make it.
    Create,
    /// Every other command says that it is missing.
    Existing,
}

pub(super) async fn open(path: &Path, mode: OpenMode, migrate: bool) -> Result<SqliteStore, StoreError> {
    // What a later change of the working directory must not move: readers are opened when they are first needed.
    let path =
        &std::path::absolute(path).map_err(|source| StoreError::Io { step: "find", path: path.to_owned(), source })?;
    refuse_network(path)?;
    if path.exists() {
        refuse_unusable(path)?;
    } else {
        if mode == OpenMode::Existing {
            return Err(StoreError::Missing { path: path.to_owned() });
        }
        if !migrate {
            return Err(StoreError::NotMigrated { missing: migrate::known() });
        }
    }
    let options = writer_options(path, mode == OpenMode::Create);
    let mut writer = connect(options.clone()).await?;
    migrate::bring_up(&mut writer, migrate).await?;
    let version = wake::data_version(&mut writer).await.map_err(|e| StoreError::sort("read its version", e))?;
    let readers = SqlitePoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(BUSY)
        // A file does not hang up; the question would cost as much as the reads themselves.
        .test_before_acquire(false)
        .connect_lazy_with(options.clone().read_only(true).create_if_missing(false));
    Ok(SqliteStore {
        path: Arc::from(path.as_path()),
        options: Arc::new(options.create_if_missing(false)),
        writer: Arc::new(Mutex::new(writer)),
        readers,
        wake: Arc::new(wake::Wake::new(version)),
    })
}

fn writer_options(path: &Path, create: bool) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(create)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY)
        .foreign_keys(true)
        .disable_statement_logging()
}

/// Connects; while another process is making the file, SQLite answers "locked" at once where a wait would do.
///
/// (A boxed future by value: the driver's borrowed ones are not `Send` for every lifetime, which callers need.)
pub(super) fn connect(options: SqliteConnectOptions) -> Work<'static, SqliteConnection> {
    Box::pin(async move {
        let until = clock::monotonic() + BUSY;
        loop {
            match options.connect().await.map_err(|e| StoreError::sort("open it", e)) {
                Err(error)
                    if error.is_unavailable() && clock::monotonic() < until && options.get_filename().exists() =>
                {
                    tokio::time::sleep(REOPEN).await;
                }
                other => return other,
            }
        }
    })
}

/// Says at once what SQLite would say only as "unable to open", which may pass.
fn refuse_unusable(path: &Path) -> Result<(), StoreError> {
    let place = |why: &str| StoreError::Place { path: path.to_owned(), why: why.to_owned() };
    if path.is_dir() {
        return Err(place("it is a folder; name a file in it"));
    }
    access(path, AccessFlags::R_OK | AccessFlags::W_OK)
        .map_err(|_| place("this user may not read and write it; a reader of a SQLite database in WAL mode writes too"))
}

/// Says no to a place whose locks do not hold between hosts.
pub(super) fn refuse_network(path: &Path) -> Result<(), StoreError> {
    let folder = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    };
    let place = |why: String| StoreError::Place { path: path.to_owned(), why };
    let found = statfs(folder).map_err(|e| place(format!("its folder cannot be used: {}", e.desc())))?;
    let magic = found.filesystem_type().0 & 0xFFFF_FFFF;
    if let Some((_, name)) = NETWORK.iter().find(|(known, _)| *known == magic) {
        return Err(place(format!(
            "it is on {name}, a network filesystem, where SQLite's locks do not hold; use a local folder, or Postgres"
        )));
    }
    if magic == FUSE {
        tracing::warn!(path = %path.display(), "the database is on FUSE; if that is a network, its locks do not hold");
    }
    Ok(())
}

/// What a transaction is given and gives back.
pub(super) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'c>>;

impl SqliteStore {
    /// Runs `work` as one `BEGIN IMMEDIATE` transaction on the writer, in a task that outlives its caller.
    pub(super) async fn write<T, F>(&self, step: &'static str, work: F) -> Result<T, StoreError>
    where
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> Work<'c, T> + Send + 'static,
        T: Send + 'static,
    {
        let writer = Arc::clone(&self.writer);
        let options = Arc::clone(&self.options);
        let task = tokio::spawn(async move {
            let mut conn = writer.lock_owned().await;
            begin(&mut conn, &options, step).await?;
            let done = work(&mut conn).await;
            settle(&mut conn, done, step).await
        });
        match task.await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(StoreError::Unavailable { step, source: sqlx::Error::WorkerCrashed }),
            },
        }
    }
}

async fn begin(
    conn: &mut SqliteConnection,
    options: &SqliteConnectOptions,
    step: &'static str,
) -> Result<(), StoreError> {
    let begun = match sqlx::query("BEGIN IMMEDIATE").execute(&mut *conn).await {
        Ok(_) => return Ok(()),
        Err(error) => StoreError::sort(step, error),
    };
    if begun.is_unavailable() && !matches!(begun, StoreError::Unavailable { source: sqlx::Error::WorkerCrashed, .. }) {
        return Err(begun);
    }
    // The connection is broken, or a panic left a transaction on it: go on with a new one; closing the old one rolls back.
    *conn = connect(options.clone()).await?;
    sqlx::query("BEGIN IMMEDIATE").execute(conn).await.map(|_| ()).map_err(|e| StoreError::sort(step, e))
}

async fn settle<T>(
    conn: &mut SqliteConnection,
    done: Result<T, StoreError>,
    step: &'static str,
) -> Result<T, StoreError> {
    let failed = match done {
        Ok(value) => match sqlx::query("COMMIT").execute(&mut *conn).await {
            Ok(_) => return Ok(value),
            Err(error) => StoreError::sort(step, error),
        },
        Err(error) => error,
    };
    // SQLite has rolled back by itself after some errors (disk full); "no transaction is active" is then the good answer.
    if let Err(error) = sqlx::query("ROLLBACK").execute(conn).await {
        tracing::debug!(%error, step, "nothing to roll back");
    }
    Err(failed)
}
