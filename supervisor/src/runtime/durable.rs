//! Small files that are complete or not there, also after a loss of power.

use std::fs;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;

/// Writes `path` anew: temporary name, fsync, rename, fsync of the folder, which is made if it is not there.
///
/// # Errors
/// The folder or the file cannot be written; what was there before stays.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let temporary = path.with_extension("tmp");
    let mut out = File::create(&temporary)?;
    out.write_all(bytes)?;
    out.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(folder)?.sync_all()
}

/// Removes a file; one that is not there is no error.
///
/// # Errors
/// It cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
