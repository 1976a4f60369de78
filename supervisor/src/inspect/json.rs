//! The JSON forms: contracts that scripts rely on. All keys are always there; what is not known is `null`.
//! Times are RFC 3339 in UTC, sizes bytes, durations seconds.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::report::Report;
use crate::domain::evidence::{ExitStatus, ProcessEvidence};
use crate::domain::explain;
use crate::domain::job::Job;
use crate::domain::units::Bytes;
use crate::domain::verdict::Verdict;
use crate::store::AttemptRow;

/// The object of `inspect --json`.
#[must_use]
pub fn json(report: &Report) -> Value {
    let job = &report.job;
    json!({
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "priority": job.priority,
        "tenant": (!job.tenant.is_empty()).then_some(&job.tenant),
        "payload": stored(&job.payload),
        "result": job.result.as_deref().map(stored),
        "attempt": job.attempt,
        "charged": job.budget.charged,
        "max_attempts": job.budget.max_attempts,
        "interruptions": job.budget.interruptions,
        "created_at": time(job.created_at),
        "run_at": time(job.run_at),
        "finished_at": job.finished_at.map(time),
        "attempts": report.attempts.iter().map(attempt).collect::<Vec<_>>(),
    })
}

/// One line of `list --json`.
#[must_use]
pub fn list_json_line(job: &Job) -> Value {
    json!({
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "attempt": job.attempt,
        "cause": job.cause,
        "created_at": time(job.created_at),
        "finished_at": job.finished_at.map(time),
        "peak": job.peak,
    })
}

fn attempt(row: &AttemptRow) -> Value {
    let record = &row.record;
    let verdict = row.verdict.as_ref();
    let p = record.evidence.process.as_ref();
    let exit = p.and_then(|p| p.exit);
    let started = record.started_at.or(p.and_then(|p| p.started_at));
    json!({
        "attempt": row.attempt,
        "cause": verdict.and_then(|v| v.ending.cause()),
        "summary": summary(row),
        "certainty": { "kill": verdict.map(|v| v.certainty.kill), "reason": verdict.map(|v| v.certainty.reason) },
        "contributing": verdict.map_or(&[][..], |v| &v.contributing),
        "flags": verdict.map_or(&[][..], |v| &v.flags),
        "charged": row.charged,
        "claimed_at": time(row.claimed_at),
        "started_at": started.map(time),
        "finished_at": time(row.finished_at),
        "duration_s": duration_s(row),
        "exit_code": exit.and_then(|exit| match exit { ExitStatus::Exited(code) => Some(code), ExitStatus::Signaled(_) => None }),
        "signal": exit.and_then(|exit| match exit { ExitStatus::Signaled(signal) => Some(signal), ExitStatus::Exited(_) => None }),
        "supervisor": record.supervisor,
        "host": record.host,
        "pid": p.and_then(|p| p.pid),
        "enforcement": p.map(|p| p.enforcement),
        "memory": memory(p),
        "cpu_s": p.and_then(|p| p.cpu_s),
        "major_faults": p.and_then(|p| p.major_faults),
        "message": record.message,
        "trace": record.trace,
        "output_tail": record.output_tail,
        "late_outcome": row.late_outcome.as_deref().map(stored),
        "evidence": record.evidence,
    })
}

fn memory(p: Option<&ProcessEvidence>) -> Value {
    let picture = p.map(|p| &p.memory);
    let peak = picture.and_then(|m| m.peak);
    json!({
        "limit": picture.and_then(|m| m.limit),
        "peak": peak,
        "source": peak.and(picture).map(|m| m.source),
        "series": picture.map_or(&[][..], |m| &m.series),
        "oom_kills": p.filter(|p| p.counters_readable).and_then(|p| p.delta(|c| c.oom_kill)),
    })
}

/// The sentence about an attempt.
pub(super) fn summary(row: &AttemptRow) -> String {
    let told = |verdict: &Verdict| explain::summary(verdict, &row.record.evidence);
    row.verdict.as_ref().map_or_else(|| "given back before it was started".to_owned(), told)
}

/// How long its process lived; `None` where it had none.
pub(super) fn duration_s(row: &AttemptRow) -> Option<f64> {
    let p = row.record.evidence.process.as_ref();
    let by_clock = || {
        let started = row.record.started_at?;
        let ended = row.record.ended_at.unwrap_or(row.finished_at);
        Some(ended.duration_since(started).as_secs_f64().max(0.0))
    };
    p.and_then(|p| p.wall_s).or_else(by_clock)
}

/// JSON text as it was stored; anything else, which no writer makes, as a string.
fn stored(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// To the microsecond, which is what the stores keep.
pub(super) fn time(at: Timestamp) -> String {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at).to_string()
}

/// A time for people: whole seconds, UTC.
pub(super) fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// A size for people; `-` where none is known.
pub(super) fn size(bytes: Option<Bytes>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string())
}
