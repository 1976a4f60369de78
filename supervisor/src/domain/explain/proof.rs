//! The reason for the verdict: what was read, noted and counted.

use super::super::cause::Cause;
use super::super::evidence::{
    Counters, Enforcement, Evidence, ExitStatus, Intent, IntentReason, Loss, ProcessEvidence, Stage,
};
use super::super::readings;
use super::super::units::Bytes;
use super::super::verdict::{Ending, Verdict};
use super::{seconds, signal_name};

/// The facts that the verdict rests on, each one line; hints last, marked as such.
#[must_use]
pub fn proof(verdict: &Verdict, evidence: &Evidence) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(p) = &evidence.process {
        lines.extend(start(p));
        lines.extend(p.exit.map(status));
        lines.extend(p.intent.as_ref().map(intent));
        lines.extend(p.watchdog.as_ref().map(|strike| {
            let (seen, limit) = (Bytes(strike.seen), Bytes(strike.limit));
            format!("watchdog saw {seen} at {}, limit {limit}", seconds(strike.at_s))
        }));
        lines.extend(counters(verdict, p));
        lines.extend(above(p));
        lines.extend(marks(p));
        lines.extend(own_stop(verdict, evidence, p));
    }
    lines.extend(evidence.loss.as_ref().map(loss));
    lines.extend(evidence.process.as_ref().and_then(|p| hint(verdict, p)));
    lines
}

fn start(p: &ProcessEvidence) -> Option<String> {
    match (&p.start_failure, p.stage) {
        (Some(failure), _) => Some(format!("start step `{}` failed with errno {}", failure.step, failure.errno)),
        (None, Stage::NotForked) => Some("no process was made".to_owned()),
        (None, Stage::BeforeExec) => Some("the process ended before `exec` succeeded".to_owned()),
        (None, Stage::AfterExec) => None,
    }
}

fn status(exit: ExitStatus) -> String {
    match exit {
        ExitStatus::Exited(code) => format!("main process exited with code {code}"),
        ExitStatus::Signaled(signal) => format!("main process ended by {}", signal_name(signal)),
    }
}

fn intent(intent: &Intent) -> String {
    let why = match intent.reason {
        IntentReason::Timeout => "timeout",
        IntentReason::StartTimeout => "start timeout",
        IntentReason::Cancelled => "cancelled",
        IntentReason::Drained => "the supervisor was stopping",
        IntentReason::MemWatchdog => "memory watchdog",
        IntentReason::OutputLimit => "output limit",
        IntentReason::Fenced => "the job was no longer held",
        IntentReason::ProtocolError => "broken protocol",
        IntentReason::Linger => "it stayed after its outcome",
        IntentReason::SupervisorGone => "the supervisor was gone",
    };
    let mut sent = intent.signals.iter().map(|(signal, at)| (signal_name(*signal), seconds(*at)));
    match sent.next() {
        None => format!("our intent at {} ({why}), no signal sent", seconds(intent.at_s)),
        Some((first, at)) => {
            let later: String = sent.map(|(signal, at)| format!(", {signal} at {at}")).collect();
            format!("{first} by us at {at}{later} ({why})")
        }
    }
}

fn counters(verdict: &Verdict, p: &ProcessEvidence) -> Option<String> {
    let cause = verdict.ending.cause();
    if !p.counters_readable {
        let why = match p.enforcement {
            Enforcement::Watchdog => "no cgroup of its own",
            Enforcement::CgroupV1 | Enforcement::CgroupV2 => "not readable at both ends",
        };
        let matters = matches!(cause, Some(Cause::KilledUnknown));
        return matters.then(|| format!("the kernel's counters prove nothing: {why}"));
    }
    let about_memory = cause.is_some_and(Cause::is_oom) || readings::oom_killed(p);
    if !about_memory {
        let looks_killed = readings::sigkilled(p) || p.exit == Some(ExitStatus::Exited(128 + readings::SIGKILL));
        let killed = looks_killed && readings::oom_kill_unchanged(p);
        let kills = p.at_exit.oom_kill.unwrap_or_default();
        return killed.then(|| format!("oom_kill unchanged ({kills}→{kills}): not the kernel's OOM killer"));
    }
    let moves = [
        step("oom", p, |c| c.oom),
        step("oom_kill", p, |c| c.oom_kill),
        step("oom_group_kill", p, |c| c.oom_group_kill),
    ];
    let sizes = [
        ("limit", p.memory.limit),
        ("peak", readings::kernel_peak(p).map(Bytes).or(p.memory.peak)),
        // Anonymous memory is gone with its process; what lies in shared memory and tmpfs stays charged.
        ("shmem", p.at_exit.shmem.filter(|n| *n > 0).map(Bytes)),
    ];
    let sizes = sizes.into_iter().filter_map(|(name, size)| size.map(|size| format!("{name} {size}")));
    let parts: Vec<_> = moves.into_iter().flatten().chain(sizes).collect();
    Some(format!("leaf {}", parts.join(", ")))
}

