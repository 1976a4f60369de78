//! Removing what has ended long ago.
//!
//! It walks the primary key, a window at a time and round and round: an index on the time of the end would be written for each
//! job that succeeds. A removed job takes its attempts and dependencies along in the same statement.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::postgres::types::PgInterval;

use super::PostgresStore;
use crate::store::error::StoreError;
use crate::store::model::Retention;

const STEP: &str = "remove old jobs";

/// Rows looked at by one statement, and statements of one call.
const WINDOW: i64 = 5000;
const WINDOWS: usize = 20;

/// Where the next window begins.
#[derive(Debug, Default)]
pub(super) struct Walk(AtomicI64);

pub(super) async fn prune(store: &PostgresStore, keep: Retention, limit: u32) -> Result<u64, StoreError> {
    forget_terms(store, keep.dead).await?;
    let mut removed = 0;
    for _ in 0..WINDOWS {
        let left = u64::from(limit).saturating_sub(removed);
        if left == 0 {
            break;
        }
        let from = store.old.0.load(Ordering::Relaxed);
        let row = window(store, from, keep, left).await?;
        let number = |column: &str| row.try_get::<i64, _>(column).map_err(|e| StoreError::sort(STEP, e));
        let (seen, old) = (number("seen")?, number("old")?);
        removed += u64::try_from(number("gone")?).unwrap_or(0);
        let was_full = u64::try_from(old).is_ok_and(|old| old == left);
        let next = if was_full {
            number("last_old")?
        } else if seen < WINDOW {
            0
        } else {
            number("last_seen")?
        };
        store.old.0.store(next, Ordering::Relaxed);
        if next == 0 {
            break;
        }
    }
    Ok(removed)
}

/// Looks at one window after `from` and removes what is old in it, at most `limit`.
async fn window(store: &PostgresStore, from: i64, keep: Retention, limit: u64) -> Result<PgRow, StoreError> {
    store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "WITH seen AS MATERIALIZED (
                         SELECT id, state, finished_at FROM jobvisor.jobs WHERE id > $1 ORDER BY id LIMIT $5),
                     old AS MATERIALIZED (
                         SELECT id FROM seen WHERE finished_at < now() - CASE state WHEN 'succeeded' THEN $2
                             WHEN 'cancelled' THEN $3 ELSE $4 END
                         ORDER BY id LIMIT $6),
                     gone AS (
                         DELETE FROM jobvisor.jobs j WHERE j.id = ANY(ARRAY(SELECT id FROM old))
                             AND j.finished_at IS NOT NULL RETURNING j.id),
                     a AS (DELETE FROM jobvisor.attempts t WHERE t.job_id = ANY(ARRAY(SELECT id FROM old))),
                     d AS (DELETE FROM jobvisor.dependencies t WHERE t.job = ANY(ARRAY(SELECT id FROM old)))
                     SELECT (SELECT count(*) FROM seen) AS seen, (SELECT coalesce(max(id), 0) FROM seen) AS last_seen,
                         (SELECT count(*) FROM old) AS old, (SELECT coalesce(max(id), 0) FROM old) AS last_old,
                         (SELECT count(*) FROM gone) AS gone",
                )
                .bind(from)
                .bind(interval(keep.succeeded))
                .bind(interval(keep.cancelled))
                .bind(interval(keep.dead))
                .bind(WINDOW)
                .bind(i64::try_from(limit).unwrap_or(i64::MAX))
                .fetch_one(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

/// Terms are kept as long as the dead jobs that may name them; one that is open is never forgotten, nor one with running rows.
async fn forget_terms(store: &PostgresStore, kept: Duration) -> Result<(), StoreError> {
    const STEP: &str = "forget old terms";
    store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "DELETE FROM jobvisor.supervisors s
                     WHERE (s.ended_at IS NOT NULL OR s.lost_at IS NOT NULL) AND s.last_seen < now() - $1
                         AND NOT EXISTS (SELECT FROM jobvisor.jobs j WHERE j.state = 'running' AND j.term = s.term)",
                )
                .bind(interval(kept))
                .execute(conn)
                .await
                .map(|_| ())
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

/// Whole microseconds; beyond three thousand years the rest is cut.
fn interval(span: Duration) -> PgInterval {
    const LONGEST: i64 = 100_000_000_000_000_000;
    let microseconds = i64::try_from(span.as_micros()).unwrap_or(LONGEST).min(LONGEST);
    PgInterval { months: 0, days: 0, microseconds }
}
