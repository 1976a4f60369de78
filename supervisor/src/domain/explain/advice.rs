//! What to do about an ending. Each line rests on something that the evidence carries.

use super::super::cause::Cause;
use super::super::evidence::{Evidence, ExitStatus, ProcessEvidence};
use super::super::job::Budget;
use super::super::readings::{self, Trigger};
use super::super::units::Bytes;
use super::super::verdict::{Flag, Verdict};
use super::{seconds, signal_name};

/// What was reached and what to set, each one sentence; empty where there is nothing to do.
#[must_use]
pub fn advice(verdict: &Verdict, evidence: &Evidence, budget: &Budget) -> Vec<String> {
    let Some(cause) = verdict.ending.cause() else { return Vec::new() };
    let p = evidence.process.as_ref();
    let mut lines = match cause {
        Cause::OomJobLimit | Cause::MemWatchdog => needs_more(p),
        Cause::OomDescendant => descendant(p),
        Cause::OomAtStart => vec!["raise `memory`: a program needs at least 16 MiB to start".to_owned()],
        Cause::OomAncestorLimit => ancestor(p),
        Cause::OomHost => {
            vec!["the job did not reach its own limit: lower `memory_budget`, or leave the host more memory".to_owned()]
        }
        Cause::OomOomd => vec![
            "systemd-oomd kills under memory pressure or when swap runs full: lower `memory_budget`, \
             or see its log for what it saw"
                .to_owned(),
        ],
        Cause::AllocFailed => alloc_failed(p),
        Cause::Timeout => timeout(verdict, p),
        Cause::ExitNonzero => exit_code(evidence),
        Cause::ExitWithoutResult => vec![
            "a child that speaks the protocol must send `done` or `failed` before it exits; \
             a program without the protocol wants `mode = \"oneshot\"`"
                .to_owned(),
        ],
        Cause::OutputLimit => vec!["print less, or accept the end of the output with `output = \"tail\"`".to_owned()],
        Cause::Crash => crash(evidence),
        Cause::KilledExternal => killed_external(p),
        Cause::KilledUnknown => killed_unknown(p),
        Cause::SpawnFailed => spawn_failed(p),
        Cause::LimitSetupFailed => vec!["`jobvisor doctor` says what this host can enforce".to_owned()],
        Cause::Unkillable => vec![
            "such a process waits inside the kernel, often for a disk or a network filesystem; once it is gone, \
             `jobvisor retry` runs the job again"
                .to_owned(),
        ],
        Cause::Blocked => vec!["work that computes or blocks belongs in a heavy kind".to_owned()],
        Cause::JobError
        | Cause::ProtocolError
        | Cause::Cancelled
        | Cause::Drained
        | Cause::Fenced
        | Cause::CpuLimit
        | Cause::Panic
        | Cause::SupervisorLost
        | Cause::WardenLost
        | Cause::HostRebooted => Vec::new(),
    };
    let own = matches!(cause, Cause::OomJobLimit | Cause::MemWatchdog)
        || (cause == Cause::OomDescendant && p.is_some_and(own_limit));
    if own {
        lines.extend(same_again(budget));
    }
    lines
}

/// A limit that was reached will be reached again.
fn same_again(budget: &Budget) -> Option<String> {
    let (left, all) = (budget.max_attempts.saturating_sub(budget.charged), budget.max_attempts);
    let text =
        format!("{left} of {all} attempts are left and have the same limit; `on_oom = \"fail\"` would spare them");
    (left > 0).then_some(text)
}

fn own_limit(p: &ProcessEvidence) -> bool {
    matches!(readings::trigger(p), Trigger::Own | Trigger::OwnByPeak | Trigger::OwnByDefault)
}

fn needs_more(p: Option<&ProcessEvidence>) -> Vec<String> {
    let Some(p) = p else { return vec!["raise `memory` of the kind".to_owned()] };
    let limit = p.memory.limit.map_or_else(|| "its limit".to_owned(), |limit| limit.to_string());
    let growing = if still_growing(p) { "the job was still growing when it was killed; " } else { "" };
    let mut lines =
        vec![format!("{growing}it needs more than {limit}: raise `memory` of the kind, or make it use less at a time")];
    let tmpfs = p.at_exit.shmem.filter(|shmem| p.memory.limit.is_some_and(|Bytes(limit)| *shmem >= limit / 4));
    if let Some(shmem) = tmpfs {
        lines.push(format!("{} of it was shared memory or files on a tmpfs: keep those on a disk", Bytes(shmem)));
    }
    lines
}

fn still_growing(p: &ProcessEvidence) -> bool {
    matches!(p.memory.series[..], [.., (_, before), (_, last)] if last > before)
}

