//! Taking jobs, and making due what waits for its time.
//!
//! A claim is one transaction that makes a job running, numbers the attempt and charges it (I1). The budget on the row
//! is refreshed from what the kind says now; a kind that allows fewer attempts than before does not take away the one
//! that the job was put back for, so `charged <= max_attempts` holds on every row.
//!
//! A term that is unknown or has ended gets nothing.

use std::collections::HashMap;

use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::SqliteStore;
use super::row::{attempt, budget, cut, get, id, id_list, size, time, to_json};
use crate::domain::clock;
use crate::domain::ids::{Fence, JobId, Term};
use crate::domain::units::Bytes;
use crate::store::error::StoreError;
use crate::store::model::{ClaimKind, ClaimRequest, Claimed, Promoted};

const STEP: &str = "claim jobs";

/// A queued row that may be taken.
#[derive(Debug)]
struct Candidate {
    id: JobId,
    kind: usize,
    priority: i32,
    /// How many rows of its kind and priority stand before it: its round in the taking of turns.
    round: usize,
    memory: u64,
}

pub(super) async fn claim(store: &SqliteStore, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
    if !anything_queued(store, &request.kinds).await? {
        return Ok(Vec::new());
    }
    store
        .write(STEP, move |conn| {
            Box::pin(async move {
                if !term_runs(conn, request.term).await? {
                    return Ok(Vec::new());
                }
                let chosen = choose(conn, &request).await?;
                take(conn, &request, &chosen).await
            })
        })
        .await
}

/// A look without the write lock: most polls of an idle supervisor end here and disturb nobody.
async fn anything_queued(store: &SqliteStore, kinds: &[ClaimKind]) -> Result<bool, StoreError> {
    let names: Vec<&str> = kinds.iter().filter(|k| k.free > 0).map(|k| k.kind.as_str()).collect();
    if names.is_empty() {
        return Ok(false);
    }
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM json_each(?1) k CROSS JOIN jobs j WHERE j.kind = k.value AND j.state = 'queued'
             AND NOT EXISTS (SELECT 1 FROM kinds p WHERE p.name = k.value))",
    )
    .bind(to_json(&names)?)
    .fetch_one(&store.readers)
    .await
    .map_err(|e| StoreError::sort(STEP, e))
}

async fn term_runs(conn: &mut SqliteConnection, term: Term) -> Result<bool, StoreError> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM supervisors WHERE term = ?1 AND ended_at IS NULL AND lost_at IS NULL)",
    )
    .bind(term.to_string())
    .fetch_one(conn)
    .await
    .map_err(|e| StoreError::sort(STEP, e))
}

async fn choose(conn: &mut SqliteConnection, request: &ClaimRequest) -> Result<Vec<Candidate>, StoreError> {
    let mut all = Vec::new();
    for (turn, kind) in request.kinds.iter().enumerate().filter(|(_, kind)| kind.free > 0) {
        let rows = sqlx::query(
            "SELECT id, priority, coalesce(own_memory, ?2) AS memory FROM jobs
             WHERE kind = ?1 AND state = 'queued' AND coalesce(own_memory, ?2) <= ?3
               AND NOT EXISTS (SELECT 1 FROM kinds p WHERE p.name = ?1)
             ORDER BY priority, id LIMIT ?4",
        )
        .bind(&kind.kind)
        .bind(kind.policy.memory.as_i64())
        .bind(request.whole_budget.as_i64())
        .bind(i64::from(kind.free))
        .fetch_all(&mut *conn)
        .await
        .map_err(|e| StoreError::sort(STEP, e))?;
        all.extend(candidates(turn, &rows)?);
    }
    all.sort_by_key(|c| (c.priority, c.round, c.kind));
    Ok(fitting(all, request.free_memory))
}

fn candidates(kind: usize, rows: &[SqliteRow]) -> Result<Vec<Candidate>, StoreError> {
    let mut found: Vec<Candidate> = Vec::with_capacity(rows.len());
    for row in rows {
        let priority: i32 = get(row, "priority")?;
        let round = found.last().filter(|before| before.priority == priority).map_or(0, |before| before.round + 1);
        found.push(Candidate {
            id: id(row)?,
            kind,
            priority,
            round,
            memory: size(row, "memory")?.unwrap_or_default().0,
        });
    }
    Ok(found)
}

