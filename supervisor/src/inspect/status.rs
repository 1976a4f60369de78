//! How a supervisor stands, as text; as JSON its answer is the contract itself.

use std::fmt::Write;
use std::time::Duration;

use super::json::moment;
use super::printable;
use super::tables::table;
use crate::domain::units::show_duration;
use crate::runtime::dispatcher::Snapshot;

/// The page of `status`.
#[must_use]
pub fn status_text(snapshot: &Snapshot) -> String {
    let mut page = head(snapshot);
    if !snapshot.running.is_empty() {
        page += &section(&format!("{} running", snapshot.running.len()), &running(snapshot));
    }
    if !snapshot.held.is_empty() {
        page += &section(&format!("{} outcome(s) not recorded yet", snapshot.held.len()), &held(snapshot));
    }
    if !snapshot.pieces.is_empty() {
        page += &section("background", &pieces(snapshot));
    }
    page
}

fn head(snapshot: &Snapshot) -> String {
    let mut head = format!(
        "{} on {}, pid {}, jobvisor {}: {}\n",
        printable::line(&snapshot.name),
        printable::line(&snapshot.host),
        snapshot.pid,
        printable::line(&snapshot.version),
        printable::line(&snapshot.phase)
    );
    let mut line = |name: &str, text: &str| {
        // Writing to a string cannot fail.
        writeln!(head, "  {name:<8}{text}").ok();
    };
    line("term", &snapshot.term.map_or_else(|| "none: the last one was lost".to_owned(), |term| term.to_string()));
    let retired = match snapshot.retired {
        0 => String::new(),
        retired => format!(", of which {retired} attempt(s) that cannot be killed hold theirs for good"),
    };
    line("memory", &format!("{} of {} reserved{retired}", snapshot.reserved, snapshot.budget));
    let lease = match snapshot.trust_left_s {
        None => "does not run out by the clock".to_owned(),
        Some(left) if left > 0.0 => format!("trusted for another {}", seconds(left)),
        Some(_) => "NOT TRUSTED: it was not renewed in time, and the children are frozen".to_owned(),
    };
    line("lease", &lease);
    line("changes", if snapshot.listener == "heard" { "heard at once" } else { "looked for by the clock" });
    if !snapshot.warden {
        line("warden", "AWAY: nothing can be started until another one stands");
    }
    head
}

fn running(snapshot: &Snapshot) -> String {
    let rows = snapshot.running.iter().map(|attempt| {
        [
            attempt.job.to_string(),
            attempt.attempt.to_string(),
            printable::line(&attempt.kind),
            attempt.pid.map_or_else(|| "starting".to_owned(), |pid| pid.to_string()),
            moment(attempt.since),
            attempt.memory.to_string(),
            attempt.stopping.as_deref().map_or_else(|| "-".to_owned(), printable::line),
        ]
    });
    table(["job", "attempt", "kind", "pid", "since", "memory", "being ended"], rows)
}

fn held(snapshot: &Snapshot) -> String {
    let rows = snapshot.held.iter().map(|held| {
        let why = held.why.as_deref().unwrap_or("on its way");
        [held.job.to_string(), held.attempt.to_string(), seconds(held.age_s), printable::line(why)]
    });
    table(["job", "attempt", "for", "why"], rows)
}

fn pieces(snapshot: &Snapshot) -> String {
    let rows = snapshot.pieces.iter().map(|piece| {
        let trouble = piece.error.as_deref().map_or_else(|| "-".to_owned(), printable::line);
        [printable::line(&piece.piece), format!("{} ago", seconds(piece.age_s)), trouble]
    });
    table(["piece", "last run", "trouble"], rows)
}

fn section(title: &str, table: &str) -> String {
    let lines: String = table.lines().map(|line| format!("  {}\n", line.trim_end())).collect();
    format!("\n{title}:\n{lines}")
}

fn seconds(seconds: f64) -> String {
    show_duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO))
}
