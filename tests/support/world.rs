//! One test's world: a folder with `jobs.toml`, a database, and every process that was started, ended when it is dropped.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::ExitStatus;
use std::process::Output;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

use crate::postgres::Database;
use crate::wait_until;

/// The longest that a test waits for anything that should happen at once.
pub const SOON: Duration = Duration::from_secs(30);

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A program of this package, built beside the running test.
///
/// # Panics
/// It was not built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    // Tests stand one folder below the programs, programs beside each other.
    let own = std::env::current_exe().expect("own path");
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("`{name}` is not built"))
}

/// Whether the host's main hierarchy is cgroup v2 with a memory controller.
#[must_use]
pub fn cgroup_v2_root() -> bool {
    fs::read_to_string("/sys/fs/cgroup/cgroup.controllers")
        .is_ok_and(|text| text.split_whitespace().any(|c| c == "memory"))
}

/// The enforcement that is no cgroup's, as [`in_force`] names it.
pub const WATCHDOG: &str = "watchdog";

/// What enforces limits here where nothing else is asked for, as the program finds out by trying: `cgroup v2`,
/// `cgroup v1` or `watchdog`. A lane that knows it better says so in `JOBVISOR_TEST_ENFORCEMENT`, so that a program that
/// falls back for no reason is found out.
///
/// # Panics
/// The program does not tell, or not what the lane says.
#[must_use]
pub fn in_force() -> &'static str {
    static FOUND: OnceLock<String> = OnceLock::new();
    FOUND.get_or_init(|| {
        let world = World::new(Lane::Auto, "[kind.any]\ncommand = [\"true\"]\n");
        let told = String::from_utf8(world.run(&["doctor", "--json"]).stdout).expect("text");
        let mut findings = told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let line =
            findings.find_map(|finding| finding["what"].as_str()?.strip_prefix("memory limits by ").map(str::to_owned));
        let line = line.unwrap_or_else(|| panic!("doctor does not tell what is in force: {told}"));
        let found = ["cgroup v2", "cgroup v1"].into_iter().find(|name| line.starts_with(name)).unwrap_or(WATCHDOG);
        if let Ok(expected) = std::env::var("JOBVISOR_TEST_ENFORCEMENT") {
            assert!(found.starts_with(&expected.replace('_', " ")), "expected {expected}, but: {line}");
        }
        found.to_owned()
    })
}

/// How the supervisor under test enforces limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The best that this host offers.
    Auto,
    /// The watchdog, whatever the host offers.
    Watchdog,
}

impl Lane {
    /// The lanes that differ here: the best one and the watchdog's, or only this.
    #[must_use]
    pub fn all() -> Vec<Self> {
        if in_force() == WATCHDOG { vec![Self::Watchdog] } else { vec![Self::Auto, Self::Watchdog] }
    }

    /// Whether the kernel enforces the limit.
    #[must_use]
    pub fn is_kernels(self) -> bool {
        self == Self::Auto && in_force() != WATCHDOG
    }

    /// The cause of a death by the job's own limit.
    #[must_use]
    pub fn own_limit(self) -> &'static str {
        if self.is_kernels() { "oom_job_limit" } else { "mem_watchdog" }
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct World {
    folder: tempfile::TempDir,
    lane: Lane,
    groups: Mutex<Vec<PathBuf>>,
    /// The memory limit of the group that each supervisor is started in.
    outer: Option<u64>,
    /// What the database is, where it is not the file that `jobs.toml` names.
    url: Option<String>,
    /// Kept as long as a world uses it.
    database: Option<Arc<Database>>,
    /// Where jobs write down that they start.
    starts: PathBuf,
    /// Put before the program: `ip netns exec …`.
    prefix: Vec<String>,
}

impl World {
    /// A world whose `jobs.toml` is `toml`, with `{fault}` replaced by the fault child's path, the start log in every
    /// kind's `env` and, in the watchdog's lane, `enforce = "watchdog"` there too.
    ///
    /// # Panics
    /// The folder cannot be made.
    #[must_use]
    pub fn new(lane: Lane, toml: &str) -> Self {
        let postgres = std::env::var("JOBVISOR_TEST_STORE").is_ok_and(|store| store == "postgres");
        let world = match postgres.then(Database::new) {
            Some(database) => Self::bare(lane).on_url(database.url.clone()).keeping(Arc::new(database)),
            None => Self::bare(lane),
        };
        world.write_config(toml);
        world
    }

