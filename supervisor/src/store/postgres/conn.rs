//! Connections: how they are made, what each is for, and how long a call may take.

use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use tokio::sync::Mutex;

use crate::store::error::StoreError;

/// How long the server may take to let us in.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a call may take before it is given up with its connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the server lets a statement of ours take: less than our own patience, so that it does not carry out later what we
/// have given up.
const STATEMENT_TIMEOUT_MS: &str = "9000";

/// Connections for everything but claims, finishes and renewals.
const POOL: u32 = 4;

/// For the claim and the finish alone. Without them a claim is planned anew at each call, and on statistics of an empty table
/// it costs 25 times as much (268 against 10 µs a job). Never `enable_seqscan = off` without `jit = off`: a plan that keeps a
/// sequential scan then looks so dear that it is compiled.
const PLANNER: [(&str, &str); 6] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
];

/// The database's name, and what tells it from others: host, port and name.
pub(super) fn identity(url: &str) -> Result<(String, String), StoreError> {
    let options =
        PgConnectOptions::from_str(url).map_err(|source| StoreError::Refused { step: "read its URL", source })?;
    let host = options.get_socket().map_or_else(|| options.get_host().to_owned(), |path| path.display().to_string());
    let name = options.get_database().unwrap_or_else(|| options.get_username()).to_owned();
    Ok((name.clone(), format!("{host}:{}/{name}", options.get_port())))
}

/// What a call is given and gives back.
pub(super) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'c>>;

/// All connections of a store.
#[derive(Debug)]
pub(super) struct Connections {
    base: PgConnectOptions,
    pool: PgPool,
    /// For claims.
    pub(super) claims: Lane,
    /// For finishes.
    pub(super) finishes: Lane,
}

impl Connections {
    /// Reads the URL; connects when first used.
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        let base = PgConnectOptions::from_str(url)
            .map_err(|source| StoreError::Refused { step: "read its URL", source })?
            .application_name("jobvisor")
            .options([("statement_timeout", STATEMENT_TIMEOUT_MS)])
            .disable_statement_logging();
        let pool = PgPoolOptions::new().max_connections(POOL).acquire_timeout(CONNECT).connect_lazy_with(base.clone());
        let tuned = base.clone().options(PLANNER);
        Ok(Self { pool, claims: Lane::new(tuned.clone()), finishes: Lane::new(tuned), base })
    }

    /// How a connection of one's own is made.
    pub(super) const fn options(&self) -> &PgConnectOptions {
        &self.base
    }

    /// Runs `work` on a connection of the pool, in a task that outlives its caller.
    pub(super) async fn run<T, F>(&self, step: &'static str, work: F) -> Result<T, StoreError>
    where
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
        T: Send + 'static,
    {
        let pool = self.pool.clone();
        outlive(step, async move {
            let mut conn = pool.acquire().await.map_err(|e| StoreError::sort(step, e))?;
            match tokio::time::timeout(PATIENCE, work(&mut conn)).await {
                Ok(done) => done,
                Err(_) => {
                    // Its answer may still come: nobody else must get it.
                    drop(conn.detach());
                    Err(too_slow(step))
                }
            }
        })
        .await
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
        self.claims.close().await;
        self.finishes.close().await;
    }
}

/// One connection for one purpose, made when it is needed and again when it broke.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    options: Arc<PgConnectOptions>,
    conn: Arc<Mutex<Option<PgConnection>>>,
}

impl Lane {
    pub(super) fn new(options: PgConnectOptions) -> Self {
        Self { options: Arc::new(options), conn: Arc::new(Mutex::new(None)) }
    }

    /// Runs `work` on the connection, one call at a time, in a task that outlives its caller.
    pub(super) async fn run<T, F>(&self, step: &'static str, work: F) -> Result<T, StoreError>
    where
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
        T: Send + 'static,
    {
        let lane = self.clone();
        outlive(step, async move {
            let mut place = lane.conn.lock_owned().await;
            let mut conn = match place.take() {
                Some(conn) => conn,
                None => connect(&lane.options, step).await?,
            };
            let done = match tokio::time::timeout(PATIENCE, work(&mut conn)).await {
                Ok(done) => done,
                Err(_) => return Err(too_slow(step)),
            };
            // A refusal leaves the connection as good as it was; anything else may have broken it.
            if !done.as_ref().is_err_and(StoreError::is_unavailable) {
                *place = Some(conn);
            }
            done
        })
        .await
    }

    async fn close(&self) {
        if let Some(conn) = self.conn.lock().await.take() {
            // It goes either way.
            conn.close().await.ok();
        }
    }
}

/// Connects, within [`CONNECT`].
pub(super) async fn connect(options: &PgConnectOptions, step: &'static str) -> Result<PgConnection, StoreError> {
    match tokio::time::timeout(CONNECT, options.connect()).await {
        Ok(conn) => conn.map_err(|e| StoreError::sort(step, e)),
        Err(_) => Err(too_slow(step)),
    }
}

fn too_slow(step: &'static str) -> StoreError {
    StoreError::Unavailable { step, source: sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()) }
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
