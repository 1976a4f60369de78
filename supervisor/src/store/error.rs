//! What can go wrong with a store.

use std::path::PathBuf;

/// An error of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database does not answer, or refuses for now (locked, full, away): try again later.
    #[error("the database is not available while trying to {step}")]
    Unavailable {
        /// What was being done.
        step: &'static str,
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// The database answered, and the answer is an error that will not pass.
    #[error("the database refused to {step}")]
    Refused {
        /// What was being done.
        step: &'static str,
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// A stored value cannot be read.
    #[error("a stored value cannot be read: {what}")]
    Corrupt {
        /// Which.
        what: String,
    },
    /// There is no database there, and this command does not make one.
    #[error("there is no database at `{path}`\nhint: `jobvisor run`, `enqueue`, `init` and `migrate` create it")]
    Missing {
        /// Where.
        path: PathBuf,
    },
    /// The database's schema is newer than this program.
    #[error("the database has schema version {found}, which needs jobvisor {min_binary} or newer; this is {own}")]
    TooNew {
        /// Its version.
        found: i64,
        /// The oldest program that it serves.
        min_binary: String,
        /// This program's version.
        own: &'static str,
    },
    /// The database's schema is older than this program and `migrate = false`.
    #[error(
        "the database needs migrating ({missing} step(s) missing)\nhint: run `jobvisor migrate`, or set `migrate = true` under [database]"
    )]
    NotMigrated {
        /// Steps missing.
        missing: usize,
    },
    /// The place of the database cannot hold one.
    #[error("{path}: {why}")]
    Place {
        /// Where.
        path: PathBuf,
        /// Why not, and what would do.
        why: String,
    },
    /// The jobs to add name a job that does not exist.
    #[error("job {0} does not exist")]
    NoSuchJob(i64),
    /// Another supervisor that lives holds the database.
    #[error(
        "supervisor `{name}` (pid {pid}) holds `{path}`\nhint: one supervisor runs a SQLite database or uses a state folder; stop that one, or use another file or name"
    )]
    Locked {
        /// The database, or the state folder.
        path: PathBuf,
        /// The pid of the supervisor that holds it.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// The supervisor that held the database is gone, and what it left behind still holds the lock.
    #[error("supervisor `{name}` (pid {pid}) is gone, and a process that it left behind still holds `{path}`")]
    LockLeft {
        /// The database.
        path: PathBuf,
        /// The pid that the supervisor had.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// A file or folder of the database cannot be used.
    #[error("failed to {step} `{path}`")]
    Io {
        /// What was being done.
        step: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// SQLite's primary codes for what may pass: BUSY, LOCKED, IOERR, FULL, CANTOPEN, PROTOCOL (a race for the lock).
const SQLITE_PASSING: [i32; 6] = [5, 6, 10, 13, 14, 15];

/// Length of Postgres's codes; SQLite's have at most four digits.
const SQLSTATE: usize = 5;

/// Postgres's classes and codes for what may pass: connection exceptions, serialization and deadlock, out of resources, lock
/// not available, operator intervention (shutdown, cancelled by `statement_timeout`, cannot connect now), system errors (I/O), read-only
/// (a server that is a standby for now).
const POSTGRES_PASSING: [&str; 7] = ["08", "40", "53", "55P03", "57", "58", "25006"];

impl StoreError {
    /// Sorts a driver's error: does the database not answer for now, or did it refuse?
    pub(crate) fn sort(step: &'static str, source: sqlx::Error) -> Self {
        if passes(&source) { Self::Unavailable { step, source } } else { Self::Refused { step, source } }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the driver's enums are open: what is not known to pass does not")]
fn passes(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Protocol(_) | sqlx::Error::Tls(_) => true,
        sqlx::Error::Database(inner) => match inner.code() {
            Some(code) if code.len() == SQLSTATE => POSTGRES_PASSING.iter().any(|passing| code.starts_with(passing)),
            code => code
                .and_then(|code| code.parse::<i32>().ok())
                .is_some_and(|code| SQLITE_PASSING.contains(&(code & 0xff))),
        },
        sqlx::Error::Migrate(inner) => match inner.as_ref() {
            sqlx::migrate::MigrateError::Execute(source) | sqlx::migrate::MigrateError::ExecuteMigration(source, _) => {
                passes(source)
            }
            _ => false,
        },
        _ => false,
    }
}
