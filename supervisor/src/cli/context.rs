//! What most commands need first: the configuration where there is one, the database, a runtime.

use std::sync::Arc;

use crate::cli::DATABASE_URL;
use crate::cli::Global;
use crate::cli::failure::Failure;
use crate::config;
use crate::config::Config;
use crate::config::Database;
use crate::config::SupervisorConfig;
use crate::store::LockFile;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::TermRow;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::OpenMode;
use crate::store::sqlite::SqliteStore;

/// The configuration (absent when `--database` names the database and there is no file) and the database's place.
#[derive(Debug)]
pub(crate) struct Place {
    /// The configuration.
    pub(crate) config: Option<Config>,
    /// The database.
    pub(crate) database: Database,
    /// May the schema be brought up to date?
    pub(crate) migrate: bool,
}

impl Place {
    /// Finds them. A configuration that is there is checked, whether or not `--database` is given.
    pub(crate) fn find(global: &Global) -> Result<Self, Failure> {
        let url = global.database.as_deref().map(|url| named(url, global.database_is_argument)).transpose()?;
        let config = match (&url, global.config.exists()) {
            (Some(_), false) => None,
            (Some(_) | None, _) => Some(config::load(&global.config)?),
        };
        let migrate = config.as_ref().is_none_or(|config| config.migrate);
        let database = url.or_else(|| config.as_ref().map(|config| config.database.clone()));
        let database = database.ok_or_else(|| Failure::usage("no database is named"))?;
        Ok(Self { config, database, migrate })
    }

    /// Opens the store.
    pub(crate) async fn open(&self, mode: OpenMode) -> Result<Arc<dyn Store>, Failure> {
        Ok(self.open_store(mode).await?)
    }

    /// The same for who waits while it is away.
    pub(crate) async fn open_store(&self, mode: OpenMode) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match &self.database {
            Database::Sqlite(path) => Arc::new(SqliteStore::open(path, mode, self.migrate).await?),
            Database::Postgres(url) => Arc::new(PostgresStore::open(url.secret(), self.migrate).await?),
        })
    }

    /// The database as people know it, without a password.
    pub(crate) fn shown(&self) -> String {
        match &self.database {
            Database::Sqlite(path) => path.display().to_string(),
            Database::Postgres(url) => url.to_string(),
        }
    }

    /// The SQL of all steps of its schema.
    pub(crate) fn migration_sql(&self) -> String {
        match &self.database {
            Database::Sqlite(_) => SqliteStore::migration_sql(),
            Database::Postgres(_) => PostgresStore::migration_sql(),
        }
    }

    /// The subfolder of `state_dir` that a supervisor of this database uses.
    pub(crate) fn state_folder(&self) -> Result<String, StoreError> {
        match &self.database {
            Database::Sqlite(path) => SqliteStore::state_folder(path),
            Database::Postgres(url) => PostgresStore::state_folder(url.secret()),
        }
    }

    /// Which of the terms hold their lease; `terms` are all on record, newest first. Where the lease is a lock, only the newest
    /// of those that are open can hold it.
    pub(crate) fn holding(&self, terms: &[TermRow]) -> Result<Vec<bool>, StoreError> {
        let holder = match &self.database {
            Database::Sqlite(path) if SqliteStore::is_held(path)? => terms.iter().position(TermRow::is_open),
            Database::Sqlite(_) => None,
            Database::Postgres(_) => return Ok(terms.iter().map(|row| row.is_open() && !row.expired).collect()),
        };
        Ok((0..terms.len()).map(|n| holder == Some(n)).collect())
    }

    /// Takes the lock that a supervisor works under; call it before any thread exists.
    pub(crate) fn lock(&self, supervisor: &SupervisorConfig) -> Result<LockFile, Failure> {
        Ok(match &self.database {
            Database::Sqlite(path) => SqliteStore::lock_for_supervisor(path, &supervisor.name)?,
            Database::Postgres(url) => {
                PostgresStore::lock_for_supervisor(url.secret(), &supervisor.state_dir, &supervisor.name)?
            }
        })
    }
}

/// The database of `--database` or of the environment; a relative path starts at the current folder.
fn named(url: &str, is_argument: bool) -> Result<Database, Failure> {
    let here = std::env::current_dir().map_err(|error| Failure::failed(&error))?;
    let place = if is_argument { "--database" } else { DATABASE_URL };
    let database = config::parse_database(url, &here)
        .map_err(|(what, hint)| Failure::usage(format!("{place}: {what}\nhint: {hint}")))?;
    if is_argument && matches!(&database, Database::Postgres(url) if url.has_password()) {
        return Err(Failure::usage(format!(
            "--database: a password on a command line can be read by everybody on this host\nhint: put the URL into the environment as {DATABASE_URL}, or leave the password out and let PGPASSFILE name a file that has it"
        )));
    }
    Ok(database)
}

/// Runs a command's asynchronous part on a runtime of its own.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::failed(&error))?.block_on(work)
}
