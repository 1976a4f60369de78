//! Why an attempt ended: the codes that are stored, printed, filtered by and matched by scripts.
//!
//! The codes are a contract: one is added, never renamed. Numbers that belong to a cause (an exit code, a signal)
//! stand beside it in the attempt, not in the code.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! causes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal,)*) => {
        /// Why an attempt failed, was interrupted or was ended by us.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Cause { $($(#[$doc])* #[serde(rename = $code)] $variant,)* }

        impl Cause {
            /// Every cause, in the order of the documentation.
            pub const ALL: &'static [Cause] = &[$(Cause::$variant,)*];

            /// The stored and printed code.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Cause::$variant => $code,)* }
            }
        }
    };
}

causes! {
    /// The job said that it failed, or cannot be started as its payload asks.
    JobError = "job_error",
    /// The program ended with an exit code that does not mean success.
    ExitNonzero = "exit_nonzero",
    /// A child that speaks the protocol exited 0 without a result.
    ExitWithoutResult = "exit_without_result",
    /// The child broke the protocol.
    ProtocolError = "protocol_error",
    /// The output went past its limit and the kind asks for `output = "strict"`.
    OutputLimit = "output_limit",
    /// The kernel killed the job because the job's own limit was reached.
    OomJobLimit = "oom_job_limit",
    /// The kernel killed another process of the job, not its main one.
    OomDescendant = "oom_descendant",
    /// The kernel killed the process before it ran any of its own code: the limit is far too small.
    OomAtStart = "oom_at_start",
    /// The kernel killed the job because a group above it reached its limit.
    OomAncestorLimit = "oom_ancestor_limit",
    /// The kernel killed the job because the whole host ran out of memory.
    OomHost = "oom_host",
    /// systemd-oomd killed the job's group.
    OomOomd = "oom_oomd",
    /// Our own memory watchdog killed the job over its limit.
    MemWatchdog = "mem_watchdog",
    /// The job itself reported that an allocation failed.
    AllocFailed = "alloc_failed",
    /// The job ran longer than its kind's `timeout` (or did not start within `start_timeout`).
    Timeout = "timeout",
    /// A person or a program cancelled the job.
    Cancelled = "cancelled",
    /// The supervisor was stopping; the attempt is given back.
    Drained = "drained",
    /// The supervisor no longer held the job, so its child was killed.
    Fenced = "fenced",
    /// The process died of a fault of its own (SIGSEGV, SIGABRT, …).
    Crash = "crash",
    /// The process used up its CPU time limit.
    CpuLimit = "cpu_limit",
    /// Somebody sent a signal; neither we nor the kernel's OOM killer.
    KilledExternal = "killed_external",
    /// The process was killed and nothing is there to tell by whom.
    KilledUnknown = "killed_unknown",
    /// The program could not be started.
    SpawnFailed = "spawn_failed",
    /// The memory limit could not be put in force, so the job was not started.
    LimitSetupFailed = "limit_setup_failed",
    /// A process of the job does not die of SIGKILL.
    Unkillable = "unkillable",
    /// A light job's handler panicked.
    Panic = "panic",
    /// A light job's handler blocked its thread.
    Blocked = "blocked",
    /// The supervisor died while the attempt ran.
    SupervisorLost = "supervisor_lost",
    /// The warden died, and its children with it.
    WardenLost = "warden_lost",
    /// The host was restarted while the attempt ran.
    HostRebooted = "host_rebooted",
}

impl Cause {
    /// Whether the kind's `on_oom` decides what follows: the job's own appetite for memory ended it.
    #[must_use]
    pub const fn is_own_oom(self) -> bool {
        matches!(self, Self::OomJobLimit | Self::OomDescendant | Self::MemWatchdog | Self::AllocFailed)
    }

    /// Whether the cause says "out of memory" in any form. Only proof may lead here (invariant I3).
    #[must_use]
    pub const fn is_oom(self) -> bool {
        self.is_own_oom() || matches!(self, Self::OomAtStart | Self::OomAncestorLimit | Self::OomHost | Self::OomOomd)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

impl FromStr for Cause {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.iter().copied().find(|cause| cause.code() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|cause| cause.code()).collect();
            format!("`{text}` is not a cause; known are {}", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_back_and_stored_the_same_way_in_json() {
        for cause in Cause::ALL {
            assert_eq!(cause.code().parse(), Ok(*cause));
            assert_eq!(serde_json::to_string(cause).unwrap(), format!("\"{}\"", cause.code()));
        }
        assert!("oom".parse::<Cause>().is_err_and(|e| e.contains("oom_job_limit")));
    }
}
