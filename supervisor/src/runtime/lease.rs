//! The lease: renewed from a thread, a runtime and a connection of its own, and only while the dispatcher moves.
//!
//! ```text
//!   drive ── tick, word of what runs ──► Pulse ──► lease thread ──► Renewer (own connection)
//!   dispatcher ◄── Renewed, TermLost, TermBegun ──────┘
//! ```
//!
//! - The dispatcher's loop ticks at every turn, and at least every tenth of the lease. Without a tick for two fifths of the
//!   lease nothing is renewed: a supervisor that is stuck loses its lease instead of sitting on its jobs (I13).
//! - A renewal is sent every fifth of the lease. What it is good for is counted from *before* it was sent, by `CLOCK_BOOTTIME`,
//!   and ends a tenth of the lease and [`KILL_TIME`] early: until then the supervisor and its warden may trust that nobody else
//!   runs these jobs (I4).
//! - A call that takes too long is given up: after half a lease where the connection stood, after two leases where it may have to be
//!   made anew, which takes several answers of a slow server. One is under way at a time, so none pile up behind a hung server.
//! - A term that was declared lost is never renewed again. A new one is begun in its place, told after the loss.
//!   A lease that merely ran out is renewed: whoever declares it lost compares the beat, so only one of the two happens.
//! - Where the lease is a lock ([`Store::is_leased`](crate::store::Store::is_leased)) renewals are signs of life and no time is trusted or awaited.
//!
//! Started and stopped by `service`. It decides nothing about attempts: the dispatcher does, when it hears.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::sync::watch;

use crate::domain::clock;
use crate::domain::clock::BootInstant;
use crate::domain::ids::Term;
use crate::domain::report::chain;
use crate::runtime::event::Event;
use crate::runtime::quiet::Quiet;
use crate::store::NewTerm;
use crate::store::Renewed;
use crate::store::Renewer;
use crate::store::StoreError;

/// How long the warden may need from the deadline to the last thaw, stop or kill that follows from it.
pub const KILL_TIME: Duration = Duration::from_millis(500);

/// How long a renewal that is under way at the end may take to end by itself.
const LAST_TURN: Duration = Duration::from_secs(1);

/// Until when a lease may be trusted that was asked for at `sent`.
#[must_use]
pub fn trusted_until(sent: BootInstant, lease: Duration) -> BootInstant {
    sent.plus(lease.saturating_sub(lease / 10 + KILL_TIME))
}

/// How often the dispatcher's loop turns at least.
#[must_use]
pub fn tick_every(lease: Duration) -> Duration {
    lease / 10
}

/// The dispatcher's sign of life, and its word of what runs.
#[derive(Debug)]
pub struct Pulse {
    tick: AtomicU64,
    word: Mutex<Option<String>>,
}

impl Pulse {
    /// One that beats now.
    #[must_use]
    pub fn new(now: BootInstant) -> Self {
        Self { tick: AtomicU64::new(now.0), word: Mutex::new(None) }
    }

    /// The loop has turned.
    pub fn tick(&self, now: BootInstant) {
        self.tick.store(now.0, Ordering::Release);
    }

    /// What runs, to be left with the next renewal.
    pub fn leave_word(&self, word: String) {
        *self.word.lock().unwrap_or_else(PoisonError::into_inner) = Some(word);
    }

    fn word(&self) -> Option<String> {
        self.word.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn silent_for(&self, now: BootInstant) -> Duration {
        now.since(BootInstant(self.tick.load(Ordering::Acquire)))
    }
}

/// What the thread works with.
#[derive(Debug)]
pub struct Keeper {
    /// The term that was begun; a new one differs in its id only.
    pub supervisor: NewTerm,
    /// Whether time matters at all.
    pub leased: bool,
    /// To the store.
    pub renewer: Box<dyn Renewer>,
    /// Of the dispatcher.
    pub pulse: Arc<Pulse>,
    /// To the dispatcher.
    pub events: UnboundedSender<Event>,
}

/// The thread while it runs.
#[derive(Debug)]
pub struct Lease {
    stop: watch::Sender<bool>,
    stopped: oneshot::Receiver<()>,
}

impl Lease {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives no thread, or no runtime for it.
    pub fn start(keeper: Keeper) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopping) = watch::channel(false);
        let (done, stopped) = oneshot::channel();
        std::thread::Builder::new().name("lease".to_owned()).spawn(move || {
            runtime.block_on(Turns::new(keeper).run(stopping));
            // A call that hangs is left behind with its connection.
            runtime.shutdown_background();
            // Nobody has to be waiting.
            done.send(()).ok();
        })?;
        Ok(Self { stop, stopped })
    }

    /// Renews no more. Returns when the last renewal has ended or was given up, which takes a second at most.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        // A thread that is gone has stopped, too.
        self.stopped.await.ok();
    }
}

/// How the term stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Held,
    /// The last one was lost; when the new one was first asked for.
    Beginning(Option<BootInstant>),
}

#[derive(Debug)]
struct Turns {
    keeper: Keeper,
    standing: Standing,
    /// The last call was answered, so its connection stands.
    connected: bool,
    dispatcher_stands: bool,
    trouble: Quiet,
}

