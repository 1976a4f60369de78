//! A team: several supervisors on one Postgres database, each with a name, a folder and kinds of its own, and one oracle.
//!
//! The jobs are `team-child`s. Each writes a line to the common log of starts, and then every 20 ms one to the file of its job,
//! with its attempt and the time: what they wrote says whether two attempts of a job ever ran at once, whatever the
//! database says. `Team::faults` compares both.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use serde_json::json;

use crate::postgres::Cluster;
use crate::postgres::Database;
use crate::wait_until;
use crate::world::Lane;
use crate::world::SOON;
use crate::world::Supervisor;
use crate::world::World;
use crate::world::program;

/// How a supervisor of a team is set up.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// Its name.
    pub name: &'a str,
    /// Length of its lease.
    pub lease: &'a str,
    /// The kinds that it runs.
    pub kinds: &'a [&'a str],
    /// How long it waits for its jobs when it is stopped.
    pub drain: &'a str,
    /// How often it looks for jobs where nothing tells it of them.
    pub poll: &'a str,
    /// How many jobs of a kind it runs at once.
    pub slots: u32,
}

impl<'a> Setup<'a> {
    /// The usual one: the shortest lease, one kind `work`, four slots.
    #[must_use]
    pub const fn named(name: &'a str) -> Self {
        Self { name, lease: "3s", kinds: &["work"], drain: "300ms", poll: "500ms", slots: 4 }
    }

    /// With another lease.
    #[must_use]
    pub const fn lease(mut self, lease: &'a str) -> Self {
        self.lease = lease;
        self
    }

