//! Who is whose parent among the processes under test, and who still lives.

use std::fs;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// The part of `/proc/PID/stat` behind the name, and the name.
fn stat(pid: i32) -> Option<(String, Vec<String>)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, rest) = text.rsplit_once(") ")?;
    let name = head.split_once('(')?.1.to_owned();
    Some((name, rest.split(' ').map(str::to_owned).collect()))
}

/// When a process was started, in ticks since boot; `None`: it is gone, or dead and not yet reaped.
#[must_use]
pub fn started(pid: i32) -> Option<u64> {
    let (_, fields) = stat(pid)?;
    let dead = matches!(fields.first().map(String::as_str), Some("Z" | "X"));
    if dead { None } else { fields.get(19)?.parse().ok() }
}

/// The parent of a process.
#[must_use]
pub fn parent_of(pid: i32) -> Option<i32> {
    stat(pid)?.1.get(1)?.parse().ok()
}

/// The living warden of a supervisor.
#[must_use]
pub fn warden_of(supervisor: i32) -> Option<i32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|&pid| {
        let is_warden = stat(pid).is_some_and(|(name, _)| name == "jv:warden");
        is_warden && parent_of(pid) == Some(supervisor) && started(pid).is_some()
    })
}

/// Whoever strikes first may strike: makes the file at `path`, which names the pids of supervisor and warden in one line.
/// Answers whether it was the first.
///
/// # Panics
/// The file cannot be written.
#[must_use]
pub fn first_to_strike(path: &Path, supervisor: i32, warden: i32) -> bool {
    let Ok(mut file) = OpenOptions::new().write(true).create_new(true).open(path) else { return false };
    file.write_all(format!("{supervisor} {warden}\n").as_bytes()).expect("the file can be written");
    true
}

/// The pids that [`first_to_strike`] wrote; `None`: nobody has struck yet.
#[must_use]
pub fn struck(path: &Path) -> Option<(i32, i32)> {
    let text = fs::read_to_string(path).ok()?;
    let (supervisor, warden) = text.strip_suffix('\n')?.split_once(' ')?;
    Some((supervisor.parse().ok()?, warden.parse().ok()?))
}
