//! What this supervisor itself saw of the others' renewals: the half of a rescue's proof that no database can give (I4).
//!
//! For each open term: the beat that was last seen, and since when. A reading counts from *after* its answer came, and is held
//! against the moment *before* the next one was asked for, so the time between is never taken for longer than it was. Beats only
//! grow, so the same beat twice means that nothing happened in between, whether or not anybody looked.
//!
//! Kept in `state_dir/observed.json` with the boot id (the clock is this boot's): who restarts does not have to begin anew.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::Serialize;

use crate::domain::clock::BootInstant;
use crate::domain::ids::Term;
use crate::store::TermRow;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    beat: u64,
    since: BootInstant,
}

/// As it is kept.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    boot_id: String,
    terms: BTreeMap<Term, Seen>,
}

/// See the module's head.
#[derive(Debug)]
pub struct Observations {
    path: PathBuf,
    kept: Kept,
}

impl Observations {
    /// What an earlier process of this boot saw; nothing if there is no such file, or none that can be read.
    #[must_use]
    pub fn load(state_dir: &Path, boot_id: &str) -> Self {
        let path = state_dir.join("observed.json");
        let kept = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
        let kept = kept
            .filter(|kept| kept.boot_id == boot_id)
            .unwrap_or_else(|| Kept { boot_id: boot_id.to_owned(), terms: BTreeMap::new() });
        Self { path, kept }
    }

    /// Takes in a reading of all open terms that was asked for at `asked` and answered at `answered`. Answers for how long each was
    /// silent, in their order; terms that are not among them are forgotten.
    pub fn see(&mut self, rows: &[&TermRow], asked: BootInstant, answered: BootInstant) -> Vec<Duration> {
        let before = std::mem::take(&mut self.kept.terms);
        let mut silent = Vec::with_capacity(rows.len());
        for row in rows {
            let same = before.get(&row.term).filter(|seen| seen.beat == row.beat).copied();
            let seen = same.unwrap_or(Seen { beat: row.beat, since: answered });
            silent.push(asked.since(seen.since));
            self.kept.terms.insert(row.term, seen);
        }
        silent
    }

    /// Keeps them for whoever comes after this process. A loss of power loses them; the boot is another then anyway.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> io::Result<()> {
        let temporary = self.path.with_extension("tmp");
        fs::write(&temporary, serde_json::to_vec(&self.kept)?)?;
        fs::rename(&temporary, &self.path)
    }
}

/// Whether a term may be declared lost: the database says that its lease has run out, and we saw it silent for one whole lease.
#[must_use]
pub fn is_lost(row: &TermRow, silent: Duration) -> bool {
    row.expired && silent >= row.lease
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::here;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> BootInstant {
        BootInstant(0).plus(Duration::from_secs(seconds))
    }

    fn row() -> TermRow {
        TermRow { lease: LEASE, beat: 5, expired: true, ..here::tests::row(&here::tests::here()) }
    }

    #[test]
    fn i4_silence_counts_from_the_answer_of_the_first_reading_to_the_question_of_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let mut observed = Observations::load(folder.path(), "boot");
        let row = row();
        assert_eq!(observed.see(&[&row], at(100), at(103)), [Duration::ZERO], "a first look proves nothing");
        let silent = observed.see(&[&row], at(132), at(140))[0];
        assert_eq!((silent, is_lost(&row, silent)), (Duration::from_secs(29), false));
        let silent = observed.see(&[&row], at(133), at(133))[0];
        assert!(is_lost(&row, silent));
        assert!(!is_lost(&TermRow { expired: false, ..row.clone() }, silent), "the database has to say so, too");
        let renewed = TermRow { beat: 6, ..row };
        assert_eq!(observed.see(&[&renewed], at(170), at(171)), [Duration::ZERO], "a sign of life begins it anew");
    }

    #[test]
    fn i4_an_observation_survives_a_restart_of_the_observer_but_not_of_the_host() {
        let folder = tempfile::tempdir().unwrap();
        let row = row();
        let mut observed = Observations::load(folder.path(), "boot");
        observed.see(&[&row], at(100), at(100));
        observed.save().unwrap();
        let mut next = Observations::load(folder.path(), "boot");
        assert_eq!(next.see(&[&row], at(131), at(131)), [Duration::from_secs(31)]);
        let mut other_boot = Observations::load(folder.path(), "another boot");
        assert_eq!(other_boot.see(&[&row], at(131), at(131)), [Duration::ZERO]);
        fs::write(folder.path().join("observed.json"), "{\"boot").unwrap();
        let mut broken = Observations::load(folder.path(), "boot");
        assert_eq!(broken.see(&[&row], at(131), at(131)), [Duration::ZERO]);
    }

    #[test]
    fn terms_that_are_over_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let (row, other) = (row(), row());
        let mut observed = Observations::load(folder.path(), "boot");
        observed.see(&[&row, &other], at(100), at(100));
        observed.see(&[&other], at(110), at(110));
        assert_eq!(observed.see(&[&row, &other], at(140), at(140)), [Duration::ZERO, Duration::from_secs(40)]);
    }
}
