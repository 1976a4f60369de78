//! One row for each rule and each tie, and properties over any evidence.

use jiff::Timestamp;

use super::super::evidence::{
    Ancestor, Counters, Enforcement, ExitMeaning, ExitStatus, Intent, IntentReason, LastWord, Leftover, Loss,
    PeakSource, ProcessEvidence, Said, Speech, Stage, StartFailure, WatchdogStrike,
};
use super::super::units::Bytes;
use super::*;
use Cause::*;
use ExitStatus::{Exited, Signaled};
use Sureness::{Inferred, Proved, Unknown};

pub(crate) mod properties;

pub(crate) const STOP: i64 = 1_700_000_000;

pub(crate) fn second(s: i64) -> Timestamp {
    Timestamp::from_second(s).unwrap()
}

/// A oneshot child under cgroup v2 with a limit of 64 MiB whose counters all stood still.
pub(crate) fn v2(exit: ExitStatus) -> Evidence {
    let still = Counters {
        oom: Some(0),
        oom_kill: Some(0),
        oom_group_kill: Some(0),
        limit_hits: Some(0),
        peak: Some(20 << 20),
        oomd_ooms: Some(0),
        pids_max_hits: Some(0),
        ..Counters::default()
    };
    let above = Ancestor {
        path: "/jobs".into(),
        limit: Some(Bytes::mib(512)),
        oom_before: Some(3),
        oom_after: Some(3),
        oomd: (Some(0), Some(0)),
    };
    Evidence {
        process: Some(ProcessEvidence {
            enforcement: Enforcement::CgroupV2,
            pid: Some(4711),
            started_at: Some(second(STOP - 10)),
            ended_at: Some(second(STOP)),
            wall_s: Some(10.0),
            stage: Stage::AfterExec,
            exit: Some(exit),
            counters_readable: true,
            baseline: Counters { peak: Some(0), ..still },
            at_exit: still,
            after_kill: still,
            ancestors: vec![above],
            memory: super::super::evidence::MemoryPicture {
                limit: Some(Bytes::mib(64)),
                peak: Some(Bytes::mib(20)),
                source: PeakSource::Cgroup,
                series: vec![],
            },
            cpu_s: Some(1.5),
            ..ProcessEvidence::default()
        }),
        ..Evidence::default()
    }
}

pub(crate) trait With: Sized {
    fn with(self, change: impl FnOnce(&mut ProcessEvidence)) -> Self;
    fn said(self, change: impl FnOnce(&mut Said)) -> Self;
    fn both(self, change: impl Fn(&mut Counters)) -> Self;
    fn intent(self, reason: IntentReason, signals: &[i32]) -> Self;
    fn protocol(self, word: Option<LastWord>) -> Self;
    fn means(self, meaning: ExitMeaning) -> Self;
    fn lost(self, loss: Loss) -> Self;
    fn leaf_oom(self) -> Self;
}

impl With for Evidence {
    fn with(mut self, change: impl FnOnce(&mut ProcessEvidence)) -> Self {
        change(self.process.as_mut().unwrap());
        self
    }
    fn said(mut self, change: impl FnOnce(&mut Said)) -> Self {
        change(&mut self.said);
        self
    }
    fn both(self, change: impl Fn(&mut Counters)) -> Self {
        self.with(|p| {
            change(&mut p.at_exit);
            change(&mut p.after_kill);
        })
    }
    fn intent(self, reason: IntentReason, signals: &[i32]) -> Self {
        let signals = signals.iter().zip([2.0, 12.0]).map(|(s, t)| (*s, t)).collect();
        self.with(|p| p.intent = Some(Intent { reason, at_s: 2.0, signals }))
    }
    fn protocol(self, word: Option<LastWord>) -> Self {
        self.said(|s| {
            s.speech = Speech::Protocol;
            s.last_word = word;
        })
    }
    fn means(self, meaning: ExitMeaning) -> Self {
        self.said(|s| s.exit_meaning = Some(meaning))
    }
    fn lost(mut self, loss: Loss) -> Self {
        self.loss = Some(loss);
        self
    }
    /// The leaf's own limit killed the whole group.
    fn leaf_oom(self) -> Self {
        self.both(|c| {
            c.oom = Some(1);
            c.oom_kill = Some(1);
            c.oom_group_kill = Some(1);
            c.peak = Some(64 << 20);
            c.anon = Some(61 << 20);
        })
        .with(|p| p.memory.peak = Some(Bytes::mib(64)))
    }
}

