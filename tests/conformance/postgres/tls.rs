//! Encrypted connections and passwords, with certificates made here.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ::support::postgres::{Cluster, Database};
use jobvisor::store::postgres::PostgresStore;
use jobvisor::store::{Store, StoreError};

use crate::support::{add, new_job};

/// Needs escaping in a URL, and is easy to find in a text.
const PASSWORD: &str = "s3cret/%@pw";
const IN_A_URL: &str = "s3cret%2F%25%40pw";

fn openssl(arguments: &[&str]) {
    let made = Command::new("openssl").args(arguments).stdin(Stdio::null()).output().expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// An authority, and a certificate for 127.0.0.1 that it has signed.
fn certificates(folder: &Path) {
    let at = |name: &str| folder.join(name).display().to_string();
    for name in ["ca", "stranger"] {
        let (key, cert) = (at(&format!("{name}.key")), at(&format!("{name}.pem")));
        let ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        let subject = format!("/CN=jobvisor test {name}");
        openssl(
            &[&["req", "-x509"], &ec[..], &["-days", "2", "-subj", &subject, "-keyout", &key, "-out", &cert]].concat(),
        );
    }
    let (key, request) = (at("server.key"), at("server.csr"));
    let ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    openssl(&[&["req"], &ec[..], &["-subj", "/CN=server", "-keyout", &key, "-out", &request]].concat());
    std::fs::write(at("names"), "subjectAltName = IP:127.0.0.1\n").unwrap();
    openssl(&[
        "x509",
        "-req",
        "-days",
        "2",
        "-in",
        &request,
        "-CA",
        &at("ca.pem"),
        "-CAkey",
        &at("ca.key"),
        "-CAcreateserial",
        "-extfile",
        &at("names"),
        "-out",
        &at("server.pem"),
    ]);
}

/// A server that wants encryption and a password.
fn server(certs: &Path) -> (Cluster, Database) {
    let cluster = Cluster::start(&["listen_addresses=127.0.0.1"]);
    let database = cluster.database();
    certificates(certs);
    let data = cluster.folder().join("data");
    let owner = std::fs::metadata(&data).unwrap();
    for name in ["server.key", "server.pem"] {
        let to = data.join(name);
        std::fs::copy(certs.join(name), &to).unwrap();
        std::fs::set_permissions(&to, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&to, Some(std::os::unix::fs::MetadataExt::uid(&owner)), None).unwrap();
    }
    std::fs::write(
        data.join("pg_hba.conf"),
        "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\nhostnossl all all 127.0.0.1/32 reject\n",
    )
    .unwrap();
    for setting in ["ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.key'", "ssl = on"] {
        database.execute(&format!("ALTER SYSTEM SET {setting}"));
    }
    database.execute(&format!("CREATE ROLE team LOGIN SUPERUSER PASSWORD '{PASSWORD}'"));
    database.execute("SELECT pg_reload_conf()");
    (cluster, database)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_connection_is_checked_against_the_authority_that_the_url_names() {
    let certs = tempfile::tempdir().unwrap();
    let (cluster, database) = server(certs.path());
    let url = |user: &str, host: &str, more: &str| {
        format!("postgres://{user}@{host}:{}/{}?{more}", cluster.port(), database.name())
    };
    let full = |authority: &str| format!("sslmode=verify-full&sslrootcert={}", certs.path().join(authority).display());
    let me = format!("team:{IN_A_URL}");

    let store = PostgresStore::open(&url(&me, "127.0.0.1", &full("ca.pem")), true).await.unwrap();
    add(&store, new_job("k")).await;
    assert_eq!(store.counts().await.unwrap().len(), 1);
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'team'";
    assert_eq!(database.psql(encrypted), "t");

    let refused = async |url: String, why: &str| {
        let error = PostgresStore::open(&url, false).await.unwrap_err();
        let mut told = format!("{error} {error:?}");
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            told.push_str(": ");
            told.push_str(&error.to_string());
            source = error.source();
        }
        assert!(matches!(error, StoreError::Refused { .. }), "waiting would not help: {told}");
        assert!(told.contains(why) && !told.contains(PASSWORD) && !told.contains(IN_A_URL), "{told}");
    };
    refused(url(&me, "127.0.0.1", &full("stranger.pem")), "certificate").await;
    refused(url(&me, "localhost", &full("ca.pem")), "certificate").await;
    refused(url(&me, "127.0.0.1", &full("nowhere.pem")), "certificate").await;
    refused(url("team:wrong", "127.0.0.1", &full("ca.pem")), "password authentication failed").await;
    refused(url("team", "127.0.0.1", &full("ca.pem")), "password authentication failed").await;
    refused(url(&me, "127.0.0.1", "sslmode=disable"), "pg_hba.conf rejects connection").await;
    let debug = format!("{store:?}");
    assert!(debug.contains("127.0.0.1") && !debug.contains(PASSWORD), "{debug}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_may_stand_in_a_file() {
    let certs = tempfile::tempdir().unwrap();
    let (cluster, database) = server(certs.path());
    let file = certs.path().join("passwords");
    let migrate = |line: &str| -> Output {
        std::fs::write(&file, line).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let url = format!(
            "postgres://team@127.0.0.1:{}/{}?sslmode=verify-full&sslrootcert={}",
            cluster.port(),
            database.name(),
            certs.path().join("ca.pem").display()
        );
        Command::new(env!("CARGO_BIN_EXE_jobvisor-under-test"))
            .args(["--database", &url, "migrate"])
            .env("PGPASSFILE", &file)
            .current_dir(certs.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let wrong = migrate(&format!("127.0.0.1:{}:*:team:not {PASSWORD}\n", cluster.port()));
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && !told.contains(PASSWORD), "{told}");
    assert!(told.contains("password authentication failed"), "{told}");
    let right = migrate(&format!("127.0.0.1:{}:*:team:{PASSWORD}\n", cluster.port()));
    assert!(right.status.success(), "{}", String::from_utf8_lossy(&right.stderr));
    assert_eq!(database.psql("SELECT count(*) FROM jobvisor.jobs"), "0");
}
