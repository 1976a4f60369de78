//! Terms of supervisors: leases that the server's clock ends (I6).
//!
//! A renewal moves `expires_at` and `beat` together; declaring a term lost compares the beat that was seen. Both lock the row,
//! so exactly one of the two happens, also to a lease that has run out already.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnection, PgRow};

use super::PostgresStore;
use super::conn::{Lane, Work};
use super::row::{big_count, cut, get, term, time, time_or_none};
use crate::domain::ids::Term;
use crate::store::Renewer;
use crate::store::error::StoreError;
use crate::store::model::{Identity, LossProof, NewTerm, Renewed, TermRow};

const BEGIN: &str = "begin a term";

/// The columns that [`term_row`] reads.
macro_rules! term_columns {
    () => {
        "s.term, s.name, s.host, s.pid, s.boot_id, s.started_at, s.last_seen, s.ended_at, s.lost_at, \
         s.expires_at < clock_timestamp() AS expired, s.beat, s.lease_ms, s.state_id, s.pid_ns, s.start_time, s.version, \
         s.kinds, s.snapshot::text AS snapshot"
    };
}

/// Registers a term; one that is there already (a reply was lost) stays as it is.
pub(super) async fn begin(store: &PostgresStore, new: NewTerm) -> Result<(), StoreError> {
    store.conns.run(BEGIN, move |conn| insert(conn, new)).await
}

fn insert(conn: &mut PgConnection, new: NewTerm) -> Work<'_, ()> {
    Box::pin(async move {
        let lease = i64::try_from(new.lease.as_millis()).unwrap_or(i64::MAX);
        sqlx::query(
            "INSERT INTO jobvisor.supervisors (term, name, host, pid, boot_id, lease_ms, expires_at, state_id, pid_ns,
                 start_time, version, kinds)
             VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp() + $6 * interval '1 ms', $7, $8, $9, $10, $11)
             ON CONFLICT (term) DO NOTHING",
        )
        .bind(new.term.0)
        .bind(new.name)
        .bind(new.host)
        .bind(new.pid)
        .bind(new.boot_id)
        .bind(lease)
        .bind(new.identity.state_id)
        .bind(cut(new.identity.pid_ns))
        .bind(cut(new.identity.start_time))
        .bind(new.version)
        .bind(new.kinds)
        .execute(conn)
        .await
        .map(|_| ())
        .map_err(|e| StoreError::sort(BEGIN, e))
    })
}

/// What renews terms, on a connection of its own.
pub(super) fn renewer(store: &PostgresStore) -> Box<dyn Renewer> {
    Box::new(PostgresRenewer { lane: store.conns.lane() })
}

#[derive(Debug)]
struct PostgresRenewer {
    lane: Lane,
}

#[async_trait]
impl Renewer for PostgresRenewer {
    async fn begin_term(&mut self, supervisor: &NewTerm) -> Result<(), StoreError> {
        let new = supervisor.clone();
        self.lane.run(BEGIN, move |conn| insert(conn, new)).await
    }

    async fn renew(&mut self, term: Term, snapshot: Option<&str>) -> Result<Renewed, StoreError> {
        const STEP: &str = "renew the lease";
        let snapshot = snapshot.map(str::to_owned);
        let renewed = self
            .lane
            .run(STEP, move |conn| {
                Box::pin(async move {
                    sqlx::query(
                        "UPDATE jobvisor.supervisors SET beat = beat + 1, last_seen = clock_timestamp(),
                             expires_at = clock_timestamp() + lease_ms * interval '1 ms', snapshot = $2::json
                         WHERE term = $1 AND lost_at IS NULL AND ended_at IS NULL",
                    )
                    .bind(term.0)
                    .bind(snapshot)
                    .execute(conn)
                    .await
                    .map_err(|e| StoreError::sort(STEP, e))
                })
            })
            .await?;
        Ok(if renewed.rows_affected() == 0 { Renewed::Lost } else { Renewed::Held })
    }
}

/// Ends a term in good order.
pub(super) async fn end(store: &PostgresStore, term: Term) -> Result<(), StoreError> {
    const STEP: &str = "end a term";
    store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "UPDATE jobvisor.supervisors SET last_seen = now(), ended_at = now(), sleeping = false
                     WHERE term = $1 AND ended_at IS NULL AND lost_at IS NULL",
                )
                .bind(term.0)
                .execute(conn)
                .await
                .map(|_| ())
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

pub(super) async fn declare_lost(
    store: &PostgresStore,
    term: Term,
    beat: u64,
    proof: LossProof,
) -> Result<bool, StoreError> {
    const STEP: &str = "declare a term lost";
    let at_once = proof == LossProof::ProcessGone;
    store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                let declared = sqlx::query(
                    "UPDATE jobvisor.supervisors SET lost_at = now(), sleeping = false
                     WHERE term = $1 AND beat = $2 AND lost_at IS NULL AND ended_at IS NULL
                         AND ($3 OR expires_at < clock_timestamp())",
                )
                .bind(term.0)
                .bind(cut(beat))
                .bind(at_once)
                .execute(&mut *conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))?;
                if declared.rows_affected() > 0 {
                    return Ok(true);
                }
                sqlx::query_scalar(
                    "SELECT EXISTS (SELECT FROM jobvisor.supervisors WHERE term = $1 AND lost_at IS NOT NULL)",
                )
                .bind(term.0)
                .fetch_one(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
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
                sqlx::query(concat!(
                    "SELECT ",
                    term_columns!(),
                    " FROM jobvisor.supervisors s ORDER BY s.started_at DESC, s.term DESC"
                ))
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
        pid: get(row, "pid")?,
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
