//! What can go wrong at the kernel's door.

use std::io;
use std::path::PathBuf;

/// A request to the kernel that failed: the verb, its object, what was written, and the kernel's error.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// An operation on a file of `/proc`, `/sys` or `state_dir`.
    #[error("cannot {verb} `{path}`{}", .data.as_ref().map(|data| format!(" ({data})")).unwrap_or_default())]
    File {
        /// `read`, `write`, `create`, `remove`, `open`.
        verb: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What was written or found, where it matters.
        data: Option<String>,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A file whose content is not what the kernel is known to write.
    #[error("`{path}` holds {found}, expected {expected}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What it should.
        expected: String,
    },
    /// A system call.
    #[error("{call} failed")]
    Call {
        /// Its name.
        call: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl KernelError {
    /// The kernel's error number; `None` for content that could not be read as expected.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::File { source, .. } | Self::Call { source, .. } => source.raw_os_error(),
            Self::Content { .. } => None,
        }
    }
}
