//! A leaf in the v1 trees: one folder in each of memory, freezer and pids.
//!
//! v1 has no kill of its own, and a frozen task ignores SIGKILL until it is thawed. So a kill is: freeze, so that nobody forks;
//! SIGKILL everybody; thaw, and they die before they run. Thawing first would let a lost job go on writing. Its counters are
//! not summed over sub-groups by the kernel: that is done here. It does not count what a limit set off (`oom`), nor CPU time.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::path::PathBuf;

use super::Entry;
use super::KillState;
use super::Leaf;
use super::LeafLimits;
use super::files;
use super::own;
use super::own::Home;
use super::parse;
use crate::domain::evidence::Ancestor;
use crate::domain::evidence::Counters;
use crate::domain::units::Bytes;
use crate::kernel::KernelError;

/// Writes of `FROZEN` before the kill goes on without: a busy tree was seen to need up to 8.
const FREEZE_TRIES: usize = 16;

/// The same group in each of the v1 trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Folders {
    pub(super) memory: PathBuf,
    pub(super) freezer: PathBuf,
    pub(super) pids: Option<PathBuf>,
}

impl Folders {
    /// The group `name` below these.
    pub(super) fn child(&self, name: &str) -> Self {
        Self {
            memory: self.memory.join(name),
            freezer: self.freezer.join(name),
            pids: self.pids.as_ref().map(|pids| pids.join(name)),
        }
    }

