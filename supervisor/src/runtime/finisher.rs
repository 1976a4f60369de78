//! The finish writer: takes every outcome that is waiting when it is free and records them in one batch.
//!
//! What the store did not take at the first try, or has not answered within 3 s, goes to the journal as well, so that it survives
//! this process; so does everything that comes after it, until the store takes outcomes again. It tries on with growing pauses,
//! at most 5 s, for as long as the supervisor lives: an outcome is never dropped (I10). After 3 s it tells the dispatcher,
//! which starts nothing that could not be recorded either.
//!
//! One that the database refuses in every form, though it answers, is journaled, set aside and
//! sent again every 5 s, so that it holds up nobody. The same outcome may be sent twice, which the store recognises (I2).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use tokio::sync::Notify;
use tokio::sync::mpsc;

use crate::domain::clock;
use crate::domain::report::chain;
use crate::domain::retry::Next;
use crate::runtime::event::Event;
use crate::runtime::journal;
use crate::runtime::quiet::Quiet;
use crate::runtime::vitals::FINISH_WRITER;
use crate::runtime::vitals::Vitals;
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
/// How long outcomes may wait before they count as held.
const HELD: Duration = Duration::from_secs(3);

/// What the writer works with.
#[derive(Debug)]
pub struct Writer {
    /// Where outcomes go.
    pub store: Arc<dyn Store>,
    /// Where they come from.
    pub outcomes: mpsc::UnboundedReceiver<(Key, Finish)>,
    /// To the dispatcher.
    pub events: mpsc::UnboundedSender<Event>,
    /// Told when a job was put back, so that whoever knows the next due time looks again.
    pub put_back: Arc<Notify>,
    /// Where the journal is.
    pub state_dir: PathBuf,
    /// For whoever asks how things stand.
    pub vitals: Arc<Vitals>,
}

/// An outcome's name, and whether the journal has it.
#[derive(Debug, Clone, Copy)]
struct Mark {
    key: Key,
    journaled: bool,
}

#[derive(Debug)]
struct Writing {
    writer: Writer,
    /// The sender lives.
    open: bool,
    waiting: Vec<(Mark, Finish)>,
    refused: Vec<(Mark, Finish)>,
    refused_again: Option<Instant>,
    /// Since when the store does not take outcomes.
    failing_since: Option<Instant>,
    again: Option<Instant>,
    pause: Duration,
    told: bool,
    trouble: Quiet,
    journal_trouble: Quiet,
}

/// Records outcomes until the sender is dropped and nothing is left.
pub async fn write(writer: Writer) {
    let writing = Writing {
        writer,
        open: true,
        waiting: Vec::new(),
        refused: Vec::new(),
        refused_again: None,
        failing_since: None,
        again: None,
        pause: FIRST_PAUSE,
        told: false,
        trouble: Quiet::default(),
        journal_trouble: Quiet::default(),
    };
    writing.run().await;
}

impl Writing {
    async fn run(mut self) {
        loop {
            if !self.waiting.is_empty() && self.again.is_none_or(|at| clock::monotonic() >= at) {
                self.flush().await;
                continue;
            }
            if !self.open && self.waiting.is_empty() {
                break;
            }
            let held = self.again.filter(|_| !self.waiting.is_empty());
            let refused = self.refused_again.filter(|_| !self.refused.is_empty());
            let mut fresh = Vec::new();
            tokio::select! {
                taken = self.writer.outcomes.recv_many(&mut fresh, BATCH), if self.open => self.take(taken, fresh).await,
                () = until(held.into_iter().chain(refused).min()) => {
                    if refused.is_some_and(|at| clock::monotonic() >= at) {
                        self.refused_again = None;
                        self.waiting.append(&mut self.refused);
                    }
                }
            }
        }
        if !self.refused.is_empty() {
            tracing::error!(
                outcomes = self.refused.len(),
                journal = %journal::folder(&self.writer.state_dir).display(),
                "the database refused these to the end; the next start tries again"
            );
        }
    }

    async fn take(&mut self, taken: usize, fresh: Vec<(Key, Finish)>) {
        self.open = taken > 0;
        let from = self.waiting.len();
        self.waiting.extend(fresh.into_iter().map(|(key, finish)| (Mark { key, journaled: false }, finish)));
        if self.failing_since.is_some() {
            self.journal_waiting(from).await;
        }
    }

    /// Sends what is waiting, once.
    async fn flush(&mut self) {
        let count = self.waiting.len().min(BATCH);
        let (mut marks, finishes): (Vec<Mark>, Vec<Finish>) = self.waiting.drain(..count).unzip();
        let results = match self.send(&mut marks, &finishes).await {
            Ok(results) => results.into_iter().map(Some).collect(),
            Err(error) if error.is_unavailable() => {
                self.failed(&error, finishes.len());
                self.journal(&mut marks, &finishes).await;
                self.waiting.splice(..0, marks.into_iter().zip(finishes));
                return;
            }
            Err(error) if finishes.len() == 1 => {
                tracing::error!(error = %chain(&error), job = %finishes[0].fence.job, "an outcome is refused; it is held");
                self.journal(&mut marks, &finishes).await;
                vec![None]
            }
            Err(_) => match self.one_by_one(&mut marks, &finishes).await {
                Ok(results) => results,
                Err((error, results)) => {
                    self.failed(&error, finishes.len());
                    self.journal(&mut marks, &finishes).await;
                    results
                }
            },
        };
        self.settle(marks.into_iter().zip(finishes), results);
    }

