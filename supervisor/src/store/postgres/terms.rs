//! Terms of supervisors: leases, by the server's clock alone (I6).
//!
//! - A term that nobody declared lost is renewed even after its lease ran out: to declare it lost compares the beat, so of the two
//!   only one happens, whichever the server does first.
//! - A renewal is one small update of a row that stays on its page, on a connection of its own (I13). One that takes too long
//!   is left alone with its connection; if the server carries it out later, the lease is longer than its holder believes, which
//!   harms nobody.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnection, PgRow};

use super::PostgresStore;
use super::conn::{Lane, too_slow};
use super::row::{big_count, count, cut, get, term, time, time_or_none};
use crate::domain::ids::Term;
use crate::store::Renewer;
use crate::store::error::StoreError;
use crate::store::model::{Identity, LossProof, NewTerm, Renewed, TermRow};
use crate::store::outcome::text;

/// Registers a term; one that is there already (a reply was lost) stays as it is.
const BEGIN: &str = "
    INSERT INTO jobvisor.supervisors (term, name, host, pid, boot_id, lease_ms, expires_at, state_id, pid_ns, start_time,
        version, kinds)
    VALUES ($1, $2, $3, $4, $5, $6, now() + $6 * interval '1 millisecond', $7, $8, $9, $10, $11)
    ON CONFLICT (term) DO NOTHING";

const RENEW: &str = "
    UPDATE jobvisor.supervisors
    SET beat = beat + 1, last_seen = clock_timestamp(),
        expires_at = clock_timestamp() + lease_ms * interval '1 millisecond', snapshot = $2::json
    WHERE term = $1 AND ended_at IS NULL AND lost_at IS NULL
    RETURNING lease_ms";

const LOSE: &str = "
    UPDATE jobvisor.supervisors SET lost_at = clock_timestamp(), sleeping = false
    WHERE term = $1 AND beat = $2 AND ended_at IS NULL AND lost_at IS NULL AND ($3 OR expires_at < clock_timestamp())";

const END: &str = "
    UPDATE jobvisor.supervisors SET last_seen = now(), ended_at = now(), sleeping = false
    WHERE term = $1 AND ended_at IS NULL AND lost_at IS NULL";

/// The longest lease, a century: what is added to it stays a time that databases know.
const LONGEST_MS: i64 = 100 * 366 * 86_400_000;

/// The lease of a term that another handle began, until its row tells.
const USUAL_LEASE: Duration = Duration::from_secs(30);

/// The shortest time that a renewal is given.
const SHORTEST_LIMIT: Duration = Duration::from_secs(1);

pub(super) async fn begin(store: &PostgresStore, new: NewTerm) -> Result<(), StoreError> {
    const STEP: &str = "begin a term";
    store.conns.run(STEP, move |conn| Box::pin(async move { insert(conn, new, STEP).await })).await
}

async fn insert(conn: &mut PgConnection, new: NewTerm, step: &'static str) -> Result<(), StoreError> {
    let kinds: Vec<String> = new.kinds.iter().map(|kind| text(kind)).collect();
    sqlx::query(BEGIN)
        .bind(new.term.0)
        .bind(text(&new.name))
        .bind(text(&new.host))
        .bind(new.pid)
        .bind(text(&new.boot_id))
        .bind(lease_ms(new.lease))
        .bind(text(&new.identity.state_id))
        .bind(cut(new.identity.pid_ns))
        .bind(cut(new.identity.start_time))
        .bind(text(&new.version))
        .bind(kinds)
        .execute(conn)
        .await
        .map(|_| ())
        .map_err(|e| StoreError::sort(step, e))
}

fn lease_ms(lease: Duration) -> i64 {
    i64::try_from(lease.as_millis()).unwrap_or(LONGEST_MS).min(LONGEST_MS)
}

/// Ends a term in good order.
pub(super) async fn end(store: &PostgresStore, term: Term) -> Result<(), StoreError> {
    const STEP: &str = "end a term";
    store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                let ended = sqlx::query(END).bind(term.0).execute(conn).await;
                ended.map(|_| ()).map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

/// Declares a term lost if its beat is still this one, and if the proof is enough.
pub(super) async fn declare_lost(
    store: &PostgresStore,
    term: Term,
    beat: u64,
    proof: LossProof,
) -> Result<bool, StoreError> {
    const STEP: &str = "declare a term lost";
    let at_once = match proof {
        LossProof::Silence => false,
        LossProof::ProcessGone => true,
    };
    store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                let sort = |e| StoreError::sort(STEP, e);
                sqlx::query(LOSE).bind(term.0).bind(cut(beat)).bind(at_once).execute(&mut *conn).await.map_err(sort)?;
                // A statement of its own: it sees what somebody else did while the first one waited.
                sqlx::query_scalar(
                    "SELECT EXISTS (SELECT 1 FROM jobvisor.supervisors WHERE term = $1 AND lost_at IS NOT NULL)",
                )
                .bind(term.0)
                .fetch_one(conn)
                .await
                .map_err(sort)
            })
        })
        .await
}