/// The same under cgroup v1, which has neither `oom` nor `oom_group_kill`.
pub(crate) fn v1(exit: ExitStatus, oom_kill: u64, peak: u64) -> Evidence {
    let strip = |c: &mut Counters| {
        c.oom = None;
        c.oom_group_kill = None;
    };
    v2(exit)
        .both(|c| {
            strip(c);
            c.oom_kill = Some(oom_kill);
            c.peak = Some(peak);
        })
        .with(|p| {
            p.enforcement = Enforcement::CgroupV1;
            strip(&mut p.baseline);
            p.memory.peak = Some(Bytes(peak));
        })
}

/// Without a cgroup: nothing is readable.
pub(crate) fn no_cgroup(exit: ExitStatus) -> Evidence {
    v2(exit).both(|c| *c = Counters::default()).with(|p| {
        p.enforcement = Enforcement::Watchdog;
        p.baseline = Counters::default();
        p.counters_readable = false;
        p.memory.source = PeakSource::Sampled;
        p.ancestors.clear();
    })
}

pub(crate) fn only_kills(c: &mut Counters) {
    c.oom_kill = Some(1);
}
pub(crate) fn failed_frame(alloc: bool, permanent: bool) -> Option<LastWord> {
    Some(LastWord::Failed { message: "no such page".into(), permanent, alloc, answers_cancel: false })
}
pub(crate) fn supervisor_lost() -> Loss {
    Loss::Supervisor { name: "a".into(), pid: Some(7), last_seen: None }
}
pub(crate) fn warden_lost() -> Loss {
    Loss::Warden { pid: 8, exit: Some(Signaled(9)) }
}
pub(crate) fn rebooted() -> Loss {
    Loss::Host { boot_id_then: "x".into(), boot_id_now: "y".into() }
}
pub(crate) fn start_failure(step: &str) -> Option<StartFailure> {
    Some(StartFailure { step: step.into(), errno: 2, message: "`nope`: no such file or directory".into() })
}
pub(crate) fn stuck() -> Vec<Leftover> {
    vec![Leftover { pid: 99, comm: "dd".into(), stuck_in: Some("D nfs_wait".into()) }]
}
fn tolerant(mut e: Evidence) -> Evidence {
    e.tolerate_oom = true;
    e
}
pub(crate) fn stopped_at(mut e: Evidence, s: i64) -> Evidence {
    e.own_stop = Some(second(s));
    e
}
pub(crate) fn ancestor_oom(e: Evidence) -> Evidence {
    e.with(|p| p.ancestors[0].oom_after = Some(4))
}
pub(crate) fn oomd(e: Evidence) -> Evidence {
    e.both(|c| c.oomd_ooms = Some(1))
}
pub(crate) fn before_exec(e: Evidence) -> Evidence {
    e.with(|p| p.stage = Stage::BeforeExec)
}
pub(crate) fn nobody_saw(e: Evidence) -> Evidence {
    Evidence { process: None, ..e }
}

const OK: Ending = Ending::Succeeded;
const fn dead(cause: Cause) -> Ending {
    Ending::Failed(cause)
}

type Row = (&'static str, Evidence, Ending, (Sureness, Sureness), &'static [Flag]);

