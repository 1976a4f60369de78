//! What goes into and comes out of a store.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::domain::cause::Cause;
use crate::domain::evidence::Evidence;
use crate::domain::ids::{AttemptNo, Fence, JobId, Term};
use crate::domain::job::{Budget, JobState};
use crate::domain::retry::{Backoff, Decision};
use crate::domain::units::Bytes;
use crate::domain::verdict::Verdict;

/// A supervisor that begins a term.
#[derive(Debug, Clone)]
pub struct NewTerm {
    /// The term.
    pub term: Term,
    /// The supervisor's name (`[supervisor] name`).
    pub name: String,
    /// Host name.
    pub host: String,
    /// Its pid.
    pub pid: i32,
    /// Boot id of the host, to tell a restart of the host from a death.
    pub boot_id: String,
    /// What tells its process and its state folder from all others.
    pub identity: Identity,
    /// The program's version.
    pub version: String,
    /// The kinds that it runs.
    pub kinds: Vec<String>,
    /// Length of its lease.
    pub lease: Duration,
}

/// What proves, on the same boot of the same host, that a supervisor is gone: its name and pid prove nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// A number made once for its state folder and kept there; who holds that folder's lock knows that nobody else does.
    pub state_id: String,
    /// Inode of its pid namespace.
    pub pid_ns: u64,
    /// Field 22 of `/proc/PID/stat`, in clock ticks since boot.
    pub start_time: u64,
}

/// A term on record.
#[derive(Debug, Clone, Serialize)]
pub struct TermRow {
    /// The term.
    pub term: Term,
    /// The supervisor's name.
    pub name: String,
    /// Host name.
    pub host: String,
    /// Its pid.
    pub pid: i32,
    /// Boot id of its host.
    pub boot_id: String,
    /// When it began.
    pub started_at: Timestamp,
    /// Its last sign of life.
    pub last_seen: Timestamp,
    /// When it ended in good order; `None`: it runs, or was lost.
    pub ended_at: Option<Timestamp>,
    /// When it was declared lost.
    pub lost_at: Option<Timestamp>,
    /// The database says that its lease has run out. Never where the lease is a lock ([`Store::is_leased`](super::Store::is_leased)).
    pub expired: bool,
    /// Grows with every renewal.
    pub beat: u64,
    /// Length of its lease.
    pub lease: Duration,
    /// Its process and state folder.
    pub identity: Identity,
    /// The program's version.
    pub version: String,
    /// The kinds that it runs.
    pub kinds: Vec<String>,
    /// What it last said of its running attempts, as JSON text.
    pub snapshot: Option<String>,
}

impl TermRow {
    /// Neither ended nor declared lost.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.ended_at.is_none() && self.lost_at.is_none()
    }
}

/// What a renewal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The term is ours for another lease, counted from before the renewal was sent.
    Held,
    /// It was declared lost, has ended, or is not known: whatever runs under it must end.
    Lost,
}

/// Why a term may be declared lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossProof {
    /// The caller saw its `beat` unchanged for one whole lease; the database must agree that the lease has run out.
    Silence,
    /// The caller proved its process gone and its children with it, on this host and boot: the lease need not run out.
    ProcessGone,
}

/// A kind that is not claimed for now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PausedKind {
    /// The kind.
    pub kind: String,
    /// Since when.
    pub since: Timestamp,
    /// Who did it.
    pub by: String,
}

/// A job to add.
#[derive(Debug, Clone, Default)]
pub struct NewJob {
    /// Its kind.
    pub kind: String,
    /// JSON text.
    pub payload: String,
    /// Lower goes first; 0 by default.
    pub priority: i32,
    /// `None`: due now.
    pub run_at: Option<Timestamp>,
    /// For fair shares; empty: none.
    pub tenant: String,
    /// At most one unfinished job of the kind holds it.
    pub unique_key: Option<String>,
    /// Runs after these have succeeded.
    pub after: Vec<JobId>,
    /// Overrides the kind's `max_attempts` for good.
    pub max_attempts: Option<u32>,
    /// Overrides the kind's `memory` for good.
    pub memory: Option<Bytes>,
    /// What the kind says now, to be shown until a claim takes what it says then; `None`: the caller has no `jobs.toml`.
    pub policy: Option<RowPolicy>,
    /// The schedule that makes it.
    pub schedule: Option<String>,
}

/// The part of a kind's configuration that is kept on the row, so that others can show and rescue the job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RowPolicy {
    /// Charged attempts.
    pub max_attempts: u32,
    /// Interruptions free of charge.
    pub max_interruptions: u32,
    /// Memory limit.
    pub memory: Bytes,
    /// Waiting times.
    pub backoff: Backoff,
}

/// What became of a job to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// It is there under this id.
    New(JobId),
    /// An unfinished job of its kind holds its unique key.
    Exists(JobId),
}

impl Enqueued {
    /// The id in either case.
    #[must_use]
    pub const fn id(self) -> JobId {
        match self {
            Self::New(id) | Self::Exists(id) => id,
        }
    }
}

