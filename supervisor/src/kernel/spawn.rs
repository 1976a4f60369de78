//! Starting a program so that it is contained before it runs any code of its own.
//!
//! The warden starts jobs with it, the supervisor its warden. `fork` costs what the forking process weighs, so jobs are
//! started by the small warden. Everything is prepared before the fork; between fork and `exec` the child makes only
//! async-signal-safe calls, in an order that was measured to matter:
//!
//! ```text
//! enter the leaf → name → session → oom_score_adj → rlimits → signals → nice → groups, gid, uid → no_new_privs
//!   → parent-death signal (a change of uid clears it) → is the parent still there? → descriptors → folder → exec
//! ```
//! The step that failed and its error number come back through a pipe that a successful `exec` closes. The end of that
//! pipe alone does not prove a start: a child that is killed before `exec` closes it, too.
//!
//! Raw system calls are used where the C library would act on the threads of the parent (`setuid` and friends). Signals
//! are blocked across the fork, so that no handler of the parent runs in the child.
#![expect(unsafe_code, reason = "fork, and what happens between it and exec, cannot be had from a safe library")]

use std::ffi::CStr;
use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::os::fd::RawFd;

use nix::fcntl::FcntlArg;
use nix::fcntl::OFlag;
use nix::fcntl::fcntl;
use nix::sys::prctl;
use nix::sys::resource::Resource;
use nix::sys::signal::SigSet;
use nix::sys::signal::SigmaskHow;
use nix::sys::signal::Signal;

use crate::kernel::KernelError;
use crate::kernel::process;
use crate::kernel::process::call_error;

/// The name that a job carries until its `exec`; for `ps` only, a job can take it as well.
pub const MARKER: &CStr = c"jv:start";

/// Jobs go before their supervisor when the host runs out of memory.
const OOM_SCORE: i32 = 500;

/// The errno pipe lies at or above this number, out of the way of what is handed on.
const ERRNO_PIPE: RawFd = 10;

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Whose rights a program gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What to start. Descriptors come beside it.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Paths to try in turn, as `execvp` does with the folders of `PATH`.
    pub programs: Vec<CString>,
    /// Arguments, the name first.
    pub argv: Vec<CString>,
    /// The whole environment, `NAME=value` each.
    pub env: Vec<CString>,
    /// Working folder; `None`: as the parent.
    pub cwd: Option<CString>,
    /// User and groups; `None`: as the parent.
    pub identity: Option<Identity>,
    /// Niceness to add.
    pub nice: Option<i32>,
    /// Soft and hard limit of open files; `None`: as the parent.
    pub descriptors: Option<(u64, u64)>,
    /// A job: marker name, raised OOM score, no core files, no new privileges, dies with its parent thread.
    pub contained: bool,
}

/// How a new process gets into its leaf.
#[derive(Debug, Default)]
pub struct Doors<'a> {
    /// The leaf's folder, for `CLONE_INTO_CGROUP`.
    pub into: Option<BorrowedFd<'a>>,
    /// Open `cgroup.procs` files: written to when `into` is not there or refused.
    pub procs: Vec<BorrowedFd<'a>>,
}

/// A child between fork and `exec`, or later.
#[derive(Debug)]
pub struct Spawned {
    /// Its number.
    pub pid: i32,
    /// Its identity.
    pub pidfd: OwnedFd,
    /// Read end of the errno pipe, non-blocking.
    pub errno: OwnedFd,
}

/// What the child wrote before it gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildFailure {
    /// The step's name, as in `StartFailure`.
    pub step: &'static str,
    /// The kernel's error number.
    pub errno: i32,
}

/// State of the errno pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrnoPipe {
    /// Nothing yet: the child is on its way.
    Open,
    /// Closed without a word: `exec` succeeded, or the child died on its way.
    Closed,
    /// A step failed.
    Failed(ChildFailure),
}

/// The child's steps; the number travels in the errno pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    Leaf,
    Session,
    Rlimit,
    Nice,
    User,
    NoNewPrivs,
    ParentDeath,
    Parent,
    Stdio,
    Close,
    Cwd,
    Exec,
}