/// All terms on record, newest first.
pub(super) async fn all(store: &PostgresStore) -> Result<Vec<TermRow>, StoreError> {
    const STEP: &str = "read the terms";
    let rows = store
        .conns
        .run(STEP, |conn| {
            Box::pin(async move {
                sqlx::query(
                    "SELECT term, name, host, pid, boot_id, started_at, last_seen, ended_at, lost_at,
                         expires_at < clock_timestamp() AS expired, beat, lease_ms, state_id, pid_ns, start_time, version,
                         kinds, snapshot::text AS snapshot
                     FROM jobvisor.supervisors ORDER BY started_at DESC, term DESC",
                )
                .fetch_all(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    rows.iter().map(term_row).collect()
}

fn term_row(row: &PgRow) -> Result<TermRow, StoreError> {
    Ok(TermRow {
        term: term(row, "term")?,
        name: get(row, "name")?,
        host: get(row, "host")?,
        pid: count(row, "pid")?,
        boot_id: get(row, "boot_id")?,
        started_at: time(row, "started_at")?,
        last_seen: time(row, "last_seen")?,
        ended_at: time_or_none(row, "ended_at")?,
        lost_at: time_or_none(row, "lost_at")?,
        expired: get(row, "expired")?,
        beat: big_count(row, "beat")?,
        lease: Duration::from_millis(big_count(row, "lease_ms")?),
        identity: Identity {
            state_id: get(row, "state_id")?,
            pid_ns: big_count(row, "pid_ns")?,
            start_time: big_count(row, "start_time")?,
        },
        version: get(row, "version")?,
        kinds: get(row, "kinds")?,
        snapshot: get(row, "snapshot")?,
    })
}

pub(super) fn renewer(store: &PostgresStore) -> Box<dyn Renewer> {
    Box::new(PostgresRenewer { lane: store.conns.lane(), lease: USUAL_LEASE, stands: false, store: store.clone() })
}

/// Renews on a connection of its own, which is made when it is first used and by whom it is used.
#[derive(Debug)]
struct PostgresRenewer {
    store: PostgresStore,
    lane: Lane,
    lease: Duration,
    /// The lane has carried a call: no connection has to be made first.
    stands: bool,
}

impl PostgresRenewer {
    /// Makes a call within a fifth of the lease, or half of it where the server has to let us in first. One that takes longer
    /// goes on alone until its own limits end it; the next has another connection.
    async fn within<T>(
        &mut self,
        step: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let share = if self.stands { 5 } else { 2 };
        let limit = (self.lease / share).max(SHORTEST_LIMIT);
        if let Ok(done) = tokio::time::timeout(limit, call).await {
            self.stands = done.as_ref().err().is_none_or(|error| !error.is_unavailable());
            return done;
        }
        self.stands = false;
        self.lane = self.store.conns.lane();
        Err(too_slow(step))
    }

    async fn send(&mut self, term: Term, snapshot: Option<String>) -> Result<Renewed, StoreError> {
        const STEP: &str = "renew a term";
        let lane = self.lane.clone();
        let call = lane.run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query_scalar::<_, i64>(RENEW)
                    .bind(term.0)
                    .bind(snapshot)
                    .fetch_optional(conn)
                    .await
                    .map_err(|e| StoreError::sort(STEP, e))
            })
        });
        let Some(lease_ms) = self.within(STEP, call).await? else { return Ok(Renewed::Lost) };
        self.lease = Duration::from_millis(u64::try_from(lease_ms).unwrap_or_default());
        Ok(Renewed::Held)
    }
}

#[async_trait]
impl Renewer for PostgresRenewer {
    async fn begin_term(&mut self, supervisor: &NewTerm) -> Result<(), StoreError> {
        const STEP: &str = "begin a term";
        let (lane, new) = (self.lane.clone(), supervisor.clone());
        self.lease = new.lease;
        let call = lane.run(STEP, move |conn| Box::pin(async move { insert(conn, new, STEP).await }));
        self.within(STEP, call).await
    }

    async fn renew(&mut self, term: Term, snapshot: Option<&str>) -> Result<Renewed, StoreError> {
        match self.send(term, snapshot.map(str::to_owned)).await {
            // What it says of its attempts must not cost it the lease.
            Err(error) if snapshot.is_some() && !error.is_unavailable() => {
                tracing::warn!(%error, %term, "a term is renewed without word of what it runs");
                self.send(term, None).await
            }
            done => done,
        }
    }
}
