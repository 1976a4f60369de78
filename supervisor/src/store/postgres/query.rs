//! Reading.

use jiff::Timestamp;

use super::PostgresStore;
use crate::domain::ids::JobId;
use crate::domain::job::Job;
use crate::store::error::StoreError;
use crate::store::model::{AttemptRow, Count, Filter};

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn job(store: &PostgresStore, id: JobId) -> Result<Option<Job>, StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn attempts(store: &PostgresStore, id: JobId) -> Result<Vec<AttemptRow>, StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn list(store: &PostgresStore, filter: Filter) -> Result<Vec<Job>, StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn counts(store: &PostgresStore) -> Result<Vec<Count>, StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn schedule_has_unfinished(store: &PostgresStore, schedule: &str) -> Result<bool, StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn now(store: &PostgresStore) -> Result<Timestamp, StoreError> {
    Err(StoreError::corrupt("not built"))
}
