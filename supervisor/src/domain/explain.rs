//! A verdict in words: one sentence, its proof, and what to do about it.
//!
//! Called by whoever shows an attempt; nothing here is stored, so a better sentence reaches old attempts too.
//! The texts say no more than the evidence does: an ending without proof of memory never mentions memory in its
//! sentence, and advice names a number only where one was measured. Guesses are marked `hint:` and stand with the
//! proof, last. Every sentence is held by a snapshot.
//!
//! Words that come from a job (a message, a process name) are passed on as they are: escaping them is the business of
//! the layer that writes to a terminal.

mod advice;
mod proof;
#[cfg(test)]
mod tests;

use super::cause::Cause;
use super::evidence::{Evidence, ExitStatus, IntentReason, Loss, ProcessEvidence, StartFailure};
use super::readings::{self, Trigger};
use super::units::Bytes;
use super::verdict::{Ending, Flag, Verdict};

pub use advice::advice;
pub use proof::proof;

/// The ending in one sentence, without a final stop.
#[must_use]
pub fn summary(verdict: &Verdict, evidence: &Evidence) -> String {
    match verdict.ending {
        Ending::Succeeded if verdict.flags.contains(&Flag::DiedAfterDone) => {
            "succeeded; its process ended badly after it had delivered its result".to_owned()
        }
        Ending::Succeeded => "succeeded".to_owned(),
        Ending::Snoozed => "asked to be put back".to_owned(),
        Ending::Failed(cause) => failure(cause, verdict, evidence),
    }
}

fn failure(cause: Cause, verdict: &Verdict, e: &Evidence) -> String {
    let p = e.process.as_ref();
    match cause {
        Cause::JobError => job_error(e),
        Cause::ExitNonzero => exit_nonzero(verdict, p),
        Cause::ExitWithoutResult => "exited with code 0 but delivered no result".to_owned(),
        Cause::ProtocolError => with_detail("broke the protocol", e.said.violation.as_deref()),
        Cause::OutputLimit => {
            let stopped = p.and_then(|p| p.intent.as_ref()).is_none_or(|intent| !intent.signals.is_empty());
            format!("{}its output went past the limit", if stopped { "stopped by the supervisor: " } else { "" })
        }
        Cause::OomJobLimit => format!("killed by the kernel's OOM killer at its own limit{}", of_limit(p)),
        Cause::OomDescendant => "the kernel's OOM killer killed another process of the job".to_owned(),
        Cause::OomAtStart => format!(
            "killed by the kernel's OOM killer before it ran any code of its own: its limit{} is too small",
            of_limit(p)
        ),
        Cause::OomAncestorLimit => ancestor(p),
        Cause::OomHost => "killed by the kernel's OOM killer because the host ran out of memory".to_owned(),
        Cause::OomOomd => "killed by systemd-oomd".to_owned(),
        Cause::MemWatchdog => watchdog(p),
        Cause::AllocFailed => "the job reported that an allocation failed".to_owned(),
        Cause::Timeout => timeout(verdict, p),
        Cause::Cancelled => "cancelled".to_owned(),
        Cause::Drained => drained(verdict, p),
        Cause::Fenced if p.and_then(|p| p.start_failure.as_ref()).is_some_and(StartFailure::is_untrusted) => {
            "not started: its supervisor had not renewed its lease in time".to_owned()
        }
        Cause::Fenced => "stopped: its supervisor no longer held the job".to_owned(),
        Cause::Crash => format!("crashed with {}", ending_signal(p)),
        Cause::CpuLimit => "used up its CPU time limit (SIGXCPU)".to_owned(),
        Cause::KilledExternal => killed_external(p),
        Cause::KilledUnknown => killed_unknown(p),
        Cause::SpawnFailed => with_detail("could not be started", start_message(p).as_deref()),
        Cause::LimitSetupFailed => {
            with_detail("not started: its memory limit could not be put in force", start_message(p).as_deref())
        }
        Cause::Unkillable => unkillable(p),
        Cause::Panic => "its handler panicked".to_owned(),
        Cause::Blocked => "its handler blocked its thread".to_owned(),
        Cause::SupervisorLost => supervisor_lost(e),
        Cause::WardenLost => warden_lost(e),
        Cause::HostRebooted => "the host was restarted while it ran".to_owned(),
    }
}

fn with_detail(what: &str, detail: Option<&str>) -> String {
    detail.map_or_else(|| what.to_owned(), |detail| format!("{what}: {detail}"))
}

fn job_error(e: &Evidence) -> String {
    match &e.refused {
        Some(why) => format!("not started: {why}"),
        None => "the job said that it failed".to_owned(),
    }
}

fn exit_nonzero(verdict: &Verdict, p: Option<&ProcessEvidence>) -> String {
    let code = match p.and_then(|p| p.exit) {
        Some(ExitStatus::Exited(code)) => code.to_string(),
        Some(ExitStatus::Signaled(_)) | None => "that is not known".to_owned(),
    };
    let meaning = if verdict.flags.contains(&Flag::Permanent) { ", a permanent failure by `exit_codes`" } else { "" };
    format!("exited with code {code}{meaning}")
}

