//! Taking jobs.
//!
//! A claim is one statement, which counts and charges the attempts (I1), under a term that is alive by the same statement. It
//! chooses first, without a lock: of each kind up to its free slots by the index of what is ready, then the turns, then the cut
//! at the first row that does not fit. Then it locks what is chosen and nothing else (locking while choosing was measured to lock 80
//! rows to claim 4), passing over what somebody else holds; as many as were passed over are chosen anew, without those.
//!
//! The target is found by `id = ANY(ARRAY(…))`, which every plan looks up by the primary key: joined with what was chosen it is
//! scanned whole as soon as statistics mislead.
//!
//! Where a kind's claims go on from is remembered ([`Positions`]): the index keeps an entry of every row that was claimed before
//! until vacuum may remove it, which a snapshot held by anybody forbids (measured: 6.5 times the time after 100,000 jobs).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use sqlx::Postgres;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;

use super::PostgresStore;
use super::position::{Place, Positions, Seen};
use super::row::{attempt, budget, cut, cut_int, get, id, size, time, to_json};
use super::sleep::Outcome;
use crate::domain::clock;
use crate::domain::ids::{Fence, Term};
use crate::domain::units::Bytes;
use crate::store::error::StoreError;
use crate::store::model::{ClaimKind, ClaimRequest, Claimed};

const STEP: &str = "claim jobs";

/// How often one claim looks again: for what others took first, and behind the remembered positions.
const LOOKS: u32 = 6;

/// `left(state, …)` asks for the state so that no partial index answers it: the row is to be found by its id, however small an index
/// looks. It is asked again because a row that somebody else changed meanwhile is judged as it is now.
///
/// The last row says what was chosen and not got, and whether memory was short.
const TAKE: &str = "
    WITH chosen AS MATERIALIZED (
        SELECT coalesce(array_agg(w.id) FILTER (WHERE w.used <= $11), '{}') AS ids,
            coalesce(bool_or(w.used > $11), false) AS cut
        FROM (
            SELECT q.id, sum(q.memory) OVER (ORDER BY q.priority, q.round, k.ord ROWS UNBOUNDED PRECEDING) AS used
            FROM unnest($1::text[], $2::bigint[], $3::int[], $4::bigint[], $5::bigint[]) WITH ORDINALITY
                AS k (kind, free, priority, id, memory, ord)
            CROSS JOIN LATERAL (
                SELECT c.id, c.priority, c.memory, row_number() OVER (PARTITION BY c.priority ORDER BY c.id) AS round
                FROM (SELECT c.id, c.priority, coalesce(c.own_memory, k.memory) AS memory
                      FROM jobvisor.jobs c
                      WHERE c.kind = k.kind AND c.state = 'queued' AND (c.priority, c.id) > (k.priority, k.id)
                          AND coalesce(c.own_memory, k.memory) <= $12 AND c.id <> ALL ($13::bigint[])
                      ORDER BY c.priority, c.id LIMIT k.free) c) q
            WHERE NOT EXISTS (SELECT 1 FROM jobvisor.kinds p WHERE p.name = k.kind)
                AND EXISTS (SELECT 1 FROM jobvisor.supervisors s
                            WHERE s.term = $9 AND s.lost_at IS NULL AND s.ended_at IS NULL AND s.expires_at > now())) w),
    taken AS (
        UPDATE jobvisor.jobs j
        SET state = 'running', term = $9, claim_seq = $10, claimed_at = now(), last_term = NULL, last_outcome = NULL,
            attempt = j.attempt + 1, charged = j.charged + 1,
            max_attempts = greatest(
                coalesce(j.own_max_attempts, ($6::int[])[array_position($1::text[], j.kind)]), j.charged + 1),
            max_interruptions = ($7::int[])[array_position($1::text[], j.kind)],
            memory = coalesce(j.own_memory, ($5::bigint[])[array_position($1::text[], j.kind)]),
            backoff = ($8::text[])[array_position($1::text[], j.kind)]::json
        WHERE j.id = ANY (ARRAY(
            SELECT l.id FROM jobvisor.jobs l
            WHERE l.id = ANY ((SELECT ids FROM chosen)::bigint[]) AND left(l.state, 6) = 'queued'
            FOR UPDATE SKIP LOCKED))
        RETURNING j.id, j.attempt, j.kind, j.payload::text AS payload, j.charged, j.max_attempts, j.interruptions,
            j.max_interruptions, j.memory, j.priority, j.claimed_at, j.run_at)
    SELECT taken.*, NULL::bigint[] AS ids, NULL::boolean AS cut FROM taken
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        CASE WHEN cardinality(ids) > (SELECT count(*) FROM taken) THEN ids END, cut
    FROM chosen";

