//! Hearing what others add, and knowing whether we hear.
//!
//! The first [`Wake::changed`] starts two tasks in its runtime (most commands never call it): one listens, one keeps the flag that makes
//! others send notices (`sleep.rs`). They end with the store. A store serves one supervisor; of several callers of `changed`
//! each is woken.
//!
//! - **Proof.** A listener that hears nothing looks like one in a quiet database. So a probe is sent from another connection, on a
//!   channel of this store alone, at the start and every [`PROBE_EVERY`]; it must come within [`HEARD_WITHIN`]. Only then
//!   [`Wake::hears`] is true, and callers need not poll. Unheard: false at once, one warning, and another connection.
//! - **Bound.** While `hears` is false callers poll, so a job starts at most a poll late. A connection that is cut off in silence is found by
//!   the next probe: a notice is late by at most `PROBE_EVERY + HEARD_WITHIN`, 12 s, and then by the time of a claim. That is why the interval is a
//!   constant: it stays below half of the default lease, the longest that a caller may leave out polling, and costs six
//!   statements a minute. A connection that is closed, as servers and proxies do, is noticed at once.
//! - **Gaps.** What was sent while nobody listened is lost. So `changed` fires once after each new `LISTEN` has been answered: the claim
//!   that follows sees all that was committed before. It also fires when `hears` becomes false, for callers who wait longer while it is true.
//! - Behind a pooler (`route.rs`) nobody listens: a `LISTEN` would stay on a session that others use, and deliver nothing.
//!
//! The driver gives notices out through its `PgListener` alone. What that does about a lost connection is not relied on: it
//! reconnects for four kinds of I/O errors of many, and says so only if it is asked for each notice separately. Here any error
//! ends the connection, and a new one is made after a growing, jittered pause. It cannot set TCP keepalive; the probe does more. A
//! connection that was cut off in silence lives on in a task of the driver's that says goodbye to it, until TCP gives up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgNotification, PgPoolOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until, timeout};
use uuid::Uuid;

use super::conn::Connections;
use super::route::CONNECT;
use super::sleep::{Outcome, Wish, keep, now};
use crate::domain::ids::Term;
use crate::store::error::StoreError;

/// Where notices about jobs are sent: empty ones about what was added, others about what was asked for.
const CHANNEL: &str = "jobvisor";

/// Time between a probe that was heard and the next.
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// How long a notice may take once the server has accepted it.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

/// Pauses before a new connection: doubled from the first to the last, with jitter.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// The listener and what it knows.
#[derive(Debug)]
pub(super) struct Wake {
    conns: Arc<Connections>,
    shared: Arc<Shared>,
    /// What `changed` has answered already.
    answered: AtomicU64,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// What the tasks tell each other and their callers.
#[derive(Debug)]
pub(super) struct Shared {
    /// How often something may have changed.
    rung: watch::Sender<u64>,
    /// The listener that is proven to hear, by its number.
    pub(super) proven: watch::Sender<Option<u64>>,
    /// What the last claim found.
    pub(super) wish: watch::Sender<Option<Wish>>,
    /// The term whose row says that it sleeps, and the listener for which it does.
    pub(super) asleep: watch::Sender<Option<(Term, u64)>>,
}

impl Shared {
    /// Something may have changed.
    pub(super) fn ring(&self) {
        self.rung.send_modify(|times| *times += 1);
    }
}

impl Wake {
    pub(super) fn new(conns: Arc<Connections>) -> Self {
        let shared = Shared {
            rung: watch::Sender::new(0),
            proven: watch::Sender::new(None),
            wish: watch::Sender::new(None),
            asleep: watch::Sender::new(None),
        };
        Self { conns, shared: Arc::new(shared), answered: AtomicU64::new(0), tasks: Mutex::new(Vec::new()) }
    }

    /// Waits until something may have changed since it answered last.
    pub(super) async fn changed(&self) {
        self.start();
        let mut rung = self.shared.rung.subscribe();
        let before = self.answered.load(Ordering::Acquire);
        // The sender is ours: it does not go away.
        if let Ok(now) = rung.wait_for(|times| *times != before).await {
            self.answered.store(*now, Ordering::Release);
        }
    }

    /// Whether `changed` is proven to hear of all that is added: the listener hears, and others know that it is wanted.
    pub(super) fn hears(&self) -> bool {
        let Some(listener) = *self.shared.proven.borrow() else { return false };
        let wanted = self.shared.wish.borrow().filter(|wish| wish.is_short);
        wanted.is_none_or(|wish| *self.shared.asleep.borrow() == Some((wish.term, listener)))
    }

    /// Takes note of what a claim found; what follows from it is done by a task.
    pub(super) fn after_claim(&self, term: Term, outcome: Outcome) {
        let new = Wish::new(term, outcome);
        self.shared.wish.send_if_modified(|wish| {
            let differs = wish.is_none_or(|old| !old.is_like(&new));
            if differs {
                *wish = Some(new);
            }
            differs
        });
    }

    /// Ends the tasks.
    pub(super) fn close(&self) {
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }

