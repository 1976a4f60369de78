//! What a supervisor leaves with each renewal of what runs under it, for whoever has to end it: JSON on the term's row.

use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;

use crate::domain::ids::AttemptNo;
use crate::domain::ids::JobId;
use crate::domain::units::Bytes;

/// The longest text that is left.
const MOST: usize = 64 * 1024;

/// One attempt that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptNo,
    /// Its kind.
    pub kind: String,
    /// Its main process; `None`: being started.
    pub pid: Option<i32>,
    /// When that was seen to run.
    pub started: Option<Timestamp>,
    /// Memory in use when it was last looked at.
    pub bytes: Option<Bytes>,
}

/// The text for a list; what does not fit is left out from its end.
#[must_use]
pub fn write(running: &[Running]) -> String {
    let mut text = String::from("[");
    for one in running {
        let Ok(one) = serde_json::to_string(one) else { continue };
        if text.len() + one.len() + 2 > MOST {
            break;
        }
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&one);
    }
    text.push(']');
    text
}

/// What a text says of one attempt; `None`: nothing, or it cannot be read (another build may have written it).
#[must_use]
pub fn find(text: &str, job: JobId, attempt: AttemptNo) -> Option<Running> {
    let running: Vec<Running> = serde_json::from_str(text).ok()?;
    running.into_iter().find(|one| one.job == job && one.attempt == attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_back_and_a_long_one_is_cut_between_attempts() {
        let one = |id| Running {
            job: JobId(id),
            attempt: AttemptNo(2),
            kind: "x".repeat(100),
            pid: Some(7),
            started: None,
            bytes: Some(Bytes(9)),
        };
        let many: Vec<Running> = (1..=2000).map(one).collect();
        let text = write(&many);
        assert!(text.len() <= MOST && text.len() > MOST - 200);
        assert_eq!(find(&text, JobId(1), AttemptNo(2)), Some(one(1)));
        assert_eq!((find(&text, JobId(1), AttemptNo(3)), find(&text, JobId(2000), AttemptNo(2))), (None, None));
        assert_eq!((write(&[]).as_str(), find("nonsense", JobId(1), AttemptNo(2))), ("[]", None));
    }
}
