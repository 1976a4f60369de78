//! The finish writer: takes every outcome that is waiting when it is free and records them in one batch.
//!
//! It holds what it could not record (the database away, full, locked) and tries again with growing pauses, for as long as the
//! supervisor lives: an outcome is never dropped (invariant I10). One that the database refuses in every form is set aside and
//! sent again every 5 s, so that it holds up nobody. The same outcome may be sent twice, which the
//! store recognises (I2).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc;

use crate::domain::report::chain;
use crate::domain::retry::Next;
use crate::runtime::event::Event;
use crate::store::Finish;
use crate::store::Finished;
use crate::store::Store;
use crate::store::StoreError;
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
    let mut refused = Vec::new();
    loop {
        let taken = tokio::select! {
            taken = outcomes.recv_many(&mut batch, BATCH) => taken,
            () = tokio::time::sleep(LONGEST_PAUSE), if !refused.is_empty() => {
                batch.append(&mut refused);
                batch.len()
            }
        };
        if taken == 0 {
            if !refused.is_empty() {
                tracing::error!(
                    outcomes = refused.len(),
                    "the database refused these to the end; the next start will find their attempts open"
                );
            }
            return;
        }
        for (key, finish, finished) in record(store.as_ref(), std::mem::take(&mut batch)).await {
            let Some(finished) = finished else {
                refused.push((key, finish));
                continue;
            };
            tell(&finish, finished);
            // Nobody listens any more when the supervisor leaves; what is waiting is recorded all the same.
            events.send(Event::Recorded { key, finished }).ok();
            if matches!(finish.decision.next, Next::PutBack(_)) {
                put_back.notify_one();
            }
        }
    }
}

/// Records a batch; `None` beside an outcome that the database, though it answers, does not take in any form.
async fn record(store: &dyn Store, batch: Vec<(Key, Finish)>) -> Vec<(Key, Finish, Option<Finished>)> {
    let (keys, finishes): (Vec<Key>, Vec<Finish>) = batch.into_iter().unzip();
    let results: Vec<Option<Finished>> = match send(store, &finishes).await {
        Ok(results) => results.into_iter().map(Some).collect(),
        Err(_) if finishes.len() > 1 => {
            // Each alone, so that one does not hold up the others.
            let mut results = Vec::with_capacity(finishes.len());
            for finish in &finishes {
                results
                    .push(send(store, std::slice::from_ref(finish)).await.ok().and_then(|one| one.into_iter().next()));
            }
            results
        }
        Err(_) => vec![None],
    };
    keys.into_iter().zip(finishes).zip(results).map(|((key, finish), result)| (key, finish, result)).collect()
}

/// Sends a batch for as long as the database does not answer.
async fn send(store: &dyn Store, finishes: &[Finish]) -> Result<Vec<Finished>, StoreError> {
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match store.finish(finishes).await {
            Ok(results) => return Ok(results),
            Err(error) => error,
        };
        let away = error.is_unavailable();
        tracing::error!(error = %chain(&error), outcomes = finishes.len(), away, "cannot record outcomes; they are held");
        if !away {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
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
