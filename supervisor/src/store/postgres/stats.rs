//! How long what is queued has been due.

use jiff::Timestamp;
use sqlx::Row;

use super::PostgresStore;
use crate::store::error::StoreError;

pub(super) async fn oldest_queued(store: &PostgresStore) -> Result<Vec<(String, Timestamp)>, StoreError> {
    const STEP: &str = "look for the oldest queued jobs";
    let rows = store
        .conns
        .run(STEP, |conn| {
            Box::pin(async move {
                sqlx::query(
                    "SELECT kind, (extract(epoch FROM min(run_at)) * 1000000)::bigint AS due FROM jobvisor.jobs
                     WHERE state = 'queued' GROUP BY kind ORDER BY kind",
                )
                .fetch_all(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    rows.iter()
        .map(|row| {
            let kind = row.try_get("kind").map_err(|e| StoreError::sort(STEP, e))?;
            let due: i64 = row.try_get("due").map_err(|e| StoreError::sort(STEP, e))?;
            let due = Timestamp::from_microsecond(due).map_err(|_| StoreError::corrupt(format!("run_at is {due}")))?;
            Ok((kind, due))
        })
        .collect()
}