    fn start(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // The runtime of who came first may be gone, and they with it.
        tasks.retain(|task| !task.is_finished());
        if tasks.is_empty() {
            let (shared, conns) = (&self.shared, &self.conns);
            tasks.push(tokio::spawn(listen(Arc::clone(shared), Arc::clone(conns))));
            tasks.push(tokio::spawn(keep(Arc::clone(shared), Arc::clone(conns))));
        }
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.close();
    }
}

/// Why a listener is given up.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("the server accepted a notice and it did not arrive")]
    Deaf,
    #[error("the connection was closed")]
    Closed,
    #[error("the connection broke")]
    Broken(#[source] sqlx::Error),
    #[error("no notice could be sent to prove it")]
    Away(#[source] StoreError),
}

/// One who listens for ever.
#[derive(Debug)]
struct Ear {
    shared: Arc<Shared>,
    conns: Arc<Connections>,
    /// Probes go to a channel of our own, so that they wake nobody else.
    own: String,
    probes: u64,
    /// The pause before the next connection.
    pause: Duration,
    was_heard: bool,
    is_warned: bool,
}

/// Nothing is proven any more when a listener goes, however it goes.
impl Drop for Ear {
    fn drop(&mut self) {
        self.unproven();
    }
}

async fn listen(shared: Arc<Shared>, conns: Arc<Connections>) {
    let own = format!("{CHANNEL}_{}", Uuid::now_v7().simple());
    let mut ear = Ear { shared, conns, own, probes: 0, pause: PAUSES.0, was_heard: false, is_warned: false };
    for number in 0_u64.. {
        let Some(options) = ear.conns.session() else {
            tracing::warn!(
                "a pooler that lends sessions for a transaction stands before the database, so no notices arrive and jobs \
                 are polled for; a direct URL starts them sooner"
            );
            return std::future::pending().await;
        };
        let lost = ear.serve(options, number).await;
        ear.unproven();
        ear.tell(&lost);
        sleep(ear.pause.mul_f64(0.5 + fastrand::f64())).await;
        ear.pause = (ear.pause * 2).min(PAUSES.1);
    }
}

impl Ear {
    /// Listens on one connection until it is lost.
    async fn serve(&mut self, options: PgConnectOptions, number: u64) -> Lost {
        let mut listener = match self.connect(options).await {
            Ok(listener) => listener,
            Err(error) => return Lost::Broken(error),
        };
        self.shared.ring();
        loop {
            if let Err(lost) = self.prove(&mut listener).await {
                return lost;
            }
            self.proven(number);
            if let Ok(lost) = timeout(PROBE_EVERY, self.hear(&mut listener)).await {
                return lost;
            }
        }
    }

    async fn connect(&self, options: PgConnectOptions) -> Result<PgListener, sqlx::Error> {
        // The driver's listener wants a pool to take its connection from.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(CONNECT)
            .test_before_acquire(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.ignore_pool_close_event(true);
        listener.eager_reconnect(false);
        match timeout(CONNECT, listener.listen_all([CHANNEL, self.own.as_str()])).await {
            Ok(done) => done.map(|()| listener),
            Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        }
    }

    /// Sends a probe and waits for it.
    async fn prove(&mut self, listener: &mut PgListener) -> Result<(), Lost> {
        self.probes += 1;
        let token = self.probes.to_string();
        let mut sending = std::pin::pin!(send(&self.conns, self.own.clone(), token.clone()));
        let mut deadline = None;
        loop {
            tokio::select! {
                sent = &mut sending, if deadline.is_none() => {
                    sent.map_err(Lost::Away)?;
                    deadline = Some(now() + HEARD_WITHIN);
                }
                notice = next(listener) => {
                    let notice = notice?;
                    if notice.channel() == self.own && notice.payload() == token {
                        return Ok(());
                    }
                    self.take(&notice);
                }
                () = sleep_until(deadline.unwrap_or_else(now)), if deadline.is_some() => return Err(Lost::Deaf),
            }
        }
    }

    async fn hear(&self, listener: &mut PgListener) -> Lost {
        loop {
            match next(listener).await {
                Ok(notice) => self.take(&notice),
                Err(lost) => return lost,
            }
        }
    }

    fn take(&self, notice: &PgNotification) {
        if notice.channel() == CHANNEL {
            self.shared.ring();
        }
    }

    fn proven(&mut self, number: u64) {
        self.shared.proven.send_if_modified(|proven| proven.replace(number) != Some(number));
        if std::mem::take(&mut self.is_warned) {
            tracing::info!("the database's notices arrive again");
        }
        self.was_heard = true;
        self.pause = PAUSES.0;
    }

    /// Rings too: who waits does so for as long as it may while we hear.
    fn unproven(&self) {
        if self.shared.proven.send_if_modified(|proven| proven.take().is_some()) {
            self.shared.ring();
        }
    }

    /// Says once that nothing is heard, until something is. That the database is away is told by those who need it.
    fn tell(&mut self, lost: &Lost) {
        if !matches!(lost, Lost::Deaf) || self.is_warned {
            tracing::debug!(error = ?lost, "the listening connection is replaced");
            return;
        }
        self.is_warned = true;
        if self.was_heard {
            tracing::warn!(
                "the database's notices no longer arrive; jobs are polled for until another listening connection hears them"
            );
        } else {
            tracing::warn!(
                "the database's notices do not arrive, so jobs are polled for; a pooler that lends sessions for a transaction \
                 does that, and a direct URL starts jobs sooner"
            );
        }
    }
}

async fn next(listener: &mut PgListener) -> Result<PgNotification, Lost> {
    listener.try_recv().await.map_err(Lost::Broken)?.ok_or(Lost::Closed)
}

async fn send(conns: &Connections, channel: String, token: String) -> Result<(), StoreError> {
    conns
        .run("probe its listener", |conn| {
            Box::pin(async move {
                let sent = sqlx::query("SELECT pg_notify($1, $2)").bind(channel).bind(token).execute(conn).await;
                sent.map(drop).map_err(|e| StoreError::sort("probe its listener", e))
            })
        })
        .await
}
