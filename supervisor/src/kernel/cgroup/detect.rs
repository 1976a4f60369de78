//! Which tree holds the jobs: decided by what a fresh leaf *does*, not by what is mounted.
//!
//! v2 is tried first, then v1. Each try really makes the jobs group and a leaf, puts limits in force and reads them back, reads
//! counters, runs the caller's probe (which starts a process in the leaf) and removes the leaf. A try that fails leaves nothing
//! behind and one line that says why. Called once by the warden at its start; it may wait for its own probe to die, at most
//! [`PROBE_PATIENCE`].

use std::thread;
use std::time::Duration;

use super::KillState;
use super::Leaf;
use super::LeafLimits;
use super::Tree;
use super::own::Roots;
use super::own::Unfit;
use super::v1;
use super::v2;
use crate::domain::clock;
use crate::domain::report::chain;
use crate::kernel::KernelError;

/// Memory limit of the probe leaf: a process that does nothing fits, and every jobs group is larger.
const PROBE_MEMORY: u64 = 16 * 1024 * 1024;

/// Process limit of the probe leaf.
const PROBE_PIDS: u32 = 16;

/// How long a probe leaf may take to die.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// How often it is looked at meanwhile.
const PROBE_PAUSE: Duration = Duration::from_millis(1);

/// Who asks, and for how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// The supervisor and its warden: the only processes that may be moved.
    pub own_pids: Vec<i32>,
    /// Unique for each warden: [`nonce`](super::nonce()) of its pid.
    pub nonce: String,
    /// Memory limit of the group above the leaves, in bytes.
    pub jobs_memory: u64,
}

/// What was found.
#[derive(Debug)]
pub struct Detected {
    /// A tree that was proven to work; `None`: there is none, and limits must be watched.
    pub tree: Option<Box<dyn Tree>>,
    /// Why not something better, a line each: `cgroup v2: no memory controller at /sys/fs/cgroup/unified`.
    pub notes: Vec<String>,
}

/// The caller's part of the proof: starts a process in the leaf that does nothing, and waits for it.
pub type Probe<'a> = &'a mut dyn FnMut(&dyn Leaf) -> Result<(), KernelError>;

/// Finds the best tree that works here, with its jobs group made.
pub fn detect(roots: &Roots, setup: &Setup, probe: Probe<'_>) -> Detected {
    let mut notes = Vec::new();
    let tree = try_v2(roots, setup, probe, &mut notes).or_else(|| try_v1(roots, setup, probe, &mut notes));
    Detected { tree, notes }
}

fn try_v2(roots: &Roots, setup: &Setup, probe: Probe<'_>, notes: &mut Vec<String>) -> Option<Box<dyn Tree>> {
    let mut note = |text: String| notes.push(format!("cgroup v2: {text}"));
    let mut changes = v2::Changes::default();
    let made = v2::set_up(roots, setup, &mut changes).and_then(|(tree, lack)| {
        prove(&tree, probe)?;
        Ok((tree, lack))
    });
    match made {
        Ok((tree, lack)) => {
            lack.into_iter().for_each(note);
            Some(Box::new(tree))
        }
        Err(why) => {
            note(chain(&why));
            changes.undo().iter().for_each(|error| note(format!("left behind: {}", chain(error))));
            None
        }
    }
}

fn try_v1(roots: &Roots, setup: &Setup, probe: Probe<'_>, notes: &mut Vec<String>) -> Option<Box<dyn Tree>> {
    let mut note = |text: String| notes.push(format!("cgroup v1: {text}"));
    let (tree, lack) = v1::set_up(roots, setup).map_err(|why| note(chain(&why))).ok()?;
    match prove(&tree, probe) {
        Ok(()) => {
            lack.into_iter().for_each(note);
            Some(Box::new(tree))
        }
        Err(why) => {
            note(chain(&why));
            tree.remove().err().iter().for_each(|error| note(format!("left behind: {}", chain(error))));
            None
        }
    }
}

/// Makes a leaf, looks whether it does what leaves are for, and removes it.
fn prove(tree: &dyn Tree, probe: Probe<'_>) -> Result<(), Unfit> {
    let leaf = tree.make_leaf("probe", LeafLimits { memory: PROBE_MEMORY, pids: PROBE_PIDS })?;
    let proven = see(&*leaf).and_then(|()| Ok(probe(&*leaf)?)).and_then(|()| see(&*leaf));
    proven.and(clear(&*leaf))
}

/// What a verdict needs must be readable.
fn see(leaf: &dyn Leaf) -> Result<(), Unfit> {
    let counters = leaf.counters();
    let blind = [(counters.oom_kill, "count of OOM kills"), (leaf.usage(), "memory use")];
    match blind.into_iter().find(|(value, _)| value.is_none()) {
        Some((_, what)) => Err(Unfit::Blind { what }),
        None => Ok(()),
    }
}

/// Kills whatever the probe left, and removes the leaf.
fn clear(leaf: &dyn Leaf) -> Result<(), Unfit> {
    let start = clock::monotonic();
    loop {
        let state = leaf.kill()?;
        match (state, leaf.remove()) {
            (KillState::Empty, Ok(())) => return Ok(()),
            (KillState::Empty, Err(error)) if start.elapsed() > PROBE_PATIENCE => return Err(error.into()),
            (KillState::Dying, _) if start.elapsed() > PROBE_PATIENCE => {
                return Err(Unfit::Stuck(PROBE_PATIENCE.as_millis()));
            }
            (KillState::Empty | KillState::Dying, _) => thread::sleep(PROBE_PAUSE),
        }
    }
}
