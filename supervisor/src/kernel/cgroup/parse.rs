//! The formats of the kernel's group and process files, read from text. No I/O here.
//!
//! A key that is missing is `None`, never 0: an older kernel, or a controller that is off, must not look like "nothing happened".

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The value of `key` in a file of `key value` lines (`memory.events`, `memory.stat`, `memory.oom_control`).
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

/// A file that holds one number; `max` and anything else is `None`.
pub(super) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The pids of a `cgroup.procs` file. 0, a process of another pid namespace, is left out: `kill(0)` would be our own group.
pub(super) fn pids(text: &str) -> Vec<i32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 0).collect()
}

/// One line of `/proc/self/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Membership {
    /// v1 controllers of the tree; empty for the v2 tree and for named v1 trees.
    pub(super) controllers: Vec<String>,
    /// Whether it is the v2 tree's line (`0::`).
    pub(super) unified: bool,
    /// The group, as the root of this process's cgroup namespace sees it.
    pub(super) path: String,
}

/// The lines of `/proc/self/cgroup`; lines of an unknown shape are left out.
pub(super) fn memberships(text: &str) -> Vec<Membership> {
    text.lines().filter_map(membership).collect()
}

fn membership(line: &str) -> Option<Membership> {
    let mut fields = line.splitn(3, ':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Membership {
        unified: id == "0" && controllers.is_empty(),
        controllers: controllers.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        path: path.to_owned(),
    })
}

/// One line of `/proc/self/mountinfo`, as far as group trees need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Which folder of the file system is mounted.
    pub(super) root: String,
    /// Where.
    pub(super) point: PathBuf,
    /// `cgroup2`, `cgroup`, …
    pub(super) kind: String,
    /// Options of the file system; for v1 its controllers are among them.
    pub(super) options: Vec<String>,
}

/// The lines of `/proc/self/mountinfo`; lines of an unknown shape are left out.
pub(super) fn mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let mut right = right.split(' ');
    Some(Mount {
        root: String::from_utf8_lossy(&unescape(left.next()?)).into_owned(),
        point: PathBuf::from(std::ffi::OsString::from_vec(unescape(left.next()?))),
        kind: right.next()?.to_owned(),
        options: right.nth(1)?.split(',').map(str::to_owned).collect(),
    })
}

/// Undoes the kernel's octal escapes (`\040` is a space).
fn unescape(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = (bytes[at] == b'\\').then(|| text.get(at + 1..at + 4)).flatten();
        if let Some(byte) = code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            out.push(byte);
            at += 4;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    out
}

/// State letter and start time (field 22, clock ticks after boot) of a `/proc/PID/stat`. The name may hold anything, `)` included.
pub(super) fn state_and_start(text: &str) -> Option<(char, u64)> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}
