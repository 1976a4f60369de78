//! Children that nobody told of a parent's end.
//!
//! A parent that ends while its child is being added is in the count of neither: the parent is not locked, because a user's long
//! transaction would then hold up finishes. Such a child would wait for ever. A bounded look at the waiting jobs, a window of
//! ids at a time, finds it and does what the parent's end would have done. It acts only on what is certain in its own
//! snapshot (every parent has succeeded; one has ended otherwise), so doing it twice or beside a finish changes nothing.

use std::sync::atomic::{AtomicI64, Ordering};

use sqlx::Row;

use super::PostgresStore;
use crate::store::error::StoreError;

/// Where the next window of waiting jobs begins.
#[derive(Debug, Default)]
pub(super) struct Window(AtomicI64);

/// Looks at a window of waiting jobs; answers how many were let go on.
pub(super) async fn heal(store: &PostgresStore, limit: u32) -> Result<u64, StoreError> {
    const STEP: &str = "look after waiting jobs";
    let from = store.waiting.0.load(Ordering::Relaxed);
    let row = store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "WITH seen AS MATERIALIZED (
                         SELECT id FROM jobvisor.jobs WHERE state = 'waiting' AND id > $1 ORDER BY id LIMIT $2),
                     sure AS MATERIALIZED (
                         SELECT s.id, coalesce(bool_or(p.state IN ('dead', 'cancelled')), false) AS is_lost
                         FROM seen s LEFT JOIN jobvisor.dependencies d ON d.job = s.id
                             LEFT JOIN jobvisor.jobs p ON p.id = d.parent
                         GROUP BY s.id
                         HAVING coalesce(bool_or(p.state IN ('dead', 'cancelled')), false)
                             OR coalesce(bool_and(p.id IS NULL OR p.state = 'succeeded'), true)
                         ORDER BY s.id),
                     u AS (
                         UPDATE jobvisor.jobs j
                         SET state = CASE WHEN s.is_lost THEN 'cancelled' WHEN j.run_at > now() THEN 'scheduled'
                                 ELSE 'queued' END,
                             waits_for = 0,
                             finished_at = CASE WHEN s.is_lost THEN now() END,
                             cancel_by = CASE WHEN s.is_lost THEN 'a job that it came after' ELSE j.cancel_by END
                         FROM sure s WHERE j.id = s.id AND j.state = 'waiting'
                         RETURNING j.state)
                     SELECT (SELECT count(*) FROM seen) AS seen, (SELECT max(id) FROM seen) AS last,
                         (SELECT count(*) FROM u WHERE state <> 'cancelled') AS healed",
                )
                .bind(from)
                .bind(i64::from(limit))
                .fetch_one(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    let sort = |e| StoreError::sort(STEP, e);
    let seen: i64 = row.try_get("seen").map_err(sort)?;
    let last: Option<i64> = row.try_get("last").map_err(sort)?;
    let healed: i64 = row.try_get("healed").map_err(sort)?;
    let next = if seen < i64::from(limit) { 0 } else { last.unwrap_or(0) };
    store.waiting.0.store(next, Ordering::Relaxed);
    Ok(u64::try_from(healed).unwrap_or(0))
}