#[rustfmt::skip]
fn rules_0_to_5() -> Vec<Row> {
    use IntentReason as I;
    use Flag::{AtStart, DiedAfterDone, OomCasualty, Permanent, Watchdog};
    const P: (Sureness, Sureness) = (Proved, Proved);
    const PI: (Sureness, Sureness) = (Proved, Inferred);
    let kill = Signaled(9);
    vec![
        ("refused payload", Evidence { refused: Some("x".into()), ..Evidence::default() }, dead(JobError), P, &[Permanent]),
        ("1 exec fails", v2(Exited(127)).with(|p| p.start_failure = start_failure("exec")), dead(SpawnFailed), P, &[]),
        ("1 leaf fails", v2(kill).with(|p| p.start_failure = start_failure("leaf")), dead(LimitSetupFailed), P, &[]),
        ("1 refused past the trust deadline", v2(kill).with(|p| p.start_failure = start_failure("trust")), dead(Fenced), P, &[AtStart]),
        ("1 limit fails", v2(kill).with(|p| p.start_failure = start_failure("limit")), dead(LimitSetupFailed), P, &[]),
        ("1 before 6: start failed while draining", v2(kill).with(|p| p.start_failure = start_failure("exec")).intent(I::Drained, &[15]), dead(SpawnFailed), P, &[]),
        ("2 oom before exec", before_exec(v2(kill).leaf_oom()), dead(OomAtStart), P, &[AtStart]),
        ("2 oom before exec, v1", before_exec(v1(kill, 1, 64 << 20)), dead(OomAtStart), P, &[AtStart]),
        ("2 oom at once under a tiny limit", v2(kill).leaf_oom().with(|p| { p.cpu_s = Some(0.001); p.memory.limit = Some(Bytes::mib(1)); }), dead(OomAtStart), P, &[AtStart]),
        ("2 a fast hog under an honest limit is no start", v2(kill).leaf_oom().with(|p| p.cpu_s = Some(0.001)), dead(OomJobLimit), P, &[]),
        ("2 a full host before exec is not the limit's fault", before_exec(v2(kill).both(only_kills)), dead(OomHost), PI, &[AtStart]),
        ("2 killed before exec, no oom", before_exec(v2(kill)), dead(KilledExternal), (Proved, Unknown), &[AtStart]),
        ("2 killed before exec, unreadable", before_exec(no_cgroup(kill)), dead(KilledUnknown), (Unknown, Unknown), &[Watchdog, AtStart]),
        ("2 exit before exec", before_exec(v2(Exited(1))), dead(LimitSetupFailed), PI, &[AtStart]),
        ("2 intent before exec", before_exec(v2(kill).intent(I::StartTimeout, &[9])), dead(Timeout), P, &[AtStart]),
        ("3 done", v2(Exited(0)).protocol(Some(LastWord::Done)), OK, P, &[]),
        ("3 done, then a crash", v2(Signaled(11)).protocol(Some(LastWord::Done)), OK, P, &[DiedAfterDone]),
        ("3 done before 4: then the limit", v2(kill).leaf_oom().protocol(Some(LastWord::Done)), OK, P, &[DiedAfterDone]),
        ("3 done before 5: then oomd", oomd(v2(kill)).protocol(Some(LastWord::Done)), OK, P, &[DiedAfterDone]),
        ("3 done before 6: then a timeout", v2(kill).intent(I::Timeout, &[15, 9]).protocol(Some(LastWord::Done)), OK, P, &[DiedAfterDone]),
        ("3 done, then lingered", v2(kill).intent(I::Linger, &[15, 9]).protocol(Some(LastWord::Done)), OK, P, &[DiedAfterDone]),
        ("3 done, another process oom-killed", v2(Exited(0)).both(only_kills).protocol(Some(LastWord::Done)), dead(OomDescendant), PI, &[]),
        ("3 done, another oom-killed, tolerated", tolerant(v2(Exited(0)).both(only_kills).protocol(Some(LastWord::Done))), OK, P, &[OomCasualty]),
        ("3 done, another oom-killed, main lingered", v2(kill).both(only_kills).intent(I::Linger, &[15, 9]).protocol(Some(LastWord::Done)), dead(OomDescendant), PI, &[]),
        ("3 done before 16", nobody_saw(v2(kill)).protocol(Some(LastWord::Done)).lost(supervisor_lost()), OK, P, &[]),
        ("4 own limit, v2", v2(kill).leaf_oom(), dead(OomJobLimit), P, &[]),
        ("4 own limit without a group kill", v2(kill).both(|c| { c.oom = Some(1); c.oom_kill = Some(1); }), dead(OomJobLimit), P, &[]),
        ("4 own limit, v1", v1(kill, 1, 64 << 20), dead(OomJobLimit), PI, &[]),
        ("4 v1: peak below by less than a charge", v1(kill, 1, (64 << 20) - 8192), dead(OomJobLimit), PI, &[]),
        ("4 v1: own limit before an ancestor that was hit too", ancestor_oom(v1(kill, 1, 64 << 20)), dead(OomJobLimit), PI, &[]),
        ("4 v1: ancestor, own peak far below", ancestor_oom(v1(kill, 1, 20 << 20)), dead(OomAncestorLimit), PI, &[]),
        ("4 v1: nobody's limit", v1(kill, 1, 20 << 20), dead(OomHost), PI, &[]),
        ("4 v1: peak not readable", v1(kill, 1, 0).both(|c| c.peak = None).with(|p| p.memory.peak = None), dead(OomJobLimit), (Proved, Unknown), &[]),
        ("4 ancestor", ancestor_oom(v2(kill).both(only_kills)), dead(OomAncestorLimit), PI, &[]),
        ("4 own limit before an ancestor's", ancestor_oom(v2(kill).leaf_oom()), dead(OomJobLimit), P, &[]),
        ("4 host", v2(kill).both(only_kills), dead(OomHost), PI, &[]),
        ("4 before 6: a group kill beats an intent", v2(kill).leaf_oom().intent(I::Timeout, &[15, 9]), dead(OomJobLimit), P, &[]),
        ("4 group kill counted only by the second reading", v2(kill).leaf_oom().with(|p| p.at_exit.oom_group_kill = Some(0)).intent(I::Timeout, &[15, 9]), dead(OomJobLimit), P, &[]),
        ("6 before 4: kills, no group kill, our SIGKILL", v2(kill).both(only_kills).intent(I::Timeout, &[15, 9]), dead(Timeout), P, &[]),
        ("4 SIGKILL when we had sent only SIGTERM, v1", v1(kill, 1, 64 << 20).intent(I::Timeout, &[15]), dead(OomJobLimit), PI, &[]),
        ("6: main died of our SIGTERM though a group kill struck another", v2(Signaled(15)).leaf_oom().intent(I::Timeout, &[15]), dead(Timeout), P, &[]),
        ("4 a kill after the exit is nobody's cause", v2(kill).with(|p| { p.after_kill.oom_kill = Some(2); p.after_kill.oom = Some(1); p.after_kill.oom_group_kill = Some(1); }), dead(KilledExternal), (Proved, Unknown), &[]),
        ("4 before 7: failed frame, then the limit", v2(kill).leaf_oom().protocol(failed_frame(false, false)), dead(OomJobLimit), P, &[]),
        ("4 before 16", v2(kill).leaf_oom().lost(supervisor_lost()), dead(OomJobLimit), P, &[]),
        ("4 deltas, not totals", v2(kill).both(only_kills).with(|p| p.baseline.oom_kill = Some(1)), dead(KilledExternal), (Proved, Unknown), &[]),
        ("5 oomd", oomd(v2(kill)), dead(OomOomd), P, &[]),
        ("5 oomd above", v2(kill).with(|p| p.ancestors[0].oomd = (Some(1), Some(2))), dead(OomOomd), P, &[]),
        ("5 an old mark above", v2(kill).with(|p| p.ancestors[0].oomd = (Some(2), Some(2))), dead(KilledExternal), (Proved, Unknown), &[]),
        ("5 before 6", oomd(v2(kill)).intent(I::Cancelled, &[15, 9]), dead(OomOomd), P, &[]),
        ("4 before 5", oomd(v2(kill).leaf_oom()), dead(OomJobLimit), P, &[]),
        ("5 a mark does not blame an exit", oomd(v2(Exited(0))), OK, P, &[]),
    ]
}