fn step(name: &str, p: &ProcessEvidence, field: impl Fn(&Counters) -> Option<u64>) -> Option<String> {
    match (field(&p.baseline), field(&p.at_exit)) {
        (Some(before), Some(after)) => Some(format!("{name} {before}→{after}")),
        (None, _) | (_, None) => None,
    }
}

fn above(p: &ProcessEvidence) -> Vec<String> {
    let counter = match p.enforcement {
        Enforcement::CgroupV1 => "failcnt",
        Enforcement::CgroupV2 | Enforcement::Watchdog => "oom",
    };
    let told = |before: u64, after: u64| readings::oom_killed(p) && after > before;
    p.ancestors
        .iter()
        .filter_map(|a| match (a.oom_before, a.oom_after) {
            (Some(before), Some(after)) if told(before, after) => {
                let limit = a.limit.map(|limit| format!(", limit {limit}")).unwrap_or_default();
                Some(format!("group above `{}`: {counter} {before}→{after}{limit}", a.path))
            }
            (Some(_) | None, Some(_) | None) => None,
        })
        .collect()
}

fn marks(p: &ProcessEvidence) -> Option<String> {
    readings::oomd_marked(p).then(|| {
        let own = (p.baseline.oomd_ooms.unwrap_or(0), p.at_exit.oomd_ooms.unwrap_or(0));
        if own.1 > own.0 {
            format!("systemd-oomd's mark on the leaf: user.oomd_ooms {}→{}", own.0, own.1)
        } else {
            "systemd-oomd's mark on a group above: user.oomd_ooms grew".to_owned()
        }
    })
}

fn own_stop(verdict: &Verdict, e: &Evidence, p: &ProcessEvidence) -> Option<String> {
    let (stop, end) = (e.own_stop?, p.ended_at?);
    let apart = end.duration_since(stop).abs().as_secs_f64();
    let inferred = verdict.ending == Ending::Failed(Cause::Drained) && p.intent.is_none();
    inferred.then(|| format!("it ended {} apart from the supervisor's own stop signal", seconds(apart)))
}

fn loss(loss: &Loss) -> String {
    match loss {
        Loss::Supervisor { name, pid, last_seen } => {
            let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            let seen = last_seen.map(|at| format!(", last seen {at}")).unwrap_or_default();
            format!("supervisor `{name}`{pid} is gone{seen}")
        }
        Loss::Warden { pid, exit } => {
            let how = exit.map(|exit| match exit {
                ExitStatus::Exited(code) => format!(", exit code {code}"),
                ExitStatus::Signaled(signal) => format!(", {}", signal_name(signal)),
            });
            format!("the warden (pid {pid}) is gone{}", how.unwrap_or_default())
        }
        Loss::Host { boot_id_then, boot_id_now } => {
            format!("boot id then {boot_id_then}, now {boot_id_now}")
        }
    }
}

/// Near enough to the limit to be worth a hint.
const NEAR: f64 = 0.9;

/// What may have been the case where nothing could be proven.
fn hint(verdict: &Verdict, p: &ProcessEvidence) -> Option<String> {
    if verdict.ending != Ending::Failed(Cause::KilledUnknown) {
        return None;
    }
    if matches!(p.host_oom_kills, (Some(before), Some(after)) if after > before) {
        let text = "hint: the kernel's OOM killer struck somewhere on this host meanwhile; whom, is not known";
        return Some(text.to_owned());
    }
    let (Bytes(limit), (_, last)) = (p.memory.limit?, *p.memory.series.last()?);
    #[expect(clippy::cast_precision_loss, reason = "a share in percent needs no more than 53 bits")]
    let share = last as f64 / limit.max(1) as f64;
    (share >= NEAR).then(|| format!("hint: its last memory sample was {} of a limit of {}", Bytes(last), Bytes(limit)))
}
