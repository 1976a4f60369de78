//! What the schemas of all stores have in common: steps that are embedded in the program, and the oldest program that a
//! schema serves.

use std::collections::BTreeSet;

use sqlx::migrate::{Migration, Migrator};

use super::error::StoreError;

/// This program's version.
const OWN: &str = env!("CARGO_PKG_VERSION");

/// All steps as one text.
pub(super) fn sql(steps: &Migrator) -> String {
    steps.iter().map(step_sql).collect()
}

/// One step as text.
pub(super) fn step_sql(step: &Migration) -> String {
    format!("-- {:04} {}\n{}\n", step.version, step.description, step.sql.as_str())
}

/// How many steps are not applied.
pub(super) fn missing(steps: &Migrator, applied: &BTreeSet<i64>) -> usize {
    steps.iter().filter(|step| !applied.contains(&step.version)).count()
}

/// The newest step that this program does not know.
pub(super) fn newer(steps: &Migrator, applied: &BTreeSet<i64>) -> Option<i64> {
    applied.iter().copied().filter(|version| !steps.version_exists(*version)).max()
}

/// Whether a schema with the unknown step `found`, which serves programs from `min_binary` on, serves this one.
pub(super) fn serves_us(found: i64, min_binary: String) -> Result<(), StoreError> {
    let needed =
        numbers(&min_binary).ok_or_else(|| StoreError::corrupt(format!("meta.min_binary is `{min_binary}`")))?;
    if numbers(OWN).is_some_and(|own| own >= needed) {
        return Ok(());
    }
    Err(StoreError::TooNew { found, min_binary, own: OWN })
}

/// `1.2.3` as numbers that can be compared; what follows a `-` or `+` is left out.
fn numbers(version: &str) -> Option<Vec<u64>> {
    let plain = version.split(['-', '+']).next()?;
    plain.split('.').map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers("0.10.0") > numbers("0.9.9"));
        assert_eq!(numbers("1.2.3-rc.1"), numbers("1.2.3"));
        assert_eq!(numbers("new"), None);
    }
}
