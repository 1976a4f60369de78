//! The rules of [`judge`](super::judge), first match wins. The numbers are those of the specification; two of its
//! rules stand elsewhere: 15 (`unkillable`) overrides whatever else was found and is applied by `judge` itself, and
//! 16 (loss of an observer) stands before 10, because a death that has no cause of its own, beside the loss of the
//! supervisor, is part of that loss; a nonzero exit has one.
//!
//! Each rule looks at the whole evidence and does not rely on its place for its own safety where that is cheap; the
//! ties that do rest on the order are rows of the table test.

use jiff::SignedDuration;

use super::super::cause::Cause;
use super::super::evidence::{
    Enforcement, Evidence, ExitMeaning, ExitStatus, Intent, IntentReason, LastWord, Loss, ProcessEvidence, Speech,
    Stage,
};
use super::super::readings::{self, Trigger};
use super::super::units::Bytes;
use super::{Certainty, Ending, Flag, Sureness};
use Sureness::{Inferred, Proved, Unknown};

/// What a rule found.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    pub(super) ending: Ending,
    pub(super) certainty: Certainty,
    pub(super) flags: Vec<Flag>,
}

impl Finding {
    fn new(ending: Ending, kill: Sureness, reason: Sureness) -> Self {
        Self { ending, certainty: Certainty { kill, reason }, flags: Vec::new() }
    }

    fn failed(cause: Cause, kill: Sureness, reason: Sureness) -> Self {
        Self::new(Ending::Failed(cause), kill, reason)
    }

    fn flag(mut self, flag: Flag, on: bool) -> Self {
        if on {
            self.flags.push(flag);
        }
        self
    }
}

type Rule = fn(&Evidence) -> Option<Finding>;

const RULES: &[Rule] = &[
    refused,
    start_failed,         // 1
    died_before_its_code, // 2
    done_frame,           // 3
    oom_killed,           // 4
    marked_by_oomd,       // 5
    ended_by_us,          // 6
    said_otherwise,       // 7
    descendant_killed,    // 8
    own_signal,           // 9
    observer_lost,        // 16
    sigkill,              // 10, 11
    told_to_stop,         // 12
    other_signal,
    broke_protocol,
    exited, // 13, 14
    nothing_started,
];

/// The first rule that matches; where none does, nothing was seen of the end.
pub(super) fn first_match(evidence: &Evidence) -> Finding {
    RULES
        .iter()
        .find_map(|rule| rule(evidence))
        .unwrap_or_else(|| Finding::failed(Cause::KilledUnknown, Unknown, Unknown))
}

/// The supervisor did not start it: it will refuse the same payload again.
fn refused(e: &Evidence) -> Option<Finding> {
    e.refused.as_ref()?;
    Some(Finding::failed(Cause::JobError, Proved, Proved).flag(Flag::Permanent, true))
}

/// Rule 1: a step of the start failed, with the kernel's own error number; or it was refused past the trust deadline.
fn start_failed(e: &Evidence) -> Option<Finding> {
    let failure = e.process.as_ref()?.start_failure.as_ref()?;
    if failure.is_untrusted() {
        return Some(Finding::failed(Cause::Fenced, Proved, Proved).flag(Flag::AtStart, true));
    }
    let cause = if failure.is_limit() { Cause::LimitSetupFailed } else { Cause::SpawnFailed };
    Some(Finding::failed(cause, Proved, Proved))
}

/// Below this no program starts; configurations refuse it, so only here can an early OOM kill be one of the start.
const TOO_SMALL: Bytes = Bytes::mib(16);
/// More than exec and the dynamic loader need, less than a program needs to fill [`TOO_SMALL`].
const NEXT_TO_NO_CPU_S: f64 = 0.005;

/// Rule 2: it ended before it ran code of its own. An OOM kill is `oom_at_start` only where the job's own limit set
/// it off: that cause says "the limit is too small" for good, which a full host does not prove (rule 4 tells those).
fn died_before_its_code(e: &Evidence) -> Option<Finding> {
    let p = e.process.as_ref()?;
    let before_exec = p.stage == Stage::BeforeExec;
    if readings::oom_killed_main(p) {
        let own = matches!(readings::trigger(p), Trigger::Own | Trigger::OwnByPeak | Trigger::OwnByDefault);
        let at_start = before_exec || (e.said.last_word.is_none() && silent_and_idle(e, p));
        return (own && at_start)
            .then(|| Finding::failed(Cause::OomAtStart, Proved, Proved).flag(Flag::AtStart, !before_exec));
    }
    let by_itself = match p.exit? {
        ExitStatus::Exited(_) => true,
        ExitStatus::Signaled(signal) => !is_request(signal) && signal != readings::SIGKILL,
    };
    // Only our own code runs before exec: what ends by itself there is the setup, though it gave no error number.
    (before_exec && by_itself && p.intent.is_none() && e.loss.is_none())
        .then(|| Finding::failed(Cause::LimitSetupFailed, Proved, Inferred))
}