    /// Each alone, so that one does not hold up the others. On an outage: what came of those before it.
    async fn one_by_one(
        &mut self,
        marks: &mut [Mark],
        finishes: &[Finish],
    ) -> Result<Vec<Option<Finished>>, (StoreError, Vec<Option<Finished>>)> {
        let mut results = Vec::with_capacity(finishes.len());
        for (at, finish) in finishes.iter().enumerate() {
            match self.send(&mut marks[at..=at], std::slice::from_ref(finish)).await {
                Ok(one) => results.push(one.into_iter().next()),
                Err(error) if error.is_unavailable() => return Err((error, results)),
                Err(error) => {
                    tracing::error!(error = %chain(&error), job = %finish.fence.job, "an outcome is refused; it is held");
                    self.journal(&mut marks[at..=at], std::slice::from_ref(finish)).await;
                    results.push(None);
                }
            }
        }
        Ok(results)
    }

    /// What the store has taken is told; what it refused is set aside; what it was not asked about waits on.
    fn settle(&mut self, outcomes: impl Iterator<Item = (Mark, Finish)>, results: Vec<Option<Finished>>) {
        let mut results = results.into_iter();
        for (mark, finish) in outcomes {
            let finished = match results.next() {
                Some(Some(finished)) => finished,
                Some(None) => {
                    self.refused.push((mark, finish));
                    self.refused_again.get_or_insert(clock::monotonic() + LONGEST_PAUSE);
                    continue;
                }
                None => {
                    self.waiting.push((mark, finish));
                    continue;
                }
            };
            tell(&finish, finished);
            if mark.journaled
                && let Err(error) = journal::remove(&self.writer.state_dir, &finish.fence)
            {
                tracing::warn!(%error, "an outcome that is recorded stays in the journal; it will be recognised");
            }
            if matches!(finish.decision.next, Next::PutBack(_)) {
                self.writer.put_back.notify_one();
            }
            // Nobody listens any more when the supervisor leaves; what is waiting is recorded all the same.
            self.writer.events.send(Event::Recorded { key: mark.key, finished, finish: Box::new(finish) }).ok();
        }
    }

    /// One call to the store. While it does not answer, what comes meanwhile is taken in, and after a while journaled with the batch.
    async fn send(&mut self, marks: &mut [Mark], finishes: &[Finish]) -> Result<Vec<Finished>, StoreError> {
        let store = Arc::clone(&self.writer.store);
        let call = store.finish(finishes);
        tokio::pin!(call);
        let slow = clock::monotonic() + HELD;
        let mut patient = true;
        let answer = loop {
            let mut fresh = Vec::new();
            tokio::select! {
                biased;
                answer = &mut call => break answer,
                taken = self.writer.outcomes.recv_many(&mut fresh, BATCH), if self.open => self.take(taken, fresh).await,
                () = until(Some(slow)), if patient => {
                    patient = false;
                    self.failing_since.get_or_insert(slow - HELD);
                    self.tell_held();
                    self.journal(marks, finishes).await;
                    self.journal_waiting(0).await;
                }
            }
        };
        // A refusal is an answer, too: the database is there.
        if !answer.as_ref().is_err_and(StoreError::is_unavailable) {
            self.answered();
        }
        answer
    }

    fn failed(&mut self, error: &StoreError, outcomes: usize) {
        self.writer.vitals.ran(FINISH_WRITER, Some(chain(error)));
        let now = clock::monotonic();
        self.failing_since.get_or_insert(now);
        self.again = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.tell_held();
        if self.trouble.speak(now).is_some() {
            let outcomes = outcomes + self.waiting.len();
            tracing::error!(error = %chain(error), outcomes, "cannot record outcomes; they are held, and kept in the journal");
        }
    }

    fn tell_held(&mut self) {
        let held = self.failing_since.is_some_and(|since| clock::monotonic().saturating_duration_since(since) >= HELD);
        if held && !self.told {
            self.told = true;
            self.writer.events.send(Event::CannotRecord).ok();
        }
    }

    fn answered(&mut self) {
        self.writer.vitals.ran(FINISH_WRITER, None);
        self.failing_since = None;
        self.again = None;
        self.pause = FIRST_PAUSE;
        if self.trouble.calm() {
            tracing::info!("outcomes are recorded again");
        }
        if std::mem::take(&mut self.told) {
            self.writer.events.send(Event::CanRecord).ok();
        }
    }

    async fn journal_waiting(&mut self, from: usize) {
        let (mut marks, finishes): (Vec<Mark>, Vec<Finish>) = self.waiting.drain(from..).unzip();
        self.journal(&mut marks, &finishes).await;
        self.waiting.extend(marks.into_iter().zip(finishes));
    }

    /// Puts into the journal what is not there yet; what could not be is tried again when the store next fails.
    async fn journal(&mut self, marks: &mut [Mark], finishes: &[Finish]) {
        let todo: Vec<usize> = (0..marks.len()).filter(|&at| !marks[at].journaled).collect();
        let entries: Vec<_> = todo.iter().map(|&at| journal::entry(&self.writer.state_dir, &finishes[at])).collect();
        let write = move || entries.into_iter().map(|entry| entry.and_then(|entry| journal::write(&entry))).collect();
        let written: Vec<std::io::Result<()>> = tokio::task::spawn_blocking(write).await.unwrap_or_default();
        for (at, written) in todo.into_iter().zip(written) {
            match written {
                Ok(()) => marks[at].journaled = true,
                Err(error) if self.journal_trouble.speak(clock::monotonic()).is_some() => {
                    tracing::error!(%error, "an outcome cannot be kept in the journal either; it is held in memory only");
                }
                Err(_) => {}
            }
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
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

#[cfg(test)]
mod tests;
