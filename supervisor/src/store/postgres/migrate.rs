//! The schema and its steps.

use super::conn::Connections;
use crate::store::error::StoreError;

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn bring_up(conns: &Connections, allowed: bool) -> Result<(), StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn pending(conns: &Connections) -> Result<usize, StoreError> {
    Err(StoreError::corrupt("not built"))
}

pub(super) fn sql() -> String {
    String::new()
}
