//! The warden with real processes: each test launches the built program and drives it through its client.
//!
//! Waits are bounded by [`LIMIT`]. Children carry their own deadlines, so that a failing test leaves nobody behind.
#![expect(clippy::unwrap_used, reason = "a test that finds something missing must stop there")]
#![expect(clippy::print_stderr, reason = "a test that cannot run here says so")]

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use jobvisor::domain::clock::monotonic;
use jobvisor::domain::evidence::Enforcement;
use jobvisor::domain::evidence::ExitStatus;
use jobvisor::domain::evidence::IntentReason;
use jobvisor::domain::evidence::ProcessEvidence;
use jobvisor::domain::evidence::Stage;
use jobvisor::domain::ids::AttemptNo;
use jobvisor::domain::ids::Fence;
use jobvisor::domain::ids::JobId;
use jobvisor::domain::ids::Term;
use jobvisor::warden::Capabilities;
use jobvisor::warden::ParentPipes;
use jobvisor::warden::Program;
use jobvisor::warden::StartSpec;
use jobvisor::warden::WardenError;
use jobvisor::warden::WardenEvent;
use jobvisor::warden::WardenEvents;
use jobvisor::warden::WardenHandle;
use jobvisor::warden::WardenSetup;
use jobvisor::warden::child_pipes;
use jobvisor::warden::ends;
use jobvisor::warden::launch_program;
use jobvisor::warden::message::StopReason;
use jobvisor::warden::sweep_orphans;
use tokio::io::AsyncReadExt;

const LIMIT: Duration = Duration::from_secs(40);
/// The child, beside the running test: so it is found wherever a copy of both is run.
fn child_program() -> PathBuf {
    support::world::program("fault-child")
}
const MIB: u64 = 1 << 20;

/// The program that is tested.
fn warden_program() -> Program {
    Program::At(support::world::program("jobvisor-under-test"))
}

/// A warden, its client, and what it has told so far.
struct World {
    dir: tempfile::TempDir,
    pid: i32,
    capabilities: Capabilities,
    handle: Option<WardenHandle>,
    events: WardenEvents,
    started: HashMap<u64, i32>,
    ended: HashMap<u64, ProcessEvidence>,
    samples: Vec<(u64, u64)>,
    lost: Option<Option<ExitStatus>>,
    term: Term,
    next: u64,
}

impl World {
    /// With no cgroups: the lane that must work everywhere.
    fn watchdog() -> Self {
        let world = Self::launch(tempfile::tempdir().unwrap(), true);
        assert_eq!(world.capabilities.enforcement, Enforcement::Watchdog);
        world
    }

    /// With what this host has to offer; `None`, said and counted as skipped, where that is no cgroup.
    fn cgroup() -> Option<Self> {
        let world = Self::launch(tempfile::tempdir().unwrap(), false);
        if world.capabilities.enforcement == Enforcement::Watchdog {
            eprintln!("skipped: no cgroup to use here: {}", world.capabilities.notes.join("; "));
            return None;
        }
        Some(world)
    }

    fn launch(dir: tempfile::TempDir, watchdog_only: bool) -> Self {
        let setup = WardenSetup { state_dir: dir.path().to_owned(), memory_budget: 1 << 30, watchdog_only };
        let launched = launch_program(&warden_program(), &setup, &[]).expect("a warden");
        let capabilities = launched.capabilities.clone();
        assert_eq!(launched.pid, capabilities.pid);
        let pid = launched.pid;
        let (handle, events) = launched.attach().unwrap();
        Self {
            dir,
            pid,
            capabilities,
            handle: Some(handle),
            events,
            started: HashMap::new(),
            ended: HashMap::new(),
            samples: Vec::new(),
            lost: None,
            term: Term::new(),
            next: 0,
        }
    }

    fn spec(&self, args: &[&str]) -> StartSpec {
        let words = std::iter::once(child_program().display().to_string()).chain(args.iter().map(ToString::to_string));
        StartSpec {
            fence: Fence { job: JobId(i64::try_from(self.next).unwrap() + 1), attempt: AttemptNo(1), term: self.term },
            argv: words.collect(),
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            cwd: self.dir.path().to_owned(),
            memory: 512 * MIB,
            pids: 64,
            require_cgroup: false,
            watchdog: false,
            timeout_ms: None,
            grace_ms: 5000,
            start_timeout_ms: 10_000,
            user: None,
            group: None,
            nice: None,
        }
    }

    fn start(&mut self, spec: &StartSpec) -> (u64, ParentPipes) {
        let (ours, theirs) = child_pipes().unwrap();
        let key = self.next;
        self.next += 1;
        self.handle.as_ref().unwrap().start(key, spec, theirs).unwrap();
        (key, ours)
    }

    fn run(&mut self, args: &[&str]) -> (u64, ParentPipes) {
        let spec = self.spec(args);
        self.start(&spec)
    }

    fn stop(&self, key: u64, reason: StopReason, grace: Duration) {
        self.handle.as_ref().unwrap().stop(key, reason, grace).unwrap();
    }

    /// Takes events until `done` says so.
    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + LIMIT;
        while !done(self) {
            let event = tokio::time::timeout_at(deadline, self.events.next()).await;
            match event.unwrap_or_else(|_| panic!("no sign of: {what}")) {
                Some(WardenEvent::Started { key, pid }) => {
                    assert!(self.started.insert(key, pid).is_none(), "started twice");
                }
                Some(WardenEvent::Ended { key, evidence }) => {
                    assert!(self.ended.insert(key, *evidence).is_none(), "ended twice");
                }
                Some(WardenEvent::Sample { key, bytes }) => self.samples.push((key, bytes)),
                Some(WardenEvent::Lost { pid, exit }) => {
                    assert_eq!(pid, self.pid);
                    self.lost = Some(exit);
                }
                None => panic!("the warden was gone before: {what}"),
            }
        }
    }

    async fn running(&mut self, key: u64) -> i32 {
        self.until("started", |world| world.started.contains_key(&key)).await;
        self.started[&key]
    }

    async fn end(&mut self, key: u64) -> ProcessEvidence {
        self.until("ended", |world| world.ended.contains_key(&key)).await;
        self.ended[&key].clone()
    }

    /// Lets go of the warden and waits for its end.
    async fn close(&mut self) -> Option<ExitStatus> {
        self.handle = None;
        self.until("the end of the warden", |world| world.lost.is_some()).await;
        assert_eq!(self.events.next().await, None);
        self.lost.unwrap()
    }
}

/// A test that ends early leaves no warden behind, not even as a zombie of a process 1 that does not reap.
impl Drop for World {
    fn drop(&mut self) {
        if self.lost.is_none() {
            let pid = nix::unistd::Pid::from_raw(self.pid);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).ok();
            nix::sys::wait::waitpid(pid, None).ok();
        }
    }
}

fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = monotonic();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "no sign of: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn length(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |metadata| metadata.len())
}

async fn read_all(pipe: &mut tokio::net::unix::pipe::Receiver) -> String {
    let mut text = String::new();
    tokio::time::timeout(LIMIT, pipe.read_to_string(&mut text)).await.expect("an end of output").unwrap();
    text
}

mod deaths;
mod leaves;
mod losses;
mod starts;
mod trees;
mod trust;
