//! The finish writer: takes every outcome that is waiting when it is free and records them in one batch.
//!
//! It holds what it could not record (the database away, full, locked) and tries again with growing pauses, for as long as the
//! supervisor lives: an outcome is never dropped (invariant I10). The same outcome may be sent twice, which the
//! store recognises (I2).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc;

use crate::domain::retry::Next;
use crate::runtime::event::Event;
use crate::store::Finish;
use crate::store::Finished;
use crate::store::Store;
use crate::warden::message::Key;

/// Most outcomes in one batch: bounds the transaction, not the rate.
const BATCH: usize = 500;
/// Pauses between attempts to reach the database.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Records outcomes until the sender is dropped and nothing is left. `put_back` is told when a job was put back, so that
/// whoever knows the next due time looks again.
pub async fn write(
    store: Arc<dyn Store>,
    mut outcomes: mpsc::UnboundedReceiver<(Key, Finish)>,
    events: mpsc::UnboundedSender<Event>,
    put_back: Arc<Notify>,
) {
    let mut batch = Vec::new();
    while outcomes.recv_many(&mut batch, BATCH).await > 0 {
        let (keys, finishes): (Vec<Key>, Vec<Finish>) = batch.drain(..).unzip();
        let results = record(store.as_ref(), &finishes).await;
        for ((key, finish), finished) in keys.into_iter().zip(&finishes).zip(results) {
            tell(finish, finished);
            // Nobody listens any more when the supervisor leaves; what is waiting is recorded all the same.
            events.send(Event::Recorded { key, finished }).ok();
        }
        if finishes.iter().any(|finish| matches!(finish.decision.next, Next::PutBack(_))) {
            put_back.notify_one();
        }
    }
}

async fn record(store: &dyn Store, finishes: &[Finish]) -> Vec<Finished> {
    let mut pause = FIRST_PAUSE;
    loop {
        match store.finish(finishes).await {
            Ok(results) => return results,
            Err(error) => {
                tracing::error!(
                    error = %crate::domain::report::chain(&error),
                    outcomes = finishes.len(),
                    retry_in = ?pause,
                    "cannot record outcomes; they are held"
                );
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

fn tell(finish: &Finish, finished: Finished) {
    let Finish { fence, decision, verdict, .. } = finish;
    let cause = verdict.as_ref().and_then(|verdict| verdict.ending.cause());
    match (finished, cause) {
        (Finished::Recorded(state), Some(cause)) => {
            tracing::warn!(job = %fence.job, attempt = %fence.attempt, %cause, %state, refund = decision.refund, "attempt failed");
        }
        (Finished::Recorded(state), None) => {
            tracing::info!(job = %fence.job, attempt = %fence.attempt, %state, "attempt ended");
        }
        (Finished::Already, _) => {
            tracing::debug!(job = %fence.job, attempt = %fence.attempt, "outcome was recorded before")
        }
        (Finished::Stale, _) => {
            tracing::warn!(job = %fence.job, attempt = %fence.attempt, "outcome refused: the attempt is no longer ours");
        }
    }
}