/// What one look brought.
#[derive(Debug)]
struct Look {
    got: Vec<Claimed>,
    /// Rows that were chosen, and got by somebody else.
    missed: Vec<i64>,
    /// A row whose turn it was did not fit.
    cut: bool,
}

/// One kind in a claim on its way.
#[derive(Debug)]
struct Line {
    kind: ClaimKind,
    /// Slots that are still free.
    free: u32,
    /// Where the next look begins.
    after: Option<Place>,
    /// Whether the next look is at this kind.
    wanted: bool,
}

/// A claim on its way.
#[derive(Debug)]
struct Claim {
    request: ClaimRequest,
    lines: Vec<Line>,
    free_memory: u64,
    got: Vec<Claimed>,
    /// Rows that somebody else held when we wanted them.
    missed: Vec<i64>,
    /// A row whose turn it was did not fit.
    cut: bool,
}

pub(super) async fn claim(store: &PostgresStore, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
    if request.kinds.iter().all(|kind| kind.free == 0) {
        return Ok(Vec::new());
    }
    let positions = Arc::clone(&store.positions);
    let wake = Arc::clone(&store.wake);
    store
        .conns
        .claims
        .run(STEP, move |conn| {
            Box::pin(async move {
                let mut claim = Claim::new(request, &positions);
                claim.run(conn, &positions).await?;
                wake.after_claim(claim.request.term, claim.outcome());
                Ok(claim.in_order())
            })
        })
        .await
}

impl Claim {
    fn new(request: ClaimRequest, positions: &Positions) -> Self {
        let now = clock::monotonic();
        let line = |kind: &ClaimKind| Line {
            kind: kind.clone(),
            free: kind.free,
            after: positions.of(&kind.kind, now),
            wanted: kind.free > 0,
        };
        let lines = request.kinds.iter().map(line).collect();
        Self { lines, free_memory: request.free_memory.0, got: Vec::new(), missed: Vec::new(), cut: false, request }
    }

    async fn run(&mut self, conn: &mut PgConnection, positions: &Positions) -> Result<(), StoreError> {
        for _ in 0..LOOKS {
            let began = clock::monotonic();
            let look = self.look(conn).await?;
            let complete = look.missed.is_empty();
            self.note(look, began, positions);
            if complete && !self.turn_back(self.cut, positions) {
                break;
            }
        }
        Ok(())
    }

    async fn look(&self, conn: &mut PgConnection) -> Result<Look, StoreError> {
        let rows = self.query()?.fetch_all(conn).await.map_err(|e| StoreError::sort(STEP, e))?;
        let mut look = Look { got: Vec::with_capacity(rows.len()), missed: Vec::new(), cut: false };
        let mut chosen: Option<Vec<i64>> = None;
        for row in &rows {
            match get::<Option<bool>>(row, "cut")? {
                None => look.got.push(claimed(row, self.request.term)?),
                Some(cut) => {
                    look.cut = cut;
                    chosen = get(row, "ids")?;
                }
            }
        }
        let got: HashSet<i64> = look.got.iter().map(|claimed| claimed.fence.job.0).collect();
        look.missed = chosen.unwrap_or_default().into_iter().filter(|id| !got.contains(id)).collect();
        Ok(look)
    }

