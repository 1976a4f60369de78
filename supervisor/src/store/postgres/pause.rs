//! Kinds that nobody may claim for now.

use super::PostgresStore;
use crate::store::error::StoreError;
use crate::store::model::PausedKind;

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn pause(store: &PostgresStore, kinds: Vec<String>, by: &str) -> Result<(), StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn resume(store: &PostgresStore, kinds: Vec<String>) -> Result<Vec<String>, StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn all(store: &PostgresStore) -> Result<Vec<PausedKind>, StoreError> {
    Err(StoreError::corrupt("not built"))
}
