//! Finding running rows that nobody works on.

use super::PostgresStore;
use crate::domain::ids::{AttemptNo, JobId, Term};
use crate::store::error::StoreError;
use crate::store::model::Rescuable;

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn own_rows(
    store: &PostgresStore,
    own: Term,
    below: u64,
) -> Result<Vec<(JobId, AttemptNo)>, StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn rescuable(store: &PostgresStore, living: &[Term]) -> Result<Vec<Rescuable>, StoreError> {
    Err(StoreError::corrupt("not built"))
}