    /// With other kinds.
    #[must_use]
    pub const fn kinds(mut self, kinds: &'a [&'a str]) -> Self {
        self.kinds = kinds;
        self
    }

    /// With so many slots.
    #[must_use]
    pub const fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Looking for jobs so often.
    #[must_use]
    pub const fn poll(mut self, poll: &'a str) -> Self {
        self.poll = poll;
        self
    }

    /// Waiting so long for its jobs when it is stopped.
    #[must_use]
    pub const fn drain(mut self, drain: &'a str) -> Self {
        self.drain = drain;
        self
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Team {
    /// Adds, asks and acts; never runs a job, and is never cut off.
    pub control: World,
    /// What they all work on.
    pub database: Database,
    folder: PathBuf,
}

/// All kinds that a team may have, for the one that only enqueues.
const ALL: [&str; 3] = ["work", "left", "right"];

impl Team {
    /// A team on a database of its own on the server that all tests share.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Database::new())
    }

    /// A team on a private server, which a test may stop or break.
    #[must_use]
    pub fn of(cluster: &Cluster) -> Self {
        Self::on(cluster.database())
    }

    fn on(database: Database) -> Self {
        let control = World::at(Lane::Auto, "[kind.any]\ncommand = [\"true\"]\n", &database.url);
        let folder = control.path("alive");
        fs::create_dir(&folder).expect("a folder");
        let team = Self { control, database, folder };
        team.control.write_config(&team.toml(&Setup::named("control").kinds(&ALL)));
        team.control.good(&["migrate"]);
        team
    }

    /// The same team, asked about at another server that has taken over its database.
    #[must_use]
    pub fn moved_to(mut self, cluster: &Cluster) -> Self {
        self.database = cluster.existing(self.database.name());
        self
    }

    fn toml(&self, setup: &Setup<'_>) -> String {
        let Setup { name, lease, kinds, drain, poll, slots } = setup;
        let head = format!(
            "[supervisor]\nname = {name:?}\nlease = {lease:?}\ndrain = {drain:?}\npoll = {poll:?}\nmemory_budget = \"1GiB\"\n"
        );
        let child = program("team-child");
        let kinds = kinds.iter().map(|kind| {
            format!(
                "\n[kind.{kind}]\ncommand = [{child:?}, \"{{payload.mode}}\", {:?}, \"{{payload.first}}\", \"{{payload.later}}\"]\n\
                 slots = {slots}\nmemory = \"16MiB\"\ngrace = \"200ms\"\ntimeout = \"50s\"\nmax_attempts = 3\n\
                 backoff = {{ first = \"50ms\", factor = 1.0, max = \"50ms\", jitter = 0.0 }}\n",
                self.folder
            )
        });
        std::iter::once(head).chain(kinds).collect()
    }

    /// The world of one of its supervisors.
    #[must_use]
    pub fn world(&self, setup: &Setup<'_>) -> World {
        self.control.beside(&self.toml(setup))
    }

    /// The same, for one that reaches the database by another URL.
    #[must_use]
    pub fn world_at(&self, url: &str, setup: &Setup<'_>) -> World {
        self.control.beside_at(url, &self.toml(setup))
    }

    /// Adds a job of a kind that works for `first` in its first attempt and for `later` in each further one.
    pub fn enqueue(&self, kind: &str, first: Duration, later: Duration) -> i64 {
        self.control.enqueue(kind, &payload(first, later))
    }

    /// Adds jobs of kind `work`, all of which take so long; with more options of `enqueue` (`--in`, …).
    ///
    /// # Panics
    /// They are refused.
    pub fn enqueue_many(&self, count: usize, each: Duration, options: &[&str]) -> Vec<i64> {
        let (count, payload) = (count.to_string(), payload(each, each).to_string());
        let mut arguments = vec!["enqueue", "work", "--count", &count, "--payload", &payload];
        arguments.extend(options);
        self.control.good(&arguments).lines().map(|line| line.parse().expect("an id")).collect()
    }

    /// Runs a statement for what it does.
    pub fn act(&self, sql: &str) {
        drop(self.database.psql(sql));
    }

    /// Waits until a job has started so often; gives the pid of its last start.
    pub fn until_started(&self, job: i64, times: usize, limit: Duration) -> i32 {
        wait_until(&format!("job {job} has started {times} times"), limit, || {
            let starts = self.control.starts();
            let mut starts = starts.iter().filter(|start| start.job == job);
            let found = times.checked_sub(1).and_then(|before| starts.clone().nth(before)).map(|start| start.pid);
            found.ok_or_else(|| format!("{} starts", starts.by_ref().count()))
        })
    }

    /// How often a job has started.
    #[must_use]
    pub fn starts_of(&self, job: i64) -> usize {
        self.control.starts().iter().filter(|start| start.job == job).count()
    }

    /// The first and the last sign of life of each attempt of a job: CLOCK_BOOTTIME in milliseconds.
    #[must_use]
    pub fn spans(&self, job: i64) -> BTreeMap<u32, (u64, u64)> {
        let text = fs::read_to_string(self.folder.join(job.to_string())).unwrap_or_default();
        let mut spans = BTreeMap::new();
        // A line that is being written has no end yet.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            let mut words = line.split(' ');
            let attempt = words.next().and_then(|word| word.parse().ok());
            let at = words.nth(1).and_then(|word| word.parse().ok());
            let (Some(attempt), Some(at)) = (attempt, at) else { continue };
            let span: &mut (u64, u64) = spans.entry(attempt).or_insert((at, at));
            *span = (span.0.min(at), span.1.max(at));
        }
        spans
    }

    /// Waits until an attempt has not been heard of for as long as ten of its signs of life take.
    pub fn until_silent(&self, job: i64, attempt: u32, limit: Duration) {
        wait_until(&format!("attempt {attempt} of job {job} stands still"), limit, || {
            let last = self.spans(job).get(&attempt).map_or(0, |span| span.1);
            let silent = now().saturating_sub(last);
            if silent > 200 { Ok(()) } else { Err(format!("last heard of {silent} ms ago")) }
        });
    }

    /// Waits until an attempt gives a sign of life later than this moment.
    pub fn until_heard(&self, job: i64, attempt: u32, limit: Duration) {
        let since = now();
        wait_until(&format!("attempt {attempt} of job {job} goes on"), limit, || {
            let last = self.spans(job).get(&attempt).map_or(0, |span| span.1);
            if last > since { Ok(()) } else { Err(format!("silent for {} ms", now().saturating_sub(last))) }
        });
    }

    /// The outcomes of a job's recorded attempts, in order.
    #[must_use]
    pub fn outcomes(&self, job: i64) -> Vec<String> {
        let sql = format!("SELECT outcome FROM jobvisor.attempts WHERE job_id = {job} ORDER BY attempt");
        self.database.psql(&sql).lines().map(str::to_owned).collect()
    }

    /// State of a job, asked of the database itself.
    #[must_use]
    pub fn state(&self, job: i64) -> String {
        self.database.psql(&format!("SELECT state FROM jobvisor.jobs WHERE id = {job}"))
    }

    /// Waits until a job stands in this state.
    pub fn until_state(&self, job: i64, state: &str, limit: Duration) {
        self.until(&format!("SELECT state FROM jobvisor.jobs WHERE id = {job}"), state, limit);
    }

    /// Waits until every job has ended.
    pub fn until_all_ended(&self, limit: Duration) {
        self.until("SELECT count(*) FROM jobvisor.jobs WHERE finished_at IS NULL", "0", limit);
    }

    /// Waits until a query answers this; the database may be away meanwhile.
    pub fn until(&self, sql: &str, answer: &str, limit: Duration) {
        wait_until(sql, limit, || {
            let told = self.database.try_psql(sql);
            let text = String::from_utf8_lossy(&told.stdout).trim_end().to_owned();
            if told.status.success() && text == answer {
                Ok(())
            } else {
                Err(format!("{text}{}", String::from_utf8_lossy(&told.stderr)))
            }
        });
    }

    /// How many terms of this name were declared lost.
    ///
    /// # Panics
    /// The database cannot be read.
    #[must_use]
    pub fn lost_terms(&self, name: &str) -> usize {
        let sql = format!("SELECT count(*) FROM jobvisor.supervisors WHERE name = '{name}' AND lost_at IS NOT NULL");
        self.database.psql(&sql).parse().expect("a number")
    }

    /// What does not hold of all jobs together: each ended in this state, on record attempt by attempt, within its budget, each
    /// attempt started once at most, and never two of a job at once.
    ///
    /// # Panics
    /// The database cannot be read.
    #[must_use]
    pub fn faults(&self, state: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut starts: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
        for start in self.control.starts() {
            starts.entry(start.job).or_default().push(start.attempt);
        }
        let rows = self.database.psql(JUDGED);
        for row in rows.lines().filter(|row| !row.is_empty()) {
            let begun = row.split('|').next().and_then(|id| starts.remove(&id.parse().ok()?)).unwrap_or_default();
            wrong.extend(of_job(row, state, &begun));
        }
        wrong.extend(starts.keys().map(|job| format!("job {job} started and is not on record")));
        let known = fs::read_dir(&self.folder).expect("the folder").flatten();
        let jobs = known.filter_map(|entry| entry.file_name().to_str()?.parse::<i64>().ok());
        wrong.extend(jobs.filter_map(|job| self.overlap(job)));
        wrong
    }

    /// Two attempts of a job that were alive at the same time.
    #[must_use]
    pub fn overlap(&self, job: i64) -> Option<String> {
        let spans = self.spans(job);
        let mut pairs = spans.iter().zip(spans.iter().skip(1));
        let found = pairs.find(|((_, one), (_, next))| one.1 > next.0);
        found.map(|(one, next)| format!("job {job}: attempts at once: {one:?} {next:?}"))
    }
}

