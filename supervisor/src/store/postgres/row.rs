//! Between rows and the words of the domain. A stored value that no writer of ours makes is [`StoreError::Corrupt`].
//!
//! JSON columns are of type `json`, which keeps a document as it was written, and are read and written as text: `payload::text`.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use sqlx::postgres::PgRow;
use sqlx::{Decode, Postgres, Row, Type};
use uuid::Uuid;

use crate::domain::ids::{AttemptNo, JobId, Term};
use crate::domain::job::{Budget, Job, JobState};
use crate::domain::retry::Backoff;
use crate::domain::units::Bytes;
use crate::store::error::StoreError;
pub(super) use crate::store::outcome::to_json;

/// The columns that [`job`] reads.
macro_rules! job_columns {
    () => {
        "id, kind, state, priority, tenant, payload::text AS payload, result::text AS result, attempt, charged, \
         max_attempts, interruptions, max_interruptions, memory, cause, unique_key, schedule, cancel_requested, \
         created_at, run_at, claimed_at, finished_at, peak"
    };
}
pub(super) use job_columns;

/// A column of a row.
pub(super) fn get<'r, T: Decode<'r, Postgres> + Type<Postgres>>(row: &'r PgRow, column: &str) -> Result<T, StoreError> {
    row.try_get(column).map_err(|e| StoreError::sort("read a column", e))
}

/// A text column that holds a word with `FromStr`.
pub(super) fn word<T: std::str::FromStr<Err: std::fmt::Display>>(row: &PgRow, column: &str) -> Result<T, StoreError> {
    let text: &str = get(row, column)?;
    text.parse().map_err(|e| StoreError::corrupt(format!("{column}: {e}")))
}

/// The same, where there may be none.
pub(super) fn word_or_none<T: std::str::FromStr<Err: std::fmt::Display>>(
    row: &PgRow,
    column: &str,
) -> Result<Option<T>, StoreError> {
    let text: Option<&str> = get(row, column)?;
    text.map(|text| text.parse().map_err(|e| StoreError::corrupt(format!("{column}: {e}")))).transpose()
}

/// An `integer` column that holds a count.
pub(super) fn count<T: TryFrom<i32>>(row: &PgRow, column: &str) -> Result<T, StoreError> {
    let number: i32 = get(row, column)?;
    T::try_from(number).map_err(|_| StoreError::corrupt(format!("{column} is {number}")))
}

/// A `bigint` column that holds a count.
pub(super) fn big_count(row: &PgRow, column: &str) -> Result<u64, StoreError> {
    let number: i64 = get(row, column)?;
    u64::try_from(number).map_err(|_| StoreError::corrupt(format!("{column} is {number}")))
}

/// A `bigint` column that holds a size.
pub(super) fn size(row: &PgRow, column: &str) -> Result<Option<Bytes>, StoreError> {
    Ok(get::<Option<i64>>(row, column)?.map(Bytes::from_i64))
}

/// A column that holds a time.
pub(super) fn time(row: &PgRow, column: &str) -> Result<Timestamp, StoreError> {
    Ok(get::<jiff_sqlx::Timestamp>(row, column)?.to_jiff())
}

/// The same, where there may be none.
pub(super) fn time_or_none(row: &PgRow, column: &str) -> Result<Option<Timestamp>, StoreError> {
    Ok(get::<Option<jiff_sqlx::Timestamp>>(row, column)?.map(jiff_sqlx::Timestamp::to_jiff))
}

/// The earliest time that the server knows is some days before this, in seconds: in November of 4714 BC.
const EARLIEST: i64 = -210_866_000_000;

/// A time as the driver takes it; what lies before all that the server knows is that.
pub(super) fn sql_time(time: Timestamp) -> jiff_sqlx::Timestamp {
    Timestamp::from_second(EARLIEST).map_or(time, |earliest| time.max(earliest)).to_sqlx()
}

/// A column, read as text, that holds JSON of a type of ours.
pub(super) fn json_or_none<T: serde::de::DeserializeOwned>(row: &PgRow, column: &str) -> Result<Option<T>, StoreError> {
    let text: Option<&str> = get(row, column)?;
    text.map(|text| serde_json::from_str(text).map_err(|e| StoreError::corrupt(format!("{column}: {e}")))).transpose()
}

/// Ids as the driver takes them.
pub(super) fn id_list(ids: impl IntoIterator<Item = JobId>) -> Vec<i64> {
    ids.into_iter().map(|id| id.0).collect()
}

/// A number that a `bigint` can hold; what is beyond is cut.
pub(super) fn cut(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number that an `integer` can hold; what is beyond is cut.
pub(super) fn cut_int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(super) fn id(row: &PgRow) -> Result<JobId, StoreError> {
    get(row, "id").map(JobId)
}

pub(super) fn attempt(row: &PgRow) -> Result<AttemptNo, StoreError> {
    count(row, "attempt").map(AttemptNo)
}

pub(super) fn term(row: &PgRow, column: &str) -> Result<Term, StoreError> {
    get::<Uuid>(row, column).map(Term)
}

pub(super) fn state(row: &PgRow) -> Result<JobState, StoreError> {
    word(row, "state")
}

pub(super) fn budget(row: &PgRow) -> Result<Budget, StoreError> {
    Ok(Budget {
        charged: count(row, "charged")?,
        max_attempts: count(row, "max_attempts")?,
        interruptions: count(row, "interruptions")?,
        max_interruptions: count(row, "max_interruptions")?,
    })
}

/// `backoff`, read as text.
pub(super) fn backoff(row: &PgRow) -> Result<Backoff, StoreError> {
    Ok(json_or_none(row, "backoff")?.unwrap_or_default())
}

pub(super) fn job(row: &PgRow) -> Result<Job, StoreError> {
    Ok(Job {
        id: id(row)?,
        kind: get(row, "kind")?,
        state: state(row)?,
        priority: get(row, "priority")?,
        tenant: get(row, "tenant")?,
        payload: get(row, "payload")?,
        result: get(row, "result")?,
        attempt: attempt(row)?,
        budget: budget(row)?,
        memory: size(row, "memory")?,
        cause: word_or_none(row, "cause")?,
        unique_key: get(row, "unique_key")?,
        schedule: get(row, "schedule")?,
        cancel_requested: get(row, "cancel_requested")?,
        created_at: time(row, "created_at")?,
        run_at: time(row, "run_at")?,
        claimed_at: time_or_none(row, "claimed_at")?,
        finished_at: time_or_none(row, "finished_at")?,
        peak: size(row, "peak")?,
    })
}
