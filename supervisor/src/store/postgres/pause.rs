//! Kinds that nobody may claim for now.

use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::row::{get, time};
use crate::domain::text::printable;
use crate::store::error::StoreError;
use crate::store::model::PausedKind;

pub(super) async fn pause(store: &PostgresStore, kinds: Vec<String>, by: &str) -> Result<(), StoreError> {
    const STEP: &str = "pause kinds";
    let by = printable(by.as_bytes()).into_owned();
    store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO jobvisor.kinds (name, paused_by) SELECT DISTINCT k, $2 FROM unnest($1::text[]) k
                     ON CONFLICT (name) DO NOTHING",
                )
                .bind(kinds)
                .bind(by)
                .execute(conn)
                .await
                .map(|_| ())
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

/// Whoever sleeps because the kind was paused is woken.
pub(super) async fn resume(store: &PostgresStore, kinds: Vec<String>) -> Result<Vec<String>, StoreError> {
    const STEP: &str = "resume kinds";
    store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query_scalar(
                    "WITH gone AS (DELETE FROM jobvisor.kinds WHERE name = ANY($1) RETURNING name),
                         told AS MATERIALIZED (SELECT pg_notify('jobvisor', '') FROM gone LIMIT 1)
                     SELECT name FROM gone LEFT JOIN told ON true ORDER BY name",
                )
                .bind(kinds)
                .fetch_all(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

pub(super) async fn all(store: &PostgresStore) -> Result<Vec<PausedKind>, StoreError> {
    const STEP: &str = "read which kinds are paused";
    let rows = store
        .conns
        .run(STEP, |conn| {
            Box::pin(async move {
                sqlx::query("SELECT name, paused_at, paused_by FROM jobvisor.kinds ORDER BY name")
                    .fetch_all(conn)
                    .await
                    .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    rows.iter().map(paused).collect()
}

fn paused(row: &PgRow) -> Result<PausedKind, StoreError> {
    Ok(PausedKind { kind: get(row, "name")?, since: time(row, "paused_at")?, by: get(row, "paused_by")? })
}