#[rustfmt::skip]
fn rules_6_to_9() -> Vec<Row> {
    use IntentReason as I;
    use Flag::{AtStart, OomCasualty, Permanent, Watchdog};
    const P: (Sureness, Sureness) = (Proved, Proved);
    const PI: (Sureness, Sureness) = (Proved, Inferred);
    let kill = Signaled(9);
    let strike = |p: &mut ProcessEvidence| p.watchdog = Some(WatchdogStrike { seen: 70 << 20, limit: 64 << 20, at_s: 2.0 });
    vec![
        ("6 timeout", v2(kill).intent(I::Timeout, &[15, 9]), dead(Timeout), P, &[]),
        ("6 timeout before 14: it exits 0 when told to stop", v2(Exited(0)).intent(I::Timeout, &[15]), dead(Timeout), P, &[]),
        ("6 timeout without counters is never unknown", no_cgroup(kill).intent(I::Timeout, &[15, 9]), dead(Timeout), P, &[Watchdog]),
        ("6 start timeout", v2(kill).intent(I::StartTimeout, &[15, 9]), dead(Timeout), P, &[AtStart]),
        ("6 cancelled", v2(Signaled(15)).intent(I::Cancelled, &[15]), dead(Cancelled), P, &[]),
        ("6 drained", v2(Signaled(15)).intent(I::Drained, &[15]), dead(Drained), P, &[]),
        ("6 watchdog", no_cgroup(kill).intent(I::MemWatchdog, &[9]).with(strike), dead(MemWatchdog), P, &[Watchdog]),
        ("6 watchdog's own word is an intent", no_cgroup(kill).with(strike), dead(MemWatchdog), P, &[Watchdog]),
        ("6 the first intent stays", no_cgroup(kill).intent(I::Timeout, &[15, 9]).with(strike), dead(Timeout), P, &[Watchdog]),
        ("6 output limit", v2(kill).intent(I::OutputLimit, &[9]), dead(OutputLimit), P, &[]),
        ("6 frozen, then fenced", v2(kill).intent(I::Fenced, &[9]).with(|p| p.frozen_s = 4.2), dead(Fenced), P, &[Flag::Frozen]),
        ("6 fenced", v2(kill).intent(I::Fenced, &[9]), dead(Fenced), P, &[]),
        ("6 protocol", v2(kill).protocol(None).intent(I::ProtocolError, &[15, 9]), dead(ProtocolError), P, &[]),
        ("6 supervisor gone", v2(kill).intent(I::SupervisorGone, &[9]).lost(supervisor_lost()), dead(SupervisorLost), P, &[]),
        ("4 before 6: oom, then the supervisor went", v2(kill).leaf_oom().intent(I::SupervisorGone, &[9]).lost(supervisor_lost()), dead(OomJobLimit), P, &[]),
        ("6 before 16: gone first, then rebooted", v2(kill).intent(I::SupervisorGone, &[9]).lost(rebooted()), dead(SupervisorLost), P, &[]),
        ("6 before 16: timeout", v2(kill).intent(I::Timeout, &[15, 9]).lost(supervisor_lost()), dead(Timeout), P, &[]),
        ("6 before 7: failed in answer to our cancel", v2(Exited(0)).intent(I::Cancelled, &[15]).protocol(failed_frame(false, false)), dead(Cancelled), P, &[]),
        ("6 before 9: a crash when told to stop", v2(Signaled(11)).intent(I::Timeout, &[15]), dead(Timeout), P, &[]),
        ("6 lingered without an outcome", v2(kill).intent(I::Linger, &[9]), dead(KilledUnknown), (Proved, Unknown), &[]),
        ("7 failed", v2(Exited(0)).protocol(failed_frame(false, false)), dead(JobError), P, &[]),
        ("7 failed for good", v2(Exited(0)).protocol(failed_frame(false, true)), dead(JobError), P, &[Permanent]),
        ("7 allocation failed", v2(Exited(0)).protocol(failed_frame(true, false)), dead(AllocFailed), P, &[]),
        ("7 failed, then lingered", v2(kill).intent(I::Linger, &[15, 9]).protocol(failed_frame(false, false)), dead(JobError), P, &[]),
        ("7 before 8", v2(Exited(1)).both(only_kills).protocol(failed_frame(false, false)), dead(JobError), P, &[]),
        ("7 snooze", v2(Exited(0)).protocol(Some(LastWord::Snooze { seconds: 5.0 })), Ending::Snoozed, P, &[]),
        ("7 light job, no process", nobody_saw(v2(kill)).protocol(failed_frame(false, false)), dead(JobError), P, &[]),
        ("8 exit 137 with a kill", v2(Exited(137)).both(only_kills), dead(OomDescendant), PI, &[]),
        ("8 before 14: exit 0 with a kill", v2(Exited(0)).both(only_kills), dead(OomDescendant), PI, &[]),
        ("8 exit 0 with a kill, v1", v1(Exited(0), 1, 64 << 20), dead(OomDescendant), PI, &[]),
        ("8 exit 0 with a kill, tolerated", tolerant(v2(Exited(0)).both(only_kills)), OK, P, &[OomCasualty]),
        ("8 exit 1 with a kill, tolerated: still no success", tolerant(v2(Exited(1)).both(only_kills)), dead(OomDescendant), PI, &[]),
        ("8 before 9: abort with a kill", v2(Signaled(6)).both(only_kills), dead(OomDescendant), PI, &[]),
        ("8 a group kill that spared the main process", v2(Exited(1)).leaf_oom(), dead(OomDescendant), PI, &[]),
        ("9 segv", v2(Signaled(11)), dead(Crash), PI, &[]),
        ("9 abort", v2(Signaled(6)), dead(Crash), PI, &[]),
        ("9 abort after a failed allocation", v2(Signaled(6)).said(|s| s.stderr_tail = "memory allocation of 67108864 bytes failed\n".into()), dead(AllocFailed), PI, &[]),
        ("9 the words without the abort", v2(Exited(1)).said(|s| s.stderr_tail = "memory allocation of 67108864 bytes failed\n".into()), dead(ExitNonzero), (Proved, Unknown), &[]),
        ("9 cpu limit", v2(Signaled(24)), dead(CpuLimit), PI, &[]),
        ("9 before 16", v2(Signaled(11)).lost(supervisor_lost()), dead(Crash), PI, &[]),
        ("16 before 9: broken pipe of a lost supervisor", v2(Signaled(13)).lost(supervisor_lost()), dead(SupervisorLost), PI, &[]),
    ]
}

