//! Between rows and the words of the domain. A stored value that no writer of ours makes is [`StoreError::Corrupt`].

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row, Sqlite, Type};

use crate::domain::ids::{AttemptNo, JobId, Term};
use crate::domain::job::{Budget, Job, JobState};
use crate::domain::retry::Backoff;
use crate::domain::units::Bytes;
use crate::store::error::StoreError;
pub(super) use crate::store::outcome::to_json;

/// The columns that [`job`] reads.
macro_rules! job_columns {
    () => {
        "id, kind, state, priority, tenant, payload, result, attempt, charged, max_attempts, interruptions, \
         max_interruptions, memory, cause, unique_key, schedule, cancel_requested, created_at, run_at, claimed_at, \
         finished_at, peak"
    };
}
pub(super) use job_columns;

/// A column of a row.
pub(super) fn get<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(row: &'r SqliteRow, column: &str) -> Result<T, StoreError> {
    row.try_get(column).map_err(|e| StoreError::sort("read a column", e))
}

/// A column that holds a word with `FromStr`.
pub(super) fn word<T: std::str::FromStr<Err: std::fmt::Display>>(
    row: &SqliteRow,
    column: &str,
) -> Result<T, StoreError> {
    let text: &str = get(row, column)?;
    text.parse().map_err(|e| StoreError::corrupt(format!("{column}: {e}")))
}

/// The same, where there may be none.
pub(super) fn word_or_none<T: std::str::FromStr<Err: std::fmt::Display>>(
    row: &SqliteRow,
    column: &str,
) -> Result<Option<T>, StoreError> {
    let text: Option<&str> = get(row, column)?;
    text.map(|text| text.parse().map_err(|e| StoreError::corrupt(format!("{column}: {e}")))).transpose()
}

/// A column that holds a count.
pub(super) fn count<T: TryFrom<i64>>(row: &SqliteRow, column: &str) -> Result<T, StoreError> {
    let number: i64 = get(row, column)?;
    T::try_from(number).map_err(|_| StoreError::corrupt(format!("{column} is {number}")))
}

/// A column that holds a size.
pub(super) fn size(row: &SqliteRow, column: &str) -> Result<Option<Bytes>, StoreError> {
    Ok(get::<Option<i64>>(row, column)?.map(Bytes::from_i64))
}

/// A column that holds a time.
pub(super) fn time(row: &SqliteRow, column: &str) -> Result<Timestamp, StoreError> {
    from_micros(get(row, column)?, column)
}

/// The same, where there may be none.
pub(super) fn time_or_none(row: &SqliteRow, column: &str) -> Result<Option<Timestamp>, StoreError> {
    get::<Option<i64>>(row, column)?.map(|micros| from_micros(micros, column)).transpose()
}

fn from_micros(micros: i64, column: &str) -> Result<Timestamp, StoreError> {
    Timestamp::from_microsecond(micros).map_err(|_| StoreError::corrupt(format!("{column} is {micros}")))
}

/// A column that holds JSON of a type of ours.
pub(super) fn json_or_none<T: serde::de::DeserializeOwned>(
    row: &SqliteRow,
    column: &str,
) -> Result<Option<T>, StoreError> {
    let text: Option<&str> = get(row, column)?;
    text.map(|text| serde_json::from_str(text).map_err(|e| StoreError::corrupt(format!("{column}: {e}")))).transpose()
}

/// A list of ids as the JSON array that `json_each` opens up.
pub(super) fn id_list(ids: impl IntoIterator<Item = JobId>) -> String {
    let ids: Vec<String> = ids.into_iter().map(|id| id.to_string()).collect();
    format!("[{}]", ids.join(","))
}

/// A number that SQLite can hold; what is beyond is cut.
pub(super) fn cut(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn id(row: &SqliteRow) -> Result<JobId, StoreError> {
    get(row, "id").map(JobId)
}

pub(super) fn attempt(row: &SqliteRow) -> Result<AttemptNo, StoreError> {
    count(row, "attempt").map(AttemptNo)
}

pub(super) fn term(row: &SqliteRow, column: &str) -> Result<Term, StoreError> {
    word(row, column)
}

pub(super) fn state(row: &SqliteRow) -> Result<JobState, StoreError> {
    word(row, "state")
}

pub(super) fn budget(row: &SqliteRow) -> Result<Budget, StoreError> {
    Ok(Budget {
        charged: count(row, "charged")?,
        max_attempts: count(row, "max_attempts")?,
        interruptions: count(row, "interruptions")?,
        max_interruptions: count(row, "max_interruptions")?,
    })
}

pub(super) fn backoff(row: &SqliteRow) -> Result<Backoff, StoreError> {
    Ok(json_or_none(row, "backoff")?.unwrap_or_default())
}

pub(super) fn job(row: &SqliteRow) -> Result<Job, StoreError> {
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