/// Up to the first that no longer fits: whoever stands behind it must not overtake it.
fn fitting(all: Vec<Candidate>, free: Bytes) -> Vec<Candidate> {
    let mut used = 0_u64;
    all.into_iter()
        .take_while(|candidate| {
            used = used.saturating_add(candidate.memory);
            used <= free.0
        })
        .collect()
}

async fn take(
    conn: &mut SqliteConnection,
    request: &ClaimRequest,
    chosen: &[Candidate],
) -> Result<Vec<Claimed>, StoreError> {
    let mut taken = HashMap::with_capacity(chosen.len());
    for (turn, kind) in request.kinds.iter().enumerate() {
        let ids = id_list(chosen.iter().filter(|c| c.kind == turn).map(|c| c.id));
        if ids == "[]" {
            continue;
        }
        for row in take_kind(conn, request, kind, ids).await? {
            let claimed = claimed(&row, request.term)?;
            taken.insert(claimed.fence.job, claimed);
        }
    }
    Ok(chosen.iter().filter_map(|c| taken.remove(&c.id)).collect())
}

async fn take_kind(
    conn: &mut SqliteConnection,
    request: &ClaimRequest,
    kind: &ClaimKind,
    ids: String,
) -> Result<Vec<SqliteRow>, StoreError> {
    sqlx::query(
        "UPDATE jobs SET state = 'running', term = ?1, claim_seq = ?2, claimed_at = ?3,
             last_term = NULL, last_outcome = NULL,
             attempt = attempt + 1, charged = charged + 1,
             max_attempts = max(coalesce(own_max_attempts, ?4), charged + 1), max_interruptions = ?5,
             memory = coalesce(own_memory, ?6), backoff = ?7
         WHERE id IN (SELECT value FROM json_each(?8)) AND state = 'queued'
         RETURNING id, attempt, kind, payload, charged, max_attempts, interruptions, max_interruptions, memory,
             priority, claimed_at, run_at",
    )
    .bind(request.term.to_string())
    .bind(cut(request.seq))
    .bind(clock::now().as_microsecond())
    .bind(i64::from(kind.policy.max_attempts))
    .bind(i64::from(kind.policy.max_interruptions))
    .bind(kind.policy.memory.as_i64())
    .bind(to_json(&kind.policy.backoff)?)
    .bind(ids)
    .fetch_all(conn)
    .await
    .map_err(|e| StoreError::sort(STEP, e))
}

fn claimed(row: &SqliteRow, term: Term) -> Result<Claimed, StoreError> {
    Ok(Claimed {
        fence: Fence { job: id(row)?, attempt: attempt(row)?, term },
        kind: get(row, "kind")?,
        payload: get(row, "payload")?,
        budget: budget(row)?,
        memory: size(row, "memory")?.unwrap_or_default(),
        priority: get(row, "priority")?,
        claimed_at: time(row, "claimed_at")?,
        run_at: time(row, "run_at")?,
    })
}

pub(super) async fn promote(store: &SqliteStore, limit: u32) -> Result<Promoted, StoreError> {
    const STEP: &str = "make due jobs queued";
    let now = clock::now();
    let count = match next_due(store).await? {
        Some(due) if due <= now => {
            store
                .write(STEP, move |conn| {
                    Box::pin(async move {
                        sqlx::query(
                            "UPDATE jobs SET state = 'queued' WHERE state = 'scheduled' AND id IN
                                 (SELECT id FROM jobs WHERE state = 'scheduled' AND run_at <= ?1 ORDER BY run_at, id LIMIT ?2)",
                        )
                        .bind(now.as_microsecond())
                        .bind(i64::from(limit))
                        .execute(conn)
                        .await
                        .map(|done| done.rows_affected())
                        .map_err(|e| StoreError::sort(STEP, e))
                    })
                })
                .await?
        }
        Some(_) | None => 0,
    };
    Ok(Promoted { count, next_due: next_due(store).await? })
}

async fn next_due(store: &SqliteStore) -> Result<Option<jiff::Timestamp>, StoreError> {
    let row = sqlx::query("SELECT min(run_at) AS run_at FROM jobs WHERE state = 'scheduled'")
        .fetch_one(&store.readers)
        .await
        .map_err(|e| StoreError::sort("find the next due job", e))?;
    super::row::time_or_none(&row, "run_at")
}
