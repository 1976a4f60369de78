//! Adding jobs.
//!
//! A batch is one statement: jobs that need nothing but a row go in by one `INSERT` over arrays; one with a unique key, a
//! schedule or jobs before it sends its whole batch through `jobvisor.add_job`, row by row. Either ends with
//! `jobvisor.wake()`, which must come after the rows: see there.

use std::sync::Arc;

use sqlx::Postgres;
use sqlx::Row;
use sqlx::postgres::{PgArguments, PgConnection, PgDatabaseError, PgRow};
use sqlx::query::Query;

use super::PostgresStore;
use super::deadlock::resolved;
use super::row::{cut_int, sql_time, to_json};
use crate::domain::ids::JobId;
use crate::store::error::StoreError;
use crate::store::model::{Enqueued, NewJob};
use crate::store::outcome::text;

const STEP: &str = "add jobs";

/// The code under which `jobvisor.first_state` says that a job does not exist.
const NO_SUCH_JOB: &str = "JV404";

/// All that is bound: one array a column.
macro_rules! arrays {
    () => {
        "unnest($1::text[], $2::text[], $3::int[], $4::timestamptz[], $5::text[], $6::int[], $7::bigint[], $8::int[], \
         $9::int[], $10::bigint[], $11::text[]"
    };
}

/// `unnest` gives its rows in order and a session's numbers grow, so the sorted ids are those of the jobs in order.
const PLAIN: &str = concat!(
    "WITH new AS (INSERT INTO jobvisor.jobs (kind, state, payload, priority, run_at, tenant, own_max_attempts, own_memory,
             max_attempts, max_interruptions, memory, backoff)
         SELECT kind, CASE WHEN run_at > now() THEN 'scheduled' ELSE 'queued' END, payload::json, priority,
             coalesce(run_at, now()), tenant, own_max_attempts, own_memory, coalesce(own_max_attempts, max_attempts, 3),
             coalesce(max_interruptions, 5), coalesce(own_memory, memory), backoff::json
         FROM ",
    arrays!(),
    ") AS o (kind, payload, priority, run_at, tenant, own_max_attempts, own_memory, max_attempts, max_interruptions,
             memory, backoff)
         RETURNING id)
     SELECT array_agg(id ORDER BY id) AS ids, NULL::boolean[] AS added, jobvisor.wake() FROM new"
);

/// Numbers in the order of the jobs, keys taken in an order of their own: two batches with the same keys do not wait for each
/// other, whatever the order of their jobs.
const CAREFUL: &str = concat!(
    "WITH o AS MATERIALIZED (
         SELECT o.*, nextval('jobvisor.jobs_id_seq') AS new_id
         FROM ",
    arrays!(),
    ", $12::text[], $13::text[], $14::text[]) WITH ORDINALITY AS o (kind, payload, priority, run_at, tenant,
             own_max_attempts, own_memory, max_attempts, max_interruptions, memory, backoff, unique_key, after, schedule, ord)),
     sorted AS MATERIALIZED (SELECT * FROM o ORDER BY kind, unique_key, ord)
     SELECT array_agg(a.id ORDER BY o.ord) AS ids, array_agg(a.added ORDER BY o.ord) AS added, jobvisor.wake()
     FROM sorted o
         CROSS JOIN LATERAL jobvisor.add_job(o.new_id, o.kind, o.payload::json, o.priority, o.run_at, o.tenant, o.unique_key,
             o.after::bigint[], o.schedule, o.own_max_attempts, o.own_memory, o.max_attempts, o.max_interruptions, o.memory,
             o.backoff::json) a"
);

pub(super) async fn enqueue(store: &PostgresStore, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let jobs: Arc<[NewJob]> = Arc::from(jobs);
    resolved(|| {
        let jobs = Arc::clone(&jobs);
        store.conns.run(STEP, move |conn| Box::pin(async move { add(conn, &jobs).await }))
    })
    .await
}

async fn add(conn: &mut PgConnection, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
    let row = if jobs.iter().all(is_plain) {
        bind(PLAIN, jobs)?.fetch_one(conn).await
    } else {
        bind(CAREFUL, jobs)?
            .bind(column(jobs, |job| job.unique_key.as_deref().map(text)))
            .bind(column(jobs, |job| after(&job.after)))
            .bind(column(jobs, |job| job.schedule.clone()))
            .fetch_one(conn)
            .await
    };
    answers(&row.map_err(sort)?, jobs.len())
}

/// Whether a row is all that it needs.
const fn is_plain(job: &NewJob) -> bool {
    job.unique_key.is_none() && job.schedule.is_none() && job.after.is_empty()
}

fn bind(sql: &'static str, jobs: &[NewJob]) -> Result<Query<'static, Postgres, PgArguments>, StoreError> {
    let backoff: Result<Vec<_>, _> =
        jobs.iter().map(|job| job.policy.map(|p| to_json(&p.backoff)).transpose()).collect();
    Ok(sqlx::query(sql)
        .bind(column(jobs, |job| text(&job.kind)))
        .bind(column(jobs, |job| job.payload.clone()))
        .bind(column(jobs, |job| job.priority))
        .bind(column(jobs, |job| job.run_at.map(sql_time)))
        .bind(column(jobs, |job| text(&job.tenant)))
        .bind(column(jobs, |job| job.max_attempts.map(cut_int)))
        .bind(column(jobs, |job| job.memory.map(|memory| memory.as_i64())))
        .bind(column(jobs, |job| job.policy.map(|p| cut_int(p.max_attempts.max(1)))))
        .bind(column(jobs, |job| job.policy.map(|p| cut_int(p.max_interruptions))))
        .bind(column(jobs, |job| job.policy.map(|p| p.memory.as_i64())))
        .bind(backoff?))
}

fn column<T>(jobs: &[NewJob], value: impl Fn(&NewJob) -> T) -> Vec<T> {
    jobs.iter().map(value).collect()
}

/// Ids as the text of an array, since an array of arrays has rows of one length only.
fn after(ids: &[JobId]) -> String {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    format!("{{{}}}", ids.join(","))
}

fn answers(row: &PgRow, expected: usize) -> Result<Vec<Enqueued>, StoreError> {
    let ids: Vec<i64> = row.try_get("ids").map_err(sort)?;
    let added: Option<Vec<bool>> = row.try_get("added").map_err(sort)?;
    if ids.len() != expected || added.as_ref().is_some_and(|added| added.len() != expected) {
        return Err(StoreError::corrupt(format!("{} ids for {expected} jobs", ids.len())));
    }
    let Some(added) = added else { return Ok(ids.into_iter().map(|id| Enqueued::New(JobId(id))).collect()) };
    let known = |(id, added)| if added { Enqueued::New(JobId(id)) } else { Enqueued::Exists(JobId(id)) };
    Ok(ids.into_iter().zip(added).map(known).collect())
}

fn sort(error: sqlx::Error) -> StoreError {
    let named = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
        .filter(|error| error.code() == NO_SUCH_JOB)
        .and_then(|error| error.detail()?.parse().ok());
    named.map_or_else(|| StoreError::sort(STEP, error), StoreError::NoSuchJob)
}
