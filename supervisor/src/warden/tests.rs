//! Steps of an attempt's life that no real kernel shows on demand: a start that stalls, a tree that does not die, a
//! leaf that stays busy. Real children, leaves that pretend: a forest would take the children of other tests for orphans.

use std::cell::Cell;
use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::StartSpec;
use super::WardenSetup;
use super::attempt::Attempt;
use super::attempt::Phase;
use super::attempt::now;
use super::ground::Ground;
use super::start;
use crate::domain::evidence::Ancestor;
use crate::domain::evidence::Counters;
use crate::domain::evidence::ExitStatus;
use crate::domain::evidence::IntentReason;
use crate::domain::evidence::ProcessEvidence;
use crate::domain::evidence::Stage;
use crate::domain::ids::AttemptNo;
use crate::domain::ids::Fence;
use crate::domain::ids::JobId;
use crate::domain::ids::Term;
use crate::kernel::KernelError;
use crate::kernel::cgroup::Entry;
use crate::kernel::cgroup::KillState;
use crate::kernel::cgroup::Leaf;
use crate::kernel::process;
use crate::kernel::spawn;
use crate::kernel::spawn::Doors;
use crate::kernel::spawn::Plan;

/// A leaf that holds `left` whatever is done to it, and is busy for some tries.
#[derive(Debug)]
struct Pretended {
    left: Vec<i32>,
    busy: Cell<u32>,
}

impl Leaf for Pretended {
    fn entry(&self) -> Entry<'_> {
        Entry::Write
    }
    fn procs_files(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    fn counters(&self) -> Counters {
        Counters { oom_kill: Some(0), peak: Some(4096), ..Counters::default() }
    }
    fn usage(&self) -> Option<u64> {
        Some(2048)
    }
    fn cpu_seconds(&self) -> Option<f64> {
        Some(0.5)
    }
    fn ancestors(&self) -> Vec<Ancestor> {
        Vec::new()
    }
    fn read_ancestors_again(&self, _: &mut [Ancestor]) {}
    fn procs(&self) -> Result<Vec<i32>, KernelError> {
        Ok(self.left.clone())
    }
    fn kill(&self) -> Result<KillState, KernelError> {
        Ok(if self.left.is_empty() { KillState::Empty } else { KillState::Dying })
    }
    fn freeze(&self) -> Result<bool, KernelError> {
        Ok(true)
    }
    fn thaw(&self) -> Result<bool, KernelError> {
        Ok(true)
    }
    fn remove(&self) -> Result<(), KernelError> {
        match self.busy.get() {
            0 => Ok(()),
            tries => {
                self.busy.set(tries - 1);
                Err(KernelError::Call { call: "rmdir", source: io::Error::from_raw_os_error(16) })
            }
        }
    }
}

fn empty() -> Pretended {
    Pretended { left: Vec::new(), busy: Cell::new(0) }
}

/// An attempt around a real `/bin/sleep 60`. The write end of its errno pipe is in the test's hand: as long as it is
/// open, `exec` has not succeeded as far as anybody can tell.
fn sleeping(ground: &Ground, leaf: Pretended, start_timeout_ms: u64) -> (Attempt, OwnedFd) {
    let argv: Vec<CString> = vec![c"sleep".into(), c"60".into()];
    let plan = Plan { programs: vec![c"/bin/sleep".into()], argv, contained: true, ..Plan::default() };
    let null = process::null().unwrap();
    let mut spawned = spawn::spawn(&plan, &[null.as_fd()], &Doors::default()).unwrap();
    let (errno, held) = nix::unistd::pipe2(nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_CLOEXEC).unwrap();
    spawned.errno = errno;
    let spec = StartSpec {
        fence: Fence { job: JobId(1), attempt: AttemptNo(1), term: Term::new() },
        argv: Vec::new(),
        env: Vec::new(),
        cwd: "/".into(),
        memory: 1 << 30,
        pids: 10,
        require_cgroup: false,
        watchdog: false,
        timeout_ms: None,
        grace_ms: 1000,
        start_timeout_ms,
        user: None,
        group: None,
        nice: None,
    };
    let folder = ground.state_dir.join("tmp/x");
    let evidence = ProcessEvidence { baseline: leaf.counters(), ..ProcessEvidence::default() };
    (start::attempt(1, spec, folder, Some(Box::new(leaf)), spawned, evidence), held)
}

fn ground(dir: &tempfile::TempDir) -> Ground {
    let setup = WardenSetup { state_dir: dir.path().to_owned(), memory_budget: 1 << 30, watchdog_only: true };
    Ground::survey(setup).0
}

/// Does what the loop does, until `done` or for at most 10 s.
fn drive(attempt: &mut Attempt, ground: &mut Ground, done: impl Fn(&Attempt) -> bool) {
    let until = now() + Duration::from_secs(10);
    while !done(attempt) {
        assert!(now() < until, "still {:?}", attempt.phase);
        std::thread::sleep(Duration::from_millis(2));
        attempt.look_at_end(ground);
        attempt.tick(ground, now());
    }
}

