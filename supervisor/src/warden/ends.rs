//! `state_dir/ends/`: what a warden saw of each attempt after its supervisor was gone.
//!
//! The warden writes, the next supervisor reads, records under the old fence, and removes. A file is complete or not
//! there (temporary name, fsync, rename). The files of attempts that ended shortly before may have been recorded already;
//! their fence is then stale and they change nothing.

use std::io;
use std::path::Path;
use std::path::PathBuf;

use super::EndFile;
use crate::domain::ids::Fence;
use crate::kernel::durable;

fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join("ends")
}

fn file(state_dir: &Path, fence: &Fence) -> PathBuf {
    folder(state_dir).join(format!("{}-{}-{}.json", fence.job, fence.attempt, fence.term))
}

/// Writes one, so that it survives a loss of power.
///
/// # Errors
/// The folder or the file cannot be written.
pub fn write(state_dir: &Path, end: &EndFile) -> io::Result<()> {
    durable::write(&file(state_dir, &end.fence), &serde_json::to_vec(end)?)
}

/// All that are there, in no order. One that cannot be read is left where it is and named in the log.
///
/// # Errors
/// The folder cannot be read; no folder means none.
pub fn read_all(state_dir: &Path) -> io::Result<Vec<EndFile>> {
    durable::read_all(&folder(state_dir))
}

/// Takes one away when it is recorded; one that is not there is no error.
///
/// # Errors
/// It cannot be removed.
pub fn remove(state_dir: &Path, fence: &Fence) -> io::Result<()> {
    durable::remove(&file(state_dir, fence))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::domain::evidence::ProcessEvidence;
    use crate::domain::ids::AttemptNo;
    use crate::domain::ids::JobId;
    use crate::domain::ids::Term;

    #[test]
    fn ends_are_read_back_and_broken_files_do_not_hide_the_others() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_all(dir.path()).unwrap().is_empty());
        let fence = Fence { job: JobId(7), attempt: AttemptNo(2), term: Term::new() };
        let end = EndFile { fence, process: ProcessEvidence { pid: Some(12), ..ProcessEvidence::default() } };
        write(dir.path(), &end).unwrap();
        fs::write(dir.path().join("ends/8-1-x.json"), "{").unwrap();
        fs::write(dir.path().join("ends/9-1-x.tmp"), "{}").unwrap();
        // No file that can be read at all.
        fs::create_dir(dir.path().join("ends/10-1-x.json")).unwrap();
        assert_eq!(read_all(dir.path()).unwrap(), vec![end]);
        remove(dir.path(), &fence).unwrap();
        remove(dir.path(), &fence).unwrap();
        assert!(read_all(dir.path()).unwrap().is_empty());
    }
}
