//! Kinds that nobody may claim for now.

use sqlx::sqlite::SqliteRow;

use super::SqliteStore;
use super::row::{get, time, to_json};
use crate::domain::clock;
use crate::domain::text::printable;
use crate::store::error::StoreError;
use crate::store::model::PausedKind;

pub(super) async fn pause(store: &SqliteStore, kinds: Vec<String>, by: &str) -> Result<(), StoreError> {
    const STEP: &str = "pause kinds";
    let (kinds, by) = (to_json(&kinds)?, printable(by.as_bytes()).into_owned());
    store
        .write(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO kinds (name, paused_at, paused_by) SELECT value, ?2, ?3 FROM json_each(?1) WHERE true
                     ON CONFLICT (name) DO NOTHING",
                )
                .bind(kinds)
                .bind(clock::now().as_microsecond())
                .bind(by)
                .execute(conn)
                .await
                .map(|_| ())
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

pub(super) async fn resume(store: &SqliteStore, kinds: Vec<String>) -> Result<Vec<String>, StoreError> {
    const STEP: &str = "resume kinds";
    let kinds = to_json(&kinds)?;
    store
        .write(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query_scalar("DELETE FROM kinds WHERE name IN (SELECT value FROM json_each(?1)) RETURNING name")
                    .bind(kinds)
                    .fetch_all(conn)
                    .await
                    .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

pub(super) async fn all(store: &SqliteStore) -> Result<Vec<PausedKind>, StoreError> {
    let rows = sqlx::query("SELECT name, paused_at, paused_by FROM kinds ORDER BY name")
        .fetch_all(&store.readers)
        .await
        .map_err(|e| StoreError::sort("read which kinds are paused", e))?;
    rows.iter().map(paused).collect()
}

fn paused(row: &SqliteRow) -> Result<PausedKind, StoreError> {
    Ok(PausedKind { kind: get(row, "name")?, since: time(row, "paused_at")?, by: get(row, "paused_by")? })
}