fn ended(attempt: &Attempt) -> bool {
    matches!(attempt.phase, Phase::Ended)
}

#[test]
fn a_start_that_stalls_is_killed_at_its_own_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let mut ground = ground(&dir);
    let (mut attempt, _held) = sleeping(&ground, empty(), 60);
    drive(&mut attempt, &mut ground, ended);
    let intent = attempt.evidence.intent.expect("an intent");
    assert_eq!(intent.reason, IntentReason::StartTimeout);
    assert_eq!(attempt.evidence.exit, Some(ExitStatus::Signaled(9)));
    assert!(intent.at_s >= 0.06 && !attempt.announced);
}

#[test]
fn i4_a_start_that_is_frozen_has_its_whole_time_left_after_the_thaw() {
    let dir = tempfile::tempdir().unwrap();
    let mut ground = ground(&dir);
    let (mut attempt, _held) = sleeping(&ground, empty(), 100);
    let begun = now();
    attempt.freeze(begun);
    assert!(attempt.wake_at().is_some_and(|at| at > begun), "a clock that stands still wakes nobody");
    drive(&mut attempt, &mut ground, |_| begun.elapsed() > Duration::from_millis(300));
    assert!(matches!(attempt.phase, Phase::Starting) && attempt.evidence.intent.is_none());
    attempt.thaw(now());
    drive(&mut attempt, &mut ground, ended);
    let intent = attempt.evidence.intent.expect("an intent");
    assert_eq!(intent.reason, IntentReason::StartTimeout);
    assert!(attempt.evidence.frozen_s >= 0.3 && intent.at_s >= attempt.evidence.frozen_s + 0.09, "{}", intent.at_s);
}

#[test]
fn i4_an_end_while_frozen_and_a_kill_end_the_frozen_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut ground = ground(&dir);
    for kill in [false, true] {
        let (mut attempt, _held) = sleeping(&ground, empty(), 60_000);
        attempt.freeze(now());
        std::thread::sleep(Duration::from_millis(20));
        if kill {
            attempt.stop(&mut ground, IntentReason::Drained, 60_000);
            assert!(attempt.killing, "what is frozen has no grace");
        } else {
            process::pidfd_signal(attempt.pidfd.as_fd(), 9).unwrap();
        }
        drive(&mut attempt, &mut ground, ended);
        assert!(attempt.evidence.frozen_s >= 0.02 && !attempt.may_freeze());
        attempt.thaw(now());
        assert!(attempt.frost_step(), "nothing is asked of the dead");
    }
}

#[test]
fn the_end_of_the_errno_pipe_leads_to_running_only_with_the_kernels_word() {
    let dir = tempfile::tempdir().unwrap();
    let mut ground = ground(&dir);
    let (mut attempt, held) = sleeping(&ground, empty(), 60_000);
    attempt.read_errno(&ground);
    assert!(matches!(attempt.phase, Phase::Starting), "the pipe is open");
    drop(held);
    attempt.read_errno(&ground);
    drive(&mut attempt, &mut ground, |attempt| matches!(attempt.phase, Phase::Running));
    attempt.stop(&mut ground, IntentReason::Drained, 0);
    drive(&mut attempt, &mut ground, ended);
    assert_eq!(attempt.evidence.stage, Stage::AfterExec);
}

#[test]
fn i8_what_does_not_die_is_named_and_its_leaf_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut ground = ground(&dir);
    let own = process::own_pid();
    let leaf = Pretended { left: vec![own], busy: Cell::new(0) };
    let (mut attempt, _held) = sleeping(&ground, leaf, 60_000);
    process::pidfd_signal(attempt.pidfd.as_fd(), 9).unwrap();
    drive(&mut attempt, &mut ground, |attempt| matches!(attempt.phase, Phase::Emptying { .. }));
    assert!(attempt.evidence.unkillable.is_empty());
    attempt.empty_step(&mut ground, now());
    assert!(ended(&attempt));
    let [stuck] = attempt.evidence.unkillable.as_slice() else { panic!("{:?}", attempt.evidence.unkillable) };
    assert_eq!(stuck.pid, own);
    assert!(stuck.stuck_in.is_some());
    assert!(attempt.leaf.is_some(), "it would be reused");
    assert!(attempt.evidence.counters_readable);
}

#[test]
fn a_leaf_that_is_busy_is_removed_when_it_no_longer_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut ground = ground(&dir);
    let leaf = Pretended { left: Vec::new(), busy: Cell::new(3) };
    let (mut attempt, _held) = sleeping(&ground, leaf, 60_000);
    process::pidfd_signal(attempt.pidfd.as_fd(), 9).unwrap();
    drive(&mut attempt, &mut ground, |attempt| matches!(attempt.phase, Phase::Removing { .. }));
    drive(&mut attempt, &mut ground, ended);
    assert!(attempt.leaf.is_none());
    assert_eq!(attempt.evidence.memory.peak.map(|peak| peak.0), Some(4096));
    assert_eq!((attempt.evidence.cpu_s, attempt.evidence.intent), (Some(0.5), None));
}