impl Turns {
    fn new(keeper: Keeper) -> Self {
        Self { keeper, standing: Standing::Held, connected: false, dispatcher_stands: false, trouble: Quiet::default() }
    }

    async fn run(mut self, mut stopping: watch::Receiver<bool>) {
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                () = told(&mut stopping) => return,
                () = tokio::time::sleep(pause) => {}
            }
            if !self.dispatcher_moves() {
                pause = self.lease() / 20;
                continue;
            }
            let began = clock::monotonic();
            let last = async {
                told(&mut stopping).await;
                tokio::time::sleep(LAST_TURN).await;
            };
            let good = tokio::select! {
                good = self.turn() => good,
                () = last => return,
            };
            let period = self.lease() / 5;
            pause = if good { period.saturating_sub(clock::monotonic() - began) } else { self.lease() / 20 };
        }
    }

    const fn lease(&self) -> Duration {
        self.keeper.supervisor.lease
    }

    /// Says so once when it changes.
    fn dispatcher_moves(&mut self) -> bool {
        let silent = self.keeper.pulse.silent_for(clock::boottime());
        let stands = silent > self.lease() / 5 * 2;
        if stands && !self.dispatcher_stands {
            tracing::error!(?silent, "the dispatcher stands still; the lease is not renewed until it moves");
        } else if !stands && self.dispatcher_stands {
            tracing::warn!("the dispatcher moves again; the lease is renewed");
        }
        self.dispatcher_stands = stands;
        !stands
    }

    /// One call; answers whether it was answered.
    async fn turn(&mut self) -> bool {
        let sent = clock::boottime();
        match self.standing {
            Standing::Held => self.renew(sent).await,
            Standing::Beginning(first) => self.begin(first.unwrap_or(sent)).await,
        }
    }

    async fn renew(&mut self, sent: BootInstant) -> bool {
        let term = self.keeper.supervisor.term;
        let (limit, word) = (self.limit(), self.keeper.pulse.word());
        let renewed = within(limit, self.keeper.renewer.renew(term, word.as_deref())).await;
        match self.answered(renewed) {
            Some(Renewed::Held) => {
                self.tell(Event::Renewed { term, until: self.trusted(sent) });
                true
            }
            Some(Renewed::Lost) => {
                tracing::error!(%term, "this term was declared lost: what runs under it is ended, and a new one begun");
                self.tell(Event::TermLost { term });
                self.keeper.supervisor.term = Term::new();
                self.standing = Standing::Beginning(None);
                // The next turn follows at once.
                self.begin(clock::boottime()).await
            }
            None => false,
        }
    }

    /// Begins the new term. It may have been begun by a call whose answer was lost, so its time counts from the first one.
    async fn begin(&mut self, first: BootInstant) -> bool {
        self.standing = Standing::Beginning(Some(first));
        let limit = self.limit();
        let begun = within(limit, self.keeper.renewer.begin_term(&self.keeper.supervisor)).await;
        if self.answered(begun).is_none() {
            return false;
        }
        let term = self.keeper.supervisor.term;
        tracing::info!(%term, "a new term has begun");
        self.standing = Standing::Held;
        self.tell(Event::TermBegun { term, until: self.trusted(first) });
        true
    }

    fn limit(&self) -> Option<Duration> {
        self.keeper.leased.then(|| if self.connected { self.lease() / 2 } else { self.lease() * 2 })
    }

    fn trusted(&self, sent: BootInstant) -> Option<BootInstant> {
        self.keeper.leased.then(|| trusted_until(sent, self.lease()))
    }

    fn answered<T>(&mut self, answer: Result<T, Unanswered>) -> Option<T> {
        self.connected = answer.is_ok();
        let trouble = match answer {
            Ok(answer) => {
                if self.trouble.calm() {
                    tracing::info!("the lease is renewed again");
                }
                return Some(answer);
            }
            Err(Unanswered::Error(error)) => chain(&error),
            Err(Unanswered::After(limit)) => format!("no answer within {limit:?}"),
        };
        if let Some(before) = self.trouble.speak(clock::monotonic()) {
            tracing::warn!(error = %trouble, before, "cannot renew the lease; trying again");
        }
        None
    }

    fn tell(&self, event: Event) {
        // Nobody listens any more when the supervisor leaves.
        self.keeper.events.send(event).ok();
    }
}

/// Why a call brought nothing.
enum Unanswered {
    Error(StoreError),
    After(Duration),
}

async fn within<T>(
    limit: Option<Duration>,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, Unanswered> {
    match limit {
        None => call.await.map_err(Unanswered::Error),
        Some(limit) => match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer.map_err(Unanswered::Error),
            Err(_) => Err(Unanswered::After(limit)),
        },
    }
}

/// Returns when the thread is told to stop, or nobody is left who could.
async fn told(stopping: &mut watch::Receiver<bool>) {
    stopping.wait_for(|stop| *stop).await.map(drop).unwrap_or_default();
}

#[cfg(test)]
mod tests;
