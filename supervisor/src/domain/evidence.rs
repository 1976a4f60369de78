//! What was observed of the end of an attempt. Nothing here is a conclusion: [`judge`](super::verdict::judge) draws those.
//!
//! Two observers fill it. The warden, parent of every child, gives [`ProcessEvidence`] (it also writes that part to
//! disk when its supervisor is gone, so the JSON form must be readable by another build). The supervisor adds what the
//! child said ([`Said`]) and what became of the supervisor itself ([`Loss`], `own_stop`).
//! Everything that may be missing is an `Option`: "not readable" is never 0.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::units::Bytes;

/// Everything observed about the end of one attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// What the warden saw; `None` when nobody was left to see it, or nothing was started.
    pub process: Option<ProcessEvidence>,
    /// What the child said on its pipes.
    pub said: Said,
    /// Set when the observer of the attempt was itself lost.
    pub loss: Option<Loss>,
    /// When the supervisor received its own stop signal, if it did.
    pub own_stop: Option<Timestamp>,
    /// Why the supervisor did not start the attempt at all (a payload that its command template refuses).
    pub refused: Option<String>,
    /// `tolerate_oom = true` of the kind: the loss of another process of the tree does not spoil a success.
    pub tolerate_oom: bool,
}

/// How the limit was enforced, or would have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// A leaf of its own in the cgroup v2 tree.
    CgroupV2,
    /// A leaf of its own in the cgroup v1 memory, pids and freezer trees.
    CgroupV1,
    /// Sampled resident memory and our own SIGKILL.
    #[default]
    Watchdog,
}

impl Enforcement {
    /// The word that is printed: `cgroup v2`, `cgroup v1` or `watchdog`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::CgroupV2 => "cgroup v2",
            Self::CgroupV1 => "cgroup v1",
            Self::Watchdog => "watchdog",
        }
    }
}

/// How far the start of the process came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// No process was made.
    #[default]
    NotForked,
    /// The process died before `exec` succeeded (PF_FORKNOEXEC was still set on it).
    BeforeExec,
    /// `exec` succeeded.
    AfterExec,
}

/// The wait status of the main process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It called `exit` with this code (0 to 255).
    Exited(i32),
    /// It was ended by this signal.
    Signaled(i32),
}

/// A step of the start that failed, with the kernel's error number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure {
    /// The step: `trust` (the lease had run out), `leaf`, `limit` (the limit could not be put in force) or one of the child's steps (`cwd`, `user`, `exec`, …).
    pub step: String,
    /// The kernel's error number (`ENOENT` is 2).
    pub errno: i32,
    /// The error in words, with the path where one matters.
    pub message: String,
}

impl StartFailure {
    /// Whether the limit, not the program, was what failed.
    #[must_use]
    pub fn is_limit(&self) -> bool {
        self.step == "leaf" || self.step == "limit"
    }

    /// The start that came too late to be trusted: see [`Self::is_untrusted`].
    pub const TRUST: &'static str = "trust";

    /// Whether the start was refused because the lease of the supervisor might have run out. Neither the job nor its kind is at fault.
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        self.step == Self::TRUST
    }
}

/// Why we set out to end a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntentReason {
    /// The kind's `timeout` passed.
    Timeout,
    /// `start_timeout` passed before the program ran.
    StartTimeout,
    /// The job was cancelled.
    Cancelled,
    /// The supervisor is stopping.
    Drained,
    /// The watchdog saw more than the limit.
    MemWatchdog,
    /// More output than allowed, with `output = "strict"`.
    OutputLimit,
    /// The term was lost.
    Fenced,
    /// The child broke the protocol, or closed its pipes and stayed.
    ProtocolError,
    /// The outcome was there but the process did not end within its grace.
    Linger,
    /// The warden found its supervisor gone.
    SupervisorGone,
}

/// Noted by the warden *before* its first signal, so that our own kill is never a riddle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Intent {
    /// Why.
    pub reason: IntentReason,
    /// Seconds after the start of the attempt.
    pub at_s: f64,
    /// The signals that were sent, in order: number and seconds after the start.
    pub signals: Vec<(i32, f64)>,
}

