//! A leaf in the v2 tree: its limits, its counters, its end.
//!
//! Counters are read from both `memory.events` and `memory.events.local`, and the higher one is taken: the first also counts
//! what happened in groups that the job made below its own, the second is the one that a mount with `memory_localevents`
//! cannot change. Neither counts what a group *above* the leaf did of its own accord, so `oom` still means "a limit at or
//! below this leaf". Without `.local` (before Linux 5.2) `oom` is `None`.

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
use super::xattr;
use crate::domain::evidence::Ancestor;
use crate::domain::evidence::Counters;
use crate::domain::units::Bytes;
use crate::kernel::KernelError;

/// Microseconds in a second, for `cpu.stat`.
const MICROS: f64 = 1e6;

/// A leaf of the v2 tree, with the descriptors that its process needs to enter it.
#[derive(Debug)]
pub(super) struct V2Leaf {
    home: Home,
    path: PathBuf,
    /// For `CLONE_INTO_CGROUP`.
    folder: File,
    /// For a child that enters by writing.
    procs: File,
    /// `memory.current`, read for every sample.
    current: File,
}

impl V2Leaf {
    /// Makes the group and puts its limits in force; on failure nothing is left behind.
    pub(super) fn make(home: &Home, path: PathBuf, limits: LeafLimits, has_pids: bool) -> Result<Self, KernelError> {
        files::make_group(&path)?;
        let made = limit(&path, limits, has_pids).and_then(|()| Self::open(home, path.clone()));
        if made.is_err() {
            // The first failure is the one to tell; a group that nobody entered does not resist.
            drop(files::remove_group(&path));
        }
        made
    }

    /// Opens what is needed of a group that exists.
    pub(super) fn open(home: &Home, path: PathBuf) -> Result<Self, KernelError> {
        Ok(Self {
            home: home.clone(),
            folder: files::open(&path)?,
            procs: files::open_to_write(&path.join("cgroup.procs"))?,
            current: files::open(&path.join("memory.current"))?,
            path,
        })
    }
}

/// Puts the limits in force and reads them back. Swap is shut off and the group dies as one, where the kernel knows how.
fn limit(path: &Path, limits: LeafLimits, has_pids: bool) -> Result<(), KernelError> {
    limit_memory(path, limits.memory)?;
    for (file, value) in [("memory.swap.max", "0"), ("memory.oom.group", "1")] {
        let file = path.join(file);
        if file.exists() {
            files::write_and_check(&file, value, value)?;
        }
    }
    if has_pids {
        let pids = limits.pids.to_string();
        files::write_and_check(&path.join("pids.max"), &pids, &pids)?;
    }
    Ok(())
}

/// Writes `memory.max` and reads it back, in the whole pages that the kernel keeps.
pub(super) fn limit_memory(group: &Path, bytes: u64) -> Result<(), KernelError> {
    let expected = files::whole_pages(bytes).to_string();
    files::write_and_check(&group.join("memory.max"), &bytes.to_string(), &expected)
}

/// One step of killing everything in a group and below it. Never waits.
pub(super) fn kill_group(group: &Path) -> Result<KillState, KernelError> {
    if !is_populated(group)? {
        return Ok(KillState::Empty);
    }
    match files::write(&group.join("cgroup.kill"), "1") {
        Ok(()) => {}
        Err(error) if files::is_missing(&error) => files::kill_each(&files::members_below(group)?)?,
        Err(error) => return Err(error),
    }
    Ok(if is_populated(group)? { KillState::Dying } else { KillState::Empty })
}

