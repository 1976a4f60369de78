//! Connections: what each is for, how a call is made on one, and how long it may take.
//!
//! Claims and finishes have a [`Lane`] of one connection each, with planner settings of their own; renewals get another from
//! [`Connections::lane`], in the runtime of the thread that renews; everything else shares a lane of [`SHARED`].
//!
//! - A call waits at most [`PATIENCE`] for its turn, `CONNECT` for the server to let it in, and [`PATIENCE`] for its answer; a call that is given
//!   up takes its connection along, since the answer may still come. The server gives a statement up a second earlier
//!   ([`LIMITS`]), so that it does not carry out later what we have given up.
//! - A connection that lay idle for more than [`FRESH`] is asked for a sign of life first, and replaced without an error if
//!   it gives none. No statement is ever sent twice: whether one that broke was carried out is for the caller to find out.
//! - An error that may pass takes the connection along: it is broken, or leads to a server that is a standby or shuts down.
//! - Behind a pooler (`route.rs`) a call is one transaction: its settings come first (`SET LOCAL`), and the names of its
//!   statements are given up before it is committed. So nothing of ours stays on a session that others use. A call that
//!   goes on after an error of a statement would find its transaction broken: one statement that may fail is one call.
//!   Known limit: another program with the same driver that leaves its names on those sessions makes calls of ours fail until
//!   the pooler replaces them; pgbouncer 1.21 and newer keep names apart.
//!
//! Why not the driver's pool: it answers "timed out" where the server was not there, and cannot make calls of that kind.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::sync::Semaphore;

use super::route::{Route, Settings};
use crate::domain::clock;
use crate::store::error::StoreError;

/// How long a call may take before it is given up with its connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connections for everything but claims, finishes and renewals.
const SHARED: usize = 4;

/// A connection that was used so recently is taken to live.
const FRESH: Duration = Duration::from_millis(250);

/// How long an idle connection may take to give a sign of life.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// What lies between us and the server may have forgotten a connection that was idle for so long (balancers do after 350 s), and would
/// then let the question for a sign of life vanish.
const STALE: Duration = Duration::from_secs(240);

/// How long the server lets a statement of ours take.
const LIMITS: Settings = &[("statement_timeout", "9000")];

/// Migrations take what they take.
const NO_LIMITS: Settings = &[("statement_timeout", "0")];

