//! Taking jobs, and making due what waits for its time.
//!
//! A claim is one statement: it requires the own term to be alive, leaves out kinds that are paused, chooses and locks what is
//! free (`SKIP LOCKED`, so that several supervisors take different rows and none waits), and makes it running, numbered
//! and charged (I1). The budget on the row is refreshed from what the kind says now; a kind that allows fewer attempts than
//! before does not take away the one that the job was put back for, so `charged <= max_attempts` holds on every row.
//!
//! The target is found by its key alone (`id = ANY(ARRAY(…))`): as a join it was measured to scan all jobs. The order is
//! the same as in `sqlite/claim.rs`: priority, then kinds in turns, cut at the first row whose memory does not fit.
//!
//! Under a backlog claims go on from a remembered position ([`Positions`]): a snapshot that is held open elsewhere keeps dead
//! index entries from being cleared, and whoever walks them anew each time was measured to be 6.5 times slower after 100,000 jobs.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::row::{attempt, budget, cut, cut_int, get, id, size, time, time_or_none, to_json};
use super::sleep::Outcome;
use crate::domain::clock;
use crate::domain::ids::{Fence, JobId, Term};
use crate::store::error::StoreError;
use crate::store::model::{ClaimKind, ClaimRequest, Claimed, Promoted};

const STEP: &str = "claim jobs";

const CLAIM: &str = "
UPDATE jobvisor.jobs j SET state = 'running', term = $3, claim_seq = $4, claimed_at = now(), last_term = NULL,
    last_outcome = NULL, attempt = j.attempt + 1, charged = j.charged + 1,
    max_attempts = greatest(coalesce(j.own_max_attempts, ($10::int[])[array_position($1::text[], j.kind)]), j.charged + 1),
    max_interruptions = ($11::int[])[array_position($1::text[], j.kind)],
    memory = coalesce(j.own_memory, ($7::bigint[])[array_position($1::text[], j.kind)]),
    backoff = (($12::text[])[array_position($1::text[], j.kind)])::json
WHERE j.id = ANY(ARRAY(
    SELECT w.id FROM (
        SELECT r.id, sum(r.memory) OVER (ORDER BY r.priority, r.round, r.turn ROWS UNBOUNDED PRECEDING) AS used FROM (
            SELECT q.id, q.priority, q.memory, k.turn,
                row_number() OVER (PARTITION BY k.turn, q.priority ORDER BY q.id) AS round
            FROM (
                SELECT * FROM unnest($1::text[], $2::int[], $5::int[], $6::bigint[], $7::bigint[])
                    WITH ORDINALITY AS a (kind, free, after_priority, after_id, memory, turn)
                WHERE NOT EXISTS (SELECT FROM jobvisor.kinds p WHERE p.name = a.kind) OFFSET 0) k
            CROSS JOIN LATERAL (
                SELECT c.id, c.priority, coalesce(c.own_memory, k.memory) AS memory FROM jobvisor.jobs c
                WHERE c.kind = k.kind AND c.state = 'queued' AND (c.priority, c.id) > (k.after_priority, k.after_id)
                    AND coalesce(c.own_memory, k.memory) <= $8
                ORDER BY c.priority, c.id LIMIT k.free FOR UPDATE SKIP LOCKED) q
            WHERE EXISTS (SELECT FROM jobvisor.supervisors s WHERE s.term = $3 AND s.lost_at IS NULL
                AND s.ended_at IS NULL AND s.expires_at > clock_timestamp())) r) w
    WHERE w.used <= $9))
RETURNING j.id, j.attempt, j.kind, j.payload::text AS payload, j.charged, j.max_attempts, j.interruptions,
    j.max_interruptions, j.memory, j.priority, j.claimed_at, j.run_at";

/// From the start of a kind's queue.
const START: (i32, i64) = (i32::MIN, 0);

/// So many rows must have been claimed without a full look before the position is used: below that order is exact, and dead
/// entries cost nothing yet.
const BACKLOG: usize = 500;

/// The time between full looks: at least this, and so many times what the last one took.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const LOOK_SHARE: u32 = 20;

/// Where in each kind's queue the claims of this store stand. Everything before the position was taken by us or another, or
/// has come since; a full look finds the latter.
#[derive(Debug, Default)]
pub(super) struct Positions(Mutex<Standing>);

#[derive(Debug, Default)]
struct Standing {
    at: HashMap<String, (i32, i64)>,
    /// Rows claimed since the last claim that came back short.
    run: usize,
    /// The last full look, and what it took.
    looked: Option<(Instant, Duration)>,
}

impl Positions {
    fn lock(&self) -> std::sync::MutexGuard<'_, Standing> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where to begin for each kind; `None`: from the start.
    fn of(&self, kinds: &[ClaimKind]) -> Option<Vec<(i32, i64)>> {
        let standing = self.lock();
        let (at, took) = standing.looked?;
        let due = at.elapsed() >= LOOK_EVERY.max(took * LOOK_SHARE);
        let position = |kind: &ClaimKind| standing.at.get(&kind.kind).copied().unwrap_or(START);
        (standing.run >= BACKLOG && !due).then(|| kinds.iter().map(position).collect())
    }