#[rustfmt::skip]
fn rules_10_to_16() -> Vec<Row> {
    use Flag::{Leaked, Permanent, Truncated, Watchdog};
    const P: (Sureness, Sureness) = (Proved, Proved);
    const PI: (Sureness, Sureness) = (Proved, Inferred);
    const PU: (Sureness, Sureness) = (Proved, Unknown);
    let kill = Signaled(9);
    vec![
        ("10 kill -9", v2(kill), dead(KilledExternal), PU, &[]),
        ("10 limit reached, nothing killed by it", v2(kill).both(|c| { c.limit_hits = Some(900); c.peak = Some(64 << 20); }), dead(KilledExternal), PU, &[]),
        ("11 unreadable", no_cgroup(kill), dead(KilledUnknown), (Unknown, Unknown), &[Watchdog]),
        ("11 the host's count is a hint", no_cgroup(kill).with(|p| p.host_oom_kills = (Some(4), Some(5))), dead(KilledUnknown), (Unknown, Unknown), &[Watchdog]),
        ("11 numbers of an unreadable leaf count for nothing", v2(kill).leaf_oom().with(|p| p.counters_readable = false), dead(KilledUnknown), (Unknown, Unknown), &[]),
        ("12 term from outside", v2(Signaled(15)), dead(KilledExternal), PU, &[]),
        ("12 i9 term 1 s after our stop", stopped_at(v2(Signaled(15)), STOP - 1), dead(Drained), (Inferred, Inferred), &[]),
        ("12 i9 int with our stop", stopped_at(v2(Signaled(2)), STOP), dead(Drained), (Inferred, Inferred), &[]),
        ("12 term 3 s after our stop", stopped_at(v2(Signaled(15)), STOP - 3), dead(KilledExternal), PU, &[]),
        ("12 kill is not term", stopped_at(v2(kill), STOP - 1), dead(KilledExternal), PU, &[]),
        ("another signal", v2(Signaled(10)), dead(KilledExternal), PU, &[]),
        ("broken protocol, ended by itself", v2(Exited(0)).protocol(None).said(|s| s.violation = Some("not JSON".into())), dead(ProtocolError), P, &[]),
        ("9 before broken protocol", v2(Signaled(11)).protocol(None).said(|s| s.violation = Some("cut frame".into())), dead(Crash), PI, &[]),
        ("13 exit 1", v2(Exited(1)), dead(ExitNonzero), PU, &[]),
        ("13 exit 137 proves nothing", v2(Exited(137)).both(|c| c.peak = Some(64 << 20)), dead(ExitNonzero), PU, &[]),
        ("13 retry", v2(Exited(75)).means(ExitMeaning::Retry), dead(ExitNonzero), P, &[]),
        ("13 permanent", v2(Exited(65)).means(ExitMeaning::Permanent), dead(ExitNonzero), P, &[Permanent]),
        ("13 protocol exit 2", v2(Exited(2)).protocol(None), dead(ExitNonzero), PU, &[]),
        ("13 before 16", v2(Exited(2)).lost(supervisor_lost()), dead(ExitNonzero), PU, &[]),
        ("14 oneshot exit 0", v2(Exited(0)), OK, P, &[]),
        ("14 oneshot exit that means success", v2(Exited(3)).means(ExitMeaning::Success), OK, P, &[]),
        ("14 oneshot snooze", v2(Exited(76)).means(ExitMeaning::Snooze), Ending::Snoozed, P, &[]),
        ("14 protocol exit 0", v2(Exited(0)).protocol(None), dead(ExitWithoutResult), P, &[]),
        ("14 exit 0 with leftovers", v2(Exited(0)).with(|p| p.leftovers = vec![Leftover { pid: 5, comm: "sleep".into(), stuck_in: None }]), OK, P, &[Leaked]),
        ("14 a long result", v2(Exited(0)).said(|s| s.truncated = true), OK, P, &[Truncated]),
        ("15 unkillable", v2(kill).intent(IntentReason::Timeout, &[15, 9]).with(|p| p.unkillable = stuck()), dead(Unkillable), PI, &[]),
        ("15 unkillable leftover of a success", v2(Exited(0)).protocol(Some(LastWord::Done)).with(|p| p.unkillable = stuck()), dead(Unkillable), PI, &[]),
        ("16 supervisor", nobody_saw(v2(kill)).lost(supervisor_lost()), dead(SupervisorLost), PI, &[]),
        ("16 supervisor, exit 0", v2(Exited(0)).lost(supervisor_lost()), dead(SupervisorLost), PI, &[]),
        ("16 before 10: killed with its supervisor", v2(kill).lost(supervisor_lost()), dead(SupervisorLost), PI, &[]),
        ("16 warden", nobody_saw(v2(kill)).lost(warden_lost()), dead(WardenLost), P, &[]),
        ("16 host", nobody_saw(v2(kill)).lost(rebooted()), dead(HostRebooted), P, &[]),
        ("nothing seen", Evidence::default(), dead(KilledUnknown), (Unknown, Unknown), &[]),
        ("nothing made", Evidence { process: Some(ProcessEvidence::default()), ..Evidence::default() }, dead(SpawnFailed), (Inferred, Unknown), &[]),
        ("status stolen", v2(kill).with(|p| p.exit = None), dead(KilledUnknown), (Unknown, Unknown), &[]),
    ]
}

