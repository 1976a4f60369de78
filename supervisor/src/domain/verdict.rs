//! What the evidence proves: an ordered list of rules.
//!
//! [`judge`] is called by whoever records an end: the supervisor for its own attempts, the replay of the warden's
//! files at start, the rescue of another supervisor's attempts. It is pure and total: any evidence has a verdict, and
//! where nothing is proven the verdict says so (`killed_unknown`). Invariant I3 lives here: a cause that says "out of
//! memory" needs a counter of the job's own group that moved, systemd-oomd's mark, our watchdog's strike, or the job's
//! own report; an exit code of 137 or a SIGKILL is none of these. Which of the two readings at the end counts is
//! told in `readings`.
//!
//! It does not decide what follows ([`decide`](super::retry::decide) does) and writes no sentence about the cause
//! ([`explain`](super::explain) does).

mod facts;
mod rules;
#[cfg(test)]
pub(crate) mod tests;

use serde::{Deserialize, Serialize};

use super::cause::Cause;
use super::evidence::Evidence;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It did its work.
    Succeeded,
    /// It asked to be put back.
    Snoozed,
    /// It failed, was interrupted, or was ended by us.
    Failed(Cause),
}

impl Ending {
    /// The cause, where there is one.
    #[must_use]
    pub const fn cause(self) -> Option<Cause> {
        match self {
            Self::Failed(cause) => Some(cause),
            Self::Succeeded | Self::Snoozed => None,
        }
    }
}

/// How sure a statement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sureness {
    /// Nothing is there to tell.
    Unknown,
    /// It follows from what was seen, but not by force.
    Inferred,
    /// The kernel, our own note or the job itself said so.
    Proved,
}

/// How sure the verdict is of what ended the process, and of why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Certainty {
    /// Of what ended it.
    pub kill: Sureness,
    /// Of the reason behind that.
    pub reason: Sureness,
}

/// What stands beside the ending without being its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flag {
    /// Processes of the attempt outlived its main process and were killed.
    Leaked,
    /// Another process of the tree was OOM-killed, and `tolerate_oom` accepts that.
    OomCasualty,
    /// The result was longer than allowed; its end was kept, as text.
    Truncated,
    /// A complete success was delivered; the process then ended badly.
    DiedAfterDone,
    /// The failure says of itself that it is permanent.
    Permanent,
    /// The limit was enforced by sampling, not by the kernel.
    Watchdog,
    /// The end came before the program ran any code of its own.
    AtStart,
    /// It was kept from running for a time, because its supervisor had not renewed its lease.
    Frozen,
}

/// What the evidence proves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// How it ended.
    pub ending: Ending,
    /// How sure that is.
    pub certainty: Certainty,
    /// Facts that had a part in it or that a reader should know, each one sentence.
    pub contributing: Vec<String>,
    /// What stands beside it.
    pub flags: Vec<Flag>,
}

/// What `evidence` proves of the end of its attempt.
///
/// Whatever else was found, a process that does not die of SIGKILL makes it `unkillable`: while it lives the job must
/// not run again, not even when it had delivered its result.
#[must_use]
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut found = rules::first_match(evidence);
    let mut contributing = Vec::new();
    if let Some(process) = evidence.process.as_ref().filter(|p| !p.unkillable.is_empty()) {
        contributing.push(match found.ending {
            Ending::Failed(cause) => format!("apart from that it would be `{cause}`"),
            Ending::Succeeded => "apart from that it had succeeded".to_owned(),
            Ending::Snoozed => "apart from that it had asked to be put back".to_owned(),
        });
        let seen = process.unkillable.iter().any(|stuck| stuck.stuck_in.is_some());
        let reason = if seen { Sureness::Inferred } else { Sureness::Unknown };
        found.ending = Ending::Failed(Cause::Unkillable);
        found.certainty = Certainty { kill: Sureness::Proved, reason };
    }
    contributing.extend(facts::contributing(evidence, found.ending));
    let mut flags = found.flags;
    flags.extend(rules::common_flags(evidence, found.ending));
    flags.sort_unstable();
    flags.dedup();
    Verdict { ending: found.ending, certainty: found.certainty, contributing, flags }
}
