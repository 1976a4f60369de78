//! Terms of supervisors: leases.

use async_trait::async_trait;

use super::PostgresStore;
use crate::domain::ids::Term;
use crate::store::Renewer;
use crate::store::error::StoreError;
use crate::store::model::{LossProof, NewTerm, Renewed, TermRow};

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn begin(store: &PostgresStore, new: NewTerm) -> Result<(), StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn end(store: &PostgresStore, term: Term) -> Result<(), StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn declare_lost(
    store: &PostgresStore,
    term: Term,
    beat: u64,
    proof: LossProof,
) -> Result<bool, StoreError> {
    Err(StoreError::corrupt("not built"))
}

#[expect(clippy::unused_async, unused_variables, reason = "not built")]
pub(super) async fn all(store: &PostgresStore) -> Result<Vec<TermRow>, StoreError> {
    Err(StoreError::corrupt("not built"))
}

pub(super) fn renewer(store: &PostgresStore) -> Box<dyn Renewer> {
    Box::new(PostgresRenewer { _store: store.clone() })
}

#[derive(Debug)]
struct PostgresRenewer {
    _store: PostgresStore,
}

#[async_trait]
impl Renewer for PostgresRenewer {
    async fn begin_term(&mut self, _: &NewTerm) -> Result<(), StoreError> {
        Err(StoreError::corrupt("not built"))
    }

    async fn renew(&mut self, _: Term, _: Option<&str>) -> Result<Renewed, StoreError> {
        Err(StoreError::corrupt("not built"))
    }
}