fn silent_and_idle(e: &Evidence, p: &ProcessEvidence) -> bool {
    e.said.stdout_bytes == 0
        && e.said.stderr_bytes == 0
        && p.cpu_s.is_some_and(|cpu| cpu < NEXT_TO_NO_CPU_S)
        && p.memory.limit.is_some_and(|limit| limit < TOO_SMALL)
}

/// Rule 3: a complete `done` came before the death, so the work is done, unless a process that worked for it was
/// OOM-killed while the main one was not: then the result may lack that part.
fn done_frame(e: &Evidence) -> Option<Finding> {
    if e.said.last_word != Some(LastWord::Done) {
        return None;
    }
    let Some(p) = e.process.as_ref() else {
        return Some(Finding::new(Ending::Succeeded, Proved, Proved));
    };
    let casualty = readings::oom_killed(p) && !readings::oom_killed_main(p);
    if casualty && !e.tolerate_oom {
        return Some(Finding::failed(Cause::OomDescendant, Proved, Inferred));
    }
    let badly = matches!(p.exit, Some(status) if status != ExitStatus::Exited(0));
    Some(
        Finding::new(Ending::Succeeded, Proved, Proved)
            .flag(Flag::OomCasualty, casualty)
            .flag(Flag::DiedAfterDone, badly || p.intent.is_some()),
    )
}

/// Rule 4: the kernel's OOM killer ended the main process.
fn oom_killed(e: &Evidence) -> Option<Finding> {
    let p = e.process.as_ref().filter(|p| readings::oom_killed_main(p))?;
    let (cause, reason) = match readings::trigger(p) {
        Trigger::Own => (Cause::OomJobLimit, Proved),
        Trigger::OwnByPeak => (Cause::OomJobLimit, Inferred),
        Trigger::OwnByDefault => (Cause::OomJobLimit, Unknown),
        Trigger::Ancestor(_) => (Cause::OomAncestorLimit, Inferred),
        Trigger::Host => (Cause::OomHost, Inferred),
    };
    Some(Finding::failed(cause, Proved, reason))
}

/// Rule 5: systemd-oomd marks its victim before it kills it with SIGKILL. A main process that ended otherwise was
/// not that victim (the mark may be on a group above, for another job).
fn marked_by_oomd(e: &Evidence) -> Option<Finding> {
    let p = e.process.as_ref()?;
    let victim = readings::sigkilled(p) || p.exit.is_none();
    (victim && readings::oomd_marked(p)).then(|| Finding::failed(Cause::OomOomd, Proved, Proved))
}

/// Rule 6: we set out to end it, and noted so before the first signal.
fn ended_by_us(e: &Evidence) -> Option<Finding> {
    let p = e.process.as_ref()?;
    let reason = match (&p.intent, &p.watchdog) {
        (Some(Intent { reason, .. }), _) => *reason,
        (None, Some(_)) => IntentReason::MemWatchdog,
        (None, None) => return None,
    };
    let cause = match reason {
        IntentReason::Timeout | IntentReason::StartTimeout => Cause::Timeout,
        IntentReason::Cancelled => Cause::Cancelled,
        IntentReason::Drained => Cause::Drained,
        IntentReason::MemWatchdog => Cause::MemWatchdog,
        IntentReason::OutputLimit => Cause::OutputLimit,
        IntentReason::Fenced => Cause::Fenced,
        IntentReason::ProtocolError => Cause::ProtocolError,
        IntentReason::SupervisorGone => Cause::SupervisorLost,
        // The outcome was there before: it is the ending, unless it is missing after all.
        IntentReason::Linger if e.said.last_word.is_some() => return None,
        IntentReason::Linger => return Some(Finding::failed(Cause::KilledUnknown, Proved, Unknown)),
    };
    let at_start = reason == IntentReason::StartTimeout && p.stage != Stage::BeforeExec;
    Some(Finding::failed(cause, Proved, Proved).flag(Flag::AtStart, at_start))
}

