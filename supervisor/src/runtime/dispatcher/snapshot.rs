//! How things stand, for whoever asks: the answer of the control socket (a contract, see [`Snapshot`]).

use jiff::Timestamp;
use serde::Deserialize;
use serde::Serialize;

use super::Attempt;
use super::Dispatcher;
use super::Phase;
use crate::domain::clock;
use crate::domain::ids::AttemptNo;
use crate::domain::ids::JobId;
use crate::domain::ids::Term;
use crate::domain::units::Bytes;
use crate::warden::message::StopReason;

/// A supervisor as it stands. As JSON it is what `status --json` prints: all keys are always there, sizes are bytes, durations
/// seconds, times RFC 3339.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Name of the supervisor.
    pub name: String,
    /// Its host.
    pub host: String,
    /// Its pid.
    pub pid: u32,
    /// Its program's version.
    pub version: String,
    /// The term under which it claims; `null` between two.
    pub term: Option<Term>,
    /// `working`, `draining`, `stopping` or `killing`.
    pub phase: String,
    /// A warden stands, so that something can be started.
    pub warden: bool,
    /// Memory that attempts hold.
    pub reserved: Bytes,
    /// Memory for all attempts together.
    pub budget: Bytes,
    /// What runs.
    pub running: Vec<RunningAttempt>,
    /// Attempts whose processes cannot be killed, and which hold their memory for good.
    pub retired: u64,
    /// Outcomes that the store has not taken yet.
    pub held: Vec<HeldOutcome>,
    /// How long the lease is still trusted; `null` where it does not run out.
    pub trust_left_s: Option<f64>,
    /// `heard`: a change in the database wakes it; `polling`: it looks by the clock.
    pub listener: String,
    /// The pieces that work in the background.
    pub pieces: Vec<PieceRun>,
}

/// An attempt that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunningAttempt {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptNo,
    /// Its kind.
    pub kind: String,
    /// `null`: it is just being started.
    pub pid: Option<i32>,
    /// When it was claimed.
    pub since: Timestamp,
    /// Its memory limit.
    pub memory: Bytes,
    /// Why it is being ended; `null`: it is not.
    pub stopping: Option<String>,
}

/// An outcome on its way to the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldOutcome {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: AttemptNo,
    /// For how long.
    pub age_s: f64,
    /// What the store last said; `null`: it was not asked yet, or took the last one.
    pub why: Option<String>,
}

/// The last run of a piece of background work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PieceRun {
    /// Which.
    pub piece: String,
    /// How long ago.
    pub age_s: f64,
    /// What went wrong; `null`: nothing.
    pub error: Option<String>,
}

impl Dispatcher {
    /// All that the dispatcher knows; the rest is others' to add.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let identity = &self.identity;
        Snapshot {
            name: identity.observer.supervisor.clone(),
            host: identity.observer.host.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            term: self.term,
            phase: phase(self.phase).to_owned(),
            warden: !self.warden_away && self.no_warden.is_none(),
            reserved: self.reserved(),
            budget: identity.budget,
            running: self.attempts.values().map(running).collect(),
            retired: self.retired.len() as u64,
            held: Vec::new(),
            trust_left_s: self.until.map(|until| until.since(clock::boottime()).as_secs_f64()),
            listener: "polling".to_owned(),
            pieces: Vec::new(),
        }
    }
}

const fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Working => "working",
        Phase::Draining => "draining",
        Phase::Stopping => "stopping",
        Phase::Killing => "killing",
    }
}

fn running(attempt: &Attempt) -> RunningAttempt {
    let claimed = &attempt.claimed;
    RunningAttempt {
        job: claimed.fence.job,
        attempt: claimed.fence.attempt,
        kind: claimed.kind.clone(),
        pid: attempt.pid,
        since: claimed.claimed_at,
        memory: claimed.memory,
        stopping: attempt.stop.map(|reason| word(reason).to_owned()),
    }
}

const fn word(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Cancelled => "cancelled",
        StopReason::Drained => "drained",
        StopReason::OutputLimit => "output_limit",
        StopReason::Fenced => "fenced",
        StopReason::ProtocolError => "protocol_error",
        StopReason::Linger => "linger",
    }
}