fn descendant(p: Option<&ProcessEvidence>) -> Vec<String> {
    let mut lines = match p.map(readings::trigger) {
        Some(Trigger::Own | Trigger::OwnByPeak | Trigger::OwnByDefault) => needs_more(p),
        Some(Trigger::Ancestor(_)) => ancestor(p),
        Some(Trigger::Host) | None => {
            vec!["the job did not reach its own limit: lower `memory_budget`, or leave the host more memory".to_owned()]
        }
    };
    lines.push("if the result is good without that process, set `tolerate_oom = true`".to_owned());
    lines
}

fn ancestor(p: Option<&ProcessEvidence>) -> Vec<String> {
    let above = match p.map(readings::trigger) {
        Some(Trigger::Ancestor(above)) => format!("`{}`", above.path),
        Some(Trigger::Own | Trigger::OwnByPeak | Trigger::OwnByDefault | Trigger::Host) | None => {
            "a group above".to_owned()
        }
    };
    vec![format!(
        "the limit of {above} was reached, not the job's own: raise that limit, or lower `memory_budget` so that fewer \
         jobs run beside it"
    )]
}

fn alloc_failed(p: Option<&ProcessEvidence>) -> Vec<String> {
    let picture = p.map(|p| (p.memory.limit, p.memory.peak));
    match picture {
        Some((Some(limit), Some(peak))) => {
            vec![format!("it had used {peak} of {limit} at most: raise `memory`, or look for a limit of its own")]
        }
        Some((Some(_) | None, Some(_) | None)) | None => Vec::new(),
    }
}

/// Less CPU than this share of the time means that it waited.
const WAITED: f64 = 0.1;

fn timeout(verdict: &Verdict, p: Option<&ProcessEvidence>) -> Vec<String> {
    let Some(p) = p else { return Vec::new() };
    let option = if verdict.flags.contains(&Flag::AtStart) { "start_timeout" } else { "timeout" };
    let mut lines = Vec::new();
    if let Some(hits) = readings::moved(p, |c| c.limit_hits).filter(|n| *n > 0) {
        lines.push(format!("its memory limit was hit {hits} times, which slows it down: try a higher `memory` first"));
    }
    match (p.cpu_s, p.wall_s) {
        (Some(cpu), Some(wall)) if wall > 0.0 && cpu / wall < WAITED => {
            lines.push(format!("it used {} of CPU in {}: it was waiting, not computing", seconds(cpu), seconds(wall)))
        }
        (Some(cpu), Some(wall)) => lines.push(format!(
            "it used {} of CPU in {}: if it was getting on, raise `{option}`",
            seconds(cpu),
            seconds(wall)
        )),
        (None, _) | (_, None) => {}
    }
    lines
}

fn exit_code(e: &Evidence) -> Vec<String> {
    let Some(ExitStatus::Exited(code)) = e.process.as_ref().and_then(|p| p.exit) else { return Vec::new() };
    let mut lines = Vec::new();
    match code {
        126 => lines.push("hint: a shell exits with 126 when it may not execute a command".to_owned()),
        127 => lines.push("hint: a shell exits with 127 when it does not find a command".to_owned()),
        101 => lines.push("hint: a Rust program exits with 101 after a panic".to_owned()),
        129..=192 => lines.push(format!(
            "hint: a shell exits with {code} when its command was ended by {}; the code alone does not tell who sent it",
            signal_name(code - 128)
        )),
        _ => {}
    }
    let last = e.said.stderr_tail.lines().rev().find(|line| !line.trim().is_empty()).map(str::trim);
    if last.is_some_and(|line| line == "MemoryError" || line.starts_with("MemoryError:")) {
        lines.push("hint: its last line of stderr is Python's `MemoryError`".to_owned());
    }
    lines
}

fn crash(e: &Evidence) -> Vec<String> {
    let text = &e.said.stderr_tail;
    let overflow = text.contains("has overflowed its stack") || text.contains("stack overflow");
    if overflow { vec!["hint: its stderr speaks of a stack overflow".to_owned()] } else { Vec::new() }
}

fn killed_external(p: Option<&ProcessEvidence>) -> Vec<String> {
    let counted = p.is_some_and(|p| readings::sigkilled(p) && readings::oom_kill_unchanged(p));
    let more = if counted { "more `memory` would not have helped; " } else { "" };
    vec![format!("{more}look for a person, a script or a service manager that ends processes on this host")]
}

fn killed_unknown(p: Option<&ProcessEvidence>) -> Vec<String> {
    match p {
        Some(p) if !p.counters_readable && p.exit.is_some() => vec![
            "where jobvisor may use cgroups it can tell such deaths apart: `jobvisor doctor` says what is missing"
                .to_owned(),
        ],
        Some(_) | None => Vec::new(),
    }
}

fn spawn_failed(p: Option<&ProcessEvidence>) -> Vec<String> {
    let Some(failure) = p.and_then(|p| p.start_failure.as_ref()) else { return Vec::new() };
    let option = match failure.step.as_str() {
        "exec" => "command",
        "cwd" => "cwd",
        "user" => "user",
        "group" => "group",
        _ => return Vec::new(),
    };
    vec![format!("check `{option}` of the kind; no attempt was charged for this")]
}
