//! SIGKILL of the supervisor, and of the warden, at random moments under a load of mixed jobs.
//!
//! The oracle is what the jobs wrote themselves: a line at each start, and while they work one every 20 ms with the
//! attempt and the time. Nothing may be lost, no budget passed, no two attempts of a job may overlap, and what ran under
//! a killed parent must be gone two seconds later.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use jobvisor::domain::job::Job;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;
use serde_json::json;
use support::wait_until;
use support::world::Lane;
use support::world::World;
use support::world::marked;

use crate::Scale;
use crate::records::Records;
use crate::records::enqueue;
use crate::records::until_idle;
use crate::records::warden;
use crate::report::Report;

const KIND: &str = r#"
[database]
url = "sqlite://jobs.db"

[supervisor]
memory_budget = "1GiB"

[kind.fault]
command = ["{fault}", "{payload.mode}", "{payload.a}", "{payload.b}", "{payload.c}"]
slots = 6
memory = "16MiB"
grace = "500ms"
timeout = "1s"
max_attempts = 3
max_interruptions = 2
backoff = { first = "50ms", factor = 1.0, max = "50ms", jitter = 0.0 }
"#;

/// How soon everything of a killed parent must be gone.
const GONE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Supervisor,
    Warden,
}

pub(crate) fn of_supervisor_and_warden(scale: Scale, report: &mut Report) {
    for lane in [Lane::Auto, Lane::Watchdog] {
        for victim in [Victim::Supervisor, Victim::Warden] {
            let rounds = scale.of(if lane == Lane::Auto { 50 } else { 20 }, 3);
            one(lane, victim, rounds, report);
        }
    }
}

fn one(lane: Lane, victim: Victim, rounds: usize, report: &mut Report) {
    let world = World::new(lane, KIND);
    let folder = world.path("work");
    fs::create_dir(&folder).expect("a folder");
    let mut random = Random(u64::from(std::process::id()) | 1);
    let mut enqueued = 0;
    let mut slowest = Duration::ZERO;
    let mut supervisor = world.supervisor();
    for _ in 0..rounds {
        for payload in mixture(&folder.display().to_string(), &mut random) {
            enqueued += enqueue(&world, "fault", 1, &payload).len();
        }
        std::thread::sleep(Duration::from_millis(random.below(700)));
        let own = supervisor.pid();
        let before = jobs_processes(&world, own);
        match victim {
            Victim::Supervisor => {
                supervisor.kill();
                slowest = slowest.max(gone(&world, own, None));
                supervisor = world.supervisor();
            }
            Victim::Warden => {
                let Some(pid) = warden(&supervisor) else { continue };
                nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it lives");
                slowest = slowest.max(gone(&world, own, Some(&before)));
            }
        }
    }
    assert!(supervisor.stop(Duration::from_secs(60)).success(), "it stops");
    until_idle(&world, Duration::from_secs(300));
    let name = format!("{lane:?}, {victim:?} killed {rounds} times");
    report.say(&format!("{name}: all of its processes gone after {slowest:?} at most"));
    judge(&name, &world, enqueued, report);
}

/// A few jobs of each sort.
fn mixture(folder: &str, random: &mut Random) -> Vec<Value> {
    let job = |mode: &str, a: &str, b: u64, c: u64| json!({ "mode": mode, "a": a, "b": b, "c": c });
    vec![
        job("work", folder, random.below(600), 0),
        job("work", folder, random.below(600), 0),
        job("work", folder, random.below(300), 1),
        job("work", folder, 5000, 0),
        job("touch", "32", 0, 0),
        job("exit", "0", 0, 0),
    ]
}

/// Every process of this world's jobs: pid and start time.
fn jobs_processes(world: &World, supervisor: i32) -> BTreeSet<(i32, String)> {
    let mark = format!("JOBVISOR_TEST_LOG={}", world.path("starts.log").display());
    let found = marked(&mark).into_iter().filter(|pid| *pid != supervisor);
    found.filter_map(|pid| Some((pid, started(pid)?))).collect()
}

