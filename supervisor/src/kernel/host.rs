//! Facts about the host: its memory, its name, and which boot this is.

use std::fs;
use std::path::Path;

use crate::domain::units::Bytes;
use crate::kernel::KernelError;

/// What the host has, and what of it is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    /// Installed.
    pub total: Bytes,
    /// What new work could use without swapping.
    pub available: Bytes,
    /// Swap space.
    pub swap: Bytes,
}

/// Reads the host's memory; `None` when it cannot be told.
#[must_use]
pub fn memory() -> Option<HostMemory> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let total = system.total_memory();
    (total > 0).then(|| HostMemory {
        total: Bytes(total),
        available: Bytes(system.available_memory()),
        swap: Bytes(system.total_swap()),
    })
}

/// The host's name; `localhost` when it has none.
#[must_use]
pub fn name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "localhost".to_owned())
}

/// The random id of this boot, from below `proc` (`/proc`).
///
/// # Errors
/// The file cannot be read.
pub fn boot_id(proc: &Path) -> Result<String, KernelError> {
    let path = proc.join("sys/kernel/random/boot_id");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(KernelError::File { verb: "read", path, data: None, source }),
    }
}

/// The kernel's release, as `uname -r` prints it.
#[must_use]
pub fn kernel_release() -> String {
    sysinfo::System::kernel_version().unwrap_or_else(|_| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_has_an_id_and_a_missing_file_is_named() {
        assert!(boot_id(Path::new("/proc")).is_ok_and(|id| id.len() == 36));
        assert!(boot_id(Path::new("/nowhere")).is_err_and(|error| error.to_string().contains("/nowhere/sys/kernel")));
    }
}
