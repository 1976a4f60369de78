//! What a process sets on itself, and signals that cannot hit a stranger.
//!
//! Called by the supervisor and the warden at their start, and by the warden for every signal it sends.
//! Signals to one process go through a pidfd: its number may be used again, its descriptor is not.
#![expect(
    unsafe_code,
    reason = "descriptors that came by number, dispositions and two system calls that nix does not offer"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::os::fd::RawFd;

use nix::fcntl::FcntlArg;
use nix::fcntl::FdFlag;
use nix::fcntl::fcntl;
use nix::sys::prctl;
use nix::sys::resource::Resource;
use nix::sys::resource::getrlimit;
use nix::sys::resource::setrlimit;
use nix::sys::signal::SigHandler;
use nix::sys::signal::SigSet;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SfdFlags;
use nix::sys::signalfd::SignalFd;

use crate::kernel::KernelError;

/// Wraps an error of the system call `call`.
pub(crate) fn call_error(call: &'static str) -> impl Fn(nix::Error) -> KernelError {
    move |errno| KernelError::Call { call, source: io::Error::from(errno) }
}

/// Orphans below this process become its own children instead of those of process 1.
///
/// # Errors
/// The kernel refuses, which none that we know does.
pub fn become_subreaper() -> Result<(), KernelError> {
    prctl::set_child_subreaper(true).map_err(call_error("prctl(PR_SET_CHILD_SUBREAPER)"))
}

/// Nobody of the same user may read this process's memory or environment. Not for the warden: between fork and exec
/// a child of a non-dumpable process cannot open its own `/proc/self` files as an ordinary user.
///
/// # Errors
/// The kernel refuses, which none that we know does.
pub fn set_not_dumpable() -> Result<(), KernelError> {
    prctl::set_dumpable(false).map_err(call_error("prctl(PR_SET_DUMPABLE)"))
}

/// The name that `ps` shows, cut to 15 bytes.
///
/// # Errors
/// The kernel refuses, which none that we know does.
pub fn set_name(name: &std::ffi::CStr) -> Result<(), KernelError> {
    prctl::set_name(name).map_err(call_error("prctl(PR_SET_NAME)"))
}

/// This process's pid.
#[must_use]
pub fn own_pid() -> i32 {
    nix::unistd::getpid().as_raw()
}

/// This process no longer reacts to `signals`.
///
/// # Errors
/// One of them cannot be ignored.
pub fn ignore_signals(signals: &[Signal]) -> Result<(), KernelError> {
    for &signal in signals {
        // SAFETY: no handler is installed; ignoring a signal runs no code.
        unsafe { nix::sys::signal::signal(signal, SigHandler::SigIgn) }.map_err(call_error("signal"))?;
    }
    Ok(())
}

/// A descriptor that becomes readable when a child ends. SIGCHLD is blocked and set to its default, so that no
/// disposition inherited from a parent makes the kernel drop statuses.
///
/// # Errors
/// A system call fails.
pub fn child_signals() -> Result<SignalFd, KernelError> {
    // SAFETY: the default disposition runs no code.
    unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map_err(call_error("signal"))?;
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block().map_err(call_error("pthread_sigmask"))?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(call_error("signalfd"))
}

/// A descriptor for the process that has this number now.
///
/// # Errors
/// `ESRCH`: nobody has it.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(answer).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a signal to exactly this process.
///
/// # Errors
/// `ESRCH`: it is gone; `EPERM`: it belongs to a user whom we may not signal.
pub fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed and means "as kill(2) would".
    let answer = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, info, 0) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal to a whole process group, atomically with respect to forks. Only while the group's leader is not
/// reaped: afterwards the number may be somebody else's.
///
/// # Errors
/// `ESRCH`: nobody is in it.
pub fn signal_group(leader: i32, signal: Signal) -> io::Result<()> {
    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(leader), signal).map_err(io::Error::from)
}

/// Takes over a descriptor that this process was started with, and keeps it from its children.
///
/// # Errors
/// `EBADF`: there is none with this number.
pub fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is only borrowed for the check that it exists; a number below 0 is never passed.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // SAFETY: it exists, and by the contract of the hidden command it was made for this process alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Another descriptor for the same open file, not passed on to children.
///
/// # Errors
/// The table of descriptors is full.
pub fn duplicate(fd: impl AsFd) -> io::Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned()
}

/// Lets this process open as many files as it may, and answers what was allowed before (soft, hard): its children are
/// given that back, because programs that use `select` break with more.
///
/// # Errors
/// The limit cannot be read or set.
pub fn raise_descriptor_limit() -> Result<(u64, u64), KernelError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(call_error("getrlimit"))?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(call_error("setrlimit"))?;
    Ok((soft, hard))
}

/// Opens `/dev/null` for both directions.
///
/// # Errors
/// It cannot be opened.
pub fn null() -> Result<OwnedFd, KernelError> {
    let path = "/dev/null";
    File::options().read(true).write(true).open(path).map(OwnedFd::from).map_err(|source| KernelError::File {
        verb: "open",
        path: path.into(),
        data: None,
        source,
    })
}
