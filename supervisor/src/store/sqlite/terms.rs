//! Terms of supervisors: who began, who was last seen when, who ended in good order.

use sqlx::sqlite::SqliteRow;

use super::SqliteStore;
use super::row::{count, get, term, time, time_or_none};
use crate::domain::clock;
use crate::domain::ids::Term;
use crate::store::error::StoreError;
use crate::store::model::{NewTerm, TermRow};

/// Registers a term; one that is there already (a reply was lost) stays as it is.
pub(super) async fn begin(store: &SqliteStore, new: NewTerm) -> Result<(), StoreError> {
    const STEP: &str = "begin a term";
    store
        .write(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO supervisors (term, name, host, pid, boot_id, started_at, last_seen)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6) ON CONFLICT (term) DO NOTHING",
                )
                .bind(new.term.to_string())
                .bind(new.name)
                .bind(new.host)
                .bind(new.pid)
                .bind(new.boot_id)
                .bind(clock::now().as_microsecond())
                .execute(conn)
                .await
                .map(|_| ())
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

/// Notes a sign of life; a term that has ended stays ended.
pub(super) async fn beat(store: &SqliteStore, term: Term) -> Result<(), StoreError> {
    let sql = "UPDATE supervisors SET last_seen = ?2 WHERE term = ?1 AND ended_at IS NULL";
    touch(store, term, "note a sign of life", sql).await
}

/// Ends a term in good order.
pub(super) async fn end(store: &SqliteStore, term: Term) -> Result<(), StoreError> {
    let sql = "UPDATE supervisors SET last_seen = ?2, ended_at = ?2 WHERE term = ?1 AND ended_at IS NULL";
    touch(store, term, "end a term", sql).await
}

/// One statement about one term, now.
async fn touch(store: &SqliteStore, term: Term, step: &'static str, sql: &'static str) -> Result<(), StoreError> {
    store
        .write(step, move |conn| {
            Box::pin(async move {
                let query = sqlx::query(sql).bind(term.to_string()).bind(clock::now().as_microsecond());
                query.execute(conn).await.map(|_| ()).map_err(|e| StoreError::sort(step, e))
            })
        })
        .await
}

/// All terms on record, newest first.
pub(super) async fn all(store: &SqliteStore) -> Result<Vec<TermRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT term, name, host, pid, boot_id, started_at, last_seen, ended_at FROM supervisors
         ORDER BY started_at DESC, term DESC",
    )
    .fetch_all(&store.readers)
    .await
    .map_err(|e| StoreError::sort("read the terms", e))?;
    rows.iter().map(term_row).collect()
}

pub(super) fn term_row(row: &SqliteRow) -> Result<TermRow, StoreError> {
    Ok(TermRow {
        term: term(row, "term")?,
        name: get(row, "name")?,
        host: get(row, "host")?,
        pid: count(row, "pid")?,
        boot_id: get(row, "boot_id")?,
        started_at: time(row, "started_at")?,
        last_seen: time(row, "last_seen")?,
        ended_at: time_or_none(row, "ended_at")?,
    })
}