    /// The same on a Postgres database of its own, whatever store the run is for.
    ///
    /// # Panics
    /// It cannot be made.
    #[must_use]
    pub fn on_postgres(lane: Lane, toml: &str) -> Self {
        let database = Database::new();
        Self::at(lane, toml, &database.url.clone()).keeping(Arc::new(database))
    }

    /// The same on a SQLite file, whatever store the run is for.
    ///
    /// # Panics
    /// The folder cannot be made.
    #[must_use]
    pub fn on_a_file(lane: Lane, toml: &str) -> Self {
        let world = Self::bare(lane);
        world.write_config(toml);
        world
    }

    /// The same on the database that `url` leads to: one of a private server, or through a proxy.
    ///
    /// # Panics
    /// The folder cannot be made.
    #[must_use]
    pub fn at(lane: Lane, toml: &str, url: &str) -> Self {
        let world = Self::bare(lane).on_url(url.to_owned());
        world.write_config(toml);
        world
    }

    /// The world of another supervisor on the same database: a folder, a state folder and a `jobs.toml` of its own, and the
    /// same log of starts.
    ///
    /// # Panics
    /// This world is on a SQLite file, which only one supervisor may have.
    #[must_use]
    pub fn beside(&self, toml: &str) -> Self {
        self.beside_at(&self.url.clone().expect("a database for several supervisors"), toml)
    }

    /// The same, where this supervisor reaches the database in a way of its own.
    #[must_use]
    pub fn beside_at(&self, url: &str, toml: &str) -> Self {
        let mut world = Self::bare(self.lane).on_url(url.to_owned());
        world.database.clone_from(&self.database);
        world.starts.clone_from(&self.starts);
        world.write_config(toml);
        world
    }

