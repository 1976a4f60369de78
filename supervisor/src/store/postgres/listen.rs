//! Hearing what others add, and being heard of as asleep.

use std::sync::Arc;

use super::conn::Connections;

/// The listener and what it knows.
#[derive(Debug)]
pub(super) struct Wake {
    _conns: Arc<Connections>,
}

impl Wake {
    pub(super) const fn new(conns: Arc<Connections>) -> Self {
        Self { _conns: conns }
    }

    pub(super) async fn changed(&self) {
        std::future::pending().await
    }

    pub(super) const fn hears(&self) -> bool {
        false
    }
}