/// One reading of a group's counters. A field is `None` when the kernel does not offer it or it could not be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Times that *this group's own* limit set off the OOM killer (v2 `memory.events.local: oom`). v1 has no such counter.
    pub oom: Option<u64>,
    /// Processes of this group killed by any OOM kill; may over-count on v2, so only "moved" means something.
    pub oom_kill: Option<u64>,
    /// Whole-group kills (v2 `oom_group_kill`).
    pub oom_group_kill: Option<u64>,
    /// Times the limit was hit, reclaim included (v2 `max`, v1 `memory.failcnt`); proves nothing by itself.
    pub limit_hits: Option<u64>,
    /// Times that `memory.high` was passed (v2).
    pub high: Option<u64>,
    /// The kernel's own high-water mark in bytes.
    pub peak: Option<u64>,
    /// Charged now, in bytes.
    pub current: Option<u64>,
    /// Anonymous memory in bytes.
    pub anon: Option<u64>,
    /// Page cache in bytes.
    pub file: Option<u64>,
    /// Shared memory and tmpfs in bytes.
    pub shmem: Option<u64>,
    /// Times that a fork was refused by the pids limit.
    pub pids_max_hits: Option<u64>,
    /// systemd-oomd's mark on the group (`user.oomd_ooms`).
    pub oomd_ooms: Option<u64>,
}

/// A group above the leaf, and whether its own limit set off the OOM killer meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Its path below the mount point; `/` is the root that this process can see.
    pub path: String,
    /// Its limit; `None`: none, or not readable.
    pub limit: Option<Bytes>,
    /// v2 `memory.events.local: oom`, or v1 `memory.failcnt`, at the start of the attempt.
    pub oom_before: Option<u64>,
    /// The same at its end.
    pub oom_after: Option<u64>,
    /// systemd-oomd's mark before and after.
    #[serde(default)]
    pub oomd: (Option<u64>, Option<u64>),
}

/// Where the peak comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeakSource {
    /// The kernel's high-water mark of the leaf: exact.
    Cgroup,
    /// The highest value that was sampled: a lower bound.
    #[default]
    Sampled,
}

/// How much memory the attempt used, over its life.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryPicture {
    /// The limit that was in force.
    pub limit: Option<Bytes>,
    /// The highest use known.
    pub peak: Option<Bytes>,
    /// Where `peak` comes from.
    pub source: PeakSource,
    /// At most 120 points of (seconds after the start, bytes).
    pub series: Vec<(f64, u64)>,
}

/// The watchdog's own verdict: it saw this much and struck.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WatchdogStrike {
    /// Resident memory of the tree at the sample that decided, in bytes.
    pub seen: u64,
    /// The limit it was held against, in bytes.
    pub limit: u64,
    /// Seconds after the start of the attempt.
    pub at_s: f64,
}

/// A process found alive in the attempt's tree after its main process had ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Its pid.
    pub pid: i32,
    /// Its name as `ps` shows it.
    pub comm: String,
    /// One letter of state, and the kernel function it waits in, for one that did not die of SIGKILL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck_in: Option<String>,
}

