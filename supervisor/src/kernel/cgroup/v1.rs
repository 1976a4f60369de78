//! The v1 trees: a jobs group below our own in each of memory, freezer and pids.
//!
//! `<own group>/jobvisor.<nonce>/<leaf>`. A v1 group may hold processes beside its sub-groups, so nobody is moved. The freezer is
//! required, because nothing else on v1 can kill a tree that forks; pids is not, and its absence is told.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::Leaf;
use super::LeafLimits;
use super::Tree;
use super::detect::Setup;
use super::files;
use super::nonce;
use super::own;
use super::own::Home;
use super::own::Roots;
use super::own::Unfit;
use super::v1_leaf;
use super::v1_leaf::Folders;
use super::v1_leaf::V1Leaf;
use crate::domain::evidence::Enforcement;
use crate::kernel::KernelError;

/// What the names of jobs groups begin with; the nonce of their warden follows.
const JOBS: &str = "jobvisor.";

/// The v1 trees, ready for leaves.
#[derive(Debug)]
pub(super) struct V1Tree {
    roots: Roots,
    /// Our own group in the memory tree.
    home: Home,
    /// Our own group in each tree.
    own: Folders,
    jobs: Folders,
}

/// Makes the jobs groups; on failure nothing is left behind. The second part of the answer: what the trees lack, for people.
pub(super) fn set_up(roots: &Roots, setup: &Setup) -> Result<(V1Tree, Option<String>), Unfit> {
    let home = own::v1(roots, "memory")?;
    let freezer = own::v1(roots, "freezer")?;
    let (pids, lack) = match own::v1(roots, "pids") {
        Ok(pids) => (Some(pids.group), None),
        Err(why) => (None, Some(format!("{why}: processes are not counted"))),
    };
    let own = Folders { memory: home.group.clone(), freezer: freezer.group, pids };
    let jobs = own.child(&format!("{JOBS}{}", setup.nonce));
    jobs.make()?;
    if let Err(error) = limit_jobs(&jobs, setup.jobs_memory) {
        // The first failure is the one to tell; a group that nobody entered does not resist.
        drop(jobs.remove());
        return Err(error.into());
    }
    Ok((V1Tree { roots: roots.clone(), home, own, jobs }, lack))
}

/// Puts the budget of all jobs in force, and sees to it that it counts what the leaves use.
fn limit_jobs(jobs: &Folders, bytes: u64) -> Result<(), KernelError> {
    let hierarchy = jobs.memory.join("memory.use_hierarchy");
    if files::number(&hierarchy) == Some(0) {
        files::write_and_check(&hierarchy, "1", "1")?;
    }
    v1_leaf::limit_memory(&jobs.memory, bytes)
}

impl V1Tree {
    /// Names of the folders below a group in any of the trees.
    fn names_below(folders: &Folders) -> BTreeSet<String> {
        let children = folders.distinct().into_iter().flat_map(files::children);
        children.filter_map(|path: PathBuf| path.file_name()?.to_str().map(str::to_owned)).collect()
    }
}

impl Tree for V1Tree {
    fn enforcement(&self) -> Enforcement {
        Enforcement::CgroupV1
    }

    fn jobs_group(&self) -> String {
        self.home.visible(&self.jobs.memory)
    }

    fn make_leaf(&self, name: &str, limits: LeafLimits) -> Result<Box<dyn Leaf>, KernelError> {
        Ok(Box::new(V1Leaf::make(&self.home, self.jobs.child(name), limits)?))
    }

    fn sweep(&self, limit: usize) -> Result<usize, KernelError> {
        let (mut left, mut outcome) = (limit, Ok(()));
        for name in Self::names_below(&self.own) {
            let Some(warden) = name.strip_prefix(JOBS) else { continue };
            let jobs = self.own.child(&name);
            if jobs == self.jobs || !nonce::is_dead(&self.roots, warden) {
                continue;
            }
            for leaf in Self::names_below(&jobs).into_iter().take(left) {
                let leaf = jobs.child(&leaf);
                outcome = outcome.and(leaf.kill().map(drop));
                // Its processes may still be dying: then the next call removes it.
                left -= usize::from(leaf.remove().is_ok());
            }
            if Self::names_below(&jobs).is_empty() {
                outcome = outcome.and(jobs.remove());
            }
        }
        outcome.map(|()| limit - left)
    }

    fn remove(&self) -> Result<(), KernelError> {
        files::all(self.jobs.distinct().into_iter().map(files::remove_group))
    }
}
