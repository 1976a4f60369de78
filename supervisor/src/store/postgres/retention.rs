//! Removing what has ended long ago.
//!
//! No index of ended jobs by time is kept for it (it would cost 66 bytes of WAL a job): it walks the primary key a [`PART`]
//! at a time from where it left off, and begins again where all jobs are younger than anything that is removed. So it reads the
//! old part of the table and no more.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};

use super::PostgresStore;
use super::row::{big_count, get};
use crate::store::error::StoreError;
use crate::store::model::Retention;

const STEP: &str = "remove old jobs";

/// Rows that one statement looks at.
const PART: i64 = 10_000;

/// Parts that one call looks at.
const PARTS: u32 = 50;

/// The longest time that anything is kept, in microseconds: a thousand years, so that the time before which it ended stays one that
/// databases know.
const LONGEST: i64 = 1000 * 366 * 86_400 * 1_000_000;

/// A job that a person brings back meanwhile is judged as it is then. Attempts and dependencies go in the same statement.
const REMOVE: &str = "
    WITH part AS MATERIALIZED (
        SELECT id, created_at, finished_at,
            finished_at < now() - interval '1 microsecond' * CASE state
                WHEN 'succeeded' THEN $3::bigint WHEN 'cancelled' THEN $4::bigint WHEN 'dead' THEN $5::bigint END AS old
        FROM jobvisor.jobs WHERE id > $1 ORDER BY id LIMIT $6),
    old AS MATERIALIZED (
        SELECT j.id FROM jobvisor.jobs j
        WHERE j.id = ANY (ARRAY(SELECT part.id FROM part WHERE part.old ORDER BY part.id LIMIT $2))
            AND j.finished_at IS NOT NULL
        FOR UPDATE SKIP LOCKED),
    a AS (DELETE FROM jobvisor.attempts WHERE job_id = ANY (ARRAY(SELECT id FROM old))),
    d AS (DELETE FROM jobvisor.dependencies WHERE job = ANY (ARRAY(SELECT id FROM old))),
    p AS (DELETE FROM jobvisor.dependencies WHERE parent = ANY (ARRAY(SELECT id FROM old))),
    removed AS (DELETE FROM jobvisor.jobs WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id)
    SELECT count(*) AS removed, max(id) AS last_removed, (SELECT count(*) FROM part) AS seen,
        (SELECT max(id) FROM part) AS last_seen,
        (SELECT coalesce(min(part.created_at) > now() - interval '1 microsecond' * least($3, $4, $5), true) FROM part) AS young
    FROM removed";

/// Terms are kept as long as the dead jobs that may name them. One that is open is kept in any case: it may be alive.
const FORGET: &str = "
    DELETE FROM jobvisor.supervisors s
    WHERE coalesce(s.lost_at, s.ended_at) < now() - interval '1 microsecond' * $1::bigint
        AND NOT EXISTS (SELECT 1 FROM jobvisor.jobs j WHERE j.state = 'running' AND j.term = s.term)";

pub(super) async fn prune(store: &PostgresStore, keep: Retention, limit: u32) -> Result<u64, StoreError> {
    let limit = u64::from(limit);
    let mut removed = 0;
    for _ in 0..PARTS {
        let left = limit.saturating_sub(removed);
        if left == 0 {
            return Ok(removed);
        }
        let after = store.walks.ended.load(Ordering::Relaxed);
        let part = store
            .conns
            .claims
            .run(STEP, move |conn| Box::pin(async move { remove(conn, keep, after, left).await }))
            .await?;
        removed = removed.saturating_add(part.removed);
        store.walks.ended.store(part.next.unwrap_or_default(), Ordering::Relaxed);
        if part.next.is_none() {
            break;
        }
    }
    store
        .conns
        .claims
        .run(STEP, move |conn| {
            Box::pin(async move {
                let forgotten = sqlx::query(FORGET).bind(micros(keep.dead)).execute(conn).await;
                forgotten.map(|_| ()).map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    Ok(removed)
}

struct Part {
    removed: u64,
    /// The row to go on after; `None`: begin again.
    next: Option<i64>,
}

async fn remove(conn: &mut PgConnection, keep: Retention, after: i64, limit: u64) -> Result<Part, StoreError> {
    let row = sqlx::query(REMOVE)
        .bind(after)
        .bind(super::row::cut(limit))
        .bind(micros(keep.succeeded))
        .bind(micros(keep.cancelled))
        .bind(micros(keep.dead))
        .bind(PART)
        .fetch_one(conn)
        .await
        .map_err(|e| StoreError::sort(STEP, e))?;
    part(&row, limit)
}

fn part(row: &PgRow, limit: u64) -> Result<Part, StoreError> {
    let removed = big_count(row, "removed")?;
    let (seen, young): (i64, bool) = (get(row, "seen")?, get(row, "young")?);
    let next = if removed >= limit {
        get(row, "last_removed")?
    } else if young || seen < PART {
        None
    } else {
        get(row, "last_seen")?
    };
    Ok(Part { removed, next })
}

fn micros(kept: Duration) -> i64 {
    i64::try_from(kept.as_micros()).unwrap_or(LONGEST).min(LONGEST)
}
