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
}