    /// The same world, whose programs are started by this command: `ip netns exec NAME`, `env NAME=VALUE`.
    #[must_use]
    pub fn through(mut self, prefix: &[&str]) -> Self {
        self.prefix = prefix.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Whether it is on Postgres.
    #[must_use]
    pub const fn is_on_postgres(&self) -> bool {
        self.url.is_some()
    }

    /// Whether it is on a SQLite file; if not, prints why the test is skipped.
    #[must_use]
    pub fn is_on_sqlite(&self, test: &str) -> bool {
        if self.is_on_postgres() {
            crate::skip(test, "it is about a SQLite file");
        }
        !self.is_on_postgres()
    }

    /// The URL of its database.
    #[must_use]
    pub fn database_url(&self) -> String {
        self.url.clone().unwrap_or_else(|| format!("sqlite://{}", self.path("jobs.db").display()))
    }

    /// The Postgres database that it made.
    ///
    /// # Panics
    /// It made none.
    #[must_use]
    pub fn postgres(&self) -> &Database {
        self.database.as_deref().expect("a Postgres database of its own")
    }

    fn bare(lane: Lane) -> Self {
        let folder = tempfile::Builder::new().prefix("jobvisor-test-").tempdir().expect("a folder");
        let starts = folder.path().join("starts.log");
        let (url, database, prefix) = (None, None, Vec::new());
        Self { folder, lane, groups: Mutex::default(), outer: None, url, database, starts, prefix }
    }

    fn on_url(mut self, url: String) -> Self {
        self.url = Some(url);
        self
    }

    fn keeping(mut self, database: Arc<Database>) -> Self {
        self.database = Some(database);
        self
    }

    /// A world that is a copy of a folder of `examples/`, taken as it is.
    ///
    /// # Panics
    /// It cannot be copied.
    #[must_use]
    pub fn of_example(name: &str) -> Self {
        let world = Self::bare(Lane::Auto);
        copy_folder(&crate::checkout().join("examples").join(name), world.folder.path());
        world
    }

    /// The same world, whose supervisors live in a group of this memory limit, in bytes.
    #[must_use]
    pub const fn within(mut self, limit: u64) -> Self {
        self.outer = Some(limit);
        self
    }

    /// On cgroup v2 a supervisor needs a group that holds nobody else: each start has a fresh one, because one that was
    /// used has controllers enabled for its children and can be entered no more. On v1 only a limit asks for one.
    fn fresh_group(&self) -> Option<PathBuf> {
        let v2 = cgroup_v2_root();
        if self.lane == Lane::Watchdog || !nix::unistd::geteuid().is_root() || !(v2 || self.outer.is_some()) {
            return None;
        }
        let name = format!("jvtest-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let group = if v2 { PathBuf::from("/sys/fs/cgroup") } else { own_memory_group()? }.join(name);
        // Where it is read-only, as in most containers, there is nothing to enter.
        fs::create_dir(&group).ok()?;
        if let Some(limit) = self.outer {
            let file = if v2 { "memory.max" } else { "memory.limit_in_bytes" };
            fs::write(group.join(file), limit.to_string()).expect("a limit");
        }
        self.groups.lock().expect("a list").push(group.clone());
        Some(group)
    }

    /// Writes `jobs.toml` anew.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn write_config(&self, toml: &str) {
        let fault = program("fault-child");
        let text = toml.replace("{fault}", &fault.display().to_string());
        let enforce = if self.lane == Lane::Watchdog { "enforce = \"watchdog\"\n" } else { "" };
        // A child's environment is an allow-list: what the tests' jobs need is named.
        let extra = format!("env = {{ JOBVISOR_TEST_LOG = {:?} }}\n{enforce}", self.starts.display().to_string());
        let lines = text.lines().map(|line| {
            let extra = if line.starts_with("[kind.") { extra.as_str() } else { "" };
            format!("{line}\n{extra}")
        });
        let text: String = lines.collect();
        fs::write(self.path("jobs.toml"), self.with_database(text)).expect("jobs.toml");
    }

    /// Names the world's own database in place of the file.
    fn with_database(&self, text: String) -> String {
        let Some(url) = &self.url else { return text };
        let line = format!("url = {url:?}\n");
        if !text.contains("[database]") {
            return format!("{text}\n[database]\n{line}");
        }
        let lines = text.lines().filter(|text| !text.trim_start().starts_with("url = \"sqlite:"));
        lines
            .map(|text| if text.trim() == "[database]" { format!("{text}\n{line}") } else { format!("{text}\n") })
            .collect()
    }

    /// A path in the world's folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command of the program under test, on this world's configuration.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let jobvisor = program("jobvisor-under-test");
        let starts_warden = arguments.contains(&"run") || arguments.contains(&"doctor");
        let program = self.prefix.iter().map(PathBuf::from).chain([jobvisor]).collect::<Vec<_>>();
        let mut command = match starts_warden.then(|| self.fresh_group()).flatten() {
            Some(group) => {
                let mut shell = Command::new("sh");
                let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.display());
                shell.args(["-c", &enter, "sh"]);
                shell.args(&program);
                shell
            }
            None => {
                let mut command = Command::new(&program[0]);
                command.args(&program[1..]);
                command
            }
        };
        command.arg("--config").arg(self.path("jobs.toml")).args(arguments);
        command.current_dir(self.folder.path()).env("JOBVISOR_TEST_LOG", &self.starts).env_remove("JOBVISOR_CONFIG");
        command.env_remove("JOBVISOR_DATABASE_URL").stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program runs")
    }

