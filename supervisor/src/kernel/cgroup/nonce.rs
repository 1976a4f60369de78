//! The name of a warden inside the names of its groups, and the proof that such a warden is dead.
//!
//! A nonce is `<pid>-<start time in hex>-<pid namespace in hex>`: a pid alone is used again, and a pid of another namespace
//! says nothing here. Dead is only what is *proven* dead: no such process, one with another start time, or a zombie.
//! Anything that cannot be read leaves the groups of that warden alone.

use std::fs;
use std::io;

use super::files;
use super::own::Roots;
use super::parse;
use crate::kernel::KernelError;

/// The nonce of process `pid`.
///
/// # Errors
/// Its `/proc/PID/stat` cannot be read or is of an unknown shape.
pub fn nonce(roots: &Roots, pid: i32) -> Result<String, KernelError> {
    let path = roots.proc.join(pid.to_string()).join("stat");
    let text = files::read(&path)?;
    let Some((_, start)) = parse::state_and_start(&text) else {
        return Err(KernelError::Content { path, found: text, expected: "a line of /proc/PID/stat".to_owned() });
    };
    let namespace = own_pid_namespace(roots).map(|inode| format!("-{inode:x}")).unwrap_or_default();
    Ok(format!("{pid}-{start:x}{namespace}"))
}

/// Whether the warden that made groups with this nonce is proven dead.
pub(super) fn is_dead(roots: &Roots, nonce: &str) -> bool {
    let Some((pid, start, namespace)) = parts(nonce) else { return false };
    if namespace.is_some() && namespace != own_pid_namespace(roots) {
        return false;
    }
    match fs::read_to_string(roots.proc.join(pid.to_string()).join("stat")) {
        Ok(text) => parse::state_and_start(&text)
            .is_some_and(|(state, started)| started != start || matches!(state, 'Z' | 'X' | 'x')),
        Err(error) => error.kind() == io::ErrorKind::NotFound && roots.proc.join("self").exists(),
    }
}

fn parts(nonce: &str) -> Option<(i32, u64, Option<u64>)> {
    let mut parts = nonce.split('-');
    let pid = parts.next()?.parse().ok().filter(|pid| *pid > 0)?;
    let start = u64::from_str_radix(parts.next()?, 16).ok()?;
    let namespace = parts.next().map(|part| u64::from_str_radix(part, 16)).transpose().ok()?;
    parts.next().is_none().then_some((pid, start, namespace))
}

/// The inode of our own pid namespace, from the link `pid:[4026531836]`.
fn own_pid_namespace(roots: &Roots) -> Option<u64> {
    let link = fs::read_link(roots.proc.join("self/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}
