//! `state_dir/journal/`: outcomes that the store has not taken, so that they survive whoever holds them (I10).
//!
//! The finish writer adds what the store did not take at the first try and removes what is recorded; the next start records what
//! it finds, under the fence of then, before anything is rescued. One file an outcome, complete or not there. An outcome that
//! is on record already is recognised by the store, so a file that stays behind does no harm.

use std::io;
use std::path::Path;
use std::path::PathBuf;

use crate::domain::ids::Fence;
use crate::kernel::durable;
use crate::store::Finish;

/// Where they are.
#[must_use]
pub fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join("journal")
}

/// The file of one outcome, and what it holds.
///
/// # Errors
/// The outcome cannot be put into JSON.
pub fn entry(state_dir: &Path, finish: &Finish) -> io::Result<(PathBuf, Vec<u8>)> {
    Ok((file(state_dir, &finish.fence), serde_json::to_vec(finish)?))
}

fn file(state_dir: &Path, fence: &Fence) -> PathBuf {
    folder(state_dir).join(format!("{}-{}-{}.json", fence.job, fence.attempt, fence.term))
}

/// Writes one.
///
/// # Errors
/// The folder or the file cannot be written.
pub fn write((path, bytes): &(PathBuf, Vec<u8>)) -> io::Result<()> {
    durable::write(path, bytes)
}

/// All that are there, oldest claim first. One that cannot be read as an outcome is left where it is and named in the log.
///
/// # Errors
/// The folder cannot be read; no folder means none.
pub fn read_all(state_dir: &Path) -> io::Result<Vec<Finish>> {
    let mut found: Vec<Finish> = durable::read_all(&folder(state_dir))?;
    found.sort_unstable_by_key(|finish| (finish.fence.job, finish.fence.attempt));
    Ok(found)
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
    use crate::domain::ids::AttemptNo;
    use crate::domain::ids::JobId;
    use crate::domain::ids::Term;
    use crate::runtime::record;

    #[test]
    fn i10_outcomes_are_read_back_whole_and_broken_files_do_not_hide_the_others() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_all(dir.path()).unwrap().is_empty());
        let outcome = |job| record::give_back(Fence { job: JobId(job), attempt: AttemptNo(2), term: Term::new() });
        let outcomes = [outcome(7), outcome(12)];
        for finish in outcomes.iter().rev() {
            write(&entry(dir.path(), finish).unwrap()).unwrap();
        }
        fs::write(folder(dir.path()).join("8-1-x.json"), "{").unwrap();
        fs::write(folder(dir.path()).join("9-1-x.tmp"), "{}").unwrap();
        assert_eq!(read_all(dir.path()).unwrap(), outcomes);
        remove(dir.path(), &outcomes[0].fence).unwrap();
        remove(dir.path(), &outcomes[0].fence).unwrap();
        assert_eq!(read_all(dir.path()).unwrap(), outcomes[1..]);
    }
}
