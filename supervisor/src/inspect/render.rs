//! The whole story of a job as text.

use std::time::Duration;

use jiff::Timestamp;

use super::json::{duration_s, moment, summary};
use super::picture::sparkline;
use super::printable;
use super::report::Report;
use crate::domain::evidence::{ExitStatus, PeakSource, ProcessEvidence};
use crate::domain::explain;
use crate::domain::job::{Job, JobState};
use crate::domain::units::show_duration;
use crate::domain::verdict::{Ending, Flag, Sureness, Verdict};
use crate::store::AttemptRow;

/// The payload and the result are not shown beyond this many characters.
const VALUE: usize = 400;
/// Nor the output, message and trace of an attempt beyond their last lines.
const LINES: usize = 20;
/// Columns of the memory picture.
const PICTURE: usize = 60;

/// The report as text that ends with a newline; `now` tells how long ago things were.
#[must_use]
pub fn text(report: &Report, now: Timestamp, color: bool) -> String {
    let paint = Paint(color);
    let mut page = Page::default();
    head(&mut page, &report.job, now, paint);
    for row in &report.attempts {
        attempt(&mut page, row, paint);
    }
    if report.has_open_attempt() {
        open_attempt(&mut page, &report.job, now, paint);
    }
    advice(&mut page, report, paint);
    page.lines.join("\n") + "\n"
}

/// Lines, most of them a name and a value.
#[derive(Default)]
struct Page {
    lines: Vec<String>,
}

impl Page {
    fn title(&mut self, title: String) {
        if !self.lines.is_empty() {
            self.lines.push(String::new());
        }
        self.lines.push(title);
    }

    fn field(&mut self, name: &str, value: &str) {
        self.lines.push(format!("  {name:<12} {value}"));
    }

    /// Several values under one name; none: no line.
    fn fields<'a>(&mut self, name: &str, values: impl IntoIterator<Item = &'a str>) {
        for (n, value) in values.into_iter().enumerate() {
            self.field(if n == 0 { name } else { "" }, value);
        }
    }

    /// The job's own words, marked as such line by line; nothing for an empty text.
    fn quote(&mut self, name: &str, text: &str) {
        if text.trim().is_empty() {
            return;
        }
        self.lines.push(format!("  {name}"));
        self.lines.extend(printable::last_lines(text, LINES).into_iter().map(|line| format!("    | {line}")));
    }
}

fn head(page: &mut Page, job: &Job, now: Timestamp, paint: Paint) {
    page.title(format!("job {} · {} · {}", job.id, printable::line(&job.kind), paint.state(job.state)));
    let b = job.budget;
    page.field(
        "budget",
        &format!(
            "{} of {} attempts charged, {} of {} interruptions",
            b.charged, b.max_attempts, b.interruptions, b.max_interruptions
        ),
    );
    page.field("created", &since(job.created_at, now));
    match (job.state, job.finished_at) {
        (_, Some(at)) => page.field("finished", &since(at, now)),
        (JobState::Scheduled, None) => page.field("due", &since(job.run_at, now)),
        (
            JobState::Waiting
            | JobState::Queued
            | JobState::Running
            | JobState::Succeeded
            | JobState::Cancelled
            | JobState::Dead,
            None,
        ) => {}
    }
    let words = [
        ("tenant", Some(&job.tenant).filter(|t| !t.is_empty())),
        ("unique key", job.unique_key.as_ref()),
        ("schedule", job.schedule.as_ref()),
    ];
    for (name, value) in words {
        if let Some(value) = value {
            page.field(name, &printable::line(value));
        }
    }
    page.field("payload", &printable::cut_line(&job.payload, VALUE));
    if let Some(result) = &job.result {
        page.field("result", &printable::cut_line(result, VALUE));
    }
    if job.cancel_requested && !job.state.is_final() {
        page.field("cancel", "asked for");
    }
}

fn attempt(page: &mut Page, row: &AttemptRow, paint: Paint) {
    let verdict = row.verdict.as_ref();
    page.title(format!("attempt {} · {}", row.attempt, paint.ending(verdict, &printable::line(&summary(row)))));
    if let Some(verdict) = verdict {
        reasons(page, verdict, row);
    }
    if let Some(p) = &row.record.evidence.process {
        memory(page, p);
    }
    numbers(page, row);
    let record = &row.record;
    page.quote("message", record.message.as_deref().unwrap_or_default());
    page.quote("trace", record.trace.as_deref().unwrap_or_default());
    page.quote("last output", &record.output_tail);
    if let Some(late) = &row.late_outcome {
        page.field("late outcome", &printable::cut_line(late, VALUE));
    }
}

fn reasons(page: &mut Page, verdict: &Verdict, row: &AttemptRow) {
    if verdict.ending.cause().is_some() {
        let (kill, reason) = (sure(verdict.certainty.kill), sure(verdict.certainty.reason));
        page.field("certainty", &format!("what ended it: {kill}; why: {reason}"));
    }
    let safe = |lines: Vec<String>| lines.iter().map(|line| printable::line(line)).collect::<Vec<_>>();
    if verdict.ending.cause().is_some() || !verdict.flags.is_empty() {
        let proof = safe(explain::proof(verdict, &row.record.evidence));
        page.fields("proof", proof.iter().map(String::as_str));
    }
    let beside = safe(verdict.contributing.clone());
    page.fields("beside", beside.iter().map(String::as_str));
    page.fields("note", verdict.flags.iter().map(|flag| flag_words(*flag)));
}

