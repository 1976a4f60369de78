//! What `jobvisor doctor` asks a server: can it be used, and what about it would hurt?
//!
//! It asks on sessions of its own, in the simple protocol and without any session state, so that it works through a pooler and
//! before there is a schema; it changes nothing. What its user may not look at is said, not guessed.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Decode, Postgres, Row, Type};

use crate::domain::clock;
use crate::domain::units::show_duration;
use crate::store::error::StoreError;

const STEP: &str = "examine it";

/// The oldest version whose statements we use.
const OLDEST: i32 = 15;
/// How often the round trip is taken; the shortest counts.
const ROUNDS: usize = 5;
/// A claim and a record cost a round trip each: beyond this a host cannot start many jobs a second.
const FAR: Duration = Duration::from_millis(50);
/// Clocks that differ by more are worth a word.
const CLOCKS: Duration = Duration::from_secs(1);
/// What one supervisor and a few commands beside it need.
const CONNECTIONS: i32 = 12;
/// How long examining may take in all.
const PATIENCE: Duration = Duration::from_secs(15);

/// How much something matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Good,
    /// Harmless, or not known; worth a word.
    Note,
    /// It keeps jobs from running, or will.
    Trouble,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// How much it matters.
    pub level: Level,
    /// What it is.
    pub what: String,
    /// What would be better.
    pub hint: Option<String>,
}

fn good(what: impl Into<String>) -> Remark {
    Remark { level: Level::Good, what: what.into(), hint: None }
}

fn note(what: impl Into<String>, hint: &str) -> Remark {
    Remark { level: Level::Note, what: what.into(), hint: Some(hint.to_owned()) }
}

fn trouble(what: impl Into<String>, hint: &str) -> Remark {
    Remark { level: Level::Trouble, what: what.into(), hint: Some(hint.to_owned()) }
}

/// Examines the server behind `url`; a transaction is old when it has been open for `old`.
pub(super) async fn examine(url: &str, old: Duration) -> Result<Vec<Remark>, StoreError> {
    let sort = |e| StoreError::sort("connect", e);
    let options = PgConnectOptions::from_str(url).map_err(sort)?.application_name("jobvisor doctor");
    // A pooler that does not know a setting refuses the connection; the driver's own one is not needed.
    let options = options.disable_statement_logging().extra_float_digits(None);
    let examining = async {
        let mut conn = options.connect().await.map_err(sort)?;
        let mut second = options.connect().await.map_err(sort)?;
        let mut remarks = server(&mut conn).await?;
        remarks.push(pooler(&mut conn, &mut second).await?);
        remarks.extend(times(&mut conn).await?);
        remarks.push(schema(&mut conn).await?);
        remarks.push(room(&mut conn).await?);
        remarks.extend(horizon(&mut conn, old).await?);
        // They go either way.
        conn.close().await.ok();
        second.close().await.ok();
        Ok(remarks)
    };
    let late = StoreError::Unavailable { step: STEP, source: sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()) };
    tokio::time::timeout(PATIENCE, examining).await.unwrap_or(Err(late))
}

async fn rows(conn: &mut PgConnection, sql: String) -> Result<Vec<PgRow>, StoreError> {
    // Ours but for a number of ours.
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await.map_err(|e| StoreError::sort(STEP, e))
}

async fn row(conn: &mut PgConnection, sql: &'static str) -> Result<PgRow, StoreError> {
    sqlx::raw_sql(sql).fetch_one(conn).await.map_err(|e| StoreError::sort(STEP, e))
}

fn get<'r, T: Decode<'r, Postgres> + Type<Postgres>>(row: &'r PgRow, column: &str) -> Result<T, StoreError> {
    row.try_get(column).map_err(|e| StoreError::sort(STEP, e))
}

/// Its version, whether it takes writes, whether what we say to it is encrypted.
async fn server(conn: &mut PgConnection) -> Result<Vec<Remark>, StoreError> {
    let found = row(
        conn,
        "SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int / 10000 AS major,
             pg_is_in_recovery() AS standby, current_setting('default_transaction_read_only') = 'on' AS read_only,
             coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS encrypted,
             coalesce(NOT inet_client_addr() << '127.0.0.0/8' AND inet_client_addr() <> '::1', false) AS remote",
    )
    .await?;
    let version: String = get(&found, "version")?;
    let mut remarks = vec![if get::<i32>(&found, "major")? >= OLDEST {
        good(format!("Postgres {version}"))
    } else {
        trouble(format!("Postgres {version} is too old"), "15 and newer are served")
    }];
    if get(&found, "standby")? {
        remarks.push(trouble(
            "the server is a standby: it takes no writes",
            "name the primary, or a DNS name or proxy that leads to it; a supervisor that runs waits until it is promoted",
        ));
    } else if get(&found, "read_only")? {
        remarks.push(trouble(
            "transactions are read-only by default here",
            "`ALTER ROLE … SET default_transaction_read_only = off` (or ALTER DATABASE)",
        ));
    }
    if get(&found, "remote")? && !get::<bool>(&found, "encrypted")? {
        remarks.push(note("the connection is not encrypted", "`?sslmode=verify-full` in the URL demands it"));
    }
    Ok(remarks)
}

