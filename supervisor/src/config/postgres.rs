//! Reads a `postgres://` URL as the driver will, so that a mistake in it is told with the file's other mistakes.
//!
//! The driver would take some of them silently (it logs parameters that it does not know *with their values*) and tell the
//! others when it connects. Nothing here repeats any part of the URL: what looks like a host may be half a password.

use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use url::Url;

use super::file::nearest;
use super::model::PostgresUrl;

/// What may stand after `?`: what the driver knows, by the names of libpq.
const PARAMETERS: &[&str] = &[
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "application_name",
    "options",
];

const SSL_MODES: &[&str] = &["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

const EXAMPLE: &str =
    "write `postgres://user@host/database`, or `postgres:///database?host=/run/postgresql` for a socket";
const ENCODE: &str =
    "in a user name or password write `%25` for `%`, `%23` for `#`, `%2F` for `/`, `%3F` for `?`, `%40` for `@`";

/// What is wrong, and what would be right.
type Wrong = (String, String);

fn wrong(what: impl Into<String>, hint: impl Into<String>) -> Wrong {
    (what.into(), hint.into())
}

/// Checks all that can be told without a server.
pub(super) fn read(text: &str) -> Result<PostgresUrl, Wrong> {
    if !text.contains("://") {
        return Err(wrong("the database URL has no `//` after its scheme", EXAMPLE));
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(wrong("the database URL holds a blank or a control character", ENCODE));
    }
    // The parser's words name no part of the text.
    let url = Url::parse(text).map_err(|error| wrong(format!("the database URL cannot be read: {error}"), ENCODE))?;
    if url.fragment().is_some() {
        return Err(wrong("the database URL holds a `#`, which would end it", ENCODE));
    }
    check_encoding(text)?;
    if url.host_str().is_some_and(|host| host.contains(',')) {
        return Err(wrong(
            "the database URL names several hosts",
            "name one; a proxy or a DNS name can stand for many",
        ));
    }
    if url.path().trim_start_matches('/').contains('/') {
        return Err(wrong("the database URL names more than a database after its host", ENCODE));
    }
    url.query_pairs().try_for_each(|(key, value)| check_parameter(&key, &value))?;
    Ok(PostgresUrl(text.to_owned()))
}

/// Every `%` stands for a byte, and the bytes for text that Postgres can be sent.
fn check_encoding(text: &str) -> Result<(), Wrong> {
    let mut codes = text.split('%').skip(1);
    if !codes.all(|code| code.len() >= 2 && code.bytes().take(2).all(|byte| byte.is_ascii_hexdigit())) {
        return Err(wrong("the database URL holds a `%` without two hexadecimal digits after it", ENCODE));
    }
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| wrong("what the database URL encodes with `%` is not UTF-8", ENCODE))?;
    if decoded.contains('\0') {
        return Err(wrong("the database URL holds a NUL character", "leave `%00` out"));
    }
    Ok(())
}

fn check_parameter(key: &str, value: &str) -> Result<(), Wrong> {
    let good = match key {
        "sslmode" => SSL_MODES.contains(&value),
        "port" => value.parse::<u16>().is_ok_and(|port| port > 0),
        "hostaddr" => value.parse::<IpAddr>().is_ok(),
        known if PARAMETERS.contains(&known) => true,
        inner if inner.starts_with("options[") && inner.ends_with(']') => true,
        unknown => {
            let hint = nearest(unknown, PARAMETERS.iter().copied()).map_or_else(
                || format!("known here: {}", PARAMETERS.join(", ")),
                |word| format!("did you mean `{word}`?"),
            );
            return Err(wrong("the database URL has a parameter after `?` that is not known here", hint));
        }
    };
    if good {
        return Ok(());
    }
    Err(match key {
        "sslmode" => wrong("`sslmode` in the database URL is none that Postgres has", SSL_MODES.join(", ")),
        "port" => wrong("`port` in the database URL is no port", "a number from 1 to 65535"),
        _ => wrong("`hostaddr` in the database URL is no IP address", "name the host with `host`"),
    })
}

/// Whether a password stands in it, in either place.
pub(super) fn has_password(text: &str) -> bool {
    // One that cannot be read is refused for that; until then it is not shown either.
    Url::parse(text).map_or(true, |url| url.password().is_some() || url.query_pairs().any(|(key, _)| key == "password"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Database;
    use crate::config::parse_database;

    fn told(url: &str) -> String {
        match parse_database(url, Path::new("/")) {
            Ok(database) => panic!("{url} was taken: {database:?}"),
            Err((what, hint)) => format!("{what}\n{hint}"),
        }
    }

    #[test]
    fn what_people_write_is_taken() {
        for (url, shown, password) in [
            ("postgres://app@db.example.com/app", "postgres://app@db.example.com/app", false),
            ("postgresql://app:s3cret@db:5433/app?sslmode=require", "postgresql://app@db:5433/app", true),
            ("postgres://app:s3%40cr%2Fet@db/app", "postgres://app@db/app", true),
            ("postgres://app:s3@cret@db/app", "postgres://app@db/app", true),
            ("postgres:///app?host=/run/postgresql&password=s3cret", "postgres:///app", true),
            ("postgres://%2Frun%2Fpostgresql/app", "postgres://%2Frun%2Fpostgresql/app", false),
            ("postgres://[::1]:5432/app", "postgres://[::1]:5432/app", false),
            ("postgres:///app?options[search_path]=x", "postgres:///app", false),
        ] {
            let Ok(Database::Postgres(taken)) = parse_database(url, Path::new("/")) else {
                panic!("{url}: {}", told(url))
            };
            assert_eq!((taken.to_string().as_str(), taken.secret()), (shown, url));
            assert_eq!(taken.has_password(), password, "{url}");
            assert!(!format!("{taken:?}").contains("cret"), "{taken:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_without_a_word_of_the_url() {
        for (url, part) in [
            ("postgres:s3cret", "no `//`"),
            ("postgres://app:s3cret#x@db/app", "cannot be read"),
            ("postgres://app:12#s3cret@db/app", "`#`"),
            ("postgres://app:s3cret/x@db/app", "cannot be read"),
            ("postgres://app:12/s3cret@db/app", "more than a database"),
            ("postgres://app:12?s3cret=x@db/app", "a parameter after `?`"),
            ("postgres://app:s3cret%@db/app", "`%` without"),
            ("postgres://app:s3cret%zz@db/app", "`%` without"),
            ("postgres://app:s3cret%ff@db/app", "not UTF-8"),
            ("postgres://app:s3cret%00@db/app", "NUL"),
            ("postgres://app:s3 cret@db/app", "blank"),
            ("postgres://app:s3cret@/app", "cannot be read: empty host"),
            ("postgres://app:s3cret@a,b/app", "several hosts"),
            ("postgres://app:s3cret@db:0x/app", "invalid port"),
            ("postgres://app:s3cret@db/app?sslmode=on", "`sslmode`"),
            ("postgres://app:s3cret@db/app?sslmod=require", "did you mean `sslmode`?"),
            ("postgres://app@db/app?passwd=s3cret", "did you mean `password`?"),
            ("postgres://app@db/app?port=none", "`port`"),
            ("postgres://app@db/app?hostaddr=db", "`hostaddr`"),
        ] {
            let told = told(url);
            assert!(told.contains(part), "{url}: {told}");
            assert!(!told.contains("s3") && !told.contains("cret"), "{told}");
        }
    }
}
