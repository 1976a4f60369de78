//! The schema's steps, taken once by whoever comes first, and what older and newer programs make of them.

use jobvisor::store::postgres::PostgresStore;
use jobvisor::store::{Store, StoreError};
use support::postgres::Database;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eight_that_start_at_once_one_migrates_and_all_go_on() {
    let database = Database::new();
    let forbidden = PostgresStore::open(&database.url, false).await.unwrap_err();
    let steps = PostgresStore::pending(&database.url).await.unwrap();
    assert!(matches!(forbidden, StoreError::NotMigrated { missing } if missing == steps), "{forbidden:?}");
    assert_eq!(database.psql("SELECT to_regnamespace('jobvisor') IS NULL"), "t", "nothing was touched");
    let all: Vec<_> = (0..8)
        .map(|_| {
            let url = database.url.clone();
            tokio::spawn(async move { PostgresStore::open(&url, true).await })
        })
        .collect();
    for one in all {
        one.await.unwrap().unwrap().close().await;
    }
    assert_eq!(PostgresStore::pending(&database.url).await.unwrap(), 0);
    assert_eq!(database.psql("SELECT count(*), bool_and(success) FROM jobvisor.migrations"), format!("{steps}|t"));
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database
        WHERE datname = current_database())";
    assert_eq!(database.psql(locks), "0", "no lock outlives the migration");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_is_used_where_it_serves_us_and_refused_where_it_does_not() {
    let database = Database::new();
    PostgresStore::open(&database.url, true).await.unwrap().close().await;
    database.execute(
        "INSERT INTO jobvisor.migrations (version, description, success, checksum, execution_time)
         VALUES (900, 'of a later program', true, '', 0)",
    );
    let store = PostgresStore::open(&database.url, true).await.expect("it names us as served");
    assert!(store.terms().await.unwrap().is_empty());
    store.close().await;
    database.execute("UPDATE jobvisor.meta SET value = '900.0.0' WHERE key = 'min_binary'");
    let error = PostgresStore::open(&database.url, true).await.unwrap_err();
    let told = matches!(&error, StoreError::TooNew { found: 900, min_binary, .. } if min_binary == "900.0.0");
    assert!(told && !error.is_unavailable(), "{error:?}");
}

/// What `migrate --print-sql` shows can be run by hand, by somebody who gives a supervisor no right to change the schema.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_printed_steps_make_the_whole_schema() {
    let (printed, migrated) = (Database::new(), Database::new());
    printed.execute(&PostgresStore::migration_sql());
    PostgresStore::open(&printed.url, false).await.expect("nothing is missing").close().await;
    PostgresStore::open(&migrated.url, true).await.unwrap().close().await;
    let shape = "SELECT string_agg(c.relname || '.' || a.attname || ' ' || a.atttypid::regtype, ',' ORDER BY c.relname, a.attname)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'jobvisor' AND c.relname NOT LIKE 'migrations%' AND a.attnum > 0 AND NOT a.attisdropped";
    let functions = "SELECT string_agg(p.proname, ',' ORDER BY p.proname) FROM pg_proc p
        JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'jobvisor'";
    for what in [shape, functions] {
        assert_eq!(printed.psql(what), migrated.psql(what));
    }
}