impl Default for Team {
    fn default() -> Self {
        Self::new()
    }
}

const JUDGED: &str = "SELECT j.id, j.state, j.attempt, j.charged, j.max_attempts, count(a.attempt), \
    count(a.attempt) FILTER (WHERE a.charged), coalesce(string_agg(a.outcome, ',' ORDER BY a.attempt), '') \
    FROM jobvisor.jobs j LEFT JOIN jobvisor.attempts a ON a.job_id = j.id GROUP BY j.id ORDER BY j.id";

fn of_job(row: &str, state: &str, starts: &[u32]) -> Vec<String> {
    let words: Vec<&str> = row.split('|').collect();
    let number = |at: usize| words[at].parse::<usize>().expect("a number");
    let unique: BTreeSet<&u32> = starts.iter().collect();
    let (attempt, charged, most, rows, charged_rows) = (number(2), number(3), number(4), number(5), number(6));
    let checks = [
        (words[1] == state, format!("it is {}", words[1])),
        (rows == attempt, format!("{rows} attempts on record of {attempt}")),
        (charged == charged_rows && charged <= most, format!("charged {charged} times, {charged_rows} on record")),
        (unique.len() == starts.len(), format!("an attempt was started twice: {starts:?}")),
        (starts.len() <= rows, format!("{} starts, {rows} attempts on record", starts.len())),
    ];
    let outcomes = words[7];
    checks
        .into_iter()
        .filter(|(holds, _)| !holds)
        .map(|(_, what)| format!("job {} ({outcomes}): {what}", words[0]))
        .collect()
}

