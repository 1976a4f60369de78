//! What an attempt's counters say, before any rule weighs it.
//!
//! Called by the rules of [`judge`](super::verdict::judge) and by [`explain`](super::explain), so that a sentence can
//! never rest on another reading than the verdict did.
//!
//! Two readings are taken at the end: `at_exit`, when the main process had ended and nothing was killed by us yet,
//! and `after_kill`, when the leaf was empty. **Only `at_exit` can name a cause.** The kernel raises `oom_kill` before
//! it sends SIGKILL, so a kill that ended the main process is in `at_exit` without fail; one that appears only in
//! `after_kill` struck a leftover while we were killing it, after the attempt had ended: it is told, never blamed.
//! The one exception is `oom_group_kill`, which the kernel raises *after* it killed its first victim. If `oom_kill`
//! had moved at the exit, a group kill that shows up by `after_kill` is the same event: where `memory.oom.group` is
//! set there is no OOM kill without one, and where it is not set the counter never moves.
//!
//! Counters that were not readable at both ends prove nothing, neither that they moved nor that they stood still.

use super::evidence::{Ancestor, Counters, ExitStatus, Intent, PeakSource, ProcessEvidence};
use super::units::Bytes;

/// The number of SIGKILL.
pub(super) const SIGKILL: i32 = 9;

/// How far below the limit the high-water mark may stay when the limit was what refused a charge: the kernel invokes
/// the OOM killer for allocations of up to 8 pages, and the mark moves only when a charge succeeds.
const CHARGE: u64 = 8 * 4096;

/// Whose limit set off an OOM kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger<'a> {
    /// The job's own, counted by the kernel.
    Own,
    /// The job's own: its high-water mark had reached the limit (v1 has no counter for it).
    OwnByPeak,
    /// Probably the job's own; nothing is there to tell.
    OwnByDefault,
    /// That of a group above it.
    Ancestor(&'a Ancestor),
    /// No limit that can be seen: the host's memory.
    Host,
}

/// How far a counter moved until the main process had ended; `None` where it was not readable at both ends.
pub(super) fn moved(p: &ProcessEvidence, field: impl Fn(&Counters) -> Option<u64>) -> Option<u64> {
    p.counters_readable.then(|| p.delta(field)).flatten()
}

/// Whether the kernel's OOM killer had killed a process of the group when the main process had ended.
pub(super) fn oom_killed(p: &ProcessEvidence) -> bool {
    moved(p, |c| c.oom_kill).is_some_and(|n| n > 0)
}

/// Whether it is certain that the kernel's OOM killer killed nothing of the group until then.
pub(super) fn oom_kill_unchanged(p: &ProcessEvidence) -> bool {
    moved(p, |c| c.oom_kill) == Some(0)
}

/// OOM kills that happened only while leftovers were being killed.
pub(super) fn late_oom_kills(p: &ProcessEvidence) -> u64 {
    match (p.counters_readable, p.at_exit.oom_kill, p.after_kill.oom_kill) {
        (true, Some(at_exit), Some(after)) => after.saturating_sub(at_exit),
        (true | false, _, _) => 0,
    }
}

/// Whether the kernel killed the group as a whole (see the module's head for the second reading).
pub(super) fn group_kill(p: &ProcessEvidence) -> bool {
    let late = match (p.baseline.oom_group_kill, p.after_kill.oom_group_kill) {
        (Some(before), Some(after)) => after > before,
        (None, _) | (_, None) => false,
    };
    oom_killed(p) && (late || moved(p, |c| c.oom_group_kill).is_some_and(|n| n > 0))
}

/// Whether the main process died of SIGKILL.
pub(super) fn sigkilled(p: &ProcessEvidence) -> bool {
    p.exit == Some(ExitStatus::Signaled(SIGKILL))
}

/// Whether a SIGKILL of the main process may have been ours. An intent whose signals are on record without SIGKILL
/// among them rules that out; one without any signal on record does not.
fn may_be_ours(intent: &Intent) -> bool {
    intent.signals.is_empty() || intent.signals.iter().any(|(signal, _)| *signal == SIGKILL)
}

/// Whether it was the kernel's OOM killer that ended the main process.
pub(super) fn oom_killed_main(p: &ProcessEvidence) -> bool {
    let not_ours = !p.intent.as_ref().is_some_and(may_be_ours);
    oom_killed(p) && ((sigkilled(p) && (not_ours || group_kill(p))) || (p.exit.is_none() && group_kill(p)))
}

/// The kernel's high-water mark of the leaf.
pub(super) fn kernel_peak(p: &ProcessEvidence) -> Option<u64> {
    let picture = (p.memory.source == PeakSource::Cgroup).then_some(p.memory.peak).flatten().map(|Bytes(n)| n);
    p.at_exit.peak.max(picture)
}

/// Whose limit set off the OOM kill that is on record.
pub(super) fn trigger(p: &ProcessEvidence) -> Trigger<'_> {
    let above = p.ancestors.iter().find(|a| ancestor_moved(a));
    match moved(p, |c| c.oom) {
        Some(0) => above.map_or(Trigger::Host, Trigger::Ancestor),
        Some(_) => Trigger::Own,
        None => match (kernel_peak(p), p.memory.limit) {
            (Some(peak), Some(Bytes(limit))) if peak.saturating_add(CHARGE) >= limit => Trigger::OwnByPeak,
            (Some(_), Some(_)) | (_, None) => above.map_or(Trigger::Host, Trigger::Ancestor),
            (None, Some(_)) => above.map_or(Trigger::OwnByDefault, Trigger::Ancestor),
        },
    }
}

fn ancestor_moved(ancestor: &Ancestor) -> bool {
    matches!((ancestor.oom_before, ancestor.oom_after), (Some(before), Some(after)) if after > before)
}

/// Whether systemd-oomd marked the job's group, or one above it, while the attempt ran. The leaf is made anew for
/// each attempt, so any mark on it is of this attempt; on the groups above only a mark that grew is.
pub(super) fn oomd_marked(p: &ProcessEvidence) -> bool {
    let leaf = p.at_exit.oomd_ooms.unwrap_or(0) > p.baseline.oomd_ooms.unwrap_or(0);
    leaf || p.ancestors.iter().any(|a| matches!(a.oomd, (Some(before), Some(after)) if after > before))
}
