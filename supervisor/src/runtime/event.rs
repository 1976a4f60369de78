//! Every event that reaches the dispatcher and every action that leaves it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot;

use crate::config::Config;
use crate::config::KindConfig;
use crate::domain::clock::BootInstant;
use crate::domain::evidence::ExitStatus;
use crate::domain::evidence::ProcessEvidence;
use crate::domain::evidence::Said;
use crate::domain::ids::AttemptNo;
use crate::domain::ids::JobId;
use crate::domain::ids::Term;
use crate::runtime::dispatcher::Snapshot;
use crate::store::CancelRequest;
use crate::store::ClaimRequest;
use crate::store::Claimed;
use crate::store::Count;
use crate::store::Finish;
use crate::store::Finished;
use crate::warden::message::Key;
use crate::warden::message::StopReason;

/// What can happen.
#[derive(Debug)]
pub enum Event {
    /// There may be something to claim: a poll, a change in the database, a promotion.
    Wake,
    /// A time that the dispatcher asked for ([`next_deadline`](super::dispatcher::Dispatcher::next_deadline)) has come.
    Deadline,
    /// A claim was answered; `None`: the store could not be reached, and whether rows were claimed is not known.
    Claimed {
        /// Its number.
        seq: u64,
        /// The rows.
        jobs: Option<Vec<Claimed>>,
    },
    /// The program of an attempt runs.
    Started {
        /// Which.
        key: Key,
        /// Its pid.
        pid: i32,
        /// When that was heard.
        at: Timestamp,
    },
    /// All that will ever be known of an attempt is known.
    Over(Box<Over>),
    /// The store has taken an outcome.
    Recorded {
        /// The name under which it was sent.
        key: Key,
        /// What became of it.
        finished: Finished,
        /// The outcome, should it have to be sent again.
        finish: Box<Finish>,
    },
    /// Outcomes have not been taken for some seconds: what is started now could not be recorded either.
    CannotRecord,
    /// They are taken again.
    CanRecord,
    /// A term of ours begins.
    TermBegun {
        /// The term.
        term: Term,
        /// Until when it may be trusted; `None`: for as long as this process lives.
        until: Option<BootInstant>,
    },
    /// The lease of a term was renewed.
    Renewed {
        /// The term.
        term: Term,
        /// As above.
        until: Option<BootInstant>,
    },
    /// A term of ours was declared lost: others may run its jobs now.
    TermLost {
        /// The term.
        term: Term,
    },
    /// Rows that the store holds for a term of ours, claimed before `below`.
    OwnRows {
        /// The term.
        term: Term,
        /// The rows.
        rows: Vec<(JobId, AttemptNo)>,
        /// The sequence that the question named.
        below: u64,
    },
    /// Cancels that were asked for while the jobs ran.
    CancelAsked(Vec<CancelRequest>),
    /// SIGTERM or SIGINT.
    StopSignal {
        /// Its name and who sent it.
        from: String,
        /// When.
        at: Timestamp,
    },
    /// The warden died: nothing can be started until it is replaced.
    WardenLost,
    /// All that the dead warden left is swept and another one stands.
    WardenReplaced,
    /// The warden died and another could not be started.
    NoWarden {
        /// Why.
        why: String,
    },
    /// The answer to [`Action::CheckIdle`].
    Counts {
        /// Of all kinds that are not paused.
        counts: Vec<Count>,
        /// The kinds that another living supervisor runs.
        elsewhere: BTreeSet<String>,
    },
    /// The same, when the store could not be reached.
    CountsUnknown,
    /// Somebody wants to know how things stand.
    Report,
    /// Somebody wants to know it in full.
    Status(oneshot::Sender<Snapshot>),
    /// `jobs.toml` was read again.
    Reloaded(Arc<Config>),
}

/// The end of one attempt, from all its observers.
#[derive(Debug)]
pub struct Over {
    /// Which.
    pub key: Key,
    /// What the parent of its processes saw.
    pub end: End,
    /// What it said.
    pub output: ChildOutput,
    /// A number from 0 to 1, for the spread of waiting times.
    pub random: f64,
    /// When.
    pub at: Timestamp,
}

/// What is known of an attempt's processes.
#[derive(Debug)]
pub enum End {
    /// The warden saw their end.
    Seen(Box<ProcessEvidence>),
    /// The warden died, and they with it.
    WardenLost {
        /// Pid of the warden.
        pid: i32,
        /// Its wait status.
        exit: Option<ExitStatus>,
    },
    /// Nothing was started, and this is why.
    Refused(String),
}

impl End {
    /// Whether the process died of HUP, INT or TERM that we did not send.
    #[must_use]
    pub fn is_request_of_a_stranger(&self) -> bool {
        const HUP_INT_TERM: [i32; 3] = [1, 2, 15];
        match self {
            Self::Seen(process) => {
                matches!(process.exit, Some(ExitStatus::Signaled(signal)) if HUP_INT_TERM.contains(&signal))
                    && process.intent.is_none()
            }
            Self::WardenLost { .. } | Self::Refused(_) => false,
        }
    }
}

/// What was read from a child's pipes.
#[derive(Debug, Default)]
pub struct ChildOutput {
    /// For the judge.
    pub said: Said,
    /// Stdout up to the limit, or its last 64 KiB when `said.truncated`.
    pub stdout: Vec<u8>,
    /// The last 64 KiB of stderr.
    pub stderr: Vec<u8>,
}

/// What the dispatcher wants done.
#[derive(Debug)]
pub enum Action {
    /// Ask the store for work.
    Claim(ClaimRequest),
    /// Start an attempt.
    Start {
        /// Its name from now on.
        key: Key,
        /// What was claimed.
        claimed: Box<Claimed>,
        /// How its kind is run.
        kind: Arc<KindConfig>,
    },
    /// End an attempt.
    Stop {
        /// Which.
        key: Key,
        /// Why.
        reason: StopReason,
        /// From SIGTERM to SIGKILL.
        grace: Duration,
    },
    /// Record an outcome.
    Record {
        /// The attempt, or a name of its own for a claim that is given back.
        key: Key,
        /// The outcome.
        finish: Box<Finish>,
    },
    /// Tell the warden how long it may trust that nobody else runs these jobs.
    Trust {
        /// The deadline.
        until: BootInstant,
    },
    /// The warden does not end what it was told to kill: end the warden, and its children with it.
    KillWarden,
    /// Promote what is due, then count what is there.
    CheckIdle,
    /// Tell the service manager that we are stopping.
    Stopping,
    /// Nothing is left to do.
    Exit(ExitReason),
}

/// Why the supervisor ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// `--until-idle`, and nothing is left that this supervisor could run. What nobody living can run is named.
    Idle {
        /// One line each.
        stuck: Vec<String>,
    },
    /// It was told to stop, and all attempts have ended.
    Stopped,
    /// It can start no children any more.
    NoWarden {
        /// Why.
        why: String,
    },
}