    /// Runs a command that must succeed, and gives its stdout.
    ///
    /// # Panics
    /// It fails.
    pub fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?} failed ({}): {errors}", output.status);
        String::from_utf8(output.stdout).expect("stdout is text")
    }

    /// Adds a job; gives its id.
    ///
    /// # Panics
    /// It is refused.
    pub fn enqueue(&self, kind: &str, payload: &Value) -> i64 {
        self.good(&["enqueue", kind, "--payload", &payload.to_string()]).trim().parse().expect("an id")
    }

    /// The story of a job, as `inspect --json` tells it.
    ///
    /// # Panics
    /// There is no such job.
    #[must_use]
    pub fn inspect(&self, id: i64) -> Value {
        serde_json::from_str(&self.good(&["inspect", &id.to_string(), "--json"])).expect("JSON")
    }

    /// The story of a job as text.
    #[must_use]
    pub fn inspect_text(&self, id: i64) -> String {
        self.good(&["inspect", &id.to_string()])
    }

    /// State of a job.
    #[must_use]
    pub fn state(&self, id: i64) -> String {
        text(&self.inspect(id)["state"])
    }

    /// The causes of a job's attempts, in order; `-` for none.
    ///
    /// # Panics
    /// The attempts are no list.
    #[must_use]
    pub fn causes(&self, id: i64) -> Vec<String> {
        let story = self.inspect(id);
        let attempts = story["attempts"].as_array().expect("attempts");
        attempts.iter().map(|attempt| attempt["cause"].as_str().unwrap_or("-").to_owned()).collect()
    }

    /// Waits until a job stands in one of these states.
    pub fn until_state(&self, id: i64, states: &[&str], limit: Duration) -> String {
        wait_until(&format!("job {id} is {states:?}"), limit, || {
            let state = self.state(id);
            if states.contains(&state.as_str()) { Ok(state) } else { Err(state) }
        })
    }

    /// The lines that jobs have written at their start: `start JOB ATTEMPT PID`.
    #[must_use]
    pub fn starts(&self) -> Vec<Start> {
        let log = fs::read_to_string(&self.starts).unwrap_or_default();
        log.lines().filter_map(Start::parse).collect()
    }

    /// The processes that a job of this world has left anywhere on the host: they carry its environment.
    #[must_use]
    pub fn processes_of(&self, job: i64) -> Vec<i32> {
        // Other worlds have a job of this number too, but no other start log.
        let marks = [format!("JOBVISOR_JOB_ID={job}"), format!("JOBVISOR_TEST_LOG={}", self.starts.display())];
        carrying(&[&marks[0], &marks[1]])
    }

    /// Runs the supervisor until nothing is left to do.
    ///
    /// # Panics
    /// It does not end within two minutes, or fails.
    pub fn until_idle(&self) -> Output {
        let output = self.start(&["run", "--until-idle"]).output(Duration::from_secs(120));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "run --until-idle failed ({}): {errors}", output.status);
        output
    }

    /// Starts a supervisor with these arguments.
    #[must_use]
    pub fn start(&self, arguments: &[&str]) -> Supervisor {
        self.start_with(arguments, &[])
    }

    /// The same, with more in its environment.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn start_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Supervisor {
        let log = self.path(&format!("run-{}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
        let stderr = fs::File::create(&log).expect("a log");
        let stdout = log.with_extension("out");
        let mut command = self.command(arguments);
        command.envs(environment.iter().copied());
        command.stdout(fs::File::create(&stdout).expect("a file")).stderr(stderr);
        let child = command.spawn_in_test();
        Supervisor { child, log, stdout }
    }

    /// Starts `run` and waits until it takes jobs.
    #[must_use]
    pub fn supervisor(&self) -> Supervisor {
        let supervisor = self.start(&["run"]);
        wait_until("the supervisor stands", SOON, || {
            let log = supervisor.log();
            if log.contains("taking jobs") { Ok(()) } else { Err(log) }
        });
        supervisor
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let groups = self.groups.get_mut().map(std::mem::take).unwrap_or_default();
        groups.iter().for_each(|group| remove_group(group));
    }
}