impl Step {
    const NAMES: [&str; 12] = [
        "leaf",
        "session",
        "rlimit",
        "nice",
        "user",
        "no_new_privs",
        "parent_death",
        "parent",
        "stdio",
        "close",
        "cwd",
        "exec",
    ];
}

/// Reads the errno pipe without waiting.
#[must_use]
pub fn read_errno(pipe: BorrowedFd<'_>) -> ErrnoPipe {
    let mut report = [0_u8; 5];
    match nix::unistd::read(pipe, &mut report) {
        Ok(5) => {
            let [step, errno @ ..] = report;
            let step = Step::NAMES.get(usize::from(step)).copied().unwrap_or("unknown");
            ErrnoPipe::Failed(ChildFailure { step, errno: i32::from_ne_bytes(errno) })
        }
        Ok(_) => ErrnoPipe::Closed,
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => ErrnoPipe::Open,
        Err(_) => ErrnoPipe::Closed,
    }
}

/// Starts the program. `fds` become its descriptors 0, 1, 2, … in order; it gets no others.
///
/// # Errors
/// The fork itself failed (`EAGAIN`: too many processes; `ENOMEM`), or a descriptor could not be made. Whatever fails
/// in the child comes through [`Spawned::errno`].
pub fn spawn(plan: &Plan, fds: &[BorrowedFd<'_>], doors: &Doors<'_>) -> Result<Spawned, KernelError> {
    let (errno, errno_child) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(call_error("pipe2"))?;
    fcntl(&errno, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(call_error("fcntl(F_SETFL)"))?;
    let count = RawFd::try_from(fds.len()).unwrap_or(RawFd::MAX);
    let above = |fd: BorrowedFd<'_>, lowest: RawFd| -> Result<OwnedFd, KernelError> {
        let number = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(lowest)).map_err(call_error("fcntl(F_DUPFD_CLOEXEC)"))?;
        // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    };
    let errno_child = above(std::os::fd::AsFd::as_fd(&errno_child), ERRNO_PIPE.max(count))?;
    // Sources lie above all targets, so that no dup2 overwrites one that is still needed.
    let sources = fds.iter().map(|fd| above(*fd, count)).collect::<Result<Vec<_>, _>>()?;
    let mut child = Child {
        plan,
        argv: pointers(&plan.argv),
        env: pointers(&plan.env),
        sources: sources.iter().map(AsRawFd::as_raw_fd).collect(),
        procs: doors.procs.iter().map(AsRawFd::as_raw_fd).collect(),
        errno: errno_child.as_raw_fd(),
        parent: process::own_pid(),
    };
    let (pid, pidfd) =
        fork_into(&mut child, doors.into).map_err(|source| KernelError::Call { call: "clone", source })?;
    let pidfd = match pidfd {
        Some(pidfd) => pidfd,
        // Nobody else reaps our children, so the number is still this child's.
        None => process::pidfd_open(pid).map_err(|source| KernelError::Call { call: "pidfd_open", source })?,
    };
    Ok(Spawned { pid, pidfd, errno })
}

/// `exec`'s form of a list: pointers and a null at the end.
fn pointers(list: &[CString]) -> Vec<*const libc::c_char> {
    list.iter().map(|entry| entry.as_ptr()).chain([std::ptr::null()]).collect()
}

#[repr(C)]
#[derive(Debug, Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Forks with all signals blocked; the best way first. Old kernels and container filters refuse `clone3` with `ENOSYS`
/// or `EPERM`, groups that cannot be entered this way with `EBUSY`, `EACCES` or `EOPNOTSUPP`.
fn fork_into(child: &mut Child<'_>, into: Option<BorrowedFd<'_>>) -> io::Result<(i32, Option<OwnedFd>)> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let procs = std::mem::take(&mut child.procs);
    let mut answer = match into {
        Some(leaf) => clone3(child, Some(leaf)),
        None => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    };
    if answer.as_ref().is_err_and(may_fall_back) {
        child.procs = procs;
        answer = clone3(child, None);
    }
    if answer.as_ref().is_err_and(may_fall_back) {
        answer = clone_old(child);
    }
    before.thread_set_mask()?;
    answer
}

