//! What a report is made from.

use crate::domain::job::{Job, JobState};
use crate::domain::verdict::Ending;
use crate::store::AttemptRow;

/// One job with its attempts on record.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The job.
    pub job: Job,
    /// Its attempts, oldest first. One that still runs is not among them; the job's row tells of it.
    pub attempts: Vec<AttemptRow>,
}

impl Report {
    /// Whether an attempt runs whose end is not on record.
    pub(super) fn has_open_attempt(&self) -> bool {
        self.job.state == JobState::Running && self.attempts.iter().all(|row| row.attempt != self.job.attempt)
    }

    /// The attempt to give advice about: the last one, if it failed and the job did not get over it since.
    pub(super) fn last_failure(&self) -> Option<&AttemptRow> {
        let last = self.attempts.last()?;
        let failed = matches!(last.verdict.as_ref()?.ending, Ending::Failed(_));
        (failed && self.job.state != JobState::Succeeded).then_some(last)
    }
}
