//! Removing what has ended long ago.

use std::time::Duration;

use jiff::Timestamp;

use super::SqliteStore;
use super::row::to_json;
use crate::domain::clock;
use crate::store::error::StoreError;
use crate::store::model::Retention;

const STEP: &str = "remove old jobs";

/// What to remove is found by a reader; the write lock is held for the removal alone, which looks again.
pub(super) async fn prune(store: &SqliteStore, keep: Retention, limit: u32) -> Result<u64, StoreError> {
    let now = clock::now();
    let old: Vec<i64> = sqlx::query_scalar(
        "SELECT id FROM (SELECT id FROM jobs WHERE state = 'succeeded' AND finished_at < ?1
             UNION ALL SELECT id FROM jobs WHERE state = 'cancelled' AND finished_at < ?2
             UNION ALL SELECT id FROM jobs WHERE state = 'dead' AND finished_at < ?3)
         ORDER BY id LIMIT ?4",
    )
    .bind(before(now, keep.succeeded))
    .bind(before(now, keep.cancelled))
    .bind(before(now, keep.dead))
    .bind(i64::from(limit))
    .fetch_all(&store.readers)
    .await
    .map_err(|e| StoreError::sort(STEP, e))?;
    let forgotten = before(now, keep.dead);
    if old.is_empty() && !terms_to_forget(store, forgotten).await? {
        return Ok(0);
    }
    let ids = to_json(&old)?;
    store
        .write(STEP, move |conn| {
            Box::pin(async move {
                let removed = sqlx::query(
                    "DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(?1)) AND finished_at IS NOT NULL",
                )
                .bind(ids)
                .execute(&mut *conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))?;
                sqlx::query(
                    "DELETE FROM supervisors WHERE last_seen < ?1 AND rowid < (SELECT max(rowid) FROM supervisors)
                         AND NOT EXISTS (SELECT 1 FROM jobs WHERE state = 'running' AND jobs.term = supervisors.term)",
                )
                .bind(forgotten)
                .execute(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))?;
                Ok(removed.rows_affected())
            })
        })
        .await
}

/// Terms are kept as long as the dead jobs that may name them. The newest one is kept in any case: it may be alive, however
/// old its last sign of life looks after a step of the clock, and a supervisor without its term claims nothing for ever.
async fn terms_to_forget(store: &SqliteStore, before: i64) -> Result<bool, StoreError> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM supervisors s WHERE last_seen < ?1 AND rowid < (SELECT max(rowid) FROM supervisors)
             AND NOT EXISTS (SELECT 1 FROM jobs WHERE state = 'running' AND jobs.term = s.term))",
    )
    .bind(before)
    .fetch_one(&store.readers)
    .await
    .map_err(|e| StoreError::sort(STEP, e))
}

fn before(now: Timestamp, kept: Duration) -> i64 {
    now.as_microsecond().saturating_sub(i64::try_from(kept.as_micros()).unwrap_or(i64::MAX))
}
