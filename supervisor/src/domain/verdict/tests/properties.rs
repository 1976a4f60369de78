//! Properties over any evidence, also such as no warden would write.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::*;

fn counter() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![2 => Just(Some(0)), 2 => Just(Some(1)), 1 => Just(None), 1 => any::<u64>().prop_map(Some)]
}

prop_compose! {
    fn counters()(a in prop::array::uniform6(counter()), b in prop::array::uniform6(counter())) -> Counters {
        let [oom, oom_kill, oom_group_kill, limit_hits, high, peak] = a;
        let [current, anon, file, shmem, pids_max_hits, oomd_ooms] = b;
        Counters { oom, oom_kill, oom_group_kill, limit_hits, high, peak, current, anon, file, shmem, pids_max_hits, oomd_ooms }
    }
}

prop_compose! {
    fn ancestor()(limit in of(any::<u64>()), c in prop::array::uniform4(counter())) -> Ancestor {
        let [oom_before, oom_after, before, after] = c;
        Ancestor { path: "/jobs".into(), limit: limit.map(Bytes), oom_before, oom_after, oomd: (before, after) }
    }
}

fn exit() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![
        prop_oneof![Just(0), Just(1), Just(137), 0..256].prop_map(Exited),
        prop_oneof![Just(9), Just(15), Just(6), Just(11), 1..65].prop_map(Signaled),
    ]
}

fn reason() -> impl Strategy<Value = IntentReason> {
    use IntentReason::*;
    prop::sample::select(vec![
        Timeout,
        StartTimeout,
        Cancelled,
        Drained,
        MemWatchdog,
        OutputLimit,
        Fenced,
        ProtocolError,
        Linger,
        SupervisorGone,
    ])
}

fn time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![(STOP - 5..STOP + 5).prop_map(second), Just(Timestamp::MIN), Just(Timestamp::MAX)]
}

fn leftover() -> impl Strategy<Value = Leftover> {
    of(Just("D wait".to_owned())).prop_map(|stuck_in| Leftover { pid: 1, comm: "x".into(), stuck_in })
}

prop_compose! {
    fn life()(
        enforcement in prop::sample::select(vec![Enforcement::CgroupV2, Enforcement::CgroupV1, Enforcement::Watchdog]),
        pid in of(any::<i32>()),
        ended_at in of(time()),
        stage in prop::sample::select(vec![Stage::NotForked, Stage::BeforeExec, Stage::AfterExec, Stage::AfterExec]),
        start_failure in prop::option::weighted(0.1, prop::sample::select(vec!["leaf", "exec"])),
        exit in prop::option::weighted(0.9, exit()),
        intent in prop::option::weighted(0.4, (reason(), any::<f64>(), vec((prop_oneof![Just(9), Just(15)], any::<f64>()), 0..3))),
        strike in prop::option::weighted(0.1, any::<(u64, u64, f64)>()),
        cpu_s in of(any::<f64>()),
        wall_s in of(any::<f64>()),
        unkillable in prop::option::weighted(0.1, leftover()),
        leftovers in vec(leftover(), 0..10),
    ) -> ProcessEvidence {
        ProcessEvidence {
            enforcement, pid, ended_at, stage, exit, cpu_s, wall_s, leftovers,
            start_failure: start_failure.and_then(start_failure_of),
            intent: intent.map(|(reason, at_s, signals)| Intent { reason, at_s, signals }),
            watchdog: strike.map(|(seen, limit, at_s)| WatchdogStrike { seen, limit, at_s }),
            unkillable: unkillable.into_iter().collect(),
            ..ProcessEvidence::default()
        }
    }
}

fn start_failure_of(step: &str) -> Option<StartFailure> {
    start_failure(step)
}

prop_compose! {
    fn process()(
        life in life().boxed(),
        counters_readable in any::<bool>(),
        baseline in counters().boxed(),
        at_exit in counters().boxed(),
        after_kill in counters().boxed(),
        ancestors in vec(ancestor(), 0..3),
        host_oom_kills in (counter(), counter()),
        limit in of(any::<u64>()),
        peak in of(any::<u64>()),
        sampled in any::<bool>(),
        series in vec((any::<f64>(), any::<u64>()), 0..130),
        major_faults in counter(),
    ) -> ProcessEvidence {
        let source = if sampled { PeakSource::Sampled } else { PeakSource::Cgroup };
        let memory = super::super::super::evidence::MemoryPicture { limit: limit.map(Bytes), peak: peak.map(Bytes), source, series };
        ProcessEvidence {
            counters_readable, baseline, at_exit, after_kill, ancestors, host_oom_kills, memory, major_faults, ..life
        }
    }
}

fn last_word() -> impl Strategy<Value = LastWord> {
    prop_oneof![
        Just(LastWord::Done),
        any::<(bool, bool, bool)>().prop_map(|(permanent, alloc, answers_cancel)| LastWord::Failed {
            message: "\u{1b}[2Jit broke".into(),
            permanent,
            alloc,
            answers_cancel
        }),
        any::<f64>().prop_map(|seconds| LastWord::Snooze { seconds }),
    ]
}

