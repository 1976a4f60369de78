//! What a store brings to be tested.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::support::postgres::Database;
use jobvisor::store::Store;
use jobvisor::store::postgres::PostgresStore;
use jobvisor::store::sqlite::{OpenMode, SqliteStore};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

/// An empty database.
pub(crate) trait Fixture: Send + Sync {
    /// The store under test.
    fn store(&self) -> &dyn Store;

    /// The same store, to be moved into tasks.
    fn shared(&self) -> Arc<dyn Store>;

    /// A store on the same database with connections of its own, as another process has them.
    fn another(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Store>> + Send + '_>>;

    /// Removes all that was written to it.
    fn empty(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Lets so much time pass for what the database decides by its clock: due times and the ends of leases are moved into
    /// the past.
    fn elapse(&self, by: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// A file in a folder of its own.
pub(crate) struct Sqlite {
    store: Arc<SqliteStore>,
    pub(crate) path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Sqlite {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let store = Arc::new(SqliteStore::open(&path, OpenMode::Create, true).await.unwrap());
        Self { store, path, _folder: folder }
    }

    async fn execute(&self, statements: String) {
        let options = SqliteConnectOptions::new().filename(&self.path).busy_timeout(Duration::from_secs(10));
        let mut conn = options.connect().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(statements)).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
    }
}

impl Fixture for Sqlite {
    fn store(&self) -> &dyn Store {
        &*self.store
    }

    fn shared(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    fn another(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Store>> + Send + '_>> {
        Box::pin(async {
            Arc::new(SqliteStore::open(&self.path, OpenMode::Existing, false).await.unwrap()) as Arc<dyn Store>
        })
    }

    fn empty(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let tables = ["attempts", "dependencies", "jobs", "schedules", "supervisors", "kinds"];
        let statements = tables.map(|table| format!("DELETE FROM {table};")).concat();
        Box::pin(async move { self.execute(statements).await })
    }

    fn elapse(&self, by: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        // The lock is the lease here, and no clock ends it.
        let shift = format!("UPDATE jobs SET run_at = run_at - {}", by.as_micros());
        Box::pin(async move { self.execute(shift).await })
    }
}

/// A database of its own on a real server.
pub(crate) struct Postgres {
    store: Arc<PostgresStore>,
    pub(crate) database: Database,
}

impl Postgres {
    pub(crate) async fn new() -> Self {
        let database = Database::new();
        let store = Arc::new(PostgresStore::open(&database.url, true).await.unwrap());
        Self { store, database }
    }
}

impl Fixture for Postgres {
    fn store(&self) -> &dyn Store {
        &*self.store
    }

    fn shared(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    fn another(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Store>> + Send + '_>> {
        Box::pin(async { Arc::new(PostgresStore::open(&self.database.url, false).await.unwrap()) as Arc<dyn Store> })
    }

    fn empty(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let tables = ["attempts", "dependencies", "jobs", "schedules", "supervisors", "kinds"];
        let tables = tables.map(|table| format!("jobvisor.{table}")).join(", ");
        Box::pin(async move { self.database.execute(&format!("TRUNCATE {tables}")) })
    }

    fn elapse(&self, by: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let by = format!("interval '{} microseconds'", by.as_micros());
            self.database.execute(&format!(
                "UPDATE jobvisor.jobs SET run_at = run_at - {by};
                 UPDATE jobvisor.supervisors SET expires_at = expires_at - {by}, last_seen = last_seen - {by}"
            ));
        })
    }
}
