//! Every sentence, held by a snapshot.

use proptest::prelude::*;

use super::super::evidence::{ExitMeaning, IntentReason, Leftover, Stage, WatchdogStrike};
use super::super::job::Budget;
use super::super::verdict::judge;
use super::super::verdict::tests::{
    STOP, With, ancestor_oom, before_exec, failed_frame, no_cgroup, nobody_saw, only_kills, oomd, properties, rebooted,
    start_failure, stopped_at, stuck, supervisor_lost, v1, v2, warden_lost,
};
use super::*;
use ExitStatus::{Exited, Signaled};

const BUDGET: Budget = Budget { charged: 1, max_attempts: 3, interruptions: 0, max_interruptions: 5 };

fn growing(e: Evidence) -> Evidence {
    e.with(|p| p.memory.series = vec![(0.0, 5 << 20), (0.5, 30 << 20), (1.0, 62 << 20)])
}

fn struck(e: Evidence) -> Evidence {
    e.intent(IntentReason::MemWatchdog, &[9])
        .with(|p| p.watchdog = Some(WatchdogStrike { seen: 70 << 20, limit: 64 << 20, at_s: 2.0 }))
}

fn of_memory() -> Vec<(&'static str, Evidence)> {
    let kill = Signaled(9);
    vec![
        ("own limit, v2", growing(v2(kill).leaf_oom())),
        ("own limit, v1", v1(kill, 1, 64 << 20)),
        ("own limit, much of it tmpfs", v2(kill).leaf_oom().both(|c| c.shmem = Some(32 << 20))),
        ("own limit while stopping", v2(kill).leaf_oom().intent(IntentReason::Timeout, &[15, 9])),
        ("another process, exit 0", v2(Exited(0)).both(only_kills)),
        ("another process, own limit", v2(Exited(137)).leaf_oom()),
        ("at start", before_exec(v2(kill).leaf_oom())),
        ("ancestor", ancestor_oom(v2(kill).both(only_kills))),
        ("ancestor, v1", ancestor_oom(v1(kill, 1, 20 << 20))),
        ("host", v2(kill).both(only_kills)),
        ("oomd", oomd(v2(kill))),
        ("watchdog", struck(no_cgroup(kill))),
        ("reported", v2(Exited(1)).protocol(failed_frame(true, false))),
    ]
}

fn of_ourselves() -> Vec<(&'static str, Evidence)> {
    let kill = Signaled(9);
    vec![
        ("timeout", v2(kill).intent(IntentReason::Timeout, &[15, 9])),
        ("timeout, waiting", v2(kill).intent(IntentReason::Timeout, &[15, 9]).with(|p| p.cpu_s = Some(0.2))),
        (
            "timeout, short of memory",
            v2(kill).intent(IntentReason::Timeout, &[15, 9]).both(|c| c.limit_hits = Some(883)),
        ),
        ("start timeout", v2(kill).intent(IntentReason::StartTimeout, &[9])),
        ("cancelled", v2(Signaled(15)).intent(IntentReason::Cancelled, &[15])),
        ("drained", v2(Signaled(15)).intent(IntentReason::Drained, &[15])),
        ("drained, inferred", stopped_at(v2(Signaled(15)), STOP - 1)),
        ("fenced", v2(kill).intent(IntentReason::Fenced, &[9])),
        ("fenced after a freeze", v2(kill).intent(IntentReason::Fenced, &[9]).with(|p| p.frozen_s = 4.2)),
        (
            "refused past the trust deadline",
            v2(kill).with(|p| {
                p.start_failure = start_failure("trust");
                (p.exit, p.stage) = (None, Stage::NotForked);
            }),
        ),
        ("output limit", v2(kill).intent(IntentReason::OutputLimit, &[9])),
        (
            "protocol",
            v2(kill)
                .protocol(None)
                .intent(IntentReason::ProtocolError, &[9])
                .said(|s| s.violation = Some("line 3 is not JSON".into())),
        ),
        (
            "supervisor lost, told by the warden",
            v2(kill).intent(IntentReason::SupervisorGone, &[9]).lost(supervisor_lost()),
        ),
        ("supervisor lost", nobody_saw(v2(kill)).lost(supervisor_lost())),
        ("warden lost", nobody_saw(v2(kill)).lost(warden_lost())),
        ("rebooted", nobody_saw(v2(kill)).lost(rebooted())),
    ]
}