prop_compose! {
    fn said()(
        protocol in any::<bool>(),
        last_word in of(last_word()),
        exit_meaning in of(prop::sample::select(vec![ExitMeaning::Success, ExitMeaning::Retry, ExitMeaning::Permanent, ExitMeaning::Snooze])),
        violation in prop::option::weighted(0.1, Just("not JSON".to_owned())),
        stderr_tail in prop::sample::select(vec!["", "Killed\n", "MemoryError\n", "memory allocation of 9 bytes failed\n"]),
        truncated in any::<bool>(),
        stdout_bytes in 0..2_u64,
    ) -> Said {
        let speech = if protocol { Speech::Protocol } else { Speech::ExitStatus };
        Said { speech, last_word, exit_meaning, violation, stderr_tail: stderr_tail.into(), truncated, stdout_bytes, stderr_bytes: 0 }
    }
}

prop_compose! {
    /// Any evidence.
    pub(crate) fn evidence()(
        process in prop::option::weighted(0.9, process().boxed()),
        said in said().boxed(),
        loss in prop::option::weighted(0.2, prop::sample::select(vec![supervisor_lost(), warden_lost(), rebooted()])),
        own_stop in of(time()),
        refused in prop::option::weighted(0.05, Just("refused".to_owned())),
        tolerate_oom in any::<bool>(),
    ) -> Evidence {
        Evidence { process, said, loss, own_stop, refused, tolerate_oom }
    }
}

/// Read anew from the raw numbers, so that a fault in the rules' own readings shows.
fn proof_of_oom(e: &Evidence) -> bool {
    let reported = matches!(e.said.last_word, Some(LastWord::Failed { alloc: true, .. }));
    let Some(p) = &e.process else { return reported };
    let grew = |before: Option<u64>, after: Option<u64>| after > before && after > Some(0);
    let counter = p.counters_readable
        && matches!((p.baseline.oom_kill, p.at_exit.oom_kill), (Some(before), Some(after)) if after > before);
    let oomd = grew(p.baseline.oomd_ooms, p.at_exit.oomd_ooms) || p.ancestors.iter().any(|a| grew(a.oomd.0, a.oomd.1));
    let watchdog = p.watchdog.is_some() || p.intent.as_ref().is_some_and(|i| i.reason == IntentReason::MemWatchdog);
    let aborted = p.exit == Some(Signaled(6)) && e.said.stderr_tail.contains("memory allocation of");
    reported || counter || oomd || watchdog || aborted
}

proptest! {
    #[test]
    fn i3_no_cause_says_out_of_memory_without_proof(e in evidence().boxed()) {
        let verdict = judge(&e);
        if verdict.ending.cause().is_some_and(Cause::is_oom) {
            prop_assert!(proof_of_oom(&e), "{verdict:?}");
        }
    }

    #[test]
    fn i3_a_killer_is_called_foreign_only_when_it_was_neither_we_nor_the_kernel(e in evidence().boxed()) {
        if judge(&e).ending == Ending::Failed(KilledExternal) {
            let p = e.process.as_ref().unwrap();
            prop_assert!(p.intent.is_none(), "our own kill was called foreign");
            let unchanged = p.counters_readable && p.delta(|c| c.oom_kill) == Some(0);
            prop_assert!(p.exit != Some(Signaled(9)) || unchanged, "SIGKILL was called foreign without readable counters");
        }
    }

    #[test]
    fn a_complete_result_is_a_success_unless_a_helper_was_oom_killed_or_something_does_not_die(mut e in evidence().boxed()) {
        e.said.last_word = Some(LastWord::Done);
        e.refused = None;
        if let Some(p) = &mut e.process {
            p.start_failure = None;
            p.stage = Stage::AfterExec;
        }
        let ending = judge(&e).ending;
        let ruled = matches!(ending, Ending::Succeeded | Ending::Failed(OomDescendant | Unkillable));
        prop_assert!(ruled, "{ending:?}");
    }

    #[test]
    fn what_does_not_die_is_told_whatever_else_happened(e in evidence().boxed()) {
        let stuck = e.process.as_ref().is_some_and(|p| !p.unkillable.is_empty());
        prop_assert_eq!(judge(&e).ending == Ending::Failed(Unkillable), stuck);
    }

    #[test]
    fn a_success_was_said_or_exited(e in evidence().boxed()) {
        if judge(&e).ending == Ending::Succeeded {
            let exited = matches!(e.process.as_ref().and_then(|p| p.exit), Some(Exited(_)));
            prop_assert!(e.said.last_word == Some(LastWord::Done) || (exited && e.said.speech == Speech::ExitStatus && e.loss.is_none()));
        }
    }

    #[test]
    fn a_stored_verdict_is_read_back(e in evidence().boxed()) {
        let verdict = judge(&e);
        let read: Verdict = serde_json::from_str(&serde_json::to_string(&verdict).unwrap()).unwrap();
        prop_assert_eq!(read, verdict);
    }
}
