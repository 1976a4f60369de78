//! Who runs jobs: the terms on record, and what each of them is.

use serde_json::{Value, json};

use super::json::{moment, time};
use super::printable;
use super::tables::table;
use crate::domain::units::show_duration;
use crate::store::TermRow;

/// What a term is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermState {
    /// It holds its lease.
    Living,
    /// Its lease has run out, and nobody has declared it lost yet.
    Expired,
    /// It was declared lost; what ran under it is ended by others.
    Lost,
    /// It ended in good order.
    Ended,
}

impl TermState {
    /// The state of a term; `holds` says whether it holds its lease, or its lock.
    #[must_use]
    pub const fn of(row: &TermRow, holds: bool) -> Self {
        match (row.ended_at.is_some(), row.lost_at.is_some(), holds) {
            (_, true, _) => Self::Lost,
            (true, false, _) => Self::Ended,
            (false, false, true) => Self::Living,
            (false, false, false) => Self::Expired,
        }
    }

    /// The printed word.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Living => "living",
            Self::Expired => "expired",
            Self::Lost => "lost",
            Self::Ended => "ended",
        }
    }
}

/// The table of `supervisors`, as given.
#[must_use]
pub fn supervisors_table(rows: &[(TermRow, TermState)]) -> String {
    let header = ["name", "host", "pid", "state", "since", "last seen", "lease", "version", "kinds", "term"];
    let rows = rows.iter().map(|(row, state)| {
        let kinds = if row.kinds.is_empty() { "-".to_owned() } else { row.kinds.join(",") };
        [
            printable::line(&row.name),
            printable::line(&row.host),
            row.pid.to_string(),
            state.code().to_owned(),
            moment(row.started_at),
            moment(row.last_seen),
            show_duration(row.lease),
            printable::line(&row.version),
            printable::line(&kinds),
            row.term.to_string(),
        ]
    });
    table(header, rows)
}

/// One line of `supervisors --json`.
#[must_use]
pub fn supervisor_json_line(row: &TermRow, state: TermState) -> Value {
    json!({
        "name": row.name,
        "host": row.host,
        "pid": row.pid,
        "state": state.code(),
        "since": time(row.started_at),
        "last_seen": time(row.last_seen),
        "ended_at": row.ended_at.map(time),
        "lost_at": row.lost_at.map(time),
        "lease_s": row.lease.as_secs_f64(),
        "version": row.version,
        "kinds": row.kinds,
        "term": row.term,
    })
}