/// For the claim and the finish alone. Without them a claim is planned anew at each call, and on statistics of an empty table
/// it costs 25 times as much (268 against 10 µs a job). Never `enable_seqscan = off` without `jit = off`: a plan that keeps a
/// sequential scan then looks so dear that it is compiled.
const PLANNER: Settings = &[
    ("statement_timeout", "9000"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
];

/// What a call is given and gives back.
pub(super) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'c>>;

/// All connections of a store.
#[derive(Debug)]
pub(super) struct Connections {
    route: Arc<Route>,
    shared: Lane,
    /// For claims.
    pub(super) claims: Lane,
    /// For finishes.
    pub(super) finishes: Lane,
}

impl Connections {
    /// Reads the URL; connects when first used.
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        let route = Arc::new(Route::new(url)?);
        Ok(Self {
            shared: Lane::new(&route, LIMITS, SHARED),
            claims: Lane::new(&route, PLANNER, 1),
            finishes: Lane::new(&route, PLANNER, 1),
            route,
        })
    }

    /// A connection for one more purpose.
    pub(super) fn lane(&self) -> Lane {
        Lane::new(&self.route, LIMITS, 1)
    }

    /// How a session that is ours alone is asked for; there is none behind a pooler.
    pub(super) fn session(&self) -> Option<PgConnectOptions> {
        (!self.route.is_pooled()).then(|| self.route.session(LIMITS))
    }

    /// Runs `work` on a connection that is shared with other calls, in a task that outlives its caller.
    pub(super) async fn run<T, F>(&self, step: &'static str, work: F) -> Result<T, StoreError>
    where
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
        T: Send + 'static,
    {
        self.shared.run(step, work).await
    }

    /// Runs `work`, however long it takes, on a connection made for it.
    pub(super) async fn run_apart<T, F>(&self, step: &'static str, work: F) -> Result<T, StoreError>
    where
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
        T: Send + 'static,
    {
        let lane = Lane::new(&self.route, NO_LIMITS, 1);
        outlive(step, async move {
            let mut conn = lane.route.connect(lane.settings, step).await?;
            let done = lane.carry(&mut conn, step, work).await;
            // It goes either way.
            tokio::time::timeout(SIGN_OF_LIFE, conn.close()).await.ok();
            done
        })
        .await
    }

    pub(super) async fn close(&self) {
        for lane in [&self.shared, &self.claims, &self.finishes] {
            lane.close().await;
        }
    }
}

/// Connections for one purpose, made when they are needed and again when they broke.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    route: Arc<Route>,
    settings: Settings,
    /// As many as there may be connections; closed with the lane.
    places: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Idle>>>,
}

#[derive(Debug)]
struct Idle {
    conn: PgConnection,
    since: Instant,
}

impl Lane {
    fn new(route: &Arc<Route>, settings: Settings, places: usize) -> Self {
        Self {
            route: Arc::clone(route),
            settings,
            places: Arc::new(Semaphore::new(places)),
            idle: Arc::new(Mutex::new(Vec::with_capacity(places))),
        }
    }

    /// Runs `work` on a connection, as many calls at a time as there are places, in a task that outlives its caller.
    pub(super) async fn run<T, F>(&self, step: &'static str, work: F) -> Result<T, StoreError>
    where
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
        T: Send + 'static,
    {
        let lane = self.clone();
        outlive(step, async move {
            let turn = tokio::time::timeout(PATIENCE, Arc::clone(&lane.places).acquire_owned()).await;
            let _place = turn.map_err(|_| too_slow(step))?.map_err(|_| closed(step))?;
            let mut conn = lane.ready(step).await?;
            let done = match tokio::time::timeout(PATIENCE, lane.carry(&mut conn, step, work)).await {
                Ok(done) => done,
                Err(_) => return Err(too_slow(step)),
            };
            lane.give_back(conn, done.as_ref().err()).await;
            done
        })
        .await
    }

    /// A connection that was alive a moment ago.
    async fn ready(&self, step: &'static str) -> Result<PgConnection, StoreError> {
        while let Some(mut idle) = self.take() {
            let rested = clock::monotonic().duration_since(idle.since);
            if rested < FRESH {
                return Ok(idle.conn);
            }
            if rested < STALE && is_alive(&mut idle.conn).await {
                return Ok(idle.conn);
            }
        }
        self.route.connect(self.settings, step).await
    }

    async fn carry<T, F>(&self, conn: &mut PgConnection, step: &'static str, work: F) -> Result<T, StoreError>
    where
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
    {
        let done = if self.route.is_pooled() { self.transact(conn, step, work).await } else { work(conn).await };
        if done.as_ref().is_err_and(StoreError::is_of_a_foreign_session) {
            self.route.note_pooler("it does not know our statements");
        }
        done
    }

    /// One call as one transaction that leaves nothing on the session.
    async fn transact<T, F>(&self, conn: &mut PgConnection, step: &'static str, work: F) -> Result<T, StoreError>
    where
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
    {
        let sort = |error| StoreError::sort(step, error);
        let mut begin = String::from("BEGIN");
        for (name, value) in self.settings {
            begin.push_str("; SET LOCAL ");
            begin.push_str(name);
            begin.push_str(" = ");
            begin.push_str(value);
        }
        let mut tx = conn.begin_with(sqlx::AssertSqlSafe(begin)).await.map_err(sort)?;
        let done = work(&mut tx).await;
        // The driver names every statement, and the session is somebody else's next.
        let forgotten = tx.clear_cached_statements().await;
        match done {
            Ok(done) => {
                forgotten.map_err(sort)?;
                tx.commit().await.map_err(sort)?;
                Ok(done)
            }
            Err(error) => {
                // If this fails too, the connection is found broken when it is next used.
                tx.rollback().await.ok();
                Err(error)
            }
        }
    }

    /// Keeps a connection for the next call, unless it may be broken.
    async fn give_back(&self, mut conn: PgConnection, error: Option<&StoreError>) {
        let keeps = match error {
            None => true,
            Some(error) if error.is_unavailable() => false,
            // A transaction that was given up is rolled back with the next message.
            Some(_) => is_alive(&mut conn).await,
        };
        if keeps && !self.places.is_closed() {
            self.idle().push(Idle { conn, since: clock::monotonic() });
        }
    }

    fn take(&self) -> Option<Idle> {
        self.idle().pop()
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        // Nothing panics while it is held.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn close(&self) {
        self.places.close();
        while let Some(idle) = self.take() {
            // It goes either way.
            tokio::time::timeout(SIGN_OF_LIFE, idle.conn.close()).await.ok();
        }
    }
}

async fn is_alive(conn: &mut PgConnection) -> bool {
    tokio::time::timeout(SIGN_OF_LIFE, conn.ping()).await.is_ok_and(|sign| sign.is_ok())
}

pub(super) fn too_slow(step: &'static str) -> StoreError {
    StoreError::Unavailable { step, source: sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()) }
}

const fn closed(step: &'static str) -> StoreError {
    StoreError::Unavailable { step, source: sqlx::Error::PoolClosed }
}

async fn outlive<T: Send + 'static>(
    step: &'static str,
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::spawn(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(StoreError::Unavailable { step, source: sqlx::Error::WorkerCrashed }),
        },
    }
}
