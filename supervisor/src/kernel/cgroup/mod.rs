//! Groups that limit, count and kill: cgroup v2 and v1 behind one pair of traits, found by probing a real leaf.
//!
//! The warden calls [`detect`] once at its start and owns the [`Tree`] it answers; each attempt or child gets a fresh [`Leaf`].
//! `detect` chooses, `v2` and `v1` build the groups above the leaves, `v2_leaf` and `v1_leaf` are the leaves, `own` finds our own
//! group and limit, `nonce` names wardens and proves them dead, `files`, `parse` and `xattr` touch the kernel's files.
//!
//! - A limit counts as set when it was written *and read back*.
//! - A counter that is missing is `None`, never 0.
//! - A group is always made fresh: one that exists is an error, one that was killed is never used again.
//! - Nothing waits but [`detect`], and only for its own probe.
//! - Nobody but the supervisor and its warden is moved, and only groups of a warden that is proven dead are swept.
//!
//! Starting processes, waiting for them and deciding what their end means are others' work.

mod detect;
mod files;
mod nonce;
mod own;
mod parse;
#[cfg(test)]
mod tests;
mod v1;
mod v1_leaf;
mod v2;
mod v2_leaf;
mod xattr;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use crate::domain::evidence::Ancestor;
use crate::domain::evidence::Counters;
use crate::domain::evidence::Enforcement;
use crate::kernel::KernelError;

pub use detect::Detected;
pub use detect::Probe;
pub use detect::Setup;
pub use detect::detect;
pub use nonce::nonce;
pub use own::Roots;
pub use own::memory_limit_of_own_group;

/// What a leaf is limited to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafLimits {
    /// Bytes of memory; swap is shut off (v2 `memory.swap.max = 0`, v1 memsw = limit + one page).
    pub memory: u64,
    /// Processes and threads.
    pub pids: u32,
}

/// How a new process gets into a leaf before it runs any code of its own.
#[derive(Debug)]
pub enum Entry<'a> {
    /// `clone3(CLONE_INTO_CGROUP)` with this folder; where that is refused, write `0` to the files of [`Leaf::procs_files`].
    CloneInto(BorrowedFd<'a>),
    /// The child writes `0` to each of these open `cgroup.procs` files as its first act.
    Write,
}

/// How a kill stands. Killing never waits: the caller comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillState {
    /// Nobody is left.
    Empty,
    /// Signals are out; call again in a millisecond or so.
    Dying,
}

/// A tree in which leaves can be made.
pub trait Tree: Debug + Send {
    /// What its limits are enforced by.
    fn enforcement(&self) -> Enforcement;

    /// Path of the group that holds the leaves, for people.
    fn jobs_group(&self) -> String;

    /// Makes a fresh leaf (an existing one is an error) with its limits in force and read back.
    ///
    /// # Errors
    /// The step and path that failed; nothing is left behind.
    fn make_leaf(&self, name: &str, limits: LeafLimits) -> Result<Box<dyn Leaf>, KernelError>;

    /// Kills and removes what other wardens left below our own group: `jobs` groups whose warden is proven dead.
    /// Bounded: at most `limit` leaves a call. Answers how many leaves were removed.
    ///
    /// # Errors
    /// The group cannot be read.
    fn sweep(&self, limit: usize) -> Result<usize, KernelError>;

    /// Removes the tree's own groups at the end; leaves that are left make it fail.
    ///
    /// # Errors
    /// A group cannot be removed.
    fn remove(&self) -> Result<(), KernelError>;
}

/// The group of one attempt or one child. Never used again once it was killed.
pub trait Leaf: Debug + Send {
    /// How a process enters.
    fn entry(&self) -> Entry<'_>;

    /// Open `cgroup.procs` files, one a controller tree, for the fallback of [`Entry`].
    fn procs_files(&self) -> Vec<BorrowedFd<'_>>;

    /// Reads all counters; what the kernel does not offer is `None`.
    fn counters(&self) -> Counters;

    /// Bytes charged now, by a cached descriptor: cheap enough for every sample.
    fn usage(&self) -> Option<u64>;

    /// CPU seconds used by everything that was ever in the leaf, where the tree counts them.
    fn cpu_seconds(&self) -> Option<f64>;

    /// The groups above it, nearest first, with `oom_before` and the first half of `oomd` filled (v2: `memory.events.local: oom`; v1: `memory.failcnt`).
    fn ancestors(&self) -> Vec<Ancestor>;

    /// Fills `oom_after` and the second half of `oomd`.
    fn read_ancestors_again(&self, ancestors: &mut [Ancestor]);

    /// Who is in it.
    ///
    /// # Errors
    /// The list cannot be read.
    fn procs(&self) -> Result<Vec<i32>, KernelError>;

    /// One step of killing everything in it: v2 `cgroup.kill`; v1 freeze, SIGKILL each while frozen, thaw. Never waits.
    ///
    /// # Errors
    /// A file cannot be written or read.
    fn kill(&self) -> Result<KillState, KernelError>;

    /// One step of freezing everything in it, whoever enters or is forked later included. `true`: all stand still. Never waits:
    /// call again in a millisecond or so until it is true. A frozen leaf can be killed as any other.
    ///
    /// # Errors
    /// A file cannot be written or read; a kernel before 5.2 has no freezer on v2.
    fn freeze(&self) -> Result<bool, KernelError>;

    /// One step of the way back. `true`: nobody is kept from running. Never waits.
    ///
    /// # Errors
    /// A file cannot be written or read.
    fn thaw(&self) -> Result<bool, KernelError>;

    /// Removes it. Busy (a zombie not yet gone) is an error that passes: call again.
    ///
    /// # Errors
    /// It is not empty yet, or cannot be removed.
    fn remove(&self) -> Result<(), KernelError>;
}
