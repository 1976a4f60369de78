//! Small files that are complete or not there, also after a loss of power: what a warden saw (`ends/`), outcomes that are held
//! (`journal/`), who a state folder is.

use std::fs;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;

use serde::de::DeserializeOwned;

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

/// What the `.json` files of a folder hold, in no order. One that cannot be read is left where it is and named in the log: it
/// must not hide the others.
///
/// # Errors
/// The folder cannot be read; no folder means none.
pub fn read_all<T: DeserializeOwned>(folder: &Path) -> io::Result<Vec<T>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match fs::read(&path).and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::from)) {
            Ok(value) => found.push(value),
            Err(error) => tracing::error!(path = %path.display(), %error, "cannot be read; it stays where it is"),
        }
    }
    Ok(found)
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
