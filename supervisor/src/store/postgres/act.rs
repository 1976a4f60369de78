//! What people do to jobs: cancel and retry, by the functions that are there for everyone.

use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::deadlock::resolved;
use super::row::{attempt, get, id, id_list, state};
use crate::domain::ids::{JobId, Term};
use crate::store::error::StoreError;
use crate::store::model::{Acted, CancelRequest};
use crate::store::outcome::text;

const CANCEL: &str = "cancel jobs";
const RETRY: &str = "retry jobs";

pub(super) async fn cancel(
    store: &PostgresStore,
    ids: Vec<JobId>,
    by: &str,
) -> Result<Vec<(JobId, Acted)>, StoreError> {
    let (ids, by) = (id_list(ids), text(by));
    let rows = resolved(|| {
        let (ids, by) = (ids.clone(), by.clone());
        store.conns.run(CANCEL, move |conn| {
            let query = sqlx::query("SELECT job AS id, acted, state FROM jobvisor.cancel_many($1::bigint[], $2)");
            Box::pin(
                async move { query.bind(ids).bind(by).fetch_all(conn).await.map_err(|e| StoreError::sort(CANCEL, e)) },
            )
        })
    });
    rows.await?.iter().map(acted).collect()
}

pub(super) async fn retry(store: &PostgresStore, ids: Vec<JobId>) -> Result<Vec<(JobId, Acted)>, StoreError> {
    let ids = id_list(ids);
    let rows = resolved(|| {
        let ids = ids.clone();
        store.conns.run(RETRY, move |conn| {
            let query = sqlx::query("SELECT job AS id, acted, state FROM jobvisor.retry_many($1::bigint[])");
            Box::pin(async move { query.bind(ids).fetch_all(conn).await.map_err(|e| StoreError::sort(RETRY, e)) })
        })
    });
    rows.await?.iter().map(acted).collect()
}

fn acted(row: &PgRow) -> Result<(JobId, Acted), StoreError> {
    let acted = match get(row, "acted")? {
        "done" => Acted::Done,
        "requested" => Acted::Requested,
        "refused" => Acted::Refused(state(row)?),
        "missing" => Acted::Missing,
        other => return Err(StoreError::corrupt(format!("acted is `{other}`"))),
    };
    Ok((id(row)?, acted))
}

pub(super) async fn cancel_requests(store: &PostgresStore, term: Term) -> Result<Vec<CancelRequest>, StoreError> {
    const STEP: &str = "read what is to be cancelled";
    let rows = store
        .conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "SELECT id, attempt, coalesce(cancel_by, '') AS cancel_by FROM jobvisor.jobs
                     WHERE state = 'running' AND term = $1 AND cancel_requested ORDER BY id",
                )
                .bind(term.0)
                .fetch_all(conn)
                .await
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await?;
    rows.iter()
        .map(|row| Ok(CancelRequest { job: id(row)?, attempt: attempt(row)?, by: get(row, "cancel_by")? }))
        .collect()
}
