//! Background work, each piece idempotent, nudged and periodic: read the state anew, make the world match.
//!
//! | piece | nudged by | at least every | does |
//! |---|---|---|---|
//! | own rows | - | a fifth of the lease | finds claims whose reply was lost (I2) |
//! | watcher | a change by another process | `poll`; the lease while the store hears | wakes the dispatcher, looks for cancels |
//! | promoter | a job was put back; the watcher | the next due time, 5 s | makes due jobs queued |
//! | pruner | - | a minute | removes what is kept no longer |
//!
//! The rescuer, which ends what other supervisors left, is [`rescue`](super::rescue). Signs of life come from a thread of their own,
//! [`lease`](super::lease).
//!
//! A piece that fails says so, at most once in 10 s, and tries again at its next time; none retries inside.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::domain::clock;
use crate::domain::ids::Term;
use crate::domain::report::chain;
use crate::runtime::event::Event;
use crate::runtime::quiet::Quiet;
use crate::runtime::vitals::Vitals;
use crate::store::Retention;
use crate::store::Store;
use crate::store::StoreError;

/// Rows a promotion or a pruning takes at once.
const BATCH: u32 = 1000;
/// The promoter looks at least this often, whatever it believes of the next due time.
const PROMOTE_AT_LEAST: Duration = Duration::from_secs(5);
const PRUNE_EVERY: Duration = Duration::from_secs(60);

/// What every piece has at hand.
#[derive(Debug, Clone)]
pub struct World {
    /// The store.
    pub store: Arc<dyn Store>,
    /// To the dispatcher.
    pub events: UnboundedSender<Event>,
    /// Wakes the promoter.
    pub promote: Arc<Notify>,
    /// The dispatcher, published by whoever drives it.
    pub shown: watch::Receiver<Shown>,
    /// What each piece has complained of lately.
    pub complaints: Complaints,
    /// Where every piece says that it ran.
    pub vitals: Arc<Vitals>,
}

/// What the dispatcher shows to the pieces around it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// The term that it holds.
    pub term: Option<Term>,
    /// That, and the terms before it under which something still runs here or waits to be recorded.
    pub living: Vec<Term>,
    /// Its oldest unanswered claim.
    pub oldest_unanswered: u64,
}

/// Says what goes wrong with each piece, at most once in 10 s.
#[derive(Debug, Clone, Default)]
pub struct Complaints(Arc<Mutex<HashMap<&'static str, Quiet>>>);

impl Complaints {
    /// Passes a result on; an error is said. The first success after errors is said, too.
    pub fn hear<T>(&self, piece: &'static str, result: Result<T, StoreError>) -> Option<T> {
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = pieces.entry(piece).or_default();
        match result {
            Ok(value) => {
                if quiet.calm() {
                    tracing::info!(piece, "the store answers again");
                }
                Some(value)
            }
            Err(error) => {
                if let Some(before) = quiet.speak(clock::monotonic()) {
                    tracing::warn!(piece, error = %chain(&error), before, "will be tried again");
                }
                None
            }
        }
    }
}

impl World {
    fn send(&self, event: Event) {
        // A closed channel means that the supervisor is leaving; so will this task.
        self.events.send(event).ok();
    }

    /// Says what went wrong, if anything did.
    pub(super) fn grumble<T>(&self, piece: &'static str, result: Result<T, StoreError>) -> Option<T> {
        self.vitals.ran(piece, result.as_ref().err().map(|error| chain(error)));
        self.complaints.hear(piece, result)
    }

    async fn look_for_cancels(&self) {
        let Some(term) = self.shown.borrow().term else { return };
        let requests = self.store.cancel_requests(term).await;
        if let Some(requests) = self.grumble("cancels", requests)
            && !requests.is_empty()
        {
            self.send(Event::CancelAsked(requests));
        }
    }

    /// Promotes all that is due; answers when the next job will be.
    async fn promote(&self) -> Option<Duration> {
        loop {
            let promoted = self.grumble("promoter", self.store.promote(BATCH).await)?;
            if promoted.count > 0 {
                self.send(Event::Wake);
            }
            if promoted.count < u64::from(BATCH) {
                let now = self.grumble("promoter", self.store.now().await)?;
                return promoted
                    .next_due
                    .map(|due| Duration::try_from(due.duration_since(now)).unwrap_or(Duration::ZERO));
            }
        }
    }
}

/// Rows of ours that we do not hold.
pub async fn own_rows(world: World, lease: Duration) {
    let mut ticks = tokio::time::interval(lease / 5);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // Both read before the question, of one moment.
        let Shown { term, oldest_unanswered: below, .. } = world.shown.borrow().clone();
        let Some(term) = term else { continue };
        let rows = world.store.own_rows(term, below).await;
        if let Some(rows) = world.grumble("own rows", rows)
            && !rows.is_empty()
        {
            world.send(Event::OwnRows { term, rows, below });
        }
    }
}

/// Wakes for what other processes do, and at every `poll` in any case; where the store is proven to hear, once a lease.
pub async fn watcher(world: World, poll: Duration, lease: Duration) {
    loop {
        let pause = if world.store.hears() { lease } else { poll };
        tokio::select! {
            () = world.store.changed() => world.promote.notify_one(),
            () = tokio::time::sleep(pause) => {}
        }
        world.look_for_cancels().await;
        world.send(Event::Wake);
    }
}

/// Makes due jobs queued.
pub async fn promoter(world: World) {
    loop {
        let next = world.promote().await.unwrap_or(PROMOTE_AT_LEAST).min(PROMOTE_AT_LEAST);
        tokio::select! {
            () = world.promote.notified() => {}
            // A due time is kept to the microsecond and a timer to the millisecond: never wake just before it.
            () = tokio::time::sleep(next + Duration::from_millis(1)) => {}
        }
    }
}

/// Removes ended jobs whose time is over.
pub async fn pruner(world: World, retention: Retention) {
    let mut ticks = tokio::time::interval(PRUNE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        while let Some(count) = world.grumble("pruner", world.store.prune(&retention, BATCH).await) {
            if count > 0 {
                tracing::info!(jobs = count, "removed ended jobs that are kept no longer");
            }
            if count < u64::from(BATCH) {
                break;
            }
        }
    }
}
