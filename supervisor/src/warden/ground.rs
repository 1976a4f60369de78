//! What all attempts stand on: `/proc`, the tree of leaves if there is one, and the forest if there is none.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use nix::poll::PollFd;
use nix::poll::PollFlags;
use nix::poll::PollTimeout;
use nix::poll::poll;

use super::Capabilities;
use super::WardenSetup;
use super::attempt::Attempt;
use super::attempt::now;
use super::message::Key;
use super::start::doors;
use super::tmpdir;
use super::tmpdir::REMOVED;
use super::tmpdir::Remover;
use super::tree::Forest;
use crate::domain::evidence::Enforcement;
use crate::kernel::KernelError;
use crate::kernel::cgroup;
use crate::kernel::cgroup::Leaf;
use crate::kernel::cgroup::Roots;
use crate::kernel::cgroup::Setup;
use crate::kernel::cgroup::Tree;
use crate::kernel::proc::Proc;
use crate::kernel::process;
use crate::kernel::reap;
use crate::kernel::spawn;
use crate::kernel::spawn::ErrnoPipe;
use crate::kernel::spawn::Plan;

/// The group above the leaves may use the budget and this part of it more, at least [`SLACK`]: a leaf's own limit comes first.
const SLACK_PART: u64 = 16;

/// 64 MiB.
const SLACK: u64 = 64 << 20;

/// How long a probe process may take to say that it is in its leaf.
const PROBE: Duration = Duration::from_secs(2);

/// Leaves of dead wardens that are removed at once, and the pauses between such sweeps: tenfold each, then no more.
const SWEPT: usize = 64;
const SWEEP_FIRST: Duration = Duration::from_millis(5);
const SWEEP_LAST: Duration = Duration::from_secs(5);

const SIGKILL: i32 = nix::sys::signal::Signal::SIGKILL as i32;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Ground {
    /// `/proc`.
    pub(super) proc: Proc,
    /// Where limits are enforced by the kernel; `None`: by the watchdog only.
    pub(super) tree: Option<Box<dyn Tree>>,
    /// Who belongs to whom where there is no leaf.
    pub(super) forest: Forest,
    /// The supervisor's own subfolder of `state_dir`.
    pub(super) state_dir: PathBuf,
    /// Serial number of the last start, for names that are never used twice.
    pub(super) serial: u64,
    /// The largest resident size of the warden itself: what a fork of it inherits as its own maximum.
    pub(super) own_rss: u64,
    /// Limit of open files that children get: the one that the warden was started with.
    pub(super) descriptors: Option<(u64, u64)>,
    /// When to look for leaves of dead wardens again, and the pause after that.
    sweep: Option<(Instant, Duration)>,
    /// Temporary folders of dead wardens.
    rubbish: Vec<Remover>,
}

impl Ground {
    /// Finds out what can be enforced here, and what there is to say about it.
    pub(super) fn survey(setup: WardenSetup) -> (Self, Vec<String>) {
        let proc = Proc::default();
        let (tree, notes) = if setup.watchdog_only {
            (None, vec!["cgroups are not used: the watchdog was asked for".to_owned()])
        } else {
            find_tree(setup.memory_budget)
        };
        let sweep = tree.as_ref().map(|_| (now(), SWEEP_FIRST));
        let forest = Forest::new(proc.clone());
        let rubbish = tmpdir::set_aside(&setup.state_dir, process::own_pid());
        let ground = Self {
            proc,
            tree,
            forest,
            state_dir: setup.state_dir,
            serial: 0,
            own_rss: 0,
            descriptors: None,
            sweep,
            rubbish,
        };
        (ground, notes)
    }

    /// What the hello says.
    pub(super) fn capabilities(&self, notes: Vec<String>) -> Capabilities {
        let tree = self.tree.as_ref();
        Capabilities {
            pid: process::own_pid(),
            enforcement: tree.map_or(Enforcement::Watchdog, |tree| tree.enforcement()),
            jobs_group: tree.map(|tree| tree.jobs_group()),
            notes,
        }
    }

    /// When [`Self::sweep_if_due`] has something to do.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        if self.rubbish.is_empty() { self.sweep.map(|(at, _)| at) } else { Some(now()) }
    }

    /// Removes what dead wardens left: folders, a piece at a time, and leaves, a few times after the start.
    pub(super) fn sweep_if_due(&mut self) {
        if self.rubbish.last_mut().is_some_and(|remover| remover.step(REMOVED)) {
            self.rubbish.pop();
        }
        let (Some(tree), Some((at, pause))) = (&self.tree, self.sweep) else { return };
        if at <= now() {
            // What cannot be removed now is tried again, and by the next warden.
            tree.sweep(SWEPT).map(drop).unwrap_or_default();
            self.sweep = (pause <= SWEEP_LAST).then(|| (now() + pause, pause * 10));
        }
    }

    /// Tells the forest which of our children some leaf accounts for.
    pub(super) fn know_foreigners(&mut self, attempts: &BTreeMap<Key, Attempt>) {
        if self.forest.is_empty() {
            return;
        }
        let mut foreign = HashSet::new();
        for attempt in attempts.values() {
            if let Some(leaf) = &attempt.leaf {
                foreign.insert(attempt.pid);
                foreign.extend(leaf.procs().unwrap_or_default());
            }
        }
        self.forest.set_foreign(foreign);
    }
}

fn find_tree(budget: u64) -> (Option<Box<dyn Tree>>, Vec<String>) {
    let roots = Roots::default();
    let own = process::own_pid();
    let nonce = match cgroup::nonce(&roots, own) {
        Ok(nonce) => nonce,
        Err(error) => return (None, vec![format!("cgroups are not used: {error}")]),
    };
    let setup = Setup {
        own_pids: vec![own, nix::unistd::getppid().as_raw()],
        nonce,
        jobs_memory: budget.saturating_add((budget / SLACK_PART).max(SLACK)),
    };
    let found = cgroup::detect(&roots, &setup, &mut probe);
    (found.tree, found.notes)
}

/// Proves that a process can enter a leaf: one that is given no program comes as far as `exec` only when it is in.
fn probe(leaf: &dyn Leaf) -> Result<(), KernelError> {
    let plan = Plan { contained: true, ..Plan::default() };
    let null = process::null()?;
    let spawned = spawn::spawn(&plan, &[null.as_fd()], &doors(leaf))?;
    let call = |errno: i32| KernelError::Call { call: "probe", source: io::Error::from_raw_os_error(errno) };
    let mut end = [PollFd::new(spawned.pidfd.as_fd(), PollFlags::POLLIN)];
    let ended = poll(&mut end, PollTimeout::try_from(PROBE).unwrap_or(PollTimeout::MAX));
    if ended != Ok(1) {
        process::pidfd_signal(spawned.pidfd.as_fd(), SIGKILL).unwrap_or_default();
    }
    let said = spawn::read_errno(spawned.errno.as_fd());
    // One that does not die of SIGKILL is reaped with the orphans.
    reap::reap(spawned.pidfd.as_fd()).map(drop).unwrap_or_default();
    match said {
        ErrnoPipe::Failed(failure) if failure.step == "exec" => Ok(()),
        ErrnoPipe::Failed(failure) => Err(call(failure.errno)),
        ErrnoPipe::Open | ErrnoPipe::Closed => Err(call(nix::Error::ETIMEDOUT as i32)),
    }
}