/// Whether another way of forking may succeed. Too many processes or too little memory is the same for all.
fn may_fall_back(error: &io::Error) -> bool {
    !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM))
}

fn clone3(child: &Child<'_>, into: Option<BorrowedFd<'_>>) -> io::Result<(i32, Option<OwnedFd>)> {
    let mut pidfd: RawFd = -1;
    let mut flags = u64::from(libc::CLONE_PIDFD.unsigned_abs());
    if into.is_some() {
        flags |= CLONE_INTO_CGROUP;
    }
    let mut args = CloneArgs {
        flags,
        pidfd: u64::try_from((&raw mut pidfd).addr()).unwrap_or(0),
        exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
        cgroup: into.map_or(0, |leaf| u64::from(leaf.as_raw_fd().unsigned_abs())),
        ..CloneArgs::default()
    };
    // SAFETY: the record has the layout and size that the kernel knows as version 2, pidfd points to an int that
    // outlives the call, and without CLONE_VM the child has its own copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) };
    match pid {
        0 => child.run(),
        1.. => {
            // SAFETY: CLONE_PIDFD made this descriptor for us; nobody else owns it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok((i32::try_from(pid).map_err(io::Error::other)?, Some(pidfd)))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// `fork` without the C library's handlers, for kernels and filters without `clone3`.
fn clone_old(child: &Child<'_>) -> io::Result<(i32, Option<OwnedFd>)> {
    // SAFETY: with only an exit signal and no CLONE_VM this is fork: the child has its own copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    match pid {
        0 => child.run(),
        1.. => Ok((i32::try_from(pid).map_err(io::Error::other)?, None)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// All that the child needs, laid out before the fork.
struct Child<'a> {
    plan: &'a Plan,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    sources: Vec<RawFd>,
    procs: Vec<RawFd>,
    errno: RawFd,
    parent: i32,
}

/// Turns the answer of a C function into the error number that it left.
fn done(answer: impl Into<i64>) -> nix::Result<()> {
    if answer.into() < 0 { Err(nix::Error::last()) } else { Ok(()) }
}

impl Child<'_> {
    /// The child's life. It allocates nothing, takes no lock and never returns.
    fn run(&self) -> ! {
        let (step, errno) = match self.prepare() {
            Ok(()) => (Step::Exec, self.exec()),
            Err(failure) => failure,
        };
        let [a, b, c, d] = (errno as i32).to_ne_bytes();
        let report = [step as u8, a, b, c, d];
        // SAFETY: the buffer lives, the descriptor is the child's own. Nothing can be done if nobody reads it.
        unsafe { libc::write(self.errno, report.as_ptr().cast(), report.len()) };
        // SAFETY: _exit runs no destructors and no handlers of the parent.
        unsafe { libc::_exit(127) }
    }

    fn prepare(&self) -> Result<(), (Step, nix::Error)> {
        let at = |step: Step| move |errno: nix::Error| (step, errno);
        self.enter_leaf().map_err(at(Step::Leaf))?;
        if self.plan.contained {
            // A name is for people; a kernel that refuses it loses nothing.
            prctl::set_name(MARKER).unwrap_or_default();
        }
        nix::unistd::setsid().map_err(at(Step::Session))?;
        if self.plan.contained {
            raise_oom_score();
            nix::sys::resource::setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(at(Step::Rlimit))?;
        }
        if let Some((soft, hard)) = self.plan.descriptors {
            nix::sys::resource::setrlimit(Resource::RLIMIT_NOFILE, soft, hard).map_err(at(Step::Rlimit))?;
        }
        reset_signals();
        self.renice().map_err(at(Step::Nice))?;
        self.switch_user().map_err(at(Step::User))?;
        if self.plan.contained {
            prctl::set_no_new_privs().map_err(at(Step::NoNewPrivs))?;
            prctl::set_pdeathsig(Signal::SIGKILL).map_err(at(Step::ParentDeath))?;
            if nix::unistd::getppid().as_raw() != self.parent {
                return Err((Step::Parent, nix::Error::ESRCH));
            }
        }
        self.place_descriptors()?;
        self.plan.cwd.as_deref().map_or(Ok(()), nix::unistd::chdir).map_err(at(Step::Cwd))
    }

    fn enter_leaf(&self) -> nix::Result<()> {
        for &fd in &self.procs {
            // SAFETY: the buffer is static, the descriptor was opened before the fork.
            done(i64::try_from(unsafe { libc::write(fd, c"0".as_ptr().cast(), 1) }).unwrap_or(-1))?;
        }
        Ok(())
    }

    fn renice(&self) -> nix::Result<()> {
        let Some(add) = self.plan.nice else { return Ok(()) };
        // SAFETY: two integers; 0 is the calling process.
        let now = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        // SAFETY: three integers; 0 is the calling process.
        done(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, now.saturating_add(add)) })
    }

    /// Groups, then group, then user; by raw calls, because the C library's would wait for threads that the fork left behind.
    fn switch_user(&self) -> nix::Result<()> {
        let Some(identity) = &self.plan.identity else { return Ok(()) };
        let (uid, gid, groups) = (identity.uid, identity.gid, &identity.groups);
        // SAFETY: pointer and length are of one vector.
        done(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
        // SAFETY: three integers.
        done(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
        // SAFETY: three integers.
        done(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
    }

    fn place_descriptors(&self) -> Result<(), (Step, nix::Error)> {
        let mut target: RawFd = 0;
        for &source in &self.sources {
            // SAFETY: sources lie above all targets, so this closes nothing that is still needed.
            done(unsafe { libc::dup2(source, target) }).map_err(|errno| (Step::Stdio, errno))?;
            target += 1;
        }
        // SAFETY: three integers; descriptors are only marked, the errno pipe stays open until exec.
        done(unsafe { libc::syscall(libc::SYS_close_range, target, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) })
            .or_else(|_| mark_by_hand(target))
            .map_err(|errno| (Step::Close, errno))
    }

    /// Tries each path as `execvp` does: one that is not there leads to the next, one that is refused is remembered.
    fn exec(&self) -> nix::Error {
        let mut worst = nix::Error::ENOENT;
        for program in &self.plan.programs {
            // SAFETY: all strings and lists were made before the fork, the lists end with a null.
            unsafe { libc::execve(program.as_ptr(), self.argv.as_ptr(), self.env.as_ptr()) };
            let errno = nix::Error::last();
            if errno == nix::Error::EACCES {
                worst = errno;
            } else if errno != nix::Error::ENOENT && errno != nix::Error::ENOTDIR {
                return errno;
            }
        }
        worst
    }
}

/// For kernels before 5.9: marks one by one, as far as the table may reach.
fn mark_by_hand(from: RawFd) -> nix::Result<()> {
    let (_, limit) = nix::sys::resource::getrlimit(Resource::RLIMIT_NOFILE)?;
    for fd in from..RawFd::try_from(limit.min(1 << 20)).unwrap_or(1 << 20) {
        // SAFETY: three integers; a number that is not open is an error that does not matter.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Raises the score to at least [`OOM_SCORE`], never lowers it. Where `/proc` is not there, the job is not worse for it.
fn raise_oom_score() {
    let Ok(file) =
        nix::fcntl::open(c"/proc/self/oom_score_adj", OFlag::O_RDWR | OFlag::O_CLOEXEC, nix::sys::stat::Mode::empty())
    else {
        return;
    };
    let mut text = [0_u8; 16];
    let length = nix::unistd::read(&file, &mut text).unwrap_or(0);
    let text = text.get(..length).and_then(|text| std::str::from_utf8(text).ok()).unwrap_or("");
    if text.trim().parse::<i32>().unwrap_or(0) < OOM_SCORE {
        // Refused to an ordinary user only where it would lower the score, which this does not.
        nix::unistd::write(&file, b"500").unwrap_or_default();
    }
}

/// Default dispositions (an ignored signal would survive `exec`), then an empty mask.
fn reset_signals() {
    // The kernel's own record: handler 0 is the default; no flags, no restorer, an empty mask.
    let default = [0_u64; 4];
    for signal in 1..=64 {
        // By the raw call, because the C library refuses to touch two signals that it keeps for itself.
        // SAFETY: the record is at least as long as the kernel reads; signals that cannot be set answer with an error.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u64>(), 8) };
    }
    // Cannot fail: the set is valid.
    SigSet::empty().thread_set_mask().unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::reap;
    use std::fs::File;
    use std::os::fd::AsFd;

    fn shell(script: &str) -> Plan {
        Plan {
            programs: vec![c"/no/such/sh".into(), c"/bin/sh".into()],
            argv: vec![c"sh".into(), c"-c".into(), CString::new(script).unwrap()],
            contained: true,
            ..Plan::default()
        }
    }

    fn end(spawned: &Spawned) -> crate::domain::evidence::ExitStatus {
        let mut fds = [nix::poll::PollFd::new(spawned.pidfd.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut fds, 20_000_u16), Ok(1));
        let seen = reap::peek(spawned.pidfd.as_fd()).unwrap();
        let reaped = reap::reap(spawned.pidfd.as_fd()).unwrap().unwrap();
        assert_eq!(seen, Some(reaped.exit));
        reaped.exit
    }

    #[test]
    fn the_child_writes_itself_into_every_group_before_anything_else() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["a", "b"].map(|name| File::create(dir.path().join(name)).unwrap());
        let doors = Doors { into: None, procs: files.iter().map(AsFd::as_fd).collect() };
        let null = process::null().unwrap();
        let spawned = spawn(&Plan::default(), &[null.as_fd()], &doors).unwrap();
        assert_eq!(end(&spawned), crate::domain::evidence::ExitStatus::Exited(127));
        assert_eq!(
            read_errno(spawned.errno.as_fd()),
            ErrnoPipe::Failed(ChildFailure { step: "exec", errno: libc::ENOENT })
        );
        for name in ["a", "b"] {
            assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), b"0");
        }
    }

    #[test]
    fn a_group_that_cannot_be_entered_is_told_as_step_leaf() {
        let null = process::null().unwrap();
        let closed = File::open("/dev/null").unwrap();
        // A folder that is no group makes CLONE_INTO_CGROUP fail; a file that is open for reading only makes the write fail.
        let folder = File::open("/").unwrap();
        let doors = Doors { into: Some(folder.as_fd()), procs: vec![closed.as_fd()] };
        let spawned = spawn(&shell("exit 3"), &[null.as_fd()], &doors).unwrap();
        end(&spawned);
        let ErrnoPipe::Failed(failure) = read_errno(spawned.errno.as_fd()) else { panic!("it ran") };
        assert_eq!((failure.step, failure.errno), ("leaf", libc::EBADF));
    }

    #[test]
    fn the_old_way_of_forking_runs_the_same_child() {
        let (errno, errno_child) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
        let null = process::null().unwrap();
        let source = fcntl(&null, FcntlArg::F_DUPFD_CLOEXEC(50)).unwrap();
        let plan = shell("test \"$(ulimit -c)\" = 0 && exit 5");
        let child = Child {
            plan: &plan,
            argv: pointers(&plan.argv),
            env: pointers(&plan.env),
            sources: vec![source],
            procs: Vec::new(),
            errno: errno_child.as_raw_fd(),
            parent: process::own_pid(),
        };
        let (pid, pidfd) = clone_old(&child).unwrap();
        assert!(pidfd.is_none());
        drop(errno_child);
        let spawned = Spawned { pid, pidfd: process::pidfd_open(pid).unwrap(), errno };
        assert_eq!(read_errno(spawned.errno.as_fd()), ErrnoPipe::Closed);
        assert_eq!(end(&spawned), crate::domain::evidence::ExitStatus::Exited(5));
    }
}
