//! A failure at each step of an attempt: the supervisor or its warden is killed before and after claim, start, result and
//! finish, or a call to the database is refused or its reply lost. What the jobs wrote themselves is the oracle.
//!
//! [`with_steps`](crate::with_steps) is the one table of cases: the tests make a test of each, and the campaign runs them
//! again and again. A case runs three jobs: one that the blow is about, and two that run beside it.
//!
//! It needs `jobvisor-under-test` with the feature `failpoints`.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;
use serde_json::json;

use crate::kin;
use crate::wait_until;
use crate::world::SOON;
use crate::world::Supervisor;
use crate::world::World;
use crate::world::marked;

/// How soon everything of a killed parent must be gone.
const GONE: Duration = Duration::from_secs(2);

/// The `jobs.toml` of the worlds that [`run`] takes.
pub const KIND: &str = r#"
[database]
url = "sqlite://jobs.db"

[supervisor]
lease = "3s"
memory_budget = "512MiB"

[kind.step]
command = ["{fault}", "step", "{payload.when}", "{payload.whom}", "{payload.ms}", "{payload.code}"]
slots = 4
memory = "16MiB"
grace = "1s"
timeout = "30s"
max_attempts = 3
max_interruptions = 2
backoff = { first = "50ms", factor = 1.0, max = "50ms", jitter = 0.0 }
"#;

/// Where in the life of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The claim is about to be sent.
    BeforeClaim,
    /// The database has claimed, and nothing is started yet.
    AfterClaim,
    /// The job's first act.
    AfterStart,
    /// The job has worked and is about to write its result.
    BeforeResult,
    /// The job has written its result and not ended.
    AfterResult,
    /// The job has ended, and nothing is recorded yet.
    BeforeFinish,
    /// The outcome is recorded, and the supervisor does not know.
    AfterFinish,
}

/// What happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// SIGKILL.
    KillSupervisor,
    /// SIGKILL.
    KillWarden,
    /// The database has done it; its reply does not arrive.
    LoseReply,
    /// The call fails before it reaches the database.
    Refuse,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Where.
    pub point: Point,
    /// What.
    pub act: Act,
    /// The exit code of the job's first attempt, if it comes so far.
    pub code: u8,
    /// How its attempts may end, in order, separated by blanks: `done`, `given_back`, or the cause.
    pub endings: &'static [&'static str],
    /// How often it is started.
    pub starts: usize,
}

/// Calls a macro with the table of cases: `name: point, act, exit code of the first attempt, endings, starts;`. What has failed
/// and is due again at once may be claimed once more before the blow falls.
#[macro_export]
macro_rules! with_steps {
    ($with:ident) => {
        $with! {
            i2_supervisor_killed_before_claim: BeforeClaim, KillSupervisor, 0, ["done"], 1;
            i1_i2_supervisor_killed_after_claim: AfterClaim, KillSupervisor, 0, ["supervisor_lost done"], 1;
            i1_i2_supervisor_killed_after_start: AfterStart, KillSupervisor, 0, ["supervisor_lost done"], 2;
            i1_i2_supervisor_killed_before_result: BeforeResult, KillSupervisor, 0, ["supervisor_lost done"], 2;
            i1_i2_supervisor_killed_after_result: AfterResult, KillSupervisor, 0, ["supervisor_lost done"], 2;
            i1_i2_supervisor_killed_before_finish: BeforeFinish, KillSupervisor, 0, ["supervisor_lost done"], 2;
            i9_supervisor_killed_before_the_finish_of_a_failure: BeforeFinish, KillSupervisor, 3, ["exit_nonzero done"], 2;
            i2_supervisor_killed_after_finish: AfterFinish, KillSupervisor, 0, ["done"], 1;
            i2_supervisor_killed_after_the_finish_of_a_failure: AfterFinish, KillSupervisor, 3,
                ["exit_nonzero done", "exit_nonzero supervisor_lost done"], 2;
            i1_i2_warden_killed_before_claim: BeforeClaim, KillWarden, 0, ["done", "given_back done", "warden_lost done"], 1;
            i1_i2_warden_killed_after_claim: AfterClaim, KillWarden, 0, ["done", "given_back done", "warden_lost done"], 1;
            i1_i2_warden_killed_after_start: AfterStart, KillWarden, 0, ["warden_lost done"], 2;
            i1_i2_warden_killed_before_result: BeforeResult, KillWarden, 0, ["warden_lost done"], 2;
            i1_i2_warden_killed_after_result: AfterResult, KillWarden, 0, ["warden_lost done"], 2;
            i2_warden_killed_before_finish: BeforeFinish, KillWarden, 0, ["done"], 1;
            i2_warden_killed_after_finish: AfterFinish, KillWarden, 0, ["done"], 1;
            i2_claim_refused: BeforeClaim, Refuse, 0, ["done"], 1;
            i2_claim_whose_reply_is_lost: AfterClaim, LoseReply, 0, ["given_back done"], 1;
            i10_finish_refused: BeforeFinish, Refuse, 0, ["done"], 1;
            i2_finish_whose_reply_is_lost: AfterFinish, LoseReply, 0, ["done"], 1;
        }
    };
}