const fn sure(sureness: Sureness) -> &'static str {
    match sureness {
        Sureness::Unknown => "unknown",
        Sureness::Inferred => "inferred",
        Sureness::Proved => "proved",
    }
}

const fn flag_words(flag: Flag) -> &'static str {
    match flag {
        Flag::Leaked => "it left processes behind; they were killed",
        Flag::OomCasualty => "another process of it was OOM-killed, which `tolerate_oom` accepts",
        Flag::Truncated => "its result was longer than allowed; the end was kept, as text",
        Flag::DiedAfterDone => "it had delivered its result before it ended badly",
        Flag::Permanent => "the failure is permanent",
        Flag::Watchdog => "its limit was enforced by sampling, not by the kernel",
        Flag::AtStart => "it had not run any code of its own",
        Flag::Frozen => "it was frozen for a time: its timeout stood still meanwhile",
    }
}

fn memory(page: &mut Page, p: &ProcessEvidence) {
    let m = &p.memory;
    let source = match m.source {
        PeakSource::Cgroup => "counted by the kernel",
        PeakSource::Sampled => "sampled",
    };
    let limit = m.limit.map(|limit| format!("limit {limit}"));
    let peak = m.peak.map(|peak| format!("peak {peak} ({source})"));
    let told: Vec<_> = limit.into_iter().chain(peak).collect();
    if !told.is_empty() {
        page.field("memory", &told.join(", "));
    }
    if let (Some((from, _)), Some((to, _))) = (m.series.first(), m.series.last()) {
        let line = sparkline(&m.series, m.limit, PICTURE);
        page.field("", &format!("{line} {from:.1} s to {to:.1} s"));
    }
}

fn numbers(page: &mut Page, row: &AttemptRow) {
    let p = row.record.evidence.process.as_ref();
    let wall = duration_s(row).map(|s| format!("{s:.1} s"));
    let cpu = p.and_then(|p| p.cpu_s).map(|s| format!("{s:.1} s of CPU"));
    let faults = p.and_then(|p| p.major_faults).map(|n| format!("{n} major faults"));
    let told: Vec<_> = [wall, cpu, faults].into_iter().flatten().collect();
    if !told.is_empty() {
        page.field("took", &told.join(", "));
    }
    page.fields("ended", p.and_then(|p| p.exit).map(exit_words).as_deref());
    let names = [("supervisor", &row.record.supervisor), ("host", &row.record.host)];
    let names = names.into_iter().filter(|(_, name)| !name.is_empty());
    let mut places: Vec<_> = names.map(|(what, name)| format!("{what} {}", printable::line(name))).collect();
    places.extend(p.and_then(|p| p.pid).map(|pid| format!("pid {pid}")));
    places.extend(p.map(|p| p.enforcement.label().to_owned()));
    if !places.is_empty() {
        page.field("ran on", &places.join(", "));
    }
    page.field("claimed", &moment(row.claimed_at));
    page.field("charged", if row.charged { "yes" } else { "no, given back" });
}

fn exit_words(exit: ExitStatus) -> String {
    match exit {
        ExitStatus::Exited(code) => format!("exit code {code}"),
        ExitStatus::Signaled(signal) => explain::signal_name(signal),
    }
}

fn open_attempt(page: &mut Page, job: &Job, now: Timestamp, paint: Paint) {
    let running = match job.claimed_at {
        Some(at) => format!("running since {}", since(at, now)),
        None => "running".to_owned(),
    };
    page.title(format!("attempt {} · {}", job.attempt, paint.strong(&running)));
    if let Some(memory) = job.memory {
        page.field("memory", &format!("limit {memory}"));
    }
}

fn advice(page: &mut Page, report: &Report, paint: Paint) {
    let Some(row) = report.last_failure() else { return };
    let Some(verdict) = &row.verdict else { return };
    let lines = explain::advice(verdict, &row.record.evidence, &report.job.budget);
    if lines.is_empty() {
        return;
    }
    page.title(paint.strong("advice"));
    page.lines.extend(lines.iter().map(|line| format!("  - {}", printable::line(line))));
}

/// A time with its distance from now.
fn since(at: Timestamp, now: Timestamp) -> String {
    let apart = now.duration_since(at);
    let length = show_duration(Duration::try_from(apart.abs()).unwrap_or_default());
    if apart.is_negative() { format!("{} (in {length})", moment(at)) } else { format!("{} ({length} ago)", moment(at)) }
}

/// Colours, or none.
#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn strong(self, text: &str) -> String {
        self.with("1", text)
    }

    fn state(self, state: JobState) -> String {
        let code = match state {
            JobState::Succeeded => "1;32",
            JobState::Dead => "1;31",
            JobState::Cancelled => "1;33",
            JobState::Waiting | JobState::Scheduled | JobState::Queued | JobState::Running => "1",
        };
        self.with(code, state.code())
    }

    /// The sentence, with the cause before it where there is one.
    fn ending(self, verdict: Option<&Verdict>, sentence: &str) -> String {
        match verdict.map(|v| v.ending) {
            Some(Ending::Succeeded) => self.with("1;32", sentence),
            Some(Ending::Failed(cause)) => format!("{} · {sentence}", self.with("1;31", cause.code())),
            Some(Ending::Snoozed) | None => self.strong(sentence),
        }
    }
}