/// Whether a live process is in the group or below it. A group that is gone has none.
fn is_populated(group: &Path) -> Result<bool, KernelError> {
    let path = group.join("cgroup.events");
    match files::read(&path) {
        Ok(text) => parse::keyed(&text, "populated").map(|count| count > 0).ok_or(KernelError::Content {
            path,
            found: text,
            expected: "a line `populated N`".to_owned(),
        }),
        Err(error) if files::is_missing(&error) && !group.exists() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Asks for the freeze of a group with all below it, or for its end, and answers whether the kernel is there yet. Who enters
/// or is forked meanwhile is frozen with the others; `frozen` reads 1 only when every task stands still.
pub(super) fn set_frozen(group: &Path, frozen: bool) -> Result<bool, KernelError> {
    files::write(&group.join("cgroup.freeze"), if frozen { "1" } else { "0" })?;
    let path = group.join("cgroup.events");
    let text = files::read(&path)?;
    let now = parse::keyed(&text, "frozen").ok_or_else(|| KernelError::Content {
        path,
        found: text.clone(),
        expected: "a line `frozen N`".to_owned(),
    })?;
    Ok((now > 0) == frozen)
}

/// How often a group's *own* limit set off the OOM killer.
fn local_oom(group: &Path) -> Option<u64> {
    files::keyed(&group.join("memory.events.local"), "oom")
}

impl Leaf for V2Leaf {
    fn entry(&self) -> Entry<'_> {
        Entry::CloneInto(self.folder.as_fd())
    }

    fn procs_files(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.procs.as_fd()]
    }

    fn counters(&self) -> Counters {
        let local = files::read_optional(&self.path.join("memory.events.local"));
        let events = files::read_optional(&self.path.join("memory.events"));
        let stat = files::read_optional(&self.path.join("memory.stat"));
        let event = |key: &str| {
            let texts = [local.as_deref(), events.as_deref()];
            texts.into_iter().flatten().filter_map(|text| parse::keyed(text, key)).max()
        };
        let stat = |key: &str| parse::keyed(stat.as_deref()?, key);
        Counters {
            oom: local.is_some().then(|| event("oom")).flatten(),
            oom_kill: event("oom_kill"),
            oom_group_kill: event("oom_group_kill"),
            limit_hits: event("max"),
            high: event("high"),
            peak: files::number(&self.path.join("memory.peak")),
            current: self.usage(),
            anon: stat("anon"),
            file: stat("file"),
            shmem: stat("shmem"),
            pids_max_hits: files::keyed(&self.path.join("pids.events"), "max"),
            oomd_ooms: xattr::oomd_ooms(&self.path),
        }
    }

    fn usage(&self) -> Option<u64> {
        files::number_at_start(&self.current)
    }

    #[expect(clippy::cast_precision_loss, reason = "exact up to 285 years of CPU time")]
    fn cpu_seconds(&self) -> Option<f64> {
        let micros = files::keyed(&self.path.join("cpu.stat"), "usage_usec")?;
        Some(micros as f64 / MICROS)
    }

    fn ancestors(&self) -> Vec<Ancestor> {
        let above = self.home.upwards(&self.path).into_iter().skip(1);
        let ancestors = above.map(|group| Ancestor {
            path: self.home.visible(&group),
            limit: own::v2_limit(&group).map(Bytes),
            oom_before: local_oom(&group),
            oom_after: None,
            oomd: (xattr::oomd_ooms(&group), None),
        });
        ancestors.collect()
    }

    fn read_ancestors_again(&self, ancestors: &mut [Ancestor]) {
        let above = self.home.upwards(&self.path).into_iter().skip(1);
        for (group, ancestor) in above.zip(ancestors) {
            ancestor.oom_after = local_oom(&group);
            ancestor.oomd.1 = xattr::oomd_ooms(&group);
        }
    }

    fn procs(&self) -> Result<Vec<i32>, KernelError> {
        files::members_below(&self.path)
    }

    fn kill(&self) -> Result<KillState, KernelError> {
        kill_group(&self.path)
    }

    fn freeze(&self) -> Result<bool, KernelError> {
        set_frozen(&self.path, true)
    }

    fn thaw(&self) -> Result<bool, KernelError> {
        set_frozen(&self.path, false)
    }

    fn remove(&self) -> Result<(), KernelError> {
        files::remove_group_tree(&self.path)
    }
}
