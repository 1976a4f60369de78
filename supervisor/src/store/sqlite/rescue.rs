//! Finding running rows that nobody works on. Ending them is `finish` under their old fence.
//!
//! The lock beside the file is the lease, so a term that is not among the living is over, whether it ended or not.

use std::collections::HashMap;

use super::row::{attempt, backoff, budget, cut, get, id, size, term, time, to_json};
use super::{SqliteStore, terms};
use crate::domain::ids::{AttemptNo, Fence, JobId, Term};
use crate::store::error::StoreError;
use crate::store::model::{Rescuable, TermRow};

/// Rows of a term that were claimed with a sequence below `below`.
pub(super) async fn own_rows(
    store: &SqliteStore,
    own: Term,
    below: u64,
) -> Result<Vec<(JobId, AttemptNo)>, StoreError> {
    let rows = sqlx::query(
        "SELECT id, attempt FROM jobs WHERE state = 'running' AND term = ?1 AND claim_seq < ?2 ORDER BY id",
    )
    .bind(own.to_string())
    .bind(cut(below))
    .fetch_all(&store.readers)
    .await
    .map_err(|e| StoreError::sort("read the rows of a term", e))?;
    rows.iter().map(|row| Ok((id(row)?, attempt(row)?))).collect()
}

/// Running rows of terms that are over.
pub(super) async fn rescuable(store: &SqliteStore, living: &[Term]) -> Result<Vec<Rescuable>, StoreError> {
    let living: Vec<String> = living.iter().map(Term::to_string).collect();
    let rows = sqlx::query(
        "SELECT id, attempt, term, kind, charged, max_attempts, interruptions, max_interruptions, backoff, memory,
             claimed_at, cancel_requested
         FROM jobs INDEXED BY jobs_running
         WHERE state = 'running' AND term NOT IN (SELECT value FROM json_each(?1))",
    )
    .bind(to_json(&living)?)
    .fetch_all(&store.readers)
    .await
    .map_err(|e| StoreError::sort("find attempts whose supervisor is gone", e))?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let known: HashMap<Term, TermRow> = terms::all(store).await?.into_iter().map(|row| (row.term, row)).collect();
    rows.iter()
        .map(|row| {
            let over = term(row, "term")?;
            Ok(Rescuable {
                fence: Fence { job: id(row)?, attempt: attempt(row)?, term: over },
                kind: get(row, "kind")?,
                budget: budget(row)?,
                backoff: backoff(row)?,
                memory: size(row, "memory")?.unwrap_or_default(),
                claimed_at: time(row, "claimed_at")?,
                term: known.get(&over).cloned(),
                cancel_requested: get(row, "cancel_requested")?,
            })
        })
        .collect()
}
