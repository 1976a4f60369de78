//! Jobs by kind: how many stand where, for how long the oldest has waited, who could run them, what holds them up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::json::{moment, time};
use super::printable;
use super::tables::table;
use crate::config::KindConfig;
use crate::domain::job::JobState;
use crate::domain::units::show_duration;
use crate::store::{Count, PausedKind, TermRow};

/// What is known of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindStats {
    /// Its name.
    pub kind: String,
    /// How many jobs stand where; a state without jobs is left out.
    pub states: BTreeMap<JobState, u64>,
    /// Since when the oldest queued one has been due.
    pub oldest_queued: Option<Timestamp>,
    /// Nobody claims it for now.
    pub paused: Option<PausedKind>,
    /// The living supervisors that run it, by name.
    pub supervisors: Vec<String>,
}

impl KindStats {
    /// How many jobs of the kind stand in this state.
    #[must_use]
    pub fn jobs(&self, state: JobState) -> u64 {
        self.states.get(&state).copied().unwrap_or(0)
    }

    /// Jobs are queued that no living supervisor runs.
    #[must_use]
    pub fn is_unserved(&self) -> bool {
        self.jobs(JobState::Queued) > 0 && self.supervisors.is_empty()
    }
}

/// Every kind that has jobs or is paused, by name. `living` are the terms that hold their lease.
#[must_use]
pub fn kind_stats(
    counts: &[Count],
    oldest: &[(String, Timestamp)],
    paused: &[PausedKind],
    living: &[TermRow],
) -> Vec<KindStats> {
    let names: BTreeSet<&String> =
        counts.iter().map(|count| &count.kind).chain(paused.iter().map(|paused| &paused.kind)).collect();
    let of_kind = |kind: &String| KindStats {
        kind: kind.clone(),
        states: counts.iter().filter(|count| count.kind == *kind).map(|count| (count.state, count.jobs)).collect(),
        oldest_queued: oldest.iter().find(|(name, _)| name == kind).map(|(_, at)| *at),
        paused: paused.iter().find(|paused| paused.kind == *kind).cloned(),
        supervisors: living.iter().filter(|row| row.kinds.contains(kind)).map(|row| row.name.clone()).collect(),
    };
    names.into_iter().map(of_kind).collect()
}

/// The table of `stats`, as given.
#[must_use]
pub fn stats_table(stats: &[KindStats], now: Timestamp) -> String {
    let header = [
        "kind",
        "waiting",
        "scheduled",
        "queued",
        "running",
        "succeeded",
        "cancelled",
        "dead",
        "oldest queued",
        "run by",
        "paused",
    ];
    let rows = stats.iter().map(|stats| {
        let jobs = |state| stats.jobs(state).to_string();
        [
            printable::line(&stats.kind),
            jobs(JobState::Waiting),
            jobs(JobState::Scheduled),
            jobs(JobState::Queued),
            jobs(JobState::Running),
            jobs(JobState::Succeeded),
            jobs(JobState::Cancelled),
            jobs(JobState::Dead),
            age(stats.oldest_queued, now).map_or_else(|| "-".to_owned(), show_duration),
            run_by(stats),
            pause(stats.paused.as_ref()),
        ]
    });
    table(header, rows)
}

/// One line of `stats --json`.
#[must_use]
pub fn stats_json_line(stats: &KindStats, now: Timestamp) -> Value {
    json!({
        "kind": stats.kind,
        "waiting": stats.jobs(JobState::Waiting),
        "scheduled": stats.jobs(JobState::Scheduled),
        "queued": stats.jobs(JobState::Queued),
        "running": stats.jobs(JobState::Running),
        "succeeded": stats.jobs(JobState::Succeeded),
        "cancelled": stats.jobs(JobState::Cancelled),
        "dead": stats.jobs(JobState::Dead),
        "oldest_queued_at": stats.oldest_queued.map(time),
        "oldest_queued_s": age(stats.oldest_queued, now).map(|age| age.as_secs_f64()),
        "supervisors": stats.supervisors,
        "unserved": stats.is_unserved(),
        "paused_at": stats.paused.as_ref().map(|paused| time(paused.since)),
        "paused_by": stats.paused.as_ref().map(|paused| &paused.by),
    })
}

/// The table of `kinds`: what `jobs.toml` says of each, and how it stands.
#[must_use]
pub fn kinds_table(kinds: &[(&KindConfig, KindStats)]) -> String {
    let rows = kinds.iter().map(|(kind, stats)| {
        [
            printable::line(&kind.name),
            kind.slots.to_string(),
            kind.memory.to_string(),
            stats.jobs(JobState::Queued).to_string(),
            stats.jobs(JobState::Running).to_string(),
            pause(stats.paused.as_ref()),
        ]
    });
    table(["kind", "slots", "memory", "queued", "running", "paused"], rows)
}

/// One line of `kinds --json`.
#[must_use]
pub fn kind_json_line(kind: &KindConfig, stats: &KindStats) -> Value {
    json!({
        "kind": kind.name,
        "slots": kind.slots,
        "memory": kind.memory,
        "queued": stats.jobs(JobState::Queued),
        "running": stats.jobs(JobState::Running),
        "paused_at": stats.paused.as_ref().map(|paused| time(paused.since)),
        "paused_by": stats.paused.as_ref().map(|paused| &paused.by),
    })
}

/// A clock that was set back makes no age negative.
fn age(since: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    since.map(|since| Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO))
}

fn run_by(stats: &KindStats) -> String {
    match (stats.is_unserved(), stats.supervisors.as_slice()) {
        (true, _) => "NOBODY".to_owned(),
        (false, []) => "-".to_owned(),
        (false, names) => printable::line(&names.join(",")),
    }
}

fn pause(paused: Option<&PausedKind>) -> String {
    paused.map_or_else(
        || "-".to_owned(),
        |paused| format!("since {} by {}", moment(paused.since), printable::line(&paused.by)),
    )
}
