//! Reading, writing, making and removing groups, with the verb and the path in every error.
//!
//! Files of a group are only ever opened, never made: a write to a file that the kernel does not offer is an error. A group
//! that is gone counts as a group with nobody in it. Nothing here waits.

use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use nix::unistd::SysconfVar;
use nix::unistd::sysconf;

use super::parse;
use crate::kernel::KernelError;
use crate::kernel::text;

/// Most sub-groups of one leaf that one call looks at; what lies beyond is found by the next call.
const MAX_SUBGROUPS: usize = 4096;

fn failed(verb: &'static str, path: &Path, data: Option<&str>, source: io::Error) -> KernelError {
    KernelError::File { verb, path: path.to_owned(), data: data.map(str::to_owned), source }
}

/// Reads a whole file.
pub(super) fn read(path: &Path) -> Result<String, KernelError> {
    text::text(path).map_err(|source| failed("read", path, None, source))
}

/// Reads a file that may be missing or unreadable.
pub(super) fn read_optional(path: &Path) -> Option<String> {
    text::text(path).ok()
}

/// Writes `data` to an existing file, in one call.
pub(super) fn write(path: &Path, data: &str) -> Result<(), KernelError> {
    let written = OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(data.as_bytes()));
    written.map_err(|source| failed("write", path, Some(data), source))
}

/// Writes `data` and proves that the file now reads `expected`.
pub(super) fn write_and_check(path: &Path, data: &str, expected: &str) -> Result<(), KernelError> {
    write(path, data)?;
    let found = read(path)?;
    if found.trim() == expected {
        return Ok(());
    }
    Err(KernelError::Content { path: path.to_owned(), found: found.trim().to_owned(), expected: expected.to_owned() })
}

/// Opens a file for writing only (a `cgroup.procs` through which a child enters). Closed on exec.
pub(super) fn open_to_write(path: &Path) -> Result<File, KernelError> {
    OpenOptions::new().write(true).open(path).map_err(|source| failed("open", path, None, source))
}

/// Opens a file or folder for reading. Closed on exec.
pub(super) fn open(path: &Path) -> Result<File, KernelError> {
    File::open(path).map_err(|source| failed("open", path, None, source))
}

/// The number in an open file, read again from its start.
pub(super) fn number_at_start(file: &File) -> Option<u64> {
    let mut buffer = [0_u8; 32];
    let length = file.read_at(&mut buffer, 0).ok()?;
    parse::number(std::str::from_utf8(buffer.get(..length)?).ok()?)
}

/// The number in a file; `None` where it is missing, unreadable or no number.
pub(super) fn number(path: &Path) -> Option<u64> {
    parse::number(&read_optional(path)?)
}

/// The value of `key` in a file of `key value` lines.
pub(super) fn keyed(path: &Path, key: &str) -> Option<u64> {
    parse::keyed(&read_optional(path)?, key)
}

/// Makes a group. One that exists is an error: another's group is never taken over.
pub(super) fn make_group(path: &Path) -> Result<(), KernelError> {
    fs::create_dir(path).map_err(|source| failed("create", path, None, source))
}

/// Removes a group; one that is gone already is fine.
pub(super) fn remove_group(path: &Path) -> Result<(), KernelError> {
    match fs::remove_dir(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, None, source)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a group with all groups below it, deepest first. What was in the way of the group is the error.
pub(super) fn remove_group_tree(path: &Path) -> Result<(), KernelError> {
    let below = groups_below(path);
    let emptied = all(below.iter().rev().map(|group| remove_group(group)));
    match remove_group(path) {
        Ok(()) => Ok(()),
        Err(own) => emptied.and(Err(own)),
    }
}

/// The groups directly below one; none where it is gone or unreadable.
pub(super) fn children(path: &Path) -> Vec<PathBuf> {
    children_of(path).unwrap_or_default()
}

/// Links of a folder without folders in it: its own entry and its `.`. (A file system that does not count has 1.)
const NO_CHILDREN: u64 = 2;

/// The groups directly below one that must be readable. Most have none, and a group's folder lists some forty files,
/// so the links are asked first: one call in place of dozens, several times in each attempt.
pub(super) fn children_of(path: &Path) -> Result<Vec<PathBuf>, KernelError> {
    let failed_to_read = |source| failed("read", path, None, source);
    if fs::metadata(path).map_err(failed_to_read)?.nlink() == NO_CHILDREN {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(path).map_err(failed_to_read)?;
    let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(folders.map(|entry| entry.path()).collect())
}

/// All groups below one, parents before their children, at most [`MAX_SUBGROUPS`].
fn groups_below(path: &Path) -> Vec<PathBuf> {
    let mut found = children(path);
    let mut next = 0;
    while next < found.len() && found.len() < MAX_SUBGROUPS {
        found.extend(children(&found[next]));
        next += 1;
    }
    found
}

/// A group and all groups below it, parents first.
pub(super) fn group_and_below(path: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_owned()];
    all.extend(groups_below(path));
    all
}

/// The processes in a group itself. Nobody where it is gone; a threaded v2 sub-group lists its processes in its parent.
pub(super) fn members(group: &Path) -> Result<Vec<i32>, KernelError> {
    match read(&group.join("cgroup.procs")) {
        Ok(text) => Ok(parse::pids(&text)),
        Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The processes in a group and in all groups below it.
pub(super) fn members_below(group: &Path) -> Result<Vec<i32>, KernelError> {
    let mut all = Vec::new();
    for group in group_and_below(group) {
        all.extend(members(&group)?);
    }
    Ok(all)
}

/// Sends SIGKILL to each, ourselves excepted. One that is gone already is fine; the first other refusal is the error.
pub(super) fn kill_each(pids: &[i32]) -> Result<(), KernelError> {
    let own = Pid::this();
    let others = pids.iter().map(|pid| Pid::from_raw(*pid)).filter(|pid| *pid != own && pid.as_raw() > 0);
    all(others.map(|pid| match kill(pid, Signal::SIGKILL) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(KernelError::Call { call: "kill", source: errno.into() }),
    }))
}

/// Does all of it, whatever fails; the first failure is the error.
pub(super) fn all(results: impl Iterator<Item = Result<(), KernelError>>) -> Result<(), KernelError> {
    let failures: Vec<KernelError> = results.filter_map(Result::err).collect();
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// Whether the file or its group is not there (any more).
pub(super) fn is_missing(error: &KernelError) -> bool {
    matches!(error.errno(), Some(libc::ENOENT | libc::ENODEV))
}

/// Bytes of a memory page: limits are kept in whole pages.
pub(super) fn page_size() -> u64 {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| u64::try_from(size).ok()).unwrap_or(4096)
}

/// What the kernel makes of a limit: whole pages, cut.
pub(super) fn whole_pages(bytes: u64) -> u64 {
    let page = page_size();
    bytes / page * page
}