    /// What a claim took. Only a kind that got all that it asked for goes on from where it stands.
    fn note(&self, kinds: &[ClaimKind], claimed: &[Claimed], full_look: Option<Duration>) {
        let mut standing = self.lock();
        if let Some(took) = full_look {
            standing.looked = Some((clock::monotonic(), took));
        }
        let mut short = false;
        for kind in kinds {
            let own = claimed.iter().filter(|c| c.kind == kind.kind);
            let taken = own.clone().count();
            if u32::try_from(taken).is_ok_and(|taken| taken < kind.free) {
                short = true;
                standing.at.remove(&kind.kind);
            } else if let Some(last) = own.map(|c| (c.priority, c.fence.job.0)).max() {
                standing.at.insert(kind.kind.clone(), last);
            }
        }
        standing.run = if short { 0 } else { standing.run + claimed.len() };
    }
}

pub(super) async fn claim(store: &PostgresStore, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
    let request = ClaimRequest { kinds: request.kinds.into_iter().filter(|kind| kind.free > 0).collect(), ..request };
    if request.kinds.is_empty() {
        return Ok(Vec::new());
    }
    let free: usize = request.kinds.iter().map(|kind| kind.free as usize).sum();
    let mut claimed = Vec::new();
    if let Some(positions) = store.positions.of(&request.kinds) {
        claimed = send(store, &request, positions).await?;
        store.positions.note(&request.kinds, &claimed, None);
    }
    if claimed.is_empty() {
        let begun = clock::monotonic();
        claimed = send(store, &request, vec![START; request.kinds.len()]).await?;
        store.positions.note(&request.kinds, &claimed, Some(begun.elapsed()));
    }
    let outcome = match claimed.len() {
        0 => Outcome::Empty,
        taken if taken < free => Outcome::Partial,
        _ => Outcome::Full,
    };
    store.wake.after_claim(request.term, outcome);
    Ok(in_turn(claimed, &request.kinds))
}

async fn send(
    store: &PostgresStore,
    request: &ClaimRequest,
    positions: Vec<(i32, i64)>,
) -> Result<Vec<Claimed>, StoreError> {
    let ClaimRequest { term, seq, kinds, free_memory, whole_budget } = request.clone();
    let (priorities, ids): (Vec<i32>, Vec<i64>) = positions.into_iter().unzip();
    let backoffs = kinds.iter().map(|kind| to_json(&kind.policy.backoff)).collect::<Result<Vec<_>, _>>()?;
    let rows = store
        .conns
        .claims
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(CLAIM)
                    .bind(kinds.iter().map(|kind| kind.kind.clone()).collect::<Vec<_>>())
                    .bind(kinds.iter().map(|kind| cut_int(kind.free)).collect::<Vec<_>>())
                    .bind(term.0)
                    .bind(cut(seq))
                    .bind(priorities)
                    .bind(ids)
                    .bind(kinds.iter().map(|kind| kind.policy.memory.as_i64()).collect::<Vec<_>>())
                    .bind(whole_budget.as_i64())
                    .bind(free_memory.as_i64())
                    .bind(kinds.iter().map(|kind| cut_int(kind.policy.max_attempts.max(1))).collect::<Vec<_>>())
                    .bind(kinds.iter().map(|kind| cut_int(kind.policy.max_interruptions)).collect::<Vec<_>>())
                    .bind(backoffs)
                    .fetch_all(conn)
                    .await
                    .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    rows.iter().map(|row| claimed(row, term)).collect()
}

fn claimed(row: &PgRow, term: Term) -> Result<Claimed, StoreError> {
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

/// In the order in which they were chosen, which an update does not keep: priority, then kinds in turns.
fn in_turn(mut claimed: Vec<Claimed>, kinds: &[ClaimKind]) -> Vec<Claimed> {
    claimed.sort_by_key(|c| (c.priority, c.fence.job));
    let mut rounds: HashMap<(&str, i32), usize> = HashMap::new();
    let mut order: HashMap<JobId, (i32, usize, usize)> = HashMap::with_capacity(claimed.len());
    for job in &claimed {
        let turn = kinds.iter().position(|kind| kind.kind == job.kind).unwrap_or(usize::MAX);
        let round = rounds.entry((&job.kind, job.priority)).or_default();
        order.insert(job.fence.job, (job.priority, *round, turn));
        *round += 1;
    }
    claimed.sort_by_key(|c| order.get(&c.fence.job).copied());
    claimed
}

pub(super) async fn promote(store: &PostgresStore, limit: u32) -> Result<Promoted, StoreError> {
    const STEP: &str = "make due jobs queued";
    let healed = super::heal::heal(store, limit).await?;
    let row = store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "WITH due AS (
                         UPDATE jobvisor.jobs j SET state = 'queued' WHERE j.id = ANY(ARRAY(
                             SELECT c.id FROM jobvisor.jobs c WHERE c.state = 'scheduled' AND c.run_at <= now()
                             ORDER BY c.run_at, c.id LIMIT $1 FOR UPDATE SKIP LOCKED))
                         RETURNING j.id)
                     SELECT count(*) AS due,
                         (SELECT j.run_at FROM jobvisor.jobs j WHERE j.state = 'scheduled'
                             AND NOT EXISTS (SELECT FROM due d WHERE d.id = j.id) ORDER BY j.run_at, j.id LIMIT 1) AS next
                     FROM due",
                )
                .bind(i64::from(limit))
                .fetch_one(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    let due: i64 = row.try_get("due").map_err(|e| StoreError::sort(STEP, e))?;
    Ok(Promoted { count: u64::try_from(due).unwrap_or(0) + healed, next_due: time_or_none(&row, "next")? })
}
