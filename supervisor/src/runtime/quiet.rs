//! Complaints that repeat themselves during an outage, at most one in 10 s of a kind.

use std::time::Duration;
use std::time::Instant;

/// From one line to the next.
const PAUSE: Duration = Duration::from_secs(10);

/// Keeps count of what was not said.
#[derive(Debug, Default)]
pub struct Quiet {
    last: Option<Instant>,
    unsaid: u64,
}

impl Quiet {
    /// Whether to speak now; then how often there was reason to since the last time, without this one.
    pub fn speak(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            self.unsaid += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }

    /// The trouble is over: the next complaint is a new one. Answers whether there was trouble.
    pub fn calm(&mut self) -> bool {
        std::mem::take(self).last.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::clock;

    #[test]
    fn h3_a_complaint_is_made_at_once_then_once_in_ten_seconds_and_anew_after_a_calm() {
        let (mut quiet, start) = (Quiet::default(), clock::monotonic());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(quiet.speak(at(0)), Some(0));
        assert_eq!((quiet.speak(at(1)), quiet.speak(at(9))), (None, None));
        assert_eq!(quiet.speak(at(10)), Some(2));
        assert!(quiet.calm() && !quiet.calm());
        assert_eq!(quiet.speak(at(11)), Some(0));
    }
}
