//! The words and the layout, held by snapshots; the contract, key by key.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::*;
use crate::domain::cause::Cause;
use crate::domain::evidence::{Evidence, ExitStatus, IntentReason, LastWord, Leftover};
use crate::domain::ids::{AttemptNo, JobId, Term};
use crate::domain::job::{Budget, Job, JobState};
use crate::domain::units::Bytes;
use crate::domain::verdict::judge;
use crate::domain::verdict::tests::{With, failed_frame, no_cgroup, supervisor_lost, v1, v2};
use crate::runtime::dispatcher::{HeldOutcome, PieceRun, RunningAttempt, Snapshot};
use crate::store::{AttemptRecord, AttemptRow, Count, Identity, PausedKind, TermRow};

const NOW: i64 = 1_700_000_600;
const KILL: ExitStatus = ExitStatus::Signaled(9);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(NOW - 600 + second).unwrap()
}

fn job(id: i64, kind: &str, state: JobState, attempt: u32, cause: Option<Cause>) -> Job {
    Job {
        id: JobId(id),
        kind: kind.into(),
        state,
        priority: 0,
        tenant: String::new(),
        payload: r#"{"file":"bomb.gz"}"#.into(),
        result: None,
        attempt: AttemptNo(attempt),
        budget: Budget { charged: attempt, max_attempts: 3, interruptions: 0, max_interruptions: 5 },
        memory: Some(Bytes::mib(64)),
        cause,
        unique_key: None,
        schedule: None,
        cancel_requested: false,
        created_at: at(-30),
        run_at: at(-30),
        claimed_at: (attempt > 0).then(|| at(-11)),
        finished_at: state.is_final().then(|| at(1)),
        peak: cause.map(|_| Bytes::mib(64)),
    }
}

fn row(attempt: u32, evidence: Evidence) -> AttemptRow {
    AttemptRow {
        attempt: AttemptNo(attempt),
        term: Term::default(),
        verdict: Some(judge(&evidence)),
        charged: true,
        claimed_at: at(-11),
        finished_at: Timestamp::from_microsecond((NOW - 600) * 1_000_000 + 20_500).unwrap(),
        record: AttemptRecord {
            started_at: Some(at(-10)),
            ended_at: Some(at(0)),
            supervisor: "a".into(),
            host: "alpha".into(),
            evidence,
            ..AttemptRecord::default()
        },
        late_outcome: None,
    }
}

fn oom() -> Evidence {
    v2(KILL).leaf_oom().with(|p| {
        p.memory.series =
            (0..120).map(|n| (f64::from(n) / 10.0, u64::try_from(n).unwrap() * (64 << 20) / 119)).collect();
        p.major_faults = Some(3);
        p.leftovers = vec![Leftover { pid: 5, comm: "gz\u{1b}ip".into(), stuck_in: None }];
    })
}

