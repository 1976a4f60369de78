//! What follows for the jobs that come after others (`after`), in the transaction that ends those others.

use jiff::Timestamp;
use sqlx::sqlite::SqliteConnection;

use super::row::id_list;
use crate::domain::ids::JobId;
use crate::store::error::StoreError;

/// Lets go on what waited for `parents`, which have succeeded, and for nothing else.
pub(super) async fn succeeded(
    conn: &mut SqliteConnection,
    parents: &[JobId],
    now: Timestamp,
) -> Result<(), StoreError> {
    if parents.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "UPDATE jobs SET state = CASE WHEN run_at > ?2 THEN 'scheduled' ELSE 'queued' END
         WHERE state = 'waiting'
           AND id IN (SELECT d.job FROM json_each(?1) e JOIN dependencies d ON d.parent = e.value)
           AND NOT EXISTS (SELECT 1 FROM dependencies d JOIN jobs p ON p.id = d.parent
                           WHERE d.job = jobs.id AND p.state <> 'succeeded')",
    )
    .bind(id_list(parents.iter().copied()))
    .bind(now.as_microsecond())
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(|e| StoreError::sort("let jobs go on that came after others", e))
}

/// Cancels what waited for `parents`, which have ended without success, and what waited for that in turn.
pub(super) async fn failed(conn: &mut SqliteConnection, parents: &[JobId], now: Timestamp) -> Result<(), StoreError> {
    if parents.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "WITH RECURSIVE lost (id) AS (
             SELECT j.id FROM json_each(?1) e JOIN dependencies d ON d.parent = e.value
                 JOIN jobs j ON j.id = d.job AND j.state = 'waiting'
             UNION
             SELECT j.id FROM lost JOIN dependencies d ON d.parent = lost.id JOIN jobs j ON j.id = d.job AND j.state = 'waiting')
         UPDATE jobs SET state = 'cancelled', finished_at = ?2, cancel_by = 'a job that it came after'
         WHERE id IN (SELECT id FROM lost)",
    )
    .bind(id_list(parents.iter().copied()))
    .bind(now.as_microsecond())
    .execute(conn)
    .await
    .map(|_| ())
    .map_err(|e| StoreError::sort("cancel jobs that came after others", e))
}
