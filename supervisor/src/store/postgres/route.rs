//! How the server is reached, and whether a pooler stands before it.
//!
//! A connection asks for its settings (time limit, planner) in its startup packet, with a token of its own among them, and reads the
//! token back. A pooler that lends sessions for a transaction at a time either refuses such settings (pgbouncer) or drops them
//! (told to ignore them; most others); either way the store is [`pooled`](Route::is_pooled) from then on: every call
//! is a transaction that brings its settings along, nobody listens, and nothing stays behind on the session (`conn.rs`).
//! A pooler that passes settings on is found by the first statement whose name another session does not know. It never
//! becomes direct again: whatever is right behind a pooler is right without one.
//!
//! It does not choose among servers. A URL names one host; of several addresses of that name the first that accepts is taken,
//! so after a failover the name must lead to the new primary (`target_session_attrs` does not exist here). A connection that
//! meets a read-only server is dropped, and the next call looks the name up again.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Row};

use super::conn::too_slow;
use crate::store::error::StoreError;

/// How long the server may take to let us in.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// The setting that holds a connection's token.
const TOKEN: &str = "jobvisor.token";

/// Settings that a connection or a transaction gets.
pub(super) type Settings = &'static [(&'static str, &'static str)];

/// A server, or a pooler before it.
pub(super) struct Route {
    base: PgConnectOptions,
    pooled: AtomicBool,
    tokens: AtomicU64,
}

// By hand: what connects knows a password.
impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("server", &server(&self.base)).field("pooled", &self.is_pooled()).finish()
    }
}

impl Route {
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        let base = parse(url)?
            .application_name("jobvisor")
            // Numbers travel in binary; poolers refuse what they do not know.
            .extra_float_digits(None)
            .disable_statement_logging();
        Ok(Self { base, pooled: AtomicBool::new(false), tokens: AtomicU64::new(0) })
    }

    /// Whether sessions are lent for a transaction at a time.
    pub(super) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Acquire)
    }

    /// Notes that a pooler stands before the server.
    pub(super) fn note_pooler(&self, sign: &'static str) {
        if !self.pooled.swap(true, Ordering::AcqRel) {
            tracing::debug!(sign, "a pooler stands before the database: each call is a transaction of its own");
        }
    }

    /// How a session that is ours alone is asked for.
    pub(super) fn session(&self, settings: Settings) -> PgConnectOptions {
        self.base.clone().options(settings.iter().copied())
    }

    /// Connects, within [`CONNECT`].
    pub(super) async fn connect(&self, settings: Settings, step: &'static str) -> Result<PgConnection, StoreError> {
        let sort = |error| self.sort_connecting(step, error);
        match tokio::time::timeout(CONNECT, self.find(settings)).await {
            Ok(conn) => conn.map_err(sort),
            Err(_) => Err(too_slow(step)),
        }
    }

    async fn find(&self, settings: Settings) -> Result<PgConnection, sqlx::Error> {
        if !self.is_pooled() {
            let token = format!("{}-{}", std::process::id(), self.tokens.fetch_add(1, Ordering::Relaxed));
            match self.session(settings).options([(TOKEN, &token)]).connect().await {
                Ok(mut conn) => {
                    if read_token(&mut conn).await?.as_deref() == Some(&token) {
                        return Ok(conn);
                    }
                    self.note_pooler("it drops settings");
                    // It goes either way.
                    conn.close().await.ok();
                }
                Err(error) if refuses_settings(&error) => self.note_pooler("it refuses settings"),
                Err(error) => return Err(error),
            }
        }
        self.base.connect().await
    }

    /// A file that is named and cannot be read will not come by waiting; a socket that is not there yet may.
    fn sort_connecting(&self, step: &'static str, source: sqlx::Error) -> StoreError {
        let by_socket = self.base.get_socket().is_some() || self.base.get_host().starts_with('/');
        let is_of_a_file = matches!(&source, sqlx::Error::Io(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied));
        if is_of_a_file && !by_socket {
            return StoreError::Refused { step: "read a certificate or key that its URL names", source };
        }
        StoreError::sort(step, source)
    }
}

/// One round trip, and no statement with a name.
async fn read_token(conn: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    let row = sqlx::raw_sql("SELECT current_setting('jobvisor.token', true)").fetch_one(conn).await?;
    row.try_get(0)
}

/// Poolers say so in words of their own, under one of two codes.
fn refuses_settings(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    let told = error.message();
    matches!(error.code().as_deref(), Some("08P01" | "0A000"))
        && (told.contains("startup parameter") || told.contains("option"))
}

/// The database's name, and what tells it from others: host, port and name.
pub(super) fn identity(url: &str) -> Result<(String, String), StoreError> {
    let options = parse(url)?;
    Ok((database(&options), server(&options)))
}

fn parse(url: &str) -> Result<PgConnectOptions, StoreError> {
    PgConnectOptions::from_str(url).map_err(|source| StoreError::Refused { step: "read its URL", source })
}

fn database(options: &PgConnectOptions) -> String {
    options.get_database().unwrap_or_else(|| options.get_username()).to_owned()
}

fn server(options: &PgConnectOptions) -> String {
    let host = options.get_socket().map_or_else(|| options.get_host().to_owned(), |path| path.display().to_string());
    format!("{host}:{}/{}", options.get_port(), database(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_errors_nor_debug_repeat_a_password() {
        let route = Route::new("postgres://me:s3cret@db.example:6432/jobs").unwrap();
        let told = format!("{route:?}");
        assert!(!told.contains("s3cret") && told.contains("db.example:6432/jobs"), "{told}");
        for url in ["postgres://me:s3cret@h1:5432,h2:5432/jobs", "postgres://me:s3cret@h:99999/jobs"] {
            let error = Route::new(url).unwrap_err();
            let told = format!("{error} {error:?}");
            assert!(!told.contains("s3cret"), "{told}");
        }
    }

    #[test]
    fn an_identity_is_host_port_and_name() {
        let (name, whole) = identity("postgres://me:pw@db.example/jobs").unwrap();
        assert_eq!((name.as_str(), whole.as_str()), ("jobs", "db.example:5432/jobs"));
    }
}
