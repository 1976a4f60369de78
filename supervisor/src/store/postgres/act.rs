//! What people do to jobs: cancel and retry.

use super::PostgresStore;
use crate::domain::ids::{JobId, Term};
use crate::store::error::StoreError;
use crate::store::model::{Acted, CancelRequest};

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn cancel(
    store: &PostgresStore,
    ids: Vec<JobId>,
    by: &str,
) -> Result<Vec<(JobId, Acted)>, StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn cancel_requests(store: &PostgresStore, term: Term) -> Result<Vec<CancelRequest>, StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn retry(store: &PostgresStore, ids: Vec<JobId>) -> Result<Vec<(JobId, Acted)>, StoreError> {
    Err(StoreError::corrupt("not built"))
}
