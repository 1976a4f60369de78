//! The v2 tree: our own group made ready to hold limited leaves.
//!
//! ```text
//! <base>/                  our own group, or its parent where we already sit in `supervisor`
//!   supervisor/            supervisor and warden
//!   jobs.<nonce>/          memory.max = the budget of all jobs
//!     <leaf>/              one attempt or one child
//! ```
//! A group that holds processes cannot hand controllers to its children (`EBUSY`), so the supervisor and the warden move one
//! level down. Nobody else is ever moved: a group with strangers in it is refused. Whatever a failed attempt made is undone,
//! in reverse order.

use std::path::Path;
use std::path::PathBuf;

use nix::unistd::geteuid;

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
use super::v2_leaf;
use super::v2_leaf::V2Leaf;
use super::xattr;
use crate::domain::evidence::Enforcement;
use crate::kernel::KernelError;

/// Name of the group of the supervisor and the warden.
const SUPERVISOR: &str = "supervisor";

/// What the names of jobs groups begin with; the nonce of their warden follows.
const JOBS: &str = "jobs.";

/// A v2 tree that is ready for leaves.
#[derive(Debug)]
pub(super) struct V2Tree {
    roots: Roots,
    home: Home,
    base: PathBuf,
    jobs: PathBuf,
    has_pids: bool,
}

/// One change that was made to the host's groups.
#[derive(Debug)]
enum Step {
    Folder(PathBuf),
    Controller { group: PathBuf, name: &'static str },
    Moved { pid: i32, back_to: PathBuf },
}

/// What was changed so far, to be undone if the tree turns out not to work.
#[derive(Debug, Default)]
pub(super) struct Changes(Vec<Step>);

impl Changes {
    /// Undoes everything, last first; answers what could not be undone.
    pub(super) fn undo(self) -> Vec<KernelError> {
        let undone = self.0.into_iter().rev().map(|step| match step {
            Step::Folder(path) => files::remove_group(&path),
            Step::Controller { group, name } => files::write(&subtree_control(&group), &format!("-{name}")),
            Step::Moved { pid, back_to } => move_process(pid, &back_to),
        });
        undone.filter_map(Result::err).collect()
    }

    fn make_group(&mut self, path: &Path) -> Result<(), KernelError> {
        files::make_group(path)?;
        self.0.push(Step::Folder(path.to_owned()));
        Ok(())
    }

    /// Hands a controller to the groups below, unless that was done before.
    fn enable(&mut self, group: &Path, name: &'static str) -> Result<(), KernelError> {
        if has_word(&subtree_control(group), name)? {
            return Ok(());
        }
        files::write(&subtree_control(group), &format!("+{name}"))?;
        self.0.push(Step::Controller { group: group.to_owned(), name });
        Ok(())
    }

