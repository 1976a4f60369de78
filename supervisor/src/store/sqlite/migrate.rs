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

static STEPS: Migrator = sqlx::migrate!("migrations/sqlite");

/// This program's version.
const OWN: &str = env!("CARGO_PKG_VERSION");

/// How many steps this program knows.
pub(super) fn known() -> usize {
    STEPS.iter().count()
}

/// All steps as one text.
pub(super) fn sql() -> String {
    STEPS.iter().map(|step| format!("-- {:04} {}\n{}\n", step.version, step.description, step.sql.as_str())).collect()
}

/// Steps that the file lacks.
pub(super) async fn pending_at(path: &Path) -> Result<usize, StoreError> {
    if !path.exists() {
        return Ok(known());
    }
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(false).busy_timeout(open::BUSY);
    let mut conn = open::connect(options).await?;
    let missing = missing(&applied(&mut conn).await?);
    conn.close().await.map_err(|e| StoreError::sort("close it", e))?;
    Ok(missing)
}

/// Makes sure that the schema serves this program.
pub(super) async fn bring_up(conn: &mut SqliteConnection, allowed: bool) -> Result<(), StoreError> {
    let applied = applied(conn).await?;
    if let Some(newer) = applied.iter().copied().filter(|version| !STEPS.version_exists(*version)).max() {
        return serves_us(conn, newer).await;
    }
    match missing(&applied) {
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
    let needed =
        numbers(&min_binary).ok_or_else(|| StoreError::corrupt(format!("meta.min_binary is `{min_binary}`")))?;
    if numbers(OWN).is_some_and(|own| own >= needed) {
        return Ok(());
    }
    Err(StoreError::TooNew { found, min_binary, own: OWN })
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

fn missing(applied: &BTreeSet<i64>) -> usize {
    STEPS.iter().filter(|step| !applied.contains(&step.version)).count()
}

/// `1.2.3` as numbers that can be compared; what follows a `-` or `+` is left out.
fn numbers(version: &str) -> Option<Vec<u64>> {
    let plain = version.split(['-', '+']).next()?;
    plain.split('.').map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers("0.10.0") > numbers("0.9.9"));
        assert_eq!(numbers("1.2.3-rc.1"), numbers("1.2.3"));
        assert_eq!(numbers("new"), None);
    }
}