/// One kind in a claim.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimKind {
    /// Its name.
    pub kind: String,
    /// Free slots.
    pub free: u32,
    /// What the kind says now; the row's own overrides win.
    pub policy: RowPolicy,
}

/// What a supervisor can take now.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimRequest {
    /// Under this term.
    pub term: Term,
    /// Number of the claim, growing within the term; kept on the row for the own-rows check.
    pub seq: u64,
    /// Kinds in the order of whose turn it is.
    pub kinds: Vec<ClaimKind>,
    /// Memory that is free for new attempts.
    pub free_memory: Bytes,
    /// The whole budget: a row larger than this never fits here and is passed over.
    pub whole_budget: Bytes,
}

/// A job that is now running under our term.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    /// The fence for every further write.
    pub fence: Fence,
    /// Its kind.
    pub kind: String,
    /// JSON text.
    pub payload: String,
    /// Budgets with this attempt charged.
    pub budget: Budget,
    /// The limit that this attempt gets.
    pub memory: Bytes,
    /// Its priority.
    pub priority: i32,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// When it became due.
    pub run_at: Timestamp,
}

/// The outcome of an attempt, to be recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// Whose.
    pub fence: Fence,
    /// Where the job goes, and what of the charge is given back.
    pub decision: Decision,
    /// `None` for an attempt that is given back without having been started (`given_back`).
    pub verdict: Option<Verdict>,
    /// JSON text of the result.
    pub result: Option<String>,
    /// The attempt's story; `None` leaves no row in `attempts` (a light success).
    pub record: Option<AttemptRecord>,
}

/// The story of an attempt as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// When its process was started.
    pub started_at: Option<Timestamp>,
    /// When its end was seen; `None`: when it is recorded.
    pub ended_at: Option<Timestamp>,
    /// Name of the supervisor that ran it.
    pub supervisor: String,
    /// Host that it ran on.
    pub host: String,
    /// In the job's own words, or ours.
    pub message: Option<String>,
    /// Traceback, if the job gave one.
    pub trace: Option<String>,
    /// The end of its stderr and stdout.
    pub output_tail: String,
    /// All that was observed.
    pub evidence: Evidence,
}

/// A recorded attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptRow {
    /// Its number.
    pub attempt: AttemptNo,
    /// The term it ran under.
    pub term: Term,
    /// What was concluded; `None`: given back before it was started.
    pub verdict: Option<Verdict>,
    /// Whether it counts against `max_attempts`.
    pub charged: bool,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// When its end was recorded.
    pub finished_at: Timestamp,
    /// Its story.
    pub record: AttemptRecord,
    /// An outcome that came after a rescue had ended the attempt, as JSON text.
    pub late_outcome: Option<String>,
}

/// What became of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    /// Recorded; the job is now in this state.
    Recorded(JobState),
    /// The same outcome was recorded before (a reply was lost).
    Already,
    /// The fence no longer holds: somebody else ended the attempt.
    Stale,
}

/// What promotion did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Promoted {
    /// Jobs made queued.
    pub count: u64,
    /// When the next scheduled job is due; `None`: there is none.
    pub next_due: Option<Timestamp>,
}

/// An attempt whose end nobody recorded.
#[derive(Debug, Clone)]
pub struct Rescuable {
    /// Its fence, with the term that is over.
    pub fence: Fence,
    /// The job's kind.
    pub kind: String,
    /// Budgets as on the row.
    pub budget: Budget,
    /// Waiting times as on the row.
    pub backoff: Backoff,
    /// The limit it had.
    pub memory: Bytes,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// The term's row; `None`: it is gone.
    pub term: Option<TermRow>,
    /// A cancel was asked for.
    pub cancel_requested: bool,
}

/// What a command did to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acted {
    /// It is done.
    Done,
    /// It is asked for: the job runs, its supervisor will end it.
    Requested,
    /// It could not be: the job stands elsewhere.
    Refused(JobState),
    /// There is no such job.
    Missing,
}

/// A cancel that was asked for while the job ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelRequest {
    /// The job.
    pub job: JobId,
    /// The attempt that ran.
    pub attempt: AttemptNo,
    /// Who asked.
    pub by: String,
}

/// Which jobs to list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// In one of these states; empty: any.
    pub states: Vec<JobState>,
    /// Of this kind.
    pub kind: Option<String>,
    /// Whose last failure has this cause.
    pub cause: Option<Cause>,
    /// Enqueued or ended after this.
    pub since: Option<Timestamp>,
    /// At most this many.
    pub limit: Option<u32>,
    /// Only ids above this one.
    pub after_id: Option<JobId>,
}

/// How many jobs of a kind stand in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// The kind.
    pub kind: String,
    /// The state.
    pub state: JobState,
    /// How many of them have been claimed before (for `scheduled`: those that wait after an attempt).
    pub attempted: u64,
    /// How many.
    pub jobs: u64,
    /// The smallest memory limit that was given with one of them; `None`: one of them takes its kind's.
    pub smallest: Option<Bytes>,
}

/// How long ended jobs are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Succeeded ones.
    pub succeeded: Duration,
    /// Cancelled ones.
    pub cancelled: Duration,
    /// Dead ones.
    pub dead: Duration,
}
