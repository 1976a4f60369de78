//! The one place that reads clocks.
//!
//! Wall time ([`now`]) is for what people read and for due times on SQLite, whose database is this host.
//! Deadlines use [`monotonic`], which no clock step moves. What two processes of a host have to agree on uses [`boottime`], which
//! also goes on while the host is suspended.

use std::time::Duration;
use std::time::Instant;

use jiff::Timestamp;
use nix::time::ClockId;
use nix::time::clock_gettime;
use serde::Deserialize;
use serde::Serialize;

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

/// A reading of `CLOCK_BOOTTIME`: nanoseconds since the host was started, suspension included. The same for all processes of a
/// host, and worth nothing on another boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootInstant(pub u64);

impl BootInstant {
    /// Later by `span`.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The current reading of the clock that all processes of the host share.
#[must_use]
pub fn boottime() -> BootInstant {
    // The call fails only for a clock that the kernel does not know; this one is as old as Linux 2.6.39.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    BootInstant(0).plus(now)
}
