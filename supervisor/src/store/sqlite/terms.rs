//! Terms of supervisors: who began, who was last seen when, who ended in good order.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;

use super::SqliteStore;
use super::row::{count, cut, get, json_or_none, term, time, time_or_none, to_json};
use crate::domain::clock;
use crate::domain::ids::Term;
use crate::store::Renewer;
use crate::store::error::StoreError;
use crate::store::model::{Identity, NewTerm, Renewed, TermRow};

/// Registers a term; one that is there already (a reply was lost) stays as it is.
pub(super) async fn begin(store: &SqliteStore, new: NewTerm) -> Result<(), StoreError> {
    const STEP: &str = "begin a term";
    let kinds = to_json(&new.kinds)?;
    store
        .write(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO supervisors (term, name, host, pid, boot_id, started_at, last_seen, lease_ms, state_id,
                         pid_ns, start_time, version, kinds)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT (term) DO NOTHING",
                )
                .bind(new.term.to_string())
                .bind(new.name)
                .bind(new.host)
                .bind(new.pid)
                .bind(new.boot_id)
                .bind(clock::now().as_microsecond())
                .bind(i64::try_from(new.lease.as_millis()).unwrap_or(i64::MAX))
                .bind(new.identity.state_id)
                .bind(cut(new.identity.pid_ns))
                .bind(cut(new.identity.start_time))
                .bind(new.version)
                .bind(kinds)
                .execute(conn)
                .await
                .map(|_| ())
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

/// Notes a sign of life; a term that has ended stays ended.
async fn renew(store: &SqliteStore, term: Term, snapshot: Option<String>) -> Result<Renewed, StoreError> {
    const STEP: &str = "note a sign of life";
    store
        .write(STEP, move |conn| {
            Box::pin(async move {
                let renewed = sqlx::query(
                    "UPDATE supervisors SET last_seen = ?2, beat = beat + 1, snapshot = ?3
                     WHERE term = ?1 AND ended_at IS NULL AND lost_at IS NULL",
                )
                .bind(term.to_string())
                .bind(clock::now().as_microsecond())
                .bind(snapshot)
                .execute(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))?;
                Ok(if renewed.rows_affected() == 0 { Renewed::Lost } else { Renewed::Held })
            })
        })
        .await
}

/// Renews on the writer: the lock is the lease, so nothing depends on its being prompt.
#[derive(Debug)]
pub(super) struct SqliteRenewer(pub(super) SqliteStore);

#[async_trait]
impl Renewer for SqliteRenewer {
    async fn begin_term(&mut self, supervisor: &NewTerm) -> Result<(), StoreError> {
        begin(&self.0, supervisor.clone()).await
    }

    async fn renew(&mut self, term: Term, snapshot: Option<&str>) -> Result<Renewed, StoreError> {
        renew(&self.0, term, snapshot.map(str::to_owned)).await
    }
}

/// Ends a term in good order.
pub(super) async fn end(store: &SqliteStore, term: Term) -> Result<(), StoreError> {
    const STEP: &str = "end a term";
    let sql = "UPDATE supervisors SET last_seen = ?2, ended_at = ?2
         WHERE term = ?1 AND ended_at IS NULL AND lost_at IS NULL";
    store
        .write(STEP, move |conn| {
            Box::pin(async move {
                let query = sqlx::query(sql).bind(term.to_string()).bind(clock::now().as_microsecond());
                query.execute(conn).await.map(|_| ()).map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

/// Declares a term lost. Whoever holds the lock knows that every other term is.
pub(super) async fn declare_lost(store: &SqliteStore, term: Term, beat: u64) -> Result<bool, StoreError> {
    const STEP: &str = "declare a term lost";
    store
        .write(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "UPDATE supervisors SET lost_at = ?3
                     WHERE term = ?1 AND beat = ?2 AND ended_at IS NULL AND lost_at IS NULL",
                )
                .bind(term.to_string())
                .bind(cut(beat))
                .bind(clock::now().as_microsecond())
                .execute(&mut *conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))?;
                sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM supervisors WHERE term = ?1 AND lost_at IS NOT NULL)")
                    .bind(term.to_string())
                    .fetch_one(conn)
                    .await
                    .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

/// All terms on record, newest first.
pub(super) async fn all(store: &SqliteStore) -> Result<Vec<TermRow>, StoreError> {
    let rows = sqlx::query(
        "SELECT term, name, host, pid, boot_id, started_at, last_seen, ended_at, lost_at, beat, lease_ms, state_id,
             pid_ns, start_time, version, kinds, snapshot
         FROM supervisors ORDER BY started_at DESC, term DESC",
    )
    .fetch_all(&store.readers)
    .await
    .map_err(|e| StoreError::sort("read the terms", e))?;
    rows.iter().map(term_row).collect()
}

fn term_row(row: &SqliteRow) -> Result<TermRow, StoreError> {
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
        expired: false,
        beat: count(row, "beat")?,
        lease: Duration::from_millis(count(row, "lease_ms")?),
        identity: Identity {
            state_id: get(row, "state_id")?,
            pid_ns: count(row, "pid_ns")?,
            start_time: count(row, "start_time")?,
        },
        version: get(row, "version")?,
        kinds: json_or_none(row, "kinds")?.unwrap_or_default(),
        snapshot: get(row, "snapshot")?,
    })
}