    fn query(&self) -> Result<Query<'static, Postgres, PgArguments>, StoreError> {
        let lines: Vec<&Line> = self.lines.iter().filter(|line| line.wanted).collect();
        let backoff: Result<Vec<String>, StoreError> =
            lines.iter().map(|line| to_json(&line.kind.policy.backoff)).collect();
        Ok(sqlx::query(TAKE)
            .bind(column(&lines, |line| line.kind.kind.clone()))
            .bind(column(&lines, |line| i64::from(line.free)))
            .bind(column(&lines, |line| line.after.map_or(i32::MIN, |(priority, _)| priority)))
            .bind(column(&lines, |line| line.after.map_or(i64::MIN, |(_, id)| id)))
            .bind(column(&lines, |line| line.kind.policy.memory.as_i64()))
            .bind(column(&lines, |line| cut_int(line.kind.policy.max_attempts)))
            .bind(column(&lines, |line| cut_int(line.kind.policy.max_interruptions)))
            .bind(backoff?)
            .bind(self.request.term.0)
            .bind(cut(self.request.seq))
            .bind(Bytes(self.free_memory).as_i64())
            .bind(self.request.whole_budget.as_i64())
            .bind(self.missed.clone()))
    }

    /// Takes over what a look brought.
    fn note(&mut self, look: Look, began: Instant, positions: &Positions) {
        let ended = clock::monotonic();
        let took = ended.saturating_duration_since(began);
        for line in self.lines.iter_mut().filter(|line| line.wanted) {
            let of_it = || look.got.iter().filter(|claimed| claimed.kind == line.kind.kind);
            let last = of_it().map(|claimed| (claimed.priority, claimed.fence.job.0)).max();
            line.free = line.free.saturating_sub(u32::try_from(of_it().count()).unwrap_or(u32::MAX));
            let exhausted = line.free > 0 && !look.cut && look.missed.is_empty();
            positions.note(&line.kind.kind, Seen { after: line.after, last, exhausted, ended, took });
            line.wanted = line.free > 0;
        }
        let used = look.got.iter().fold(0_u64, |sum, claimed| sum.saturating_add(claimed.memory.0));
        self.free_memory = self.free_memory.saturating_sub(used);
        self.cut = look.cut;
        self.missed.extend(look.missed);
        self.got.extend(look.got);
    }

    /// After a look that got all it chose: whether to look again at kinds with free slots, from their beginning, before the caller
    /// takes them for empty. Not where memory was short, nor where that costs much and another kind has a backlog, which brings
    /// the next claim soon; unless nothing was got at all.
    fn turn_back(&mut self, cut: bool, positions: &Positions) -> bool {
        let nothing = self.got.is_empty();
        let backlog = self.lines.iter().any(|line| line.free == 0 && line.kind.free > 0);
        for line in &mut self.lines {
            let worth = nothing || (!cut && (!backlog || positions.is_cheap(&line.kind.kind)));
            line.wanted = line.wanted && line.after.take().is_some() && worth;
        }
        self.lines.iter().any(|line| line.wanted)
    }

    /// What it was, for those who decide whether to be told of more.
    fn outcome(&self) -> Outcome {
        if self.got.is_empty() {
            Outcome::Empty
        } else if self.cut || self.lines.iter().all(|line| line.free == 0) {
            Outcome::Full
        } else {
            Outcome::Partial
        }
    }

    /// What was got in the order of claims: by priority, kinds taking turns.
    fn in_order(mut self) -> Vec<Claimed> {
        self.got.sort_by_key(|claimed| (claimed.priority, claimed.fence.job));
        let mut rounds: HashMap<(usize, i32), usize> = HashMap::new();
        let mut ranked: Vec<(i32, usize, usize, Claimed)> = Vec::with_capacity(self.got.len());
        for claimed in self.got {
            let turn = self.lines.iter().position(|line| line.kind.kind == claimed.kind).unwrap_or_default();
            let round = rounds.entry((turn, claimed.priority)).or_default();
            ranked.push((claimed.priority, *round, turn, claimed));
            *round += 1;
        }
        ranked.sort_by_key(|(priority, round, turn, _)| (*priority, *round, *turn));
        ranked.into_iter().map(|(_, _, _, claimed)| claimed).collect()
    }
}

fn column<T>(lines: &[&Line], value: impl Fn(&Line) -> T) -> Vec<T> {
    lines.iter().map(|line| value(line)).collect()
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
