//! Statements that meet another and wait for each other: the server ends one of them, which is then sent again.
//!
//! Rows are locked in the order of ids, and keys in the order of keys, wherever they are known beforehand. What comes after a job
//! is found on the way, and transactions of others take what they like: there two may meet.

use crate::store::error::StoreError;

/// The server's code for the statement that it ended.
const DEADLOCK: &str = "40P01";

/// How often a statement is sent in all; who meets somebody each time has a database to look at.
const TIMES: u32 = 4;

/// Sends with `send`, again while the server ends it for the sake of another.
pub(super) async fn resolved<T, F, W>(mut send: F) -> Result<T, StoreError>
where
    F: FnMut() -> W,
    W: Future<Output = Result<T, StoreError>>,
{
    let mut times = 1;
    loop {
        match send().await {
            Err(error) if times < TIMES && is_deadlock(&error) => times += 1,
            done => return done,
        }
    }
}

fn is_deadlock(error: &StoreError) -> bool {
    let StoreError::Unavailable { source: sqlx::Error::Database(inner), .. } = error else { return false };
    inner.code().as_deref() == Some(DEADLOCK)
}