/// What the warden saw of one attempt's processes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessEvidence {
    /// How the limit was enforced.
    pub enforcement: Enforcement,
    /// Pid of the main process.
    pub pid: Option<i32>,
    /// Wall-clock time of the start.
    pub started_at: Option<Timestamp>,
    /// Wall-clock time at which the end of the main process was seen.
    pub ended_at: Option<Timestamp>,
    /// Seconds between the two, by the monotonic clock.
    pub wall_s: Option<f64>,
    /// How far the start came.
    pub stage: Stage,
    /// The step of the start that failed.
    pub start_failure: Option<StartFailure>,
    /// The main process's wait status.
    pub exit: Option<ExitStatus>,
    /// Why we ended it, if we did.
    pub intent: Option<Intent>,
    /// Whether the leaf's counters could be read at the start *and* at the end. Without a cgroup: false.
    pub counters_readable: bool,
    /// Counters before the process entered.
    pub baseline: Counters,
    /// Counters after its end was seen and before anything left over was killed.
    pub at_exit: Counters,
    /// Counters after the leaf was emptied.
    pub after_kill: Counters,
    /// The groups above the leaf, nearest first.
    pub ancestors: Vec<Ancestor>,
    /// The host's count of OOM kills (`/proc/vmstat oom_kill`) before and after: a hint, never a proof.
    pub host_oom_kills: (Option<u64>, Option<u64>),
    /// The watchdog's verdict.
    pub watchdog: Option<WatchdogStrike>,
    /// Limit, peak and series.
    pub memory: MemoryPicture,
    /// User and system CPU seconds of the tree (cgroup v2) or of the main process and what it waited for.
    pub cpu_s: Option<f64>,
    /// Page faults that needed I/O.
    pub major_faults: Option<u64>,
    /// What was still alive when the main process had ended, and was killed.
    pub leftovers: Vec<Leftover>,
    /// What did not die of SIGKILL within the time allowed.
    pub unkillable: Vec<Leftover>,
    /// Seconds in all that it was kept from running because its supervisor had not renewed its lease in time.
    pub frozen_s: f64,
}

impl ProcessEvidence {
    /// How far `field` moved between the start and the end of the main process; `None` where it could not be read.
    #[must_use]
    pub fn delta(&self, field: impl Fn(&Counters) -> Option<u64>) -> Option<u64> {
        Some(field(&self.at_exit)?.saturating_sub(field(&self.baseline)?))
    }
}

/// How the child reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speech {
    /// No protocol: the exit status is the outcome.
    #[default]
    ExitStatus,
    /// JSON lines on stdin and stdout.
    Protocol,
}

/// What the kind's `exit_codes` make of an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitMeaning {
    /// Success.
    Success,
    /// A failure that may pass.
    Retry,
    /// A failure that will not pass.
    Permanent,
    /// Not now: put the job back without charge.
    Snooze,
}

/// The child's last word about its job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "frame")]
pub enum LastWord {
    /// A complete result was delivered.
    Done,
    /// The job said that it failed.
    Failed {
        /// In its own words.
        message: String,
        /// It will fail again whatever happens.
        permanent: bool,
        /// It says that an allocation failed.
        alloc: bool,
        /// It answers our own cancel.
        answers_cancel: bool,
    },
    /// Put the job back for this many seconds.
    Snooze {
        /// Seconds.
        seconds: f64,
    },
}

/// What the child said on its pipes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Said {
    /// How it reports.
    pub speech: Speech,
    /// Its last word; always `None` for [`Speech::ExitStatus`].
    pub last_word: Option<LastWord>,
    /// What the exit code means, where there is one and the kind names it.
    pub exit_meaning: Option<ExitMeaning>,
    /// Bytes read from stdout.
    pub stdout_bytes: u64,
    /// Bytes read from stderr.
    pub stderr_bytes: u64,
    /// How the protocol was broken.
    pub violation: Option<String>,
    /// The last 8 KiB of stderr, made printable: for hints, never for causes that counters can prove.
    pub stderr_tail: String,
    /// The result was longer than allowed and only its end was kept.
    pub truncated: bool,
}

/// How the observer of an attempt was lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "lost")]
pub enum Loss {
    /// The supervisor died.
    Supervisor {
        /// Its name.
        name: String,
        /// Its pid.
        pid: Option<i32>,
        /// The last sign of life that it left in the store.
        last_seen: Option<Timestamp>,
    },
    /// The warden died.
    Warden {
        /// Its pid.
        pid: i32,
        /// Its wait status, where its parent saw it.
        exit: Option<ExitStatus>,
    },
    /// The host was started anew.
    Host {
        /// Boot id under which the attempt ran.
        boot_id_then: String,
        /// Boot id now.
        boot_id_now: String,
    },
}
