//! The one place that reads clocks.
//!
//! Wall time ([`now`]) is for what people read and for due times on SQLite, whose database is this host.
//! Deadlines use [`monotonic`], which no clock step moves.

use std::time::Instant;

use jiff::Timestamp;

/// The current wall-clock time, cut to the microsecond that the stores keep.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the door that the ban points to")]
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

/// The current reading of the monotonic clock.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the door that the ban points to")]
pub fn monotonic() -> Instant {
    Instant::now()
}