macro_rules! list {
    ($($name:ident: $point:ident, $act:ident, $code:literal, $endings:expr, $starts:literal;)+) => {
        /// The table as a list, by name.
        pub const ALL: &[(&str, Case)] = &[
            $((stringify!($name), Case {
                point: Point::$point,
                act: Act::$act,
                code: $code,
                endings: &$endings,
                starts: $starts,
            }),)+
        ];
    };
}

with_steps!(list);

/// The case of this name.
///
/// # Panics
/// There is none.
#[must_use]
pub fn case(name: &str) -> Case {
    ALL.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no case `{name}`")).1
}

/// What came of a case.
#[derive(Debug, Default)]
pub struct Found {
    /// How the attempts of the job ended that the blow was about.
    pub endings: String,
    /// How long after the blow the last process of the victim was gone.
    pub gone: Duration,
    /// What should not be.
    pub wrong: Vec<String>,
}

/// Runs a case in a fresh world of [`KIND`].
///
/// # Panics
/// A wait was in vain, or a command failed.
#[must_use]
pub fn run(world: &World, case: &Case) -> Found {
    let by_job = match (case.point, case.act) {
        (Point::AfterStart, _) => "start",
        (Point::BeforeResult, _) => "before-result",
        (Point::AfterResult, _) => "after-result",
        (Point::BeforeClaim | Point::AfterClaim | Point::BeforeFinish | Point::AfterFinish, _) => "never",
    };
    let whom = if case.act == Act::KillWarden { "warden" } else { "supervisor" };
    let struck = world.enqueue("step", &json!({ "when": by_job, "whom": whom, "ms": 100, "code": case.code }));
    let beside = json!({ "when": "never", "whom": "nobody", "ms": 500, "code": 0 });
    let ids = [struck, world.enqueue("step", &beside), world.enqueue("step", &beside)];

    let plan = plan(case, world);
    let environment: Vec<(&str, &str)> = plan.iter().map(|plan| ("JOBVISOR_FAIL", plan.as_str())).collect();
    let first = world.start_with(&["run"], &environment);
    let (supervisor, gone) = strike(case, world, first);
    let words: Vec<String> = ids.iter().map(i64::to_string).collect();
    let arguments: Vec<&str> =
        ["wait", "--timeout", "60s"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let waited = world.run(&arguments);
    let mut wrong = Vec::new();
    if !waited.status.success() {
        wrong.push(format!("not all have succeeded: {}", String::from_utf8_lossy(&waited.stdout)));
    }
    let status = supervisor.stop(SOON);
    if !status.success() {
        wrong.push(format!("the supervisor ended with {status}"));
    }
    let log = fs::read_to_string(world.path("steps.log")).unwrap_or_default();
    wrong.extend(log.lines().filter(|line| line.starts_with("overlap ")).map(|line| format!("two at once: {line}")));
    for id in ids {
        wrong.extend(judge(world, id, case, id == struck, &log));
    }
    let story = world.inspect(struck);
    Found { endings: endings(&story).join(" "), gone, wrong }
}

/// What the store of the first supervisor is told to do.
fn plan(case: &Case, world: &World) -> Option<String> {
    let point = match case.point {
        Point::BeforeClaim => "claim.before",
        Point::AfterClaim => "claim.after",
        Point::BeforeFinish => "finish.before",
        Point::AfterFinish => "finish.after",
        Point::AfterStart | Point::BeforeResult | Point::AfterResult => return None,
    };
    let act = match case.act {
        Act::KillSupervisor => "kill-supervisor",
        Act::KillWarden => "kill-warden",
        Act::LoseReply => "lose-reply",
        Act::Refuse => "refuse",
    };
    Some(format!("{point}={act}@{}", world.path("struck").display()))
}

/// Waits for the blow and for the end of what it should end; gives the supervisor that goes on.
fn strike(case: &Case, world: &World, mut first: Supervisor) -> (Supervisor, Duration) {
    let (pid, warden) = wait_until("the blow", SOON, || {
        // A supervisor without the feature would do its work and never strike.
        kin::struck(&world.path("struck")).ok_or_else(|| first.log())
    });
    match case.act {
        Act::LoseReply | Act::Refuse => (first, Duration::ZERO),
        Act::KillWarden => {
            let mut doomed = begun(world);
            doomed.extend(kin::started(warden).map(|started| (warden, started)));
            let gone = until_gone(|| doomed.iter().filter(|(pid, at)| kin::started(*pid) == Some(*at)).count());
            (first, gone)
        }
        Act::KillSupervisor => {
            let mark = format!("JOBVISOR_TEST_LOG={}", world.path("starts.log").display());
            let gone = until_gone(|| {
                let left = marked(&mark).into_iter().chain([pid, warden]);
                left.filter(|pid| kin::started(*pid).is_some()).count()
            });
            first.wait(SOON);
            (world.supervisor(), gone)
        }
    }
}

/// The processes that have begun so far: pid and start time.
fn begun(world: &World) -> Vec<(i32, u64)> {
    let log = fs::read_to_string(world.path("steps.log")).unwrap_or_default();
    let of = |line: &str| {
        let mut words = line.strip_prefix("begin ")?.split(' ').skip(2);
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    log.lines().filter_map(of).collect()
}

#[expect(clippy::disallowed_methods, reason = "a bound is held against the clock")]
fn until_gone(mut left: impl FnMut() -> usize) -> Duration {
    let start = std::time::Instant::now();
    wait_until("nothing of the killed one is left", GONE, || match left() {
        0 => Ok(()),
        some => Err(format!("{some} processes")),
    });
    start.elapsed()
}

/// How the attempts of a job ended, in words.
fn endings(story: &Value) -> Vec<String> {
    let attempts = story["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let word = |attempt: &Value| match attempt["cause"].as_str() {
        Some(cause) => cause.to_owned(),
        None if attempt["certainty"]["kill"].is_null() => "given_back".to_owned(),
        None => "done".to_owned(),
    };
    attempts.iter().map(word).collect()
}

/// How the attempts of the jobs that run beside may end.
fn beside(act: Act) -> &'static [&'static str] {
    match act {
        Act::KillSupervisor => &["done", "supervisor_lost done"],
        Act::KillWarden => &["done", "given_back done", "warden_lost done"],
        Act::LoseReply => &["done", "given_back done"],
        Act::Refuse => &["done"],
    }
}

/// Holds a job's record against what it wrote itself.
fn judge(world: &World, id: i64, case: &Case, struck: bool, log: &str) -> Vec<String> {
    let story = world.inspect(id);
    let ended = endings(&story);
    let number = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let attempts = story["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let numbers: Vec<usize> = attempts.iter().map(|attempt| number(&attempt["attempt"])).collect();
    let charged: Vec<bool> = attempts.iter().map(|attempt| attempt["charged"] == json!(true)).collect();
    let rightly: Vec<bool> =
        ended.iter().map(|ending| !matches!(ending.as_str(), "warden_lost" | "given_back")).collect();
    let losses = ended.iter().filter(|ending| *ending == "warden_lost").count();
    let mut starts: BTreeMap<usize, usize> = BTreeMap::new();
    for start in world.starts().iter().filter(|start| start.job == id) {
        *starts.entry(usize::try_from(start.attempt).unwrap_or(0)).or_default() += 1;
    }
    let begun: usize = starts.values().sum();
    let last = ended.len();
    let allowed = if struck { case.endings } else { beside(case.act) };
    let checks = [
        (story["state"] == json!("succeeded"), "it has not succeeded"),
        (allowed.contains(&ended.join(" ").as_str()), "its attempts have other endings"),
        (numbers.iter().copied().eq(1..=number(&story["attempt"])), "not every claim ended on record, once (I2)"),
        (charged == rightly, "a charge is wrong (I1)"),
        (number(&story["charged"]) == charged.iter().filter(|charged| **charged).count(), "charges do not add up (I1)"),
        (number(&story["charged"]) <= number(&story["max_attempts"]), "more is charged than may be (I1)"),
        (number(&story["interruptions"]) == losses, "interruptions do not add up (I1)"),
        (starts.values().all(|times| *times == 1), "an attempt was started twice"),
        (starts.keys().all(|attempt| (1..=last).contains(attempt)), "an attempt was started that is not on record"),
        (starts.contains_key(&last), "the attempt that succeeded was never started"),
        (log.contains(&format!("end {id} {last}\n")), "the attempt that succeeded did not come to its end"),
        (!struck || begun == case.starts, "it was started more or less often"),
        (world.processes_of(id).is_empty(), "a process of it lives on"),
    ];
    let told = || format!("job {id}: {ended:?}, charged {charged:?}, starts {starts:?}");
    checks.iter().filter(|(holds, _)| !holds).map(|(_, what)| format!("{what} ({})", told())).collect()
}
