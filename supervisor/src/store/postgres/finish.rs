//! Recording how attempts ended.

use super::PostgresStore;
use crate::store::error::StoreError;
use crate::store::model::{Finish, Finished};

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn finish(store: &PostgresStore, outcomes: &[Finish]) -> Result<Vec<Finished>, StoreError> {
    Err(StoreError::corrupt("not built"))
}