/// Rule 7: the job said how it ended, and it was not well.
fn said_otherwise(e: &Evidence) -> Option<Finding> {
    match e.said.last_word.as_ref()? {
        LastWord::Done => None,
        LastWord::Snooze { .. } => Some(Finding::new(Ending::Snoozed, Proved, Proved)),
        LastWord::Failed { permanent, alloc, .. } => {
            let cause = if *alloc { Cause::AllocFailed } else { Cause::JobError };
            Some(Finding::failed(cause, Proved, Proved).flag(Flag::Permanent, *permanent))
        }
    }
}

/// Rule 8: the main process ended by itself, whatever its exit code, and another of the tree was OOM-killed.
fn descendant_killed(e: &Evidence) -> Option<Finding> {
    let p = e.process.as_ref().filter(|p| readings::oom_killed(p) && !readings::oom_killed_main(p))?;
    let by_itself = match p.exit? {
        ExitStatus::Exited(_) => true,
        ExitStatus::Signaled(signal) => is_own_fault(signal),
    };
    let tolerated = e.tolerate_oom && matches!(meaning(e), Some(ExitMeaning::Success | ExitMeaning::Snooze));
    (by_itself && !tolerated).then(|| Finding::failed(Cause::OomDescendant, Proved, Inferred))
}

/// Rule 9: a signal that a process brings upon itself.
fn own_signal(e: &Evidence) -> Option<Finding> {
    let Some(ExitStatus::Signaled(signal)) = e.process.as_ref()?.exit else { return None };
    let pipe_of_lost_reader = signal == SIGPIPE && e.loss.is_some();
    if signal == SIGXCPU {
        return Some(Finding::failed(Cause::CpuLimit, Proved, Inferred));
    }
    if !is_own_fault(signal) || pipe_of_lost_reader {
        return None;
    }
    let alloc = signal == SIGABRT && reports_failed_allocation(&e.said.stderr_tail);
    let cause = if alloc { Cause::AllocFailed } else { Cause::Crash };
    Some(Finding::failed(cause, Proved, Inferred))
}

/// Rule 16: whoever watched the attempt was lost, and the process shows no cause of its own. A result that nobody
/// was left to read is lost with its reader, so exit 0 is no success here.
fn observer_lost(e: &Evidence) -> Option<Finding> {
    let loss = e.loss.as_ref()?;
    let exit = e.process.as_ref().and_then(|p| p.exit);
    if matches!(exit, Some(ExitStatus::Exited(_))) && meaning(e) != Some(ExitMeaning::Success) {
        return None;
    }
    Some(match loss {
        Loss::Supervisor { .. } => Finding::failed(Cause::SupervisorLost, Proved, Inferred),
        Loss::Warden { .. } => Finding::failed(Cause::WardenLost, Proved, Proved),
        Loss::Host { .. } => Finding::failed(Cause::HostRebooted, Proved, Proved),
    })
}

/// Rules 10 and 11: SIGKILL from somewhere else. Counters that stood still prove that it was not the kernel's OOM
/// killer; counters that could not be read prove nothing.
fn sigkill(e: &Evidence) -> Option<Finding> {
    let p = e.process.as_ref().filter(|p| readings::sigkilled(p))?;
    Some(if readings::oom_kill_unchanged(p) {
        Finding::failed(Cause::KilledExternal, Proved, Unknown)
    } else {
        Finding::failed(Cause::KilledUnknown, Unknown, Unknown)
    })
}

/// A stop signal that goes to a whole group or unit reaches the children too.
const STOP_WINDOW: SignedDuration = SignedDuration::from_secs(2);

/// Rule 12: a request to stop that we did not send.
fn told_to_stop(e: &Evidence) -> Option<Finding> {
    let p = e.process.as_ref()?;
    let Some(ExitStatus::Signaled(signal)) = p.exit else { return None };
    if !is_request(signal) {
        return None;
    }
    let with_ours =
        matches!((e.own_stop, p.ended_at), (Some(stop), Some(end)) if end.duration_since(stop).abs() <= STOP_WINDOW);
    Some(if with_ours {
        Finding::failed(Cause::Drained, Inferred, Inferred)
    } else {
        Finding::failed(Cause::KilledExternal, Proved, Unknown)
    })
}

/// Any other signal: a process does not send those to itself by accident.
fn other_signal(e: &Evidence) -> Option<Finding> {
    match e.process.as_ref()?.exit? {
        ExitStatus::Signaled(_) => Some(Finding::failed(Cause::KilledExternal, Proved, Unknown)),
        ExitStatus::Exited(_) => None,
    }
}

