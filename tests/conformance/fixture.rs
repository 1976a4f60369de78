//! What a store brings to be tested.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use ::support::postgres::Database;
use jobvisor::store::Store;
use jobvisor::store::postgres::PostgresStore;
use jobvisor::store::sqlite::{OpenMode, SqliteStore};

/// An empty database.
pub(crate) trait Fixture: Send + Sync {
    /// The store under test.
    fn store(&self) -> &dyn Store;

    /// The same store, to be moved into tasks.
    fn shared(&self) -> Arc<dyn Store>;

    /// A store on the same database with connections of its own, as another process has them.
    fn another(&self) -> Pin<Box<dyn Future<Output = Arc<dyn Store>> + Send + '_>>;
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
}
