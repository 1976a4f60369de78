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

/// Postgres's classes and codes for what may pass, after which a new connection is tried:
/// - `08` connection, `53` out of resources (disk, memory, connections), `58` I/O of the server;
/// - `57` shutdown, crash, starting up, cancelled (by `statement_timeout` too);
/// - `40` serialization and deadlock, `55P03` a lock not had in time;
/// - `25P02`, `25P03`, `25P04` a transaction that broke or took too long; `25006` read-only: a standby for now;
/// - `26000`, `42P05` a statement's name that the session does not know, or knows already: a pooler swapped the session.
///
/// Not `XX` (internal, corrupted): one row may cause it, and a batch must then be taken apart rather than held for ever. Not
/// `28` (password) and `3D` (no such database): waiting does not help, a person must.
const POSTGRES_PASSING: [&str; 12] =
    ["08", "25006", "25P02", "25P03", "25P04", "26000", "40", "42P05", "53", "55P03", "57", "58"];

/// Those of them by which a pooler shows itself.
const POSTGRES_FOREIGN: [&str; 2] = ["26000", "42P05"];

/// Where Postgres says (as 0A000) that a statement prepared earlier no longer fits its tables: a new connection prepares anew.
const POSTGRES_OUTDATED_PLAN: &str = "RevalidateCachedQuery";

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

    /// Whether another session answered than the one that prepared the statement.
    pub(crate) fn is_of_a_foreign_session(&self) -> bool {
        let Self::Unavailable { source: sqlx::Error::Database(inner), .. } = self else { return false };
        inner.code().is_some_and(|code| POSTGRES_FOREIGN.contains(&code.as_ref()))
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the driver's enums are open: what is not known to pass does not")]
fn passes(error: &sqlx::Error) -> bool {
    match error {
        // How a certificate that is not trusted comes.
        sqlx::Error::Io(inner) => inner.kind() != std::io::ErrorKind::InvalidData,
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Protocol(_) => true,
        sqlx::Error::Database(inner) => match inner.code() {
            Some(code) if code.len() == SQLSTATE => {
                POSTGRES_PASSING.iter().any(|passing| code.starts_with(passing))
                    || inner.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().and_then(|inner| inner.routine())
                        == Some(POSTGRES_OUTDATED_PLAN)
            }
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

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Coded(&'static str);

    impl fmt::Display for Coded {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Coded {}

    impl sqlx::error::DatabaseError for Coded {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(Cow::Borrowed(self.0))
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }
    }

    fn is_passing(code: &'static str) -> bool {
        StoreError::sort("test", sqlx::Error::Database(Box::new(Coded(code)))).is_unavailable()
    }

    #[test]
    fn what_may_pass_on_postgres_is_told_from_what_does_not() {
        let passing = [
            "08000", "08006", "08P01", "40001", "40P01", "53100", "53200", "53300", "55P03", "57014", "57P01", "57P02",
            "57P03", "57P05", "58030", "25006", "25P02", "25P03", "25P04", "26000", "42P05",
        ];
        for code in passing {
            assert!(is_passing(code), "{code}");
        }
        let lasting = [
            "0A000", "22P02", "22P05", "22021", "23505", "23514", "28P01", "28000", "3D000", "3F000", "42501", "42601",
            "42703", "42P01", "54000", "P0001", "XX000", "XX001",
        ];
        for code in lasting {
            assert!(!is_passing(code), "{code}");
        }
    }

    #[test]
    fn a_busy_sqlite_passes_and_a_constraint_does_not() {
        assert!(is_passing("5") && is_passing("517") && is_passing("10"));
        assert!(!is_passing("19") && !is_passing("2067"));
    }

    #[test]
    fn a_certificate_that_is_not_trusted_does_not_pass() {
        let untrusted = std::io::Error::new(std::io::ErrorKind::InvalidData, "invalid peer certificate");
        assert!(!StoreError::sort("test", sqlx::Error::Io(untrusted)).is_unavailable());
        assert!(StoreError::sort("test", sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())).is_unavailable());
    }
}
