//! The schema's steps, embedded in the program, and what a program does with a schema that is not its own.
//!
//! All missing steps run in one transaction under a lock that ends with it, so that of several supervisors that start at once
//! one migrates and the others find it done, and a pooler can lose nothing. A schema that is newer than the program names
//! the oldest program that it serves (`meta.min_binary`).

use std::collections::BTreeSet;

use sqlx::Connection;
use sqlx::migrate::{Migration, Migrator};
use sqlx::postgres::PgConnection;

use super::conn::Connections;
use crate::store::error::StoreError;
use crate::store::schema;

static STEPS: Migrator = sqlx::migrate!("migrations/postgres");

const STEP: &str = "migrate its schema";

/// The lock of those who migrate: `jobvisor` in ASCII.
const LOCK: i64 = 0x6a6f_6276_6973_6f72;

/// All steps as one text, with the schema that they need and the note that each was taken: whoever runs it by hand has done what
/// a program that may migrate does.
pub(super) fn sql() -> String {
    const HEAD: &str = "CREATE SCHEMA IF NOT EXISTS jobvisor;

CREATE TABLE IF NOT EXISTS jobvisor.migrations (version bigint PRIMARY KEY, description text NOT NULL,
    installed_on timestamptz NOT NULL DEFAULT now(), success boolean NOT NULL, checksum bytea NOT NULL,
    execution_time bigint NOT NULL);

";
    std::iter::once(HEAD.to_owned()).chain(STEPS.iter().map(with_note)).collect()
}

fn with_note(step: &Migration) -> String {
    let checksum = step.checksum.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!(
        "{}\nINSERT INTO jobvisor.migrations (version, description, success, checksum, execution_time)
VALUES ({}, '{}', true, '\\x{checksum}', 0);\n\n",
        schema::step_sql(step),
        step.version,
        step.description
    )
}

/// Steps that the database lacks.
pub(super) async fn pending(conns: &Connections) -> Result<usize, StoreError> {
    conns.run_apart(STEP, |conn| Box::pin(async move { Ok(schema::missing(&STEPS, &applied(conn).await?)) })).await
}

/// Makes sure that the schema serves this program. A standby cannot be migrated; [`StoreError::Unavailable`] says so.
pub(super) async fn bring_up(conns: &Connections, allowed: bool) -> Result<(), StoreError> {
    conns.run_apart("connect", move |conn| Box::pin(serve(conn, allowed))).await
}

async fn serve(conn: &mut PgConnection, allowed: bool) -> Result<(), StoreError> {
    let applied = applied(conn).await?;
    if let Some(newer) = schema::newer(&STEPS, &applied) {
        let min_binary = sqlx::query_scalar("SELECT value FROM jobvisor.meta WHERE key = 'min_binary'")
            .fetch_one(conn)
            .await
            .map_err(|e| StoreError::sort("read its schema version", e))?;
        return schema::serves_us(newer, min_binary);
    }
    match schema::missing(&STEPS, &applied) {
        0 => Ok(()),
        missing if !allowed => Err(StoreError::NotMigrated { missing }),
        _ => run(conn).await.map_err(|e| StoreError::sort(STEP, e)),
    }
}

async fn run(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut steps = Migrator::with_migrations(STEPS.iter().cloned().collect());
    steps.dangerous_set_table_name("jobvisor.migrations");
    // The driver's own lock belongs to the session, which a pooler may give to somebody else.
    steps.set_locking(false);
    let mut tx = conn.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *tx).await?;
    // Not `IF NOT EXISTS` alone: that asks for the right to make schemas even where ours is there already.
    let there: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = 'jobvisor')")
        .fetch_one(&mut *tx)
        .await?;
    if !there {
        sqlx::query("CREATE SCHEMA jobvisor").execute(&mut *tx).await?;
    }
    steps.run_direct(None, &mut *tx, false).await?;
    tx.commit().await
}

async fn applied(conn: &mut PgConnection) -> Result<BTreeSet<i64>, StoreError> {
    let sort = |e| StoreError::sort("read its schema version", e);
    let there: bool = sqlx::query_scalar("SELECT to_regclass('jobvisor.migrations') IS NOT NULL")
        .fetch_one(&mut *conn)
        .await
        .map_err(sort)?;
    if !there {
        return Ok(BTreeSet::new());
    }
    let versions: Vec<i64> = sqlx::query_scalar("SELECT version FROM jobvisor.migrations WHERE success")
        .fetch_all(conn)
        .await
        .map_err(sort)?;
    Ok(versions.into_iter().collect())
}
