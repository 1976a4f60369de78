//! An attempt's private temporary folder: made before the start, taken away in bounded steps when nobody uses it.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

use crate::kernel::spawn::Identity;

/// Entries that are removed in one round of the loop.
pub(super) const REMOVED: usize = 256;

/// Makes `path` for its owner alone. The folder above lets others pass but not look.
///
/// # Errors
/// It cannot be made (one that exists counts as a failure) or given to its owner.
pub(super) fn make(path: &Path, owner: Option<&Identity>) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o711).create(parent)?;
    }
    fs::DirBuilder::new().mode(0o700).create(path)?;
    let Some(owner) = owner else { return Ok(()) };
    let given = std::os::unix::fs::chown(path, Some(owner.uid), Some(owner.gid));
    if given.is_err() {
        fs::remove_dir(path)?;
    }
    given
}

/// Moves what a dead warden left aside, so that no name of ours meets one of its, and answers all that was ever moved.
pub(super) fn set_aside(state_dir: &Path, own_pid: i32) -> Vec<Remover> {
    // None there: nothing to move.
    fs::rename(state_dir.join("tmp"), state_dir.join(format!("tmp-{own_pid}-old"))).unwrap_or_default();
    let entries = fs::read_dir(state_dir).into_iter().flatten().flatten();
    let old = entries.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("tmp-") && name.ends_with("-old")
    });
    old.map(|entry| Remover::new(entry.path())).collect()
}

/// Removes a folder and all below it, some entries a step, never through a symbolic link. Meant for a folder that
/// nobody writes to any more.
#[derive(Debug)]
pub(super) struct Remover {
    stack: Vec<PathBuf>,
}

impl Remover {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { stack: vec![path] }
    }

    /// Removes up to `budget` entries. `true`: done, or given up because something cannot be removed.
    pub(super) fn step(&mut self, budget: usize) -> bool {
        let mut left = budget;
        while let Some(folder) = self.stack.last().cloned() {
            if left == 0 {
                return false;
            }
            left -= 1;
            match self.empty(&folder, &mut left) {
                Ok(true) => drop(self.stack.pop()),
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => drop(self.stack.pop()),
                Err(_) => return true,
            }
        }
        true
    }

    /// Takes entries out of one folder, and the folder itself when none is left (`true`).
    fn empty(&mut self, folder: &Path, left: &mut usize) -> io::Result<bool> {
        let entries = fs::read_dir(folder).or_else(|error| {
            // A job may have taken its own rights away.
            if error.kind() != io::ErrorKind::PermissionDenied {
                return Err(error);
            }
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
            fs::read_dir(folder)
        })?;
        for entry in entries {
            let entry = entry?;
            if *left == 0 {
                return Ok(false);
            }
            *left -= 1;
            if entry.file_type()?.is_dir() {
                self.stack.push(entry.path());
                return Ok(false);
            }
            fs::remove_file(entry.path())?;
        }
        fs::remove_dir(folder)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_warden_left_is_moved_aside_and_removed() {
        let root = tempfile::tempdir().unwrap();
        assert!(set_aside(root.path(), 7).is_empty());
        make(&root.path().join("tmp/a1-1-1"), None).unwrap();
        fs::create_dir_all(root.path().join("tmp-6-old/a9-9-9")).unwrap();
        let mut old = set_aside(root.path(), 7);
        assert_eq!(old.len(), 2);
        make(&root.path().join("tmp/a1-1-1"), None).unwrap();
        assert!(old.iter_mut().all(|remover| remover.step(100)));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_deep_folder_goes_in_bounded_steps_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (kept, gone) = (root.path().join("kept"), root.path().join("tmp/a1"));
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        make(&gone, None).unwrap();
        assert_eq!(fs::metadata(&gone).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(make(&gone, None).is_err());
        fs::create_dir_all(gone.join("a/b/c")).unwrap();
        std::os::unix::fs::symlink(&kept, gone.join("a/link")).unwrap();
        for n in 0..50 {
            fs::write(gone.join("a/b").join(n.to_string()), "x").unwrap();
        }
        let mut remover = Remover::new(gone.clone());
        let steps = (0..1000).take_while(|_| !remover.step(10)).count();
        assert!((5..100).contains(&steps), "{steps} steps");
        assert!(!gone.exists() && kept.join("file").exists());
    }
}