fn started(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = stat.rsplit_once(") ")?.1;
    if rest.starts_with('Z') { None } else { rest.split(' ').nth(19).map(str::to_owned) }
}

/// Waits until they (or all) are gone; answers how long it took.
#[expect(clippy::disallowed_methods, reason = "a measuring program reads the clock")]
fn gone(world: &World, supervisor: i32, only: Option<&BTreeSet<(i32, String)>>) -> Duration {
    let start = std::time::Instant::now();
    wait_until("nothing of the dead one's is left", GONE, || {
        let now = jobs_processes(world, supervisor);
        let left: Vec<_> = now.iter().filter(|process| only.is_none_or(|only| only.contains(process))).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    start.elapsed()
}

fn judge(name: &str, world: &World, enqueued: usize, report: &mut Report) {
    let records = Records::open(world);
    let jobs = records.jobs();
    let mut starts: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    world.starts().into_iter().for_each(|start| starts.entry(start.job).or_default().push(start.attempt));
    let mut wrong = Vec::new();
    let mut causes: BTreeMap<&str, usize> = BTreeMap::new();
    for job in &jobs {
        let rows = records.attempts(job.id);
        for row in &rows {
            let verdict = row.verdict.as_ref();
            let word = verdict.map_or("given_back", |verdict| verdict.ending.cause().map_or("succeeded", |c| c.code()));
            *causes.entry(word).or_insert(0) += 1;
        }
        let begun = starts.remove(&job.id.0).unwrap_or_default();
        let charged = rows.iter().filter(|row| row.charged).count();
        wrong.extend(faults_of(job, rows.len(), charged, &begun));
        wrong.extend(overlap(world, job));
    }
    wrong.extend(starts.keys().map(|job| format!("job {job} started and is not on record")));
    report.check(&format!("{name}: {enqueued} jobs, all there"), jobs.len() == enqueued, &format!("{}", jobs.len()));
    report.say(&format!("{name}: outcomes of attempts {causes:?}"));
    wrong.truncate(10);
    report.check(
        &format!("{name}: ended, once, within budget, one attempt at a time"),
        wrong.is_empty(),
        &wrong.join("; "),
    );
}

fn faults_of(job: &Job, rows: usize, charged: usize, starts: &[u32]) -> Vec<String> {
    let id = job.id;
    let unique: BTreeSet<&u32> = starts.iter().collect();
    let most = usize::try_from(job.budget.max_attempts).expect("small");
    let checks = [
        (job.state.is_final(), format!("job {id} is {}", job.state)),
        (
            rows == usize::try_from(job.attempt.0).expect("small"),
            format!("job {id}: {rows} rows for attempt {}", job.attempt),
        ),
        (charged <= most, format!("job {id} was charged {charged} times")),
        (unique.len() == starts.len(), format!("job {id}: an attempt was started twice: {starts:?}")),
        (starts.len() <= rows, format!("job {id}: {} starts, {rows} rows", starts.len())),
    ];
    checks.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| what).collect()
}

/// Two attempts of a job that wrote at the same time.
fn overlap(world: &World, job: &Job) -> Option<String> {
    let text = fs::read_to_string(world.path("work").join(job.id.to_string())).ok()?;
    let mut spans: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let attempt = words.next()?.parse().ok()?;
        let at = words.nth(1)?.parse().ok()?;
        let span = spans.entry(attempt).or_insert((at, at));
        *span = (span.0.min(at), span.1.max(at));
    }
    let mut before = spans.iter().zip(spans.iter().skip(1));
    let found = before.find(|((_, first), (_, second))| first.1 > second.0);
    found.map(|(first, second)| format!("job {}: attempts overlap: {first:?} {second:?}", job.id))
}

/// Small numbers that differ from run to run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