fn dead_of_memory() -> Report {
    let mut first = row(1, oom());
    let noise: String = (1..=30).map(|n| format!("line {n}\n")).collect();
    first.record.output_tail = noise + "\u{1b}[31mred\u{1b}[0m\r\n";
    let mut second = row(2, v2(KILL).leaf_oom().with(|p| p.memory.series.clear()));
    second.charged = false;
    second.verdict = None;
    second.record.evidence = Evidence::default();
    second.record.started_at = None;
    second.record.ended_at = None;
    let mut third = row(3, v1(KILL, 1, 64 << 20));
    third.late_outcome = Some(r#"{"ending":"succeeded"}"#.into());
    let mut job = job(7, "ingest", JobState::Dead, 3, Some(Cause::OomJobLimit));
    job.payload = format!("{{\"text\":\"{}\"}}", "x".repeat(500));
    job.schedule = Some("quickstart".into());
    Report { job, attempts: vec![first, second, third] }
}

fn failed_in_its_own_words() -> Report {
    let mut only = row(1, v2(ExitStatus::Exited(1)).protocol(failed_frame(false, true)));
    only.record.message = Some("no such page: \u{1b}]0;owned\u{7}\nsecond line".into());
    only.record.trace = Some("Traceback (most recent call last):\n  File \"a.py\", line 3\nKeyError: 'x'".into());
    Report { job: job(8, "page\u{1b}[2J", JobState::Dead, 1, Some(Cause::JobError)), attempts: vec![only] }
}

fn running_again() -> Report {
    let mut job = job(9, "ingest", JobState::Running, 2, Some(Cause::Timeout));
    job.claimed_at = Some(at(590));
    job.cancel_requested = true;
    Report { job, attempts: vec![row(1, v2(KILL).intent(IntentReason::Timeout, &[15, 9]))] }
}

fn succeeded() -> Report {
    let mut job = job(10, "ingest", JobState::Succeeded, 2, Some(Cause::ExitNonzero));
    job.result = Some(r#"{"words":12}"#.into());
    let died_late = v2(ExitStatus::Signaled(11)).protocol(Some(LastWord::Done));
    Report { job, attempts: vec![row(1, no_cgroup(ExitStatus::Exited(1))), row(2, died_late)] }
}

fn scheduled() -> Report {
    let mut job = job(11, "ingest", JobState::Scheduled, 1, Some(Cause::SupervisorLost));
    job.run_at = at(660);
    let lost = Evidence { process: None, loss: Some(supervisor_lost()), ..Evidence::default() };
    Report { job, attempts: vec![row(1, lost)] }
}

fn page(report: &Report) -> String {
    text(report, at(600), false)
}

#[test]
fn the_whole_story_of_a_job_that_died_of_its_limit() {
    insta::assert_snapshot!(page(&dead_of_memory()));
}

#[test]
fn the_whole_story_of_other_jobs() {
    let pages = [failed_in_its_own_words(), running_again(), succeeded(), scheduled()].map(|r| page(&r));
    insta::assert_snapshot!(pages.join("----\n"));
}

#[test]
fn nothing_that_comes_from_a_job_reaches_the_terminal_as_a_command() {
    for report in [dead_of_memory(), failed_in_its_own_words()] {
        let page = page(&report);
        assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
        assert!(page.contains("\\x1b"));
        let tables = list_table(std::slice::from_ref(&report.job)) + &summary_table(std::slice::from_ref(&report.job));
        assert!(tables.chars().all(|c| c == '\n' || !c.is_control()), "{tables:?}");
    }
}

#[test]
fn colour_changes_nothing_but_colour() {
    let report = dead_of_memory();
    let coloured = text(&report, at(600), true);
    assert!(coloured.contains("\u{1b}[1;31mdead\u{1b}[0m"));
    let mut plain = String::new();
    for part in coloured.split('\u{1b}') {
        plain += part.strip_prefix('[').and_then(|rest| rest.split_once('m')).map_or(part, |(_, rest)| rest);
    }
    assert_eq!(plain, page(&report));
}

#[test]
fn json_is_the_contract() {
    let mut value = json(&dead_of_memory());
    let attempts = value["attempts"].as_array_mut().unwrap();
    for attempt in attempts.iter_mut() {
        assert!(attempt["evidence"].is_object());
        attempt["evidence"] = Value::String("…".into());
    }
    attempts[0]["memory"]["series"].as_array_mut().unwrap().truncate(2);
    insta::assert_snapshot!(serde_json::to_string_pretty(&value).unwrap());
}

#[test]
fn every_key_is_there_whatever_is_known() {
    const JOB: [&str; 15] = [
        "attempt",
        "attempts",
        "charged",
        "created_at",
        "finished_at",
        "id",
        "interruptions",
        "kind",
        "max_attempts",
        "payload",
        "priority",
        "result",
        "run_at",
        "state",
        "tenant",
    ];
    const ATTEMPT: [&str; 25] = [
        "attempt",
        "cause",
        "certainty",
        "charged",
        "claimed_at",
        "contributing",
        "cpu_s",
        "duration_s",
        "enforcement",
        "evidence",
        "exit_code",
        "finished_at",
        "flags",
        "host",
        "late_outcome",
        "major_faults",
        "memory",
        "message",
        "output_tail",
        "pid",
        "signal",
        "started_at",
        "summary",
        "supervisor",
        "trace",
    ];
    let keys = |value: &Value| {
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort_unstable();
        keys
    };
    for report in [dead_of_memory(), failed_in_its_own_words(), running_again(), succeeded(), scheduled()] {
        let value = json(&report);
        assert_eq!(keys(&value), JOB);
        for attempt in value["attempts"].as_array().unwrap() {
            assert_eq!(keys(attempt), ATTEMPT);
            assert_eq!(keys(&attempt["certainty"]), ["kill", "reason"]);
            assert_eq!(keys(&attempt["memory"]), ["limit", "oom_kills", "peak", "series", "source"]);
        }
    }
    assert_eq!(json(&succeeded())["attempts"][1]["cause"], Value::Null);
    assert_eq!(json(&succeeded())["result"]["words"], 12);
    let line = list_json_line(&succeeded().job);
    assert_eq!(keys(&line), ["attempt", "cause", "created_at", "finished_at", "id", "kind", "peak", "state"]);
}

#[test]
fn lists_are_tables() {
    let jobs = [
        job(1, "ingest", JobState::Succeeded, 1, None),
        job(2, "ingest", JobState::Succeeded, 2, Some(Cause::ExitNonzero)),
        job(3, "ingest", JobState::Dead, 3, Some(Cause::OomJobLimit)),
        job(12, "render", JobState::Dead, 1, Some(Cause::Crash)),
        job(13, "render", JobState::Queued, 0, None),
    ];
    insta::assert_snapshot!(format!("{}\n{}\n{}", list_table(&jobs), summary_table(&jobs), summary_table(&[])));
}

fn term_row(name: &str, n: u128, kinds: &[&str]) -> TermRow {
    TermRow {
        term: Term(uuid::Uuid::from_u128(n)),
        name: name.into(),
        host: "alpha".into(),
        pid: 4711,
        boot_id: "b".into(),
        started_at: at(0),
        last_seen: at(590),
        ended_at: None,
        lost_at: None,
        expired: false,
        beat: 7,
        lease: Duration::from_secs(30),
        identity: Identity::default(),
        version: "0.1.0".into(),
        kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        snapshot: None,
    }
}

fn fleet() -> Vec<(TermRow, TermState)> {
    let ended = TermRow { ended_at: Some(at(300)), ..term_row("a", 1, &["ingest"]) };
    let lost = TermRow { lost_at: Some(at(300)), ..term_row("b\u{1b}[2J", 2, &[]) };
    let rows = [(term_row("a", 4, &["ingest", "render"]), true), (term_row("c", 3, &["ingest"]), false)];
    let rows = rows.into_iter().chain([(lost, false), (ended, false)]);
    rows.map(|(row, holds)| {
        let state = TermState::of(&row, holds);
        (row, state)
    })
    .collect()
}

fn stats() -> Vec<KindStats> {
    let count = |kind: &str, state, jobs| Count { kind: kind.into(), state, attempted: 0, jobs, smallest: None };
    let counts = [
        count("ingest", JobState::Queued, 3),
        count("ingest", JobState::Dead, 1),
        count("gho\u{1b}st", JobState::Queued, 2),
        count("render", JobState::Succeeded, 12),
    ];
    let paused = PausedKind { kind: "later".into(), since: at(60), by: "ann\u{7}@alpha".into() };
    let oldest = [("ingest".to_owned(), at(500)), ("gho\u{1b}st".to_owned(), at(700))];
    kind_stats(&counts, &oldest, &[paused], &[term_row("a", 4, &["ingest", "render"]), term_row("c", 3, &["ingest"])])
}

fn standing() -> Snapshot {
    let running = |job, pid, stopping: Option<&str>| RunningAttempt {
        job: JobId(job),
        attempt: AttemptNo(1),
        kind: "ingest".into(),
        pid,
        since: at(0),
        memory: Bytes::mib(64),
        stopping: stopping.map(str::to_owned),
    };
    let held = |job, why: Option<&str>| HeldOutcome {
        job: JobId(job),
        attempt: AttemptNo(2),
        age_s: 75.0,
        why: why.map(str::to_owned),
    };
    let piece = |piece: &str, error: Option<&str>| PieceRun {
        piece: piece.into(),
        age_s: 0.25,
        error: error.map(str::to_owned),
    };
    Snapshot {
        name: "a".into(),
        host: "alpha".into(),
        pid: 4711,
        version: "0.1.0".into(),
        term: Some(Term(uuid::Uuid::from_u128(4))),
        phase: "draining".into(),
        warden: false,
        reserved: Bytes::mib(128),
        budget: Bytes::mib(1024),
        running: vec![running(7, Some(99), None), running(8, None, Some("drained"))],
        retired: 1,
        held: vec![held(5, Some("the database is not available\u{1b}[0m")), held(6, None)],
        trust_left_s: Some(0.0),
        listener: "heard".into(),
        pieces: vec![piece("keeper", None), piece("promoter", Some("the database is not available"))],
    }
}

#[test]
fn supervisors_kinds_and_how_one_stands_are_tables_that_no_terminal_obeys() {
    let quiet = Snapshot {
        phase: "working".into(),
        warden: true,
        running: Vec::new(),
        retired: 0,
        held: Vec::new(),
        trust_left_s: Some(23.4),
        listener: "polling".into(),
        pieces: Vec::new(),
        ..standing()
    };
    let pages = [
        supervisors_table(&fleet()),
        stats_table(&stats(), at(600)),
        status_text(&standing()),
        status_text(&quiet),
        status_text(&Snapshot { trust_left_s: None, ..quiet.clone() }),
    ];
    let pages = pages.join("----\n");
    assert!(pages.chars().all(|c| c == '\n' || !c.is_control()), "{pages:?}");
    insta::assert_snapshot!(pages);
}

#[test]
fn lines_of_supervisors_stats_and_status_are_contracts() {
    let (fleet, stats) = (fleet(), stats());
    let supervisors = fleet.iter().map(|(row, state)| supervisor_json_line(row, *state));
    let lines = supervisors.chain(stats.iter().map(|stats| stats_json_line(stats, at(600))));
    let lines: Vec<String> = lines.map(|line| line.to_string()).collect();
    let standing = serde_json::to_string_pretty(&standing()).unwrap();
    insta::assert_snapshot!(format!("{}\n{standing}", lines.join("\n")));
}

#[test]
fn a_kind_is_unserved_only_if_jobs_of_it_wait_and_nobody_living_runs_it() {
    let unserved: Vec<(String, bool)> = stats().into_iter().map(|s| (s.kind.clone(), s.is_unserved())).collect();
    let expected = [("gho\u{1b}st", true), ("ingest", false), ("later", false), ("render", false)];
    assert_eq!(unserved, expected.map(|(kind, unserved)| (kind.to_owned(), unserved)));
}
