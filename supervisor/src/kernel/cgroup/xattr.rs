//! Extended attributes of a group: delegation by systemd, and the marks of systemd-oomd and oomd.
#![expect(unsafe_code, reason = "neither std nor nix reads extended attributes")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;

/// What one attribute says.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Attribute {
    Value(Vec<u8>),
    /// The group can carry it and does not.
    Unset,
    /// This file system or this process cannot know.
    Unreadable,
}

/// Whether systemd (or an administrator) marked the group as delegated.
pub(super) fn is_delegated(group: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].iter().any(|name| get(group, name) == Attribute::Value(b"1".to_vec()))
}

/// How often systemd-oomd or Meta's oomd set out to kill the group: the higher of their marks. An attribute that is not set
/// is a true 0; `None` means that neither can be read here.
pub(super) fn oomd_ooms(group: &Path) -> Option<u64> {
    let marks = ["user.oomd_ooms", "trusted.oomd_ooms"].map(|name| match get(group, name) {
        Attribute::Value(bytes) => std::str::from_utf8(&bytes).ok()?.trim_end_matches('\0').trim().parse().ok(),
        Attribute::Unset => Some(0),
        Attribute::Unreadable => None,
    });
    marks.into_iter().flatten().max()
}

fn get(path: &Path, name: &str) -> Attribute {
    let (Ok(path), Ok(name)) = (CString::new(path.as_os_str().as_bytes()), CString::new(name)) else {
        return Attribute::Unreadable;
    };
    let mut buffer = [0_u8; 64];
    // SAFETY: both strings end with NUL and live until after the call; the kernel writes at most `buffer.len()` bytes into `buffer`.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    match usize::try_from(length).ok().and_then(|length| buffer.get(..length)) {
        Some(value) => Attribute::Value(value.to_vec()),
        None if Errno::last() == Errno::ENODATA => Attribute::Unset,
        None => Attribute::Unreadable,
    }
}
