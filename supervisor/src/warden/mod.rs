//! x

pub mod message;

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
