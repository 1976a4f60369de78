//! The warden: a small single-threaded process that is the parent of every child, and the supervisor's handle on it.
//!
//! The supervisor starts one ([`client::launch`]) before it has any thread, and speaks with it over a socket pair
//! ([`message`]). The warden starts, limits, watches, kills and reaps, and collects what is known of each death; it
//! has no database, no policy and no secret. `jobvisor warden` ([`run`]) is its whole program.
//!
//! ```text
//!  Start ──► start ──► attempt (starting → running) ──► death (emptying → removing) ──► Ended
//!                          ▲  stop: intent, SIGTERM, grace, SIGKILL of everything
//!                          ▲  watchdog: samples, series, strike
//!                          ▲  trust: frozen past the deadline, thawed by a later one
//!  tree: who belongs to whom where there is no cgroup        ends: what is written when the supervisor is gone
//! ```
//! What holds:
//! - The warden never waits: every wait is an entry in one `poll`, every round does a bounded amount of work (16 frames,
//!   64 orphans, 256 files removed, 10 ms of chase an attempt). Without attempts it sleeps without a timer.
//! - `Ended` is never dropped, and is sent only when nothing of the attempt is alive (or it is proven unkillable: 10 s).
//! - An intent is noted before its first signal, so that our own kill is never taken for somebody else's.
//! - Past the trust deadline nobody runs and nobody is started, whatever has become of the supervisor.
//! - Only the end of its socket ends it: every tree is then killed at once, `ends/` is written, and it is gone within 30 s.
//!   If it dies itself, its children die with it (parent-death signal), and the supervisor sweeps what they left.

mod attempt;
pub mod client;
mod death;
pub mod ends;
mod frost;
mod ground;
mod main_loop;
pub mod message;
mod start;
mod stop;
#[cfg(test)]
mod tests;
mod tmpdir;
mod tree;
mod trust;
mod watchdog;

pub use client::ChildStdio;
pub use client::Launched;
pub use client::ParentPipes;
pub use client::Program;
pub use client::WardenError;
pub use client::WardenEvent;
pub use client::WardenEvents;
pub use client::WardenHandle;
pub use client::child_pipes;
pub use client::launch;
pub use client::launch_program;
pub use client::sweep_orphans;
pub use main_loop::run;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::domain::evidence::Enforcement;
use crate::domain::ids::Fence;

/// What the supervisor tells its warden at birth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WardenSetup {
    /// Where `ends/` and the attempts' temporary folders are: the supervisor's own subfolder of `state_dir`.
    pub state_dir: PathBuf,
    /// The memory budget of all jobs together, in bytes; the group above the leaves gets a limit a little larger.
    pub memory_budget: u64,
    /// Do not look for cgroups at all (`enforce = "watchdog"` on every kind, or asked for by a test of that lane).
    pub watchdog_only: bool,
}

/// What the warden found that it can do, by making, limiting, entering and removing a real leaf.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Pid of the warden.
    pub pid: i32,
    /// What limits will be enforced by.
    pub enforcement: Enforcement,
    /// Path of the group that holds the leaves; `None` without cgroups.
    pub jobs_group: Option<String>,
    /// Why not something better, one line each step that was tried: `cgroup v2: …`, `cgroup v1: …`.
    pub notes: Vec<String>,
}

/// How to start a child. Travels as JSON in a sealed memory file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartSpec {
    /// The fence: for the leaf's name, the `ends/` file, and `JOBVISOR_JOB_ID`, `JOBVISOR_ATTEMPT`.
    pub fence: Fence,
    /// Program and arguments; the program is looked up in the `PATH` of `env` unless it holds a slash.
    pub argv: Vec<String>,
    /// The whole environment but for `JOBVISOR_JOB_ID`, `JOBVISOR_ATTEMPT` and `TMPDIR`, which the warden adds.
    pub env: Vec<(String, String)>,
    /// Working folder.
    pub cwd: PathBuf,
    /// Memory limit in bytes.
    pub memory: u64,
    /// Most processes and threads in the leaf.
    pub pids: u32,
    /// `enforce = "cgroup"`: refuse (`limit` step) rather than fall back to the watchdog.
    pub require_cgroup: bool,
    /// `enforce = "watchdog"`: no leaf for this one.
    pub watchdog: bool,
    /// From `exec` to the first signal; `None`: no limit.
    pub timeout_ms: Option<u64>,
    /// From the first signal to SIGKILL, and from the outcome to the end.
    pub grace_ms: u64,
    /// From the fork to `exec`.
    pub start_timeout_ms: u64,
    /// Run as this user; `None`: as the supervisor.
    pub user: Option<String>,
    /// And this group; `None`: the user's.
    pub group: Option<String>,
    /// Niceness to add.
    pub nice: Option<i32>,
}

/// One attempt's file in `ends/`: written by a warden that lost its supervisor, read by the next supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndFile {
    /// Whose end.
    pub fence: Fence,
    /// What was seen.
    pub process: crate::domain::evidence::ProcessEvidence,
}
