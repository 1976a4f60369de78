//! Kinds that nobody may claim for now.

use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::row::{get, time};
use crate::store::error::StoreError;
use crate::store::model::PausedKind;
use crate::store::outcome::text;

pub(super) async fn pause(store: &PostgresStore, kinds: Vec<String>, by: &str) -> Result<(), StoreError> {
    const STEP: &str = "pause kinds";
    let (kinds, by) = (texts(&kinds), text(by));
    store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO jobvisor.kinds (name, paused_by)
                     SELECT DISTINCT k.name, $2 FROM unnest($1::text[]) AS k (name) ON CONFLICT (name) DO NOTHING",
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

/// Those who sleep are told: what was held back may be all that there is to do.
pub(super) async fn resume(store: &PostgresStore, kinds: Vec<String>) -> Result<Vec<String>, StoreError> {
    const STEP: &str = "resume kinds";
    let kinds = texts(&kinds);
    store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                let resumed: Option<Vec<String>> = sqlx::query_scalar(
                    "WITH r AS (DELETE FROM jobvisor.kinds WHERE name = ANY ($1::text[]) RETURNING name)
                     SELECT array_agg(name ORDER BY name), CASE WHEN count(*) > 0 THEN jobvisor.wake() END FROM r",
                )
                .bind(kinds)
                .fetch_one(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))?;
                Ok(resumed.unwrap_or_default())
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
                sqlx::query("SELECT name, paused_at, paused_by FROM jobvisor.kinds ORDER BY name COLLATE \"C\"")
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

fn texts(kinds: &[String]) -> Vec<String> {
    kinds.iter().map(|kind| text(kind)).collect()
}