fn of_the_job() -> Vec<(&'static str, Evidence)> {
    let kill = Signaled(9);
    vec![
        ("success", v2(Exited(0))),
        ("snoozed", v2(Exited(76)).means(ExitMeaning::Snooze)),
        ("died after its result", v2(Signaled(11)).protocol(Some(super::super::evidence::LastWord::Done))),
        (
            "leftovers",
            v2(Exited(0)).with(|p| p.leftovers = vec![Leftover { pid: 5, comm: "sleep".into(), stuck_in: None }]),
        ),
        ("refused", Evidence { refused: Some("`{payload.file}` is not in the payload".into()), ..Evidence::default() }),
        ("job error", v2(Exited(1)).protocol(failed_frame(false, false))),
        ("exit 1", v2(Exited(1))),
        ("exit 65", v2(Exited(65)).means(ExitMeaning::Permanent)),
        ("exit 127", v2(Exited(127))),
        ("exit 137", v2(Exited(137))),
        ("exit 1, MemoryError", v2(Exited(1)).said(|s| s.stderr_tail = "Traceback\nMemoryError\n".into())),
        ("no result", v2(Exited(0)).protocol(None)),
        ("crash", v2(Signaled(11))),
        ("crash, stack", v2(Signaled(6)).said(|s| s.stderr_tail = "thread 'main' has overflowed its stack\n".into())),
        ("cpu limit", v2(Signaled(24))),
        ("killed from outside", v2(kill)),
        ("ended from outside", v2(Signaled(15))),
        ("killed, unreadable", no_cgroup(kill)),
        ("killed, unreadable, host hint", no_cgroup(kill).with(|p| p.host_oom_kills = (Some(4), Some(5)))),
        ("killed, unreadable, near its limit", growing(no_cgroup(kill))),
        ("nothing seen", Evidence::default()),
        ("exec fails", v2(Exited(127)).with(|p| p.start_failure = start_failure("exec"))),
        ("leaf fails", v2(kill).with(|p| p.start_failure = start_failure("leaf"))),
        ("unkillable", v2(kill).intent(IntentReason::Timeout, &[15, 9]).with(|p| p.unkillable = stuck())),
    ]
}

fn story(cases: Vec<(&'static str, Evidence)>) -> String {
    let mut text = String::new();
    for (name, e) in cases {
        let verdict = judge(&e);
        let cause = verdict.ending.cause().map_or("no cause", Cause::code);
        let mut lines = vec![format!("== {name}: {cause}"), summary(&verdict, &e)];
        lines.extend(proof(&verdict, &e).into_iter().map(|line| format!("  proof   {line}")));
        lines.extend(verdict.contributing.iter().map(|line| format!("  beside  {line}")));
        lines.extend(advice(&verdict, &e, &BUDGET).into_iter().map(|line| format!("  advice  {line}")));
        text += &(lines.join("\n") + "\n\n");
    }
    text
}

#[test]
fn the_story_of_every_death_of_memory() {
    insta::assert_snapshot!(story(of_memory()));
}

#[test]
fn the_story_of_every_ending_that_is_ours() {
    insta::assert_snapshot!(story(of_ourselves()));
}

#[test]
fn the_story_of_every_ending_that_is_the_jobs() {
    insta::assert_snapshot!(story(of_the_job()));
}

#[test]
fn every_cause_that_a_process_can_bring_about_has_a_story() {
    let told: Vec<_> = [of_memory(), of_ourselves(), of_the_job()]
        .into_iter()
        .flatten()
        .filter_map(|(_, e)| judge(&e).ending.cause())
        .collect();
    let light = [Cause::Panic, Cause::Blocked];
    let missing: Vec<_> = Cause::ALL.iter().filter(|c| !told.contains(c) && !light.contains(c)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

proptest! {
    #[test]
    fn i3_no_sentence_speaks_of_memory_running_out_without_such_a_cause(e in properties::evidence().boxed()) {
        let verdict = judge(&e);
        let text = summary(&verdict, &e);
        if !verdict.ending.cause().is_some_and(Cause::is_oom) {
            prop_assert!(!text.contains("OOM") && !text.to_lowercase().contains("out of memory"), "{text}");
        }
        prop_assert!(!text.is_empty());
        let further = [proof(&verdict, &e), advice(&verdict, &e, &BUDGET)].concat();
        prop_assert!(further.iter().all(|line| !line.is_empty()));
    }
}