/// What a job of a team is given.
#[must_use]
pub fn payload(first: Duration, later: Duration) -> Value {
    json!({ "mode": "work", "first": first.as_millis().to_string(), "later": later.as_millis().to_string() })
}

/// CLOCK_BOOTTIME in milliseconds, by which the jobs tell the time.
///
/// # Panics
/// There is no such clock.
#[must_use]
pub fn now() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).expect("a clock");
    u64::try_from(Duration::from(time).as_millis()).expect("not that old")
}

/// Restarts two supervisors in turn, one at a time, under a load of short and long jobs; gives what does not hold of
/// it: a lost job, an attempt that was charged for a deploy, two attempts at once.
///
/// # Panics
/// A supervisor does not stop or start.
#[must_use]
pub fn rolling_restarts(restarts: usize) -> Vec<String> {
    let team = Team::new();
    let worlds = [team.world(&Setup::named("a")), team.world(&Setup::named("b"))];
    let mut running: Vec<Supervisor> = worlds.iter().map(World::supervisor).collect();
    let mut random = Random::new();
    for round in 0..restarts {
        for _ in 0..4 {
            let each = Duration::from_millis(random.below(900));
            team.enqueue("work", each, each);
        }
        let at = round % 2;
        wait_until("the one that stays takes jobs", SOON, || {
            let log = running[1 - at].log();
            if log.contains("taking jobs") { Ok(()) } else { Err(log) }
        });
        let mut stopped = running.remove(at);
        stopped.signal(Signal::SIGTERM);
        assert!(stopped.wait(SOON).success(), "{}", stopped.log());
        running.insert(at, worlds[at].start(&["run"]));
    }
    team.until_all_ended(SOON * 4);
    let mut wrong = team.faults("succeeded");
    let charged = team
        .database
        .psql("SELECT id, charged, interruptions FROM jobvisor.jobs WHERE charged > 1 OR interruptions > 0");
    wrong.extend(charged.lines().map(|job| format!("charged for a deploy: {job}")));
    let outcomes =
        "SELECT DISTINCT outcome FROM jobvisor.attempts WHERE outcome NOT IN ('succeeded', 'drained', 'given_back')";
    wrong.extend(team.database.psql(outcomes).lines().map(|outcome| format!("an attempt ended as {outcome}")));
    for mut supervisor in running {
        supervisor.signal(Signal::SIGTERM);
        assert!(supervisor.wait(SOON).success(), "{}", supervisor.log());
    }
    wrong
}

/// Small numbers that differ from run to run.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded by the process and the time.
    #[must_use]
    pub fn new() -> Self {
        Self((u64::from(std::process::id()) << 32 | now()) | 1)
    }

    /// A number below `bound`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}