#[test]
fn i3_each_rule_and_each_tie_is_judged_as_specified() {
    let mut wrong = Vec::new();
    for (name, evidence, ending, (kill, reason), flags) in
        [rules_0_to_5(), rules_6_to_9(), rules_10_to_16()].into_iter().flatten()
    {
        let verdict = judge(&evidence);
        let expected = (ending, Certainty { kill, reason }, flags.to_vec());
        let got = (verdict.ending, verdict.certainty, verdict.flags);
        if got != expected {
            wrong.push(format!("{name}:\n  expected {expected:?}\n  got      {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_was_no_cause_is_told_beside_it() {
    let timeout = v2(Signaled(9)).both(only_kills).intent(IntentReason::Timeout, &[15, 9]);
    assert_eq!(judge(&timeout).contributing, ["the kernel's OOM killer had struck in the job's group before the end"]);
    let late = v2(Exited(0)).with(|p| p.after_kill.oom_kill = Some(1));
    assert_eq!(
        judge(&late).contributing,
        ["the kernel's OOM killer struck a leftover process while the leftovers were being killed"]
    );
    let stuck_success = v2(Exited(0)).with(|p| p.unkillable = stuck());
    assert_eq!(
        judge(&stuck_success).contributing,
        ["apart from that it had succeeded", "processes that do not die of SIGKILL: dd (pid 99, stuck in D nfs_wait)"]
    );
}
