//! The lock that makes one process the supervisor of a SQLite database (`flock` on `<database>.lock`), or the only one that
//! uses a state folder (on a file in it).
//!
//! Taken by `cli` before any thread exists, so that the warden can inherit the descriptor: the lock belongs to the open
//! file, and is let go when its *last* copy is closed, which is when the last child is gone (I4). That is why nothing here
//! ever unlocks: closing is all.
//!
//! The file says who holds it. A holder that lives is named at once; one that is gone (no such process, another start
//! time, another boot, or a zombie) has left children that are just being killed, and 15 s are given to that.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::domain::clock;
use crate::store::error::StoreError;

/// How long what a dead supervisor left behind may hold on.
const LEFT: Duration = Duration::from_secs(15);
/// How long a holder may take to write who it is.
const UNSIGNED: Duration = Duration::from_secs(2);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(50);

/// The lock, held for as long as this or a copy of its descriptor is open.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
    folder: String,
}

impl LockFile {
    /// The lock file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The subfolder of `state_dir` that whoever holds this lock may use alone: no other database of this host has its name.
    #[must_use]
    pub fn folder_name(&self) -> &str {
        &self.folder
    }
}

/// A name for a folder: `prefix`, what people call the database, and a hash of what it is (FNV-1a: the same in every build of
/// this program).
pub(super) fn folder_name(prefix: &str, name: &str, identity: &[u8]) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    let name: String = name.chars().take(64).map(plain).collect();
    let hash = identity
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    format!("{prefix}-{name}-{hash:016x}")
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Who holds the lock, as the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    pid: i32,
    /// Field 22 of `/proc/PID/stat`: a pid that is used again has another.
    start_time: u64,
    boot_id: String,
    name: String,
}

impl Holder {
    fn own(name: &str) -> Self {
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        Self { pid, start_time: process(pid).map_or(0, |p| p.start_time), boot_id: boot_id(), name: name.to_owned() }
    }

    fn lives(&self) -> bool {
        self.boot_id == boot_id() && process(self.pid).is_some_and(|p| !p.zombie && p.start_time == self.start_time)
    }
}

/// Takes the lock on the file at `path`. `held` is what it stands for, as errors show it; `folder` what its holder may use.
pub(super) fn take(path: PathBuf, held: &Path, folder: String, name: &str) -> Result<LockFile, StoreError> {
    let began = clock::monotonic();
    loop {
        let mut file = open_file(&path)?;
        match file.try_lock() {
            Ok(()) => {
                sign(&mut file, name).map_err(|source| StoreError::Io { step: "write", path: path.clone(), source })?;
                return Ok(LockFile { file, path, folder });
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => return Err(StoreError::Io { step: "lock", path, source }),
        }
        refuse_if_hopeless(held, &mut file, clock::monotonic() - began)?;
        std::thread::sleep(AGAIN);
    }
}

/// Whether somebody holds the lock on the file at `path`; nobody does where there is none.
pub(super) fn is_held(path: &Path) -> Result<bool, StoreError> {
    let fault = |step, source| StoreError::Io { step, path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(fault("open", source)),
    };
    // Shared, so that two who ask do not take each other for a holder; let go when the file is closed.
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(source)) => Err(fault("look at", source)),
    }
}

fn open_file(path: &Path) -> Result<File, StoreError> {
    // The standard library opens with O_CLOEXEC: who is to inherit the descriptor is given a copy on purpose.
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(path)
        .map_err(|source| StoreError::Io { step: "open", path: path.to_owned(), source })
}

fn sign(file: &mut File, name: &str) -> std::io::Result<()> {
    let text = serde_json::to_string(&Holder::own(name)).map_err(std::io::Error::other)?;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

fn refuse_if_hopeless(held: &Path, file: &mut File, waited: Duration) -> Result<(), StoreError> {
    let mut text = String::new();
    let read = file.read_to_string(&mut text).ok();
    let holder: Option<Holder> = read.and_then(|_| serde_json::from_str(&text).ok());
    let path = held.to_owned();
    match holder {
        Some(holder) if holder.lives() => Err(StoreError::Locked { path, pid: holder.pid, name: holder.name }),
        Some(Holder { pid, name, .. }) if waited >= LEFT => Err(StoreError::LockLeft { path, pid, name }),
        None if waited >= UNSIGNED => {
            Err(StoreError::Place { path, why: "a process that does not say who it is holds its lock".to_owned() })
        }
        Some(_) | None => Ok(()),
    }
}

/// What tells a process from a later one of the same number.
struct Process {
    zombie: bool,
    start_time: u64,
}

fn process(pid: i32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may hold anything, brackets included: fields are counted from the last one.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    Some(Process { zombie: matches!(state, "Z" | "X" | "x"), start_time: fields.nth(18)?.parse().ok()? })
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}