fn timeout(verdict: &Verdict, p: Option<&ProcessEvidence>) -> String {
    let at_start = verdict.flags.contains(&Flag::AtStart);
    let after = p.and_then(|p| p.intent.as_ref()).map(|intent| format!(" after {}", seconds(intent.at_s)));
    let what = if at_start { "did not start within `start_timeout`" } else { "ran longer than its `timeout`" };
    format!("{what}: stopped{}", after.unwrap_or_default())
}

fn drained(verdict: &Verdict, p: Option<&ProcessEvidence>) -> String {
    if verdict.certainty.reason == super::verdict::Sureness::Proved {
        "given back: the supervisor was stopping".to_owned()
    } else {
        format!("given back: ended by {} together with its supervisor's own stop", ending_signal(p))
    }
}

fn of_limit(p: Option<&ProcessEvidence>) -> String {
    p.and_then(|p| p.memory.limit).map(|limit| format!(" of {limit}")).unwrap_or_default()
}

fn ancestor(p: Option<&ProcessEvidence>) -> String {
    let what = "killed by the kernel's OOM killer because a group above it reached its limit";
    match p.map(readings::trigger) {
        Some(Trigger::Ancestor(above)) => match above.limit {
            Some(limit) => format!("{what}: `{}`, {limit}", above.path),
            None => format!("{what}: `{}`", above.path),
        },
        Some(Trigger::Own | Trigger::OwnByPeak | Trigger::OwnByDefault | Trigger::Host) | None => what.to_owned(),
    }
}

fn watchdog(p: Option<&ProcessEvidence>) -> String {
    let what = "killed by the supervisor's memory watchdog over its limit";
    match p.and_then(|p| p.watchdog.as_ref()) {
        Some(strike) => format!("{what} of {}: {} seen", Bytes(strike.limit), Bytes(strike.seen)),
        None => format!("{what}{}", of_limit(p)),
    }
}

fn killed_external(p: Option<&ProcessEvidence>) -> String {
    let signal = ending_signal(p);
    if p.is_some_and(readings::sigkilled) {
        format!("killed by {signal} from outside: neither the supervisor nor the kernel's memory limits sent it")
    } else {
        format!("ended by {signal} from outside: the supervisor did not send it")
    }
}

fn killed_unknown(p: Option<&ProcessEvidence>) -> String {
    match p {
        None => "ended unseen: nothing was left to tell how".to_owned(),
        Some(p) if p.intent.as_ref().is_some_and(|i| i.reason == IntentReason::Linger) => {
            "stopped by the supervisor after an outcome that is not on record".to_owned()
        }
        Some(p) => match p.exit {
            Some(_) => format!("killed by {}: nothing is there to tell by whom", ending_signal(Some(p))),
            None => "ended in a way that was not seen".to_owned(),
        },
    }
}

fn start_message(p: Option<&ProcessEvidence>) -> Option<String> {
    p.and_then(|p| p.start_failure.as_ref()).map(|failure| failure.message.clone())
}

fn unkillable(p: Option<&ProcessEvidence>) -> String {
    let stuck = p.and_then(|p| p.unkillable.first());
    let who = stuck.map(|s| format!(": {} (pid {})", s.comm, s.pid)).unwrap_or_default();
    format!("a process of the job does not die of SIGKILL{who}")
}

fn supervisor_lost(e: &Evidence) -> String {
    let intent = e.process.as_ref().and_then(|p| p.intent.as_ref());
    let by_warden = intent.is_some_and(|i| i.reason == IntentReason::SupervisorGone);
    let who = match &e.loss {
        Some(Loss::Supervisor { name, pid: Some(pid), .. }) => format!("supervisor `{name}` (pid {pid})"),
        Some(Loss::Supervisor { name, pid: None, .. }) => format!("supervisor `{name}`"),
        Some(Loss::Warden { .. } | Loss::Host { .. }) | None => "its supervisor".to_owned(),
    };
    let then = if by_warden { "; the warden ended the job" } else { "" };
    format!("{who} died while it ran{then}")
}

fn warden_lost(e: &Evidence) -> String {
    let how = match &e.loss {
        Some(Loss::Warden { exit: Some(ExitStatus::Signaled(signal)), .. }) => {
            format!(" of {}", signal_name(*signal))
        }
        Some(Loss::Warden { exit: Some(ExitStatus::Exited(code)), .. }) => format!(" with exit code {code}"),
        Some(Loss::Warden { exit: None, .. } | Loss::Supervisor { .. } | Loss::Host { .. }) | None => String::new(),
    };
    format!("the warden died{how}, and its children with it")
}

fn ending_signal(p: Option<&ProcessEvidence>) -> String {
    match p.and_then(|p| p.exit) {
        Some(ExitStatus::Signaled(signal)) => signal_name(signal),
        Some(ExitStatus::Exited(_)) | None => "a signal that is not known".to_owned(),
    }
}

/// A span in words, to a tenth of a second.
pub(super) fn seconds(s: f64) -> String {
    format!("{s:.1} s")
}

/// The name of a signal as `kill -l` of Linux has it, with `SIG` before it; `signal 40` for one without a name.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    let name = usize::try_from(signal).ok().and_then(|n| NAMES.get(n.checked_sub(1)?));
    name.map_or_else(|| format!("signal {signal}"), |name| format!("SIG{name}"))
}