/// Two sessions that are open at once have one process each, unless somebody lends them out.
async fn pooler(first: &mut PgConnection, second: &mut PgConnection) -> Result<Remark, StoreError> {
    const PID: &str = "SELECT pg_backend_pid() AS pid";
    let mut lent = false;
    for _ in 0..ROUNDS {
        let (one, two): (i32, i32) = (get(&row(first, PID).await?, "pid")?, get(&row(second, PID).await?, "pid")?);
        lent |= one == two;
    }
    Ok(if lent {
        note(
            "a pooler lends out sessions between here and the server",
            "it works, by polling: nothing can be listened for through it; connect to the server itself to be woken at once",
        )
    } else {
        good("every session is our own: changes can be listened for")
    })
}

/// The round trip, and how far the clocks are apart.
async fn times(conn: &mut PgConnection) -> Result<Vec<Remark>, StoreError> {
    let mut best: Option<(Duration, i64)> = None;
    for _ in 0..ROUNDS {
        let (host, began) = (clock::now(), clock::monotonic());
        let found = row(conn, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now").await?;
        let trip = clock::monotonic() - began;
        let half = i64::try_from(trip.as_micros() / 2).unwrap_or(i64::MAX);
        let ahead = get::<i64>(&found, "now")?.saturating_sub(host.as_microsecond().saturating_add(half));
        if best.is_none_or(|(shortest, _)| trip < shortest) {
            best = Some((trip, ahead));
        }
    }
    Ok(best.map_or_else(Vec::new, |(trip, ahead)| vec![distance(trip), clocks(ahead, trip)]))
}

fn distance(trip: Duration) -> Remark {
    let shown = format!("a round trip takes {:.1} ms", trip.as_secs_f64() * 1000.0);
    if trip <= FAR {
        good(shown)
    } else {
        note(shown, "every claim and every record costs at least one; run supervisors near their database")
    }
}

/// `ahead`: by how many microseconds the database's clock is ahead, known to half a round trip.
fn clocks(ahead: i64, trip: Duration) -> Remark {
    let apart = Duration::from_micros(ahead.unsigned_abs());
    if apart.saturating_sub(trip / 2) <= CLOCKS {
        return good("the clocks of host and database agree within a second");
    }
    let direction = if ahead > 0 { "ahead of" } else { "behind" };
    note(
        format!("the database's clock is {} {direction} this host's", show_duration(apart)),
        "jobs run by the database's clock, so nothing goes wrong; times in logs of this host will not match",
    )
}

async fn schema(conn: &mut PgConnection) -> Result<Remark, StoreError> {
    let found = row(conn, "SELECT to_regclass('jobvisor.meta') IS NOT NULL AS there").await?;
    if !get::<bool>(&found, "there")? {
        return Ok(note(
            "there is no schema `jobvisor` yet",
            "`jobvisor migrate` makes it, and so does the first command where `migrate` is true",
        ));
    }
    let found = row(
        conn,
        "SELECT has_table_privilege('jobvisor.meta', 'SELECT') AS readable, has_schema_privilege('jobvisor', 'USAGE') AS usable",
    )
    .await?;
    if !(get::<bool>(&found, "usable")? && get::<bool>(&found, "readable")?) {
        return Ok(trouble("this user may not use the schema `jobvisor`", "grant it the role `jobvisor_supervisor`"));
    }
    let found = row(
        conn,
        "SELECT max(value) FILTER (WHERE key = 'schema_version') AS version, max(value) FILTER (WHERE key = 'min_binary') AS oldest
         FROM jobvisor.meta",
    )
    .await?;
    let (version, oldest): (Option<String>, Option<String>) = (get(&found, "version")?, get(&found, "oldest")?);
    Ok(good(format!(
        "schema version {}, which serves jobvisor {} and newer",
        version.as_deref().unwrap_or("unknown"),
        oldest.as_deref().unwrap_or("unknown")
    )))
}

/// Whether a supervisor finds room.
async fn room(conn: &mut PgConnection) -> Result<Remark, StoreError> {
    let found = row(
        conn,
        "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS most,
             (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend') AS used",
    )
    .await?;
    let (most, used): (i32, i32) = (get(&found, "most")?, get(&found, "used")?);
    let shown = format!("{used} of {most} connections are in use");
    Ok(if most - used >= CONNECTIONS {
        good(shown)
    } else {
        trouble(
            shown,
            "a supervisor needs up to 8; raise `max_connections`, or put a pooler in front of the application",
        )
    })
}

/// Old transactions: while one holds its snapshot, rows that are done with cannot be removed, and claims get slower.
async fn horizon(conn: &mut PgConnection, old: Duration) -> Result<Vec<Remark>, StoreError> {
    let mut remarks = Vec::new();
    let limit = format!("clock_timestamp() - interval '{} milliseconds'", old.as_millis());
    let sessions = format!(
        "SELECT pid, coalesce(usename, backend_type, 'unknown')::text AS whose, coalesce(application_name, '')::text AS program,
             coalesce(state, 'unknown')::text AS state, backend_xmin IS NOT NULL OR backend_xid IS NOT NULL AS holds,
             extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age
         FROM pg_stat_activity
         WHERE pid <> pg_backend_pid() AND datname = current_database() AND backend_type <> 'autovacuum worker'
           AND xact_start < {limit}
           AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state LIKE 'idle in transaction%')
         ORDER BY xact_start LIMIT 10"
    );
    let sessions = rows(conn, sessions).await?;
    for session in &sessions {
        remarks.push(old_session(session)?);
    }
    let prepared = format!(
        "SELECT gid::text AS gid, owner::text AS owner, extract(epoch FROM clock_timestamp() - prepared)::float8 AS age
         FROM pg_prepared_xacts WHERE database = current_database() AND prepared < {limit} ORDER BY prepared LIMIT 10"
    );
    let prepared = rows(conn, prepared).await?;
    for transaction in &prepared {
        let (gid, owner): (String, String) = (get(transaction, "gid")?, get(transaction, "owner")?);
        remarks.push(trouble(
            format!("transaction `{gid}` of {owner} was prepared {} ago and never ended", age(transaction)?),
            "it keeps rows that are done with from being removed; `COMMIT PREPARED` or `ROLLBACK PREPARED` it",
        ));
    }
    if remarks.is_empty() {
        remarks.push(good("no old transaction keeps rows that are done with from being removed"));
    }
    remarks.extend(unseen(conn).await?);
    Ok(remarks)
}

fn old_session(session: &PgRow) -> Result<Remark, StoreError> {
    let pid: i32 = get(session, "pid")?;
    let (whose, program): (String, String) = (get(session, "whose")?, get(session, "program")?);
    let (state, holds): (String, bool) = (get(session, "state")?, get(session, "holds")?);
    let program = if program.is_empty() { String::new() } else { format!(", `{program}`") };
    let what = format!("pid {pid} ({whose}{program}) has had a transaction open for {}, {state}", age(session)?);
    Ok(if holds {
        trouble(
            format!("{what}: rows that are done with cannot be removed, and claims get slower"),
            "end that transaction (`SELECT pg_terminate_backend(pid)`); `idle_in_transaction_session_timeout` ends such by itself",
        )
    } else {
        note(what, "it may hold locks; `idle_in_transaction_session_timeout` ends such by itself")
    })
}

/// Of other users' sessions most is hidden from an ordinary user.
async fn unseen(conn: &mut PgConnection) -> Result<Option<Remark>, StoreError> {
    let found = row(
        conn,
        "SELECT NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AND EXISTS (
             SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND usename <> current_user) AS unseen",
    )
    .await?;
    Ok(get::<bool>(&found, "unseen")?.then(|| {
        note(
            "there are sessions of other users that this one may not look into",
            "`GRANT pg_read_all_stats` to it, and old transactions of others are found too",
        )
    }))
}

fn age(row: &PgRow) -> Result<String, StoreError> {
    Ok(show_duration(Duration::try_from_secs_f64(get(row, "age")?).unwrap_or(Duration::ZERO)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_are_worth_a_word_and_no_trouble() {
        let near = Duration::from_millis(1);
        assert_eq!(clocks(900_000, near).level, Level::Good);
        assert_eq!(clocks(-900_000, near).level, Level::Good);
        let ahead = clocks(65_000_000, near);
        assert_eq!(
            (ahead.level, ahead.what.as_str()),
            (Level::Note, "the database's clock is 1 min 5 s ahead of this host's")
        );
        assert!(clocks(-2_000_000, near).what.contains("2.0 s behind"));
        // A slow answer is no proof.
        assert_eq!(clocks(2_000_000, Duration::from_secs(3)).level, Level::Good);
        assert_eq!(clocks(i64::MIN, near).level, Level::Note);
    }

    #[test]
    fn a_database_far_away_is_worth_a_word() {
        assert_eq!(distance(Duration::from_micros(300)).what, "a round trip takes 0.3 ms");
        assert_eq!(distance(Duration::from_millis(80)).level, Level::Note);
    }
}
