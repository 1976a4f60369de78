//! What the evidence proves: an ordered list of rules.

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
