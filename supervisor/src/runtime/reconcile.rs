//! Background work, each piece idempotent, nudged and periodic: read the state anew, make the world match.
//!
//! | piece | nudged by | at least every | does |
//! |---|---|---|---|
//! | keeper | - | a fifth of the lease | sign of life, own rows (I2) |
//! | watcher | a change by another process | `poll` | wakes the dispatcher, looks for cancels |
//! | promoter | a job was put back; the watcher | the next due time, 5 s | makes due jobs queued |
//! | pruner | - | a minute | removes what is kept no longer |
//!
//! A piece that fails says so once and tries again at its next time; none retries inside.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::MissedTickBehavior;

use crate::domain::ids::Term;
use crate::domain::report::chain;
use crate::runtime::event::Event;
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
    /// Our term.
    pub term: Term,
    /// To the dispatcher.
    pub events: UnboundedSender<Event>,
    /// Wakes the promoter.
    pub promote: Arc<Notify>,
    /// The dispatcher's oldest unanswered claim, published by whoever drives it.
    pub oldest_unanswered: Arc<AtomicU64>,
}

impl World {
    fn send(&self, event: Event) {
        // A closed channel means that the supervisor is leaving; so will this task.
        self.events.send(event).ok();
    }

    fn grumble<T>(&self, piece: &'static str, result: Result<T, StoreError>) -> Option<T> {
        result.inspect_err(|error| tracing::warn!(piece, error = %chain(error), "will be tried again")).ok()
    }

    async fn look_for_cancels(&self) {
        let requests = self.store.cancel_requests(self.term).await;
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

/// Signs of life and own rows.
pub async fn keeper(world: World, lease: Duration) {
    let mut renewer = world.store.renewer();
    let mut ticks = tokio::time::interval(lease / 5);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        world.grumble("keeper", renewer.renew(world.term, None).await);
        let below = world.oldest_unanswered.load(Ordering::Acquire);
        let rows = world.store.own_rows(world.term, below).await;
        if let Some(rows) = world.grumble("own rows", rows)
            && !rows.is_empty()
        {
            world.send(Event::OwnRows { rows, below });
        }
    }
}

/// Wakes for what other processes do, and at every `poll` in any case.
pub async fn watcher(world: World, poll: Duration) {
    loop {
        tokio::select! {
            () = world.store.changed() => world.promote.notify_one(),
            () = tokio::time::sleep(poll) => {}
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
