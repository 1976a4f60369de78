//! Adding jobs.

use super::PostgresStore;
use crate::store::error::StoreError;
use crate::store::model::{Enqueued, NewJob};

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn enqueue(store: &PostgresStore, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
    Err(StoreError::corrupt("not built"))
}
