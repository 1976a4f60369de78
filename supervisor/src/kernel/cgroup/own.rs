//! Where this process is: the group trees that are mounted, its own group in each, and the limit it lives under.
//!
//! The own group comes from `/proc/self/cgroup`, the mount from `/proc/self/mountinfo` (whose root is cut off the group's path,
//! so that a container without a cgroup namespace is understood); where mountinfo cannot be read, the usual places below the
//! root are looked at. A group that does not lie below its mount cannot be used, and is never guessed.

use std::path::Path;
use std::path::PathBuf;

use super::files;
use super::parse;
use super::parse::Membership;
use super::parse::Mount;
use crate::kernel::KernelError;

/// From here on a v1 limit is the kernel's way of saying "none" (its default is `i64::MAX`, cut to whole pages).
const V1_NO_LIMIT: u64 = 1 << 62;

/// Where the kernel's files are. A parameter, so that a tree of plain files can stand in for the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// Where the group trees are mounted, or what they are mounted below.
    pub cgroup: PathBuf,
    /// The proc file system.
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { cgroup: PathBuf::from("/sys/fs/cgroup"), proc: PathBuf::from("/proc") }
    }
}

/// Why a kind of tree cannot be used here. The text follows `cgroup v2: ` or `cgroup v1: `.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    #[error("not mounted below {}", .0.display())]
    NotMounted(PathBuf),
    #[error("no {name} controller at {}", .at.display())]
    NoController { name: &'static str, at: PathBuf },
    #[error("our own group {path} is not visible below {}", .mount.display())]
    Outside { path: String, mount: PathBuf },
    #[error(
        "{} {} {count} other process{}: {who}; give jobvisor a group of its own (`Delegate=yes`, and no shell around it)",
        .group.display(),
        if *.is_ours { "holds" } else { "is not marked as delegated and holds" },
        if *.count == 1 { "" } else { "es" },
    )]
    Strangers { group: PathBuf, is_ours: bool, count: usize, who: String },
    #[error("no {what} can be read from a fresh group")]
    Blind { what: &'static str },
    #[error("a fresh group did not become empty within {0} ms")]
    Stuck(u128),
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Our own group in one mounted tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Home {
    /// The mount point: the highest group that can be seen.
    pub(super) mount: PathBuf,
    /// The group, an absolute path.
    pub(super) group: PathBuf,
}

impl Home {
    /// The group `path` as people know it: below the mount point, `/` for the mount point itself.
    pub(super) fn visible(&self, path: &Path) -> String {
        format!("/{}", path.strip_prefix(&self.mount).unwrap_or(path).display())
    }

    /// The groups from `group` up to the mount point, nearest first.
    pub(super) fn upwards(&self, group: &Path) -> Vec<PathBuf> {
        group.ancestors().take_while(|path| path.starts_with(&self.mount)).map(Path::to_owned).collect()
    }
}

/// Our own group in the v2 tree.
pub(super) fn v2(roots: &Roots) -> Result<Home, Unfit> {
    let mounts = mounts(
        roots,
        |mount| mount.kind == "cgroup2",
        || {
            let places = [roots.cgroup.clone(), roots.cgroup.join("unified")];
            places.into_iter().find(|place| place.join("cgroup.controllers").exists())
        },
    );
    home(roots, mounts, |line| line.unified).unwrap_or_else(|| Err(Unfit::NotMounted(roots.cgroup.clone())))
}

/// Our own group in the v1 tree of `controller`.
pub(super) fn v1(roots: &Roots, controller: &'static str) -> Result<Home, Unfit> {
    let is_tree = |mount: &Mount| mount.kind == "cgroup" && mount.options.iter().any(|option| option == controller);
    let mounts = mounts(roots, is_tree, || {
        let place = roots.cgroup.join(controller);
        place.join("cgroup.procs").exists().then_some(place)
    });
    home(roots, mounts, |line| line.controllers.iter().any(|name| name == controller))
        .unwrap_or_else(|| Err(Unfit::NoController { name: controller, at: roots.cgroup.clone() }))
}

/// The mounts of a tree: those that mountinfo names below the root, or the usual place where it cannot be read.
fn mounts(roots: &Roots, fits: impl Fn(&Mount) -> bool, usual: impl Fn() -> Option<PathBuf>) -> Vec<(String, PathBuf)> {
    if let Some(text) = files::read_optional(&roots.proc.join("self/mountinfo")) {
        let all =
            parse::mounts(&text).into_iter().filter(|mount| mount.point.starts_with(&roots.cgroup) && fits(mount));
        return all.map(|mount| (mount.root, mount.point)).collect();
    }
    usual().map(|place| ("/".to_owned(), place)).into_iter().collect()
}

/// The first mount that shows our own group; `None` where there is no mount or no such tree.
fn home(
    roots: &Roots,
    mounts: Vec<(String, PathBuf)>,
    is_line: impl Fn(&Membership) -> bool,
) -> Option<Result<Home, Unfit>> {
    let text = match files::read(&roots.proc.join("self/cgroup")) {
        Ok(text) => text,
        Err(error) => return Some(Err(error.into())),
    };
    let path = parse::memberships(&text).into_iter().find(is_line)?.path;
    let first = mounts.first()?.1.clone();
    let seen = mounts.into_iter().find_map(|(root, mount)| {
        let group = below(&mount, &root, &path)?;
        group.is_dir().then_some(Home { mount, group })
    });
    Some(seen.ok_or(Unfit::Outside { path, mount: first }))
}

/// Where the group `path` is seen when `root` of the tree is mounted at `mount`.
fn below(mount: &Path, root: &str, path: &str) -> Option<PathBuf> {
    let rest = Path::new(path).strip_prefix(root).ok()?;
    if rest.components().any(|part| matches!(part, std::path::Component::ParentDir)) {
        return None;
    }
    Some(if rest.as_os_str().is_empty() { mount.to_owned() } else { mount.join(rest) })
}

/// The limit of a group: v2 `memory.max`, where `max` is none.
pub(super) fn v2_limit(group: &Path) -> Option<u64> {
    files::number(&group.join("memory.max"))
}

/// The limit of a group: v1 `memory.limit_in_bytes`, where the huge default is none.
pub(super) fn v1_limit(group: &Path) -> Option<u64> {
    files::number(&group.join("memory.limit_in_bytes")).filter(|limit| *limit < V1_NO_LIMIT)
}

/// The smallest memory limit on the way from our own group to the highest group that can be seen, in either tree;
/// `None` where nothing limits us or nothing can be read.
#[must_use]
pub fn memory_limit_of_own_group(roots: &Roots) -> Option<u64> {
    let smallest = |home: Result<Home, Unfit>, limit: fn(&Path) -> Option<u64>| {
        let home = home.ok()?;
        home.upwards(&home.group).iter().filter_map(|group| limit(group)).min()
    };
    [smallest(v2(roots), v2_limit), smallest(v1(roots, "memory"), v1_limit)].into_iter().flatten().min()
}
