//! Removing what has ended long ago.

use super::PostgresStore;
use crate::store::error::StoreError;
use crate::store::model::Retention;

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn prune(store: &PostgresStore, keep: Retention, limit: u32) -> Result<u64, StoreError> {
    Err(StoreError::corrupt("not built"))
}
