//! Making due what waits: for its time, or for jobs before it that have ended.
//!
//! Both run where claims do, with plans that statistics cannot spoil, and tell those who sleep.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sqlx::postgres::PgConnection;

use super::row::{get, time_or_none};
use super::{PostgresStore, Walks};
use crate::store::error::StoreError;
use crate::store::model::Promoted;

const STEP: &str = "make due jobs queued";

/// What is still due although there was room for more is held by somebody: it is looked at again a little later.
const PROMOTE: &str = "
    WITH d AS (
        UPDATE jobvisor.jobs j SET state = 'queued'
        WHERE j.id = ANY (ARRAY(
            SELECT c.id FROM jobvisor.jobs c WHERE c.state = 'scheduled' AND c.run_at <= now()
            ORDER BY c.run_at, c.id LIMIT $1 FOR UPDATE SKIP LOCKED))
        RETURNING j.id),
    next AS (
        SELECT s.run_at FROM jobvisor.jobs s
        WHERE s.state = 'scheduled' AND NOT EXISTS (SELECT 1 FROM d WHERE d.id = s.id)
        ORDER BY s.run_at, s.id LIMIT 1)
    SELECT n.count, CASE WHEN n.count > 0 THEN jobvisor.wake() END,
        CASE WHEN n.count < $1 AND next.run_at <= now() THEN now() + interval '100 milliseconds' ELSE next.run_at END
            AS next_due
    FROM (SELECT count(*) FROM d) n LEFT JOIN next ON true";

/// A job that was added while a job before it ended is in nobody's count: the one who added it did not see the end, the one who
/// recorded the end did not see the job. Neither waits for the other, so a walk over what waits looks at each in turn: [`PART`]
/// a call. It does nothing to the others, whose `waits_for` only their parents' ends change.
const HEAL: &str = "
    WITH part AS MATERIALIZED (
        SELECT w.id, w.run_at FROM jobvisor.jobs w WHERE w.state = 'waiting' AND w.id > $1 ORDER BY w.id LIMIT $2),
    wrong AS MATERIALIZED (
        SELECT part.id, p.failed FROM part CROSS JOIN LATERAL (
            SELECT count(*) AS unfinished, coalesce(bool_or(j.state IN ('dead', 'cancelled')), false) AS failed
            FROM jobvisor.dependencies d JOIN jobvisor.jobs j ON j.id = d.parent
            WHERE d.job = part.id AND j.state <> 'succeeded') p
        WHERE p.unfinished = 0 OR p.failed),
    healed AS (
        UPDATE jobvisor.jobs j
        SET state = CASE WHEN wrong.failed THEN 'cancelled' WHEN j.run_at > now() THEN 'scheduled' ELSE 'queued' END,
            waits_for = CASE WHEN wrong.failed THEN j.waits_for ELSE 0 END,
            finished_at = CASE WHEN wrong.failed THEN now() END,
            cancel_by = CASE WHEN wrong.failed THEN 'a job that it came after' ELSE j.cancel_by END
        FROM wrong
        WHERE j.id = wrong.id AND j.id = ANY (ARRAY(
            SELECT l.id FROM jobvisor.jobs l
            WHERE l.id = ANY (ARRAY(SELECT id FROM wrong)) AND left(l.state, 7) = 'waiting' FOR UPDATE SKIP LOCKED))
        RETURNING j.state)
    SELECT count(*) FILTER (WHERE state = 'queued') AS queued,
        CASE WHEN bool_or(state IN ('queued', 'scheduled')) THEN jobvisor.wake() END,
        (SELECT max(id) FROM part) AS last, (SELECT count(*) FROM part) AS looked_at
    FROM healed";

/// Waiting jobs that are looked at in one call.
const PART: i64 = 500;

pub(super) async fn promote(store: &PostgresStore, limit: u32) -> Result<Promoted, StoreError> {
    let walks = Arc::clone(&store.walks);
    store
        .conns
        .claims
        .run(STEP, move |conn| {
            Box::pin(async move {
                let healed = heal(conn, &walks).await?;
                let row = sqlx::query(PROMOTE)
                    .bind(i64::from(limit))
                    .fetch_one(conn)
                    .await
                    .map_err(|e| StoreError::sort(STEP, e))?;
                let count = super::row::big_count(&row, "count")?.saturating_add(healed);
                Ok(Promoted { count, next_due: time_or_none(&row, "next_due")? })
            })
        })
        .await
}

/// Answers how many can be claimed now.
async fn heal(conn: &mut PgConnection, walks: &Walks) -> Result<u64, StoreError> {
    let row = sqlx::query(HEAL)
        .bind(walks.waiting.load(Ordering::Relaxed))
        .bind(PART)
        .fetch_one(conn)
        .await
        .map_err(|e| StoreError::sort(STEP, e))?;
    let (last, looked_at): (Option<i64>, i64) = (get(&row, "last")?, get(&row, "looked_at")?);
    let next = if looked_at < PART { None } else { last };
    walks.waiting.store(next.unwrap_or_default(), Ordering::Relaxed);
    super::row::big_count(&row, "queued")
}
