//! The schema's steps, embedded in the program, and what a program does with a schema that is not its own.
//!
//! A schema that is newer than the program names the oldest program that it serves (`meta.min_binary`): one above that
//! goes on, one below refuses. All missing steps run in one transaction that holds the write lock, so of several
//! processes that start at once one migrates and the others find it done.

use std::collections::BTreeSet;
use std::path::Path;

use sqlx::Connection;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use super::open;
use crate::store::error::StoreError;
use crate::store::schema;

static STEPS: Migrator = sqlx::migrate!("migrations/sqlite");

/// How many steps this program knows.
pub(super) fn known() -> usize {
    STEPS.iter().count()
}

/// All steps as one text.
pub(super) fn sql() -> String {
    schema::sql(&STEPS)
}

/// Steps that the file lacks.
pub(super) async fn pending_at(path: &Path) -> Result<usize, StoreError> {
    if !path.exists() {
        return Ok(known());
    }
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(false).busy_timeout(open::BUSY);
    let mut conn = open::connect(options).await?;
    let missing = schema::missing(&STEPS, &applied(&mut conn).await?);
    conn.close().await.map_err(|e| StoreError::sort("close it", e))?;
    Ok(missing)
}

/// Makes sure that the schema serves this program.
pub(super) async fn bring_up(conn: &mut SqliteConnection, allowed: bool) -> Result<(), StoreError> {
    let applied = applied(conn).await?;
    if let Some(newer) = schema::newer(&STEPS, &applied) {
        return serves_us(conn, newer).await;
    }
    match schema::missing(&STEPS, &applied) {
        0 => Ok(()),
        missing if !allowed => Err(StoreError::NotMigrated { missing }),
        _ => run(conn).await,
    }
}

fn run(conn: &mut SqliteConnection) -> open::Work<'_, ()> {
    Box::pin(run_in_transaction(conn))
}

async fn run_in_transaction(conn: &mut SqliteConnection) -> Result<(), StoreError> {
    const STEP: &str = "migrate its schema";
    let mut tx = conn.begin_with("BEGIN IMMEDIATE").await.map_err(|e| StoreError::sort(STEP, e))?;
    STEPS.run_direct(None, &mut *tx, false).await.map_err(|e| StoreError::sort(STEP, e.into()))?;
    tx.commit().await.map_err(|e| StoreError::sort(STEP, e))
}

async fn serves_us(conn: &mut SqliteConnection, found: i64) -> Result<(), StoreError> {
    let min_binary: String = sqlx::query_scalar("SELECT value FROM meta WHERE key = 'min_binary'")
        .fetch_one(conn)
        .await
        .map_err(|e| StoreError::sort("read its schema version", e))?;
    schema::serves_us(found, min_binary)
}

async fn applied(conn: &mut SqliteConnection) -> Result<BTreeSet<i64>, StoreError> {
    let sort = |e| StoreError::sort("read its schema version", e);
    let there: bool =
        sqlx::query_scalar("SELECT count(*) > 0 FROM sqlite_schema WHERE type = 'table' AND name = '_sqlx_migrations'")
            .fetch_one(&mut *conn)
            .await
            .map_err(sort)?;
    if !there {
        return Ok(BTreeSet::new());
    }
    let versions: Vec<i64> =
        sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success").fetch_all(conn).await.map_err(sort)?;
    Ok(versions.into_iter().collect())
}