/// A broken protocol, where the process then ended by itself (a frame cut by a death is that death's).
fn broke_protocol(e: &Evidence) -> Option<Finding> {
    e.said.violation.as_ref()?;
    (e.said.speech == Speech::Protocol).then(|| Finding::failed(Cause::ProtocolError, Proved, Proved))
}

/// Rules 13 and 14: the exit code alone.
fn exited(e: &Evidence) -> Option<Finding> {
    let Some(ExitStatus::Exited(code)) = e.process.as_ref()?.exit else { return None };
    let casualty = e.process.as_ref().is_some_and(readings::oom_killed);
    if e.said.speech == Speech::Protocol && code == 0 {
        return Some(Finding::failed(Cause::ExitWithoutResult, Proved, Proved));
    }
    let named = if e.said.exit_meaning.is_some() { Proved } else { Unknown };
    Some(match meaning(e)? {
        ExitMeaning::Success => Finding::new(Ending::Succeeded, Proved, Proved).flag(Flag::OomCasualty, casualty),
        ExitMeaning::Snooze => Finding::new(Ending::Snoozed, Proved, Proved).flag(Flag::OomCasualty, casualty),
        ExitMeaning::Permanent => Finding::failed(Cause::ExitNonzero, Proved, Proved).flag(Flag::Permanent, true),
        ExitMeaning::Retry => Finding::failed(Cause::ExitNonzero, Proved, named),
    })
}

/// Nothing was started and nothing says why: the start, not the job, is at fault.
fn nothing_started(e: &Evidence) -> Option<Finding> {
    let p = e.process.as_ref()?;
    (p.stage == Stage::NotForked && p.pid.is_none()).then(|| Finding::failed(Cause::SpawnFailed, Inferred, Unknown))
}

/// What the exit code means; `None` when the main process did not exit. Only where the exit status is the outcome
/// can a code mean anything but success or failure; there 0 is success unless the kind says otherwise.
pub(super) fn meaning(e: &Evidence) -> Option<ExitMeaning> {
    let Some(ExitStatus::Exited(code)) = e.process.as_ref()?.exit else { return None };
    let by_default = if code == 0 { ExitMeaning::Success } else { ExitMeaning::Retry };
    Some(match e.said.speech {
        Speech::ExitStatus => e.said.exit_meaning.unwrap_or(by_default),
        Speech::Protocol => by_default,
    })
}

/// Flags that stand beside any ending.
pub(super) fn common_flags(e: &Evidence, ending: Ending) -> Vec<Flag> {
    let mut flags = Vec::new();
    if let Some(p) = &e.process {
        let sampled = p.enforcement == Enforcement::Watchdog && p.memory.limit.is_some() && p.pid.is_some();
        let at_start = p.stage == Stage::BeforeExec && ending.cause().is_some();
        let frozen = p.frozen_s > 0.0;
        let facts = [
            (Flag::Leaked, !p.leftovers.is_empty()),
            (Flag::Watchdog, sampled),
            (Flag::AtStart, at_start),
            (Flag::Frozen, frozen),
        ];
        flags.extend(facts.into_iter().filter_map(|(flag, on)| on.then_some(flag)));
    }
    if e.said.truncated {
        flags.push(Flag::Truncated);
    }
    flags
}

const SIGABRT: i32 = 6;
const SIGPIPE: i32 = 13;
const SIGXCPU: i32 = 24;

/// ILL, TRAP, ABRT, BUS, FPE, SEGV, PIPE, ALRM, XFSZ, VTALRM, PROF, SYS: a fault, a timer or a limit of its own.
const fn is_own_fault(signal: i32) -> bool {
    matches!(signal, 4 | 5 | SIGABRT | 7 | 8 | 11 | SIGPIPE | 14 | 25 | 26 | 27 | 31)
}

/// HUP, INT, TERM.
const fn is_request(signal: i32) -> bool {
    matches!(signal, 1 | 2 | 15)
}

/// Lines with which language runtimes announce, just before they abort, that an allocation failed.
fn reports_failed_allocation(stderr: &str) -> bool {
    stderr.lines().rev().filter(|line| !line.trim().is_empty()).take(8).any(|line| {
        let line = line.trim();
        (line.starts_with("memory allocation of ") && line.ends_with(" bytes failed"))
            || line.starts_with("terminate called after throwing an instance of 'std::bad_alloc'")
            || (line.starts_with("FATAL ERROR: ") && line.contains("JavaScript heap out of memory"))
    })
}