/// Copies what a checkout has; what runs have left there stays behind.
fn copy_folder(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("the example").map(|entry| entry.expect("an entry")) {
        let (source, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if source.is_file() && !name.contains(".db") {
            fs::copy(&source, to.join(&*name)).expect("a copy");
        } else if source.is_dir() && !name.starts_with('.') && name != "index" {
            fs::create_dir(to.join(&*name)).expect("a folder");
            copy_folder(&source, &to.join(&*name));
        }
    }
}

/// Our own group in the v1 memory tree.
fn own_memory_group() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.split_once(":memory:"))?.1;
    Some(Path::new("/sys/fs/cgroup/memory").join(own.trim_start_matches('/')))
}

fn remove_group(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_group(&entry.path());
        }
    }
    fs::remove_dir(group).ok();
}

/// One line of the start log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The job.
    pub job: i64,
    /// Its attempt.
    pub attempt: u32,
    /// The process.
    pub pid: i32,
}

impl Start {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("start ")?.split(' ');
        Some(Self {
            job: words.next()?.parse().ok()?,
            attempt: words.next()?.parse().ok()?,
            pid: words.next()?.parse().ok()?,
        })
    }
}

trait SpawnInTest {
    fn spawn_in_test(&mut self) -> Child;
}

impl SpawnInTest for Command {
    #[expect(
        clippy::disallowed_methods,
        reason = "the ban is for the product, whose children belong in groups of their own"
    )]
    fn spawn_in_test(&mut self) -> Child {
        self.spawn().expect("the program starts")
    }
}

/// A supervisor that runs; killed when dropped.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    log: PathBuf,
    stdout: PathBuf,
}

impl Supervisor {
    /// Its pid.
    ///
    /// # Panics
    /// Never: pids fit.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// What it has said so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What it has written to stdout so far.
    #[must_use]
    pub fn data(&self) -> String {
        fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// It is gone.
    pub fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(Pid::from_raw(self.pid()), signal).expect("it is there");
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// Its status cannot be read.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_some()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not come within `limit`; the log is shown.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let log = self.log.clone();
        let child = &mut self.child;
        wait_until("the supervisor has ended", limit, || match child.try_wait().expect("its status") {
            Some(status) => Ok(status),
            None => Err(fs::read_to_string(&log).unwrap_or_default()),
        })
    }

    /// Sends SIGTERM and waits for its end.
    pub fn stop(mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait(limit)
    }

    /// Kills it and waits for its end.
    pub fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.wait(SOON);
    }

    /// Waits for its end and gives what it wrote.
    #[must_use]
    pub fn output(mut self, limit: Duration) -> Output {
        let status = self.wait(limit);
        let read = |path: &Path| fs::read(path).unwrap_or_default();
        Output { status, stdout: read(&self.stdout), stderr: read(&self.log) }
    }
}

impl Drop for Supervisor {
    #[expect(clippy::print_stdout, reason = "the test runner shows what a failed test prints")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("--- log of the supervisor ---\n{}", self.log());
        }
        // Already gone in most tests.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The pids of processes that carry `mark` in their environment: what is left of somebody, wherever it went.
#[must_use]
pub fn marked(mark: &str) -> Vec<i32> {
    carrying(&[mark])
}

fn carrying(marks: &[&str]) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        let variables: Vec<&[u8]> = environ.split(|&byte| byte == 0).collect();
        if marks.iter().all(|mark| variables.contains(&mark.as_bytes())) {
            found.push(pid);
        }
    }
    found
}

/// A JSON string as text.
///
/// # Panics
/// It is none.
#[must_use]
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}