    /// Moves those of `pids` that are in `from` itself into its group `supervisor`.
    fn move_down(&mut self, from: &Path, pids: &[i32]) -> Result<(), KernelError> {
        let ours: Vec<i32> = files::members(from)?.into_iter().filter(|pid| pids.contains(pid)).collect();
        let target = from.join(SUPERVISOR);
        if !ours.is_empty() && !target.is_dir() {
            self.make_group(&target)?;
        }
        for pid in ours {
            move_process(pid, &target)?;
            self.0.push(Step::Moved { pid, back_to: from.to_owned() });
        }
        Ok(())
    }
}

/// Makes the tree. Every change is noted in `changes`, for the caller to undo on failure. The second part of the answer: what
/// the tree lacks, for people.
pub(super) fn set_up(roots: &Roots, setup: &Setup, changes: &mut Changes) -> Result<(V2Tree, Option<String>), Unfit> {
    let home = own::v2(roots)?;
    let base = base(&home);
    let offered = |name: &str| has_word(&base.join("cgroup.controllers"), name);
    if !offered("memory")? {
        return Err(Unfit::NoController { name: "memory", at: base });
    }
    refuse_strangers(roots, &base, &setup.own_pids)?;
    changes.move_down(&base, &setup.own_pids)?;
    let has_pids = offered("pids")?;
    let jobs = base.join(format!("{JOBS}{}", setup.nonce));
    hand_down(changes, &base, has_pids)?;
    changes.make_group(&jobs)?;
    v2_leaf::limit_memory(&jobs, setup.jobs_memory)?;
    hand_down(changes, &jobs, has_pids)?;
    let lack = (!has_pids).then(|| format!("no pids controller at {}: processes are not counted", base.display()));
    Ok((V2Tree { roots: roots.clone(), home, base, jobs, has_pids }, lack))
}

/// The group to build in. After a restart in place, and under systemd's `DelegateSubgroup=supervisor`, we are in `supervisor`.
fn base(home: &Home) -> PathBuf {
    let parent = home.group.parent().filter(|parent| parent.starts_with(&home.mount));
    match parent {
        Some(parent) if home.group.ends_with(SUPERVISOR) => parent.to_owned(),
        Some(_) | None => home.group.clone(),
    }
}

/// Refuses a group that holds processes which are not ours, before anything is changed. As root every group is writable, so
/// writable does not mean ours: it must be marked as delegated. And nobody, root or not, can hand out controllers in a crowd.
fn refuse_strangers(roots: &Roots, base: &Path, own: &[i32]) -> Result<(), Unfit> {
    let strangers: Vec<i32> = files::members(base)?.into_iter().filter(|pid| !own.contains(pid)).collect();
    let Some(first) = strangers.first().copied() else { return Ok(()) };
    let is_ours = !geteuid().is_root() || xattr::is_delegated(base);
    if is_ours && has_word(&subtree_control(base), "memory")? {
        return Ok(());
    }
    let name = files::read_optional(&roots.proc.join(first.to_string()).join("comm"));
    let who = format!("pid {first}{}", name.map(|name| format!(" `{}`", name.trim())).unwrap_or_default());
    let group = base.to_owned();
    Err(Unfit::Strangers { group, is_ours, count: strangers.len(), who })
}

fn hand_down(changes: &mut Changes, group: &Path, has_pids: bool) -> Result<(), KernelError> {
    changes.enable(group, "memory")?;
    if has_pids {
        changes.enable(group, "pids")?;
    }
    // Weights only: a host that refuses (a real-time process is enough) still limits and counts.
    if has_word(&group.join("cgroup.controllers"), "cpu")? {
        drop(changes.enable(group, "cpu"));
    }
    Ok(())
}

fn subtree_control(group: &Path) -> PathBuf {
    group.join("cgroup.subtree_control")
}

fn has_word(path: &Path, word: &str) -> Result<bool, KernelError> {
    Ok(files::read(path)?.split_whitespace().any(|found| found == word))
}

/// Moves a process; one that is gone meanwhile needs no move.
fn move_process(pid: i32, group: &Path) -> Result<(), KernelError> {
    match files::write(&group.join("cgroup.procs"), &pid.to_string()) {
        Err(error) if error.errno() != Some(libc::ESRCH) => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Tree for V2Tree {
    fn enforcement(&self) -> Enforcement {
        Enforcement::CgroupV2
    }

    fn jobs_group(&self) -> String {
        self.home.visible(&self.jobs)
    }

    fn make_leaf(&self, name: &str, limits: LeafLimits) -> Result<Box<dyn Leaf>, KernelError> {
        let leaf = V2Leaf::make(&self.home, self.jobs.join(name), limits, self.has_pids)?;
        Ok(Box::new(leaf))
    }

    fn sweep(&self, limit: usize) -> Result<usize, KernelError> {
        let (mut left, mut outcome) = (limit, Ok(()));
        for jobs in files::children_of(&self.base)? {
            let Some(warden) = jobs.file_name().and_then(|name| name.to_str()?.strip_prefix(JOBS)) else { continue };
            if jobs == self.jobs || !nonce::is_dead(&self.roots, warden) {
                continue;
            }
            for leaf in files::children(&jobs).into_iter().take(left) {
                outcome = outcome.and(v2_leaf::kill_group(&leaf).map(drop));
                // Its processes may still be dying: then the next call removes it.
                left -= usize::from(files::remove_group_tree(&leaf).is_ok());
            }
            if files::children(&jobs).is_empty() {
                outcome = outcome.and(files::remove_group(&jobs));
            }
        }
        outcome.map(|()| limit - left)
    }

    fn remove(&self) -> Result<(), KernelError> {
        files::remove_group(&self.jobs)
    }
}