    /// Each folder once: controllers that are mounted together share theirs.
    pub(super) fn distinct(&self) -> BTreeSet<&Path> {
        [Some(&self.memory), Some(&self.freezer), self.pids.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
            .collect()
    }

    /// Makes all of them; on failure those that were made are removed.
    pub(super) fn make(&self) -> Result<(), KernelError> {
        let mut made = Vec::new();
        for folder in self.distinct() {
            if let Err(error) = files::make_group(folder) {
                made.into_iter().for_each(|folder| drop(files::remove_group(folder)));
                return Err(error);
            }
            made.push(folder);
        }
        Ok(())
    }

    /// Removes all of them with what is below; the first failure is the error, but each is tried.
    pub(super) fn remove(&self) -> Result<(), KernelError> {
        files::all(self.distinct().into_iter().map(files::remove_group_tree))
    }

    /// Everybody in any of the trees, sub-groups included, each once.
    pub(super) fn procs(&self) -> Result<Vec<i32>, KernelError> {
        let mut all = BTreeSet::new();
        for folder in self.distinct() {
            all.extend(files::members_below(folder)?);
        }
        Ok(all.into_iter().collect())
    }

    /// One step of killing everybody. Never waits.
    pub(super) fn kill(&self) -> Result<KillState, KernelError> {
        if self.procs()?.is_empty() {
            return Ok(KillState::Empty);
        }
        let frozen = self.freeze();
        // Even where freezing failed: who is killed while running dies too, only a fork may be missed until the next call.
        let killed = self.procs().and_then(|pids| files::kill_each(&pids));
        let thawed = self.set_state("THAWED");
        frozen.map(drop).and(killed).and(thawed)?;
        Ok(if self.procs()?.is_empty() { KillState::Empty } else { KillState::Dying })
    }

    /// Asks for the freeze until it reads `FROZEN`, a bounded number of times: each write freezes those that were missed.
    /// Who enters or is forked later is frozen by the kernel. `true`: all stand still.
    pub(super) fn freeze(&self) -> Result<bool, KernelError> {
        for _ in 0..FREEZE_TRIES {
            self.set_state("FROZEN")?;
            if self.reads("FROZEN") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// `true`: nobody is frozen by this group any more.
    pub(super) fn thaw(&self) -> Result<bool, KernelError> {
        self.set_state("THAWED")?;
        Ok(self.reads("THAWED"))
    }

    /// A group that is gone has whatever state is asked for.
    fn reads(&self, state: &str) -> bool {
        files::read_optional(&self.state()).is_none_or(|now| now.trim() == state)
    }

    /// A leaf whose freezer folder is gone already has nobody to freeze there.
    fn set_state(&self, state: &str) -> Result<(), KernelError> {
        match files::write(&self.state(), state) {
            Err(error) if !files::is_missing(&error) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn state(&self) -> PathBuf {
        self.freezer.join("freezer.state")
    }
}

/// Writes `memory.limit_in_bytes` and reads it back, in the whole pages that the kernel keeps.
pub(super) fn limit_memory(group: &Path, bytes: u64) -> Result<(), KernelError> {
    let expected = files::whole_pages(bytes).to_string();
    files::write_and_check(&group.join("memory.limit_in_bytes"), &bytes.to_string(), &expected)
}

/// Puts the limits in force. Swap is shut off by a limit of memory and swap together that lies one page higher; a kernel
/// without swap accounting has no such file. A group inherits "do not kill" from above: a job would hang, so it is taken back.
fn limit(folders: &Folders, limits: LeafLimits) -> Result<(), KernelError> {
    limit_memory(&folders.memory, limits.memory)?;
    let both = folders.memory.join("memory.memsw.limit_in_bytes");
    if both.exists() {
        let bytes = (files::whole_pages(limits.memory) + files::page_size()).to_string();
        files::write_and_check(&both, &bytes, &bytes)?;
    }
    let control = folders.memory.join("memory.oom_control");
    if files::keyed(&control, "oom_kill_disable") == Some(1) {
        files::write(&control, "0")?;
    }
    if let Some(pids) = &folders.pids {
        let count = limits.pids.to_string();
        files::write_and_check(&pids.join("pids.max"), &count, &count)?;
    }
    Ok(())
}

/// A leaf of the v1 trees, with the descriptors that its process needs to enter it.
#[derive(Debug)]
pub(super) struct V1Leaf {
    home: Home,
    folders: Folders,
    /// One for each tree.
    procs: Vec<File>,
    /// `memory.usage_in_bytes`, read for every sample.
    current: File,
}

impl V1Leaf {
    /// Makes the groups and puts their limits in force; on failure nothing is left behind. `home` is ours in the memory tree.
    pub(super) fn make(home: &Home, folders: Folders, limits: LeafLimits) -> Result<Self, KernelError> {
        folders.make()?;
        let made = limit(&folders, limits).and_then(|()| Self::open(home, folders.clone()));
        if made.is_err() {
            // The first failure is the one to tell; a group that nobody entered does not resist.
            drop(folders.remove());
        }
        made
    }

    /// Opens what is needed of groups that exist.
    pub(super) fn open(home: &Home, folders: Folders) -> Result<Self, KernelError> {
        let procs = folders.distinct().into_iter().map(|folder| files::open_to_write(&folder.join("cgroup.procs")));
        Ok(Self {
            home: home.clone(),
            procs: procs.collect::<Result<_, _>>()?,
            current: files::open(&folders.memory.join("memory.usage_in_bytes"))?,
            folders,
        })
    }

    /// Sum of a counter over the leaf and its sub-groups; `None` where the leaf itself does not have it.
    fn sum(folder: &Path, file: &str, key: &str) -> Option<u64> {
        let own = files::keyed(&folder.join(file), key)?;
        let below = files::group_and_below(folder).into_iter().skip(1);
        Some(own + below.filter_map(|group| files::keyed(&group.join(file), key)).sum::<u64>())
    }
}

/// Times that a group's limit was hit; on v1 this is all that is known of a group above the leaf.
fn failcnt(group: &Path) -> Option<u64> {
    files::number(&group.join("memory.failcnt"))
}

impl Leaf for V1Leaf {
    fn entry(&self) -> Entry<'_> {
        Entry::Write
    }

    fn procs_files(&self) -> Vec<BorrowedFd<'_>> {
        self.procs.iter().map(File::as_fd).collect()
    }

    fn counters(&self) -> Counters {
        let memory = &self.folders.memory;
        let stat = files::read_optional(&memory.join("memory.stat"));
        // The `total_` lines include sub-groups.
        let stat = |key: &str| {
            let text = stat.as_deref()?;
            parse::keyed(text, &format!("total_{key}")).or_else(|| parse::keyed(text, key))
        };
        Counters {
            oom: None,
            oom_kill: Self::sum(memory, "memory.oom_control", "oom_kill"),
            oom_group_kill: None,
            limit_hits: failcnt(memory),
            high: None,
            peak: files::number(&memory.join("memory.max_usage_in_bytes")),
            current: self.usage(),
            anon: stat("rss"),
            file: stat("cache"),
            shmem: stat("shmem"),
            pids_max_hits: self.folders.pids.as_ref().and_then(|pids| Self::sum(pids, "pids.events", "max")),
            oomd_ooms: None,
        }
    }

    fn usage(&self) -> Option<u64> {
        files::number_at_start(&self.current)
    }

    fn cpu_seconds(&self) -> Option<f64> {
        None
    }

    fn ancestors(&self) -> Vec<Ancestor> {
        let above = self.home.upwards(&self.folders.memory).into_iter().skip(1);
        let ancestors = above.map(|group| Ancestor {
            path: self.home.visible(&group),
            limit: own::v1_limit(&group).map(Bytes),
            oom_before: failcnt(&group),
            oom_after: None,
            oomd: (None, None),
        });
        ancestors.collect()
    }

    fn read_ancestors_again(&self, ancestors: &mut [Ancestor]) {
        let above = self.home.upwards(&self.folders.memory).into_iter().skip(1);
        for (group, ancestor) in above.zip(ancestors) {
            ancestor.oom_after = failcnt(&group);
        }
    }

    fn procs(&self) -> Result<Vec<i32>, KernelError> {
        self.folders.procs()
    }

    fn kill(&self) -> Result<KillState, KernelError> {
        self.folders.kill()
    }

    fn freeze(&self) -> Result<bool, KernelError> {
        self.folders.freeze()
    }

    fn thaw(&self) -> Result<bool, KernelError> {
        self.folders.thaw()
    }

    fn remove(&self) -> Result<(), KernelError> {
        self.folders.remove()
    }
}
