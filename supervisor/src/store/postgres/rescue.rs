//! Finding running rows that nobody works on. Ending them is `finish` under their old fence.
//!
//! Asked where claims are, with plans that statistics cannot spoil: a scan of `jobs` would read every job that ever was.

use std::collections::HashMap;

use super::row::{attempt, backoff, budget, cut, get, id, size, term, time};
use super::{PostgresStore, terms};
use crate::domain::ids::{AttemptNo, Fence, JobId, Term};
use crate::store::error::StoreError;
use crate::store::model::{Rescuable, TermRow};

/// The terms are read off the index one by one, so that the rows of those that live are not looked at.
const RESCUABLE: &str = "
    WITH RECURSIVE t (term) AS (
        (SELECT j.term FROM jobvisor.jobs j WHERE j.state = 'running' ORDER BY j.term LIMIT 1)
        UNION ALL
        SELECT (SELECT j.term FROM jobvisor.jobs j WHERE j.state = 'running' AND j.term > t.term ORDER BY j.term LIMIT 1)
        FROM t WHERE t.term IS NOT NULL),
    over AS MATERIALIZED (
        SELECT t.term FROM t
        WHERE t.term IS NOT NULL AND t.term <> ALL ($1::uuid[])
            AND NOT EXISTS (SELECT 1 FROM jobvisor.supervisors s
                            WHERE s.term = t.term AND s.ended_at IS NULL AND s.lost_at IS NULL))
    SELECT r.* FROM over CROSS JOIN LATERAL (
        SELECT j.id, j.attempt, j.term, j.kind, j.charged, j.max_attempts, j.interruptions, j.max_interruptions,
            j.backoff::text AS backoff, j.memory, j.claimed_at, j.cancel_requested
        FROM jobvisor.jobs j WHERE j.state = 'running' AND j.term = over.term ORDER BY j.id) r";

/// Rows of a term that were claimed with a sequence below `below`.
pub(super) async fn own_rows(
    store: &PostgresStore,
    own: Term,
    below: u64,
) -> Result<Vec<(JobId, AttemptNo)>, StoreError> {
    const STEP: &str = "read the rows of a term";
    let rows = store
        .conns
        .claims
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "SELECT id, attempt FROM jobvisor.jobs
                     WHERE state = 'running' AND term = $1 AND claim_seq < $2 ORDER BY id",
                )
                .bind(own.0)
                .bind(cut(below))
                .fetch_all(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    rows.iter().map(|row| Ok((id(row)?, attempt(row)?))).collect()
}

/// Running rows of terms that are over.
pub(super) async fn rescuable(store: &PostgresStore, living: &[Term]) -> Result<Vec<Rescuable>, StoreError> {
    const STEP: &str = "find attempts whose supervisor is gone";
    let living: Vec<uuid::Uuid> = living.iter().map(|term| term.0).collect();
    let rows = store
        .conns
        .claims
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(RESCUABLE).bind(living).fetch_all(conn).await.map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let known: HashMap<Term, TermRow> = terms::all(store).await?.into_iter().map(|row| (row.term, row)).collect();
    rows.iter()
        .map(|row| {
            let over = term(row, "term")?;
            Ok(Rescuable {
                fence: Fence { job: id(row)?, attempt: attempt(row)?, term: over },
                kind: get(row, "kind")?,
                budget: budget(row)?,
                backoff: backoff(row)?,
                memory: size(row, "memory")?.unwrap_or_default(),
                claimed_at: time(row, "claimed_at")?,
                term: known.get(&over).cloned(),
                cancel_requested: get(row, "cancel_requested")?,
            })
        })
        .collect()
}
