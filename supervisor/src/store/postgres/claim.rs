//! Taking jobs, and making due what waits for its time.

use super::PostgresStore;
use crate::store::error::StoreError;
use crate::store::model::{ClaimRequest, Claimed, Promoted};

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn claim(store: &PostgresStore, request: ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn promote(store: &PostgresStore, limit: u32) -> Result<Promoted, StoreError> {
    Err(StoreError::corrupt("not built"))
}
