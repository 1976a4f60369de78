//! Sizes and durations as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A number of bytes. Written `64MiB`, `1.5 GB` or `4096`; printed in binary units with one decimal (`64.0 MiB`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `n` binary megabytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n * 1024 * 1024)
    }

    /// The number as the stores and the kernel's counters keep it; sizes beyond `i64::MAX` are cut to it.
    #[must_use]
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// From a stored number; a negative one, which no writer makes, reads as 0.
    #[must_use]
    pub fn from_i64(n: i64) -> Self {
        Self(u64::try_from(n).unwrap_or(0))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = bytesize::ByteSize(self.0).display().iec().to_string();
        f.pad(&text)
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.trim()
            .parse::<bytesize::ByteSize>()
            .map(|size| Self(size.as_u64()))
            .map_err(|_| format!("`{text}` is not a size; write for example `64MiB`, `2GiB` or `1048576`"))
    }
}

/// Reads a duration as people write it: `500ms`, `30s`, `10m`, `1h 30m`, `7d`.
///
/// # Errors
/// A text that is not a number with a unit; the message says what would be right.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim())
        .map_err(|_| format!("`{text}` is not a duration; write for example `500ms`, `30s`, `10m` or `7d`"))
}

/// Prints a duration in at most two units that matter: `640 ms`, `2.5 s`, `3 min 20 s`, `2 h 5 min`.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..=59 => format!("{:.1} s", duration.as_secs_f64()),
        60..=3599 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written_and_printed_in_binary_units() {
        for (text, bytes) in
            [("64MiB", 64 << 20), ("1 GiB", 1 << 30), ("4096", 4096), ("1kB", 1000), ("1.5GiB", 3 << 29)]
        {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!(Bytes::mib(64).to_string(), "64.0 MiB");
        assert!("lots".parse::<Bytes>().is_err_and(|e| e.contains("`lots`") && e.contains("64MiB")));
        assert!("-1".parse::<Bytes>().is_err());
    }

    #[test]
    fn durations_are_read_as_written() {
        assert_eq!(parse_duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(parse_duration("soon").is_err_and(|e| e.contains("`soon`")));
        assert_eq!(show_duration(Duration::from_millis(640)), "640 ms");
        assert_eq!(show_duration(Duration::from_millis(2500)), "2.5 s");
        assert_eq!(show_duration(Duration::from_secs(200)), "3 min 20 s");
        assert_eq!(show_duration(Duration::from_secs(7500)), "2 h 5 min");
    }
}
