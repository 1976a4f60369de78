//! Adding jobs.

use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::SqliteStore;
use super::row::to_json;
use crate::domain::clock;
use crate::domain::ids::JobId;
use crate::domain::job::JobState;
use crate::store::error::StoreError;
use crate::store::model::{Enqueued, NewJob};

const STEP: &str = "add jobs";

/// What `jobs.toml` says where it says nothing; a claim refreshes it.
const MAX_ATTEMPTS: u32 = 3;
/// The same for interruptions.
const MAX_INTERRUPTIONS: u32 = 5;

pub(super) async fn enqueue(store: &SqliteStore, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    store
        .write(STEP, move |conn| {
            Box::pin(async move {
                let now = clock::now();
                let mut added = Vec::with_capacity(jobs.len());
                for job in &jobs {
                    added.push(match holder(conn, job).await? {
                        Some(id) => Enqueued::Exists(id),
                        None => Enqueued::New(add(conn, job, now).await?),
                    });
                }
                Ok(added)
            })
        })
        .await
}

/// The unfinished job that holds the key.
async fn holder(conn: &mut SqliteConnection, job: &NewJob) -> Result<Option<JobId>, StoreError> {
    let Some(key) = &job.unique_key else { return Ok(None) };
    sqlx::query_scalar("SELECT id FROM jobs WHERE kind = ?1 AND unique_key = ?2 AND finished_at IS NULL")
        .bind(&job.kind)
        .bind(key)
        .fetch_optional(conn)
        .await
        .map(|id| id.map(JobId))
        .map_err(|e| StoreError::sort(STEP, e))
}

async fn add(conn: &mut SqliteConnection, job: &NewJob, now: Timestamp) -> Result<JobId, StoreError> {
    let state = first_state(conn, job, now).await?;
    let id = insert(conn, job, state, now).await?;
    for parent in &job.after {
        sqlx::query("INSERT OR IGNORE INTO dependencies (job, parent) VALUES (?1, ?2)")
            .bind(id.0)
            .bind(parent.0)
            .execute(&mut *conn)
            .await
            .map_err(|e| StoreError::sort(STEP, e))?;
    }
    if let Some(schedule) = &job.schedule {
        sqlx::query(
            "INSERT INTO schedules (name, last_job) VALUES (?1, ?2)
             ON CONFLICT (name) DO UPDATE SET last_job = excluded.last_job",
        )
        .bind(schedule)
        .bind(id.0)
        .execute(conn)
        .await
        .map_err(|e| StoreError::sort(STEP, e))?;
    }
    Ok(id)
}

/// A job that comes after one that has ended without success is cancelled as it is added, as it would be later.
async fn first_state(conn: &mut SqliteConnection, job: &NewJob, now: Timestamp) -> Result<JobState, StoreError> {
    let mut waits = false;
    for parent in &job.after {
        let row = sqlx::query("SELECT state FROM jobs WHERE id = ?1")
            .bind(parent.0)
            .fetch_optional(&mut *conn)
            .await
            .map_err(|e| StoreError::sort(STEP, e))?
            .ok_or(StoreError::NoSuchJob(parent.0))?;
        match super::row::state(&row)? {
            JobState::Succeeded => {}
            JobState::Cancelled | JobState::Dead => return Ok(JobState::Cancelled),
            JobState::Waiting | JobState::Scheduled | JobState::Queued | JobState::Running => waits = true,
        }
    }
    Ok(match job.run_at {
        _ if waits => JobState::Waiting,
        Some(at) if at > now => JobState::Scheduled,
        Some(_) | None => JobState::Queued,
    })
}

async fn insert(
    conn: &mut SqliteConnection,
    job: &NewJob,
    state: JobState,
    now: Timestamp,
) -> Result<JobId, StoreError> {
    let policy = job.policy.as_ref();
    let max_attempts = job.max_attempts.or_else(|| policy.map(|p| p.max_attempts.max(1))).unwrap_or(MAX_ATTEMPTS);
    let memory = job.memory.or_else(|| policy.map(|p| p.memory));
    sqlx::query(
        "INSERT INTO jobs (kind, state, priority, tenant, payload, unique_key, schedule, own_max_attempts, own_memory,
             max_attempts, max_interruptions, memory, backoff, created_at, run_at, finished_at, cancel_by)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17) RETURNING id",
    )
    .bind(&job.kind)
    .bind(state.code())
    .bind(job.priority)
    .bind(&job.tenant)
    .bind(&job.payload)
    .bind(job.unique_key.as_deref())
    .bind(job.schedule.as_deref())
    .bind(job.max_attempts.map(i64::from))
    .bind(job.memory.map(|m| m.as_i64()))
    .bind(i64::from(max_attempts))
    .bind(i64::from(policy.map_or(MAX_INTERRUPTIONS, |p| p.max_interruptions)))
    .bind(memory.map(|m| m.as_i64()))
    .bind(policy.map(|p| to_json(&p.backoff)).transpose()?)
    .bind(now.as_microsecond())
    .bind(job.run_at.unwrap_or(now).as_microsecond())
    .bind(state.is_final().then(|| now.as_microsecond()))
    .bind(state.is_final().then_some("a job that it came after"))
    .fetch_one(conn)
    .await
    .and_then(|row| row.try_get("id"))
    .map(JobId)
    .map_err(|e| StoreError::sort(STEP, e))
}
