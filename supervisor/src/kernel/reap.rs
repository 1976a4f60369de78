//! Waiting for ONE process: its status and its own use of the machine.
//!
//! Called by the warden for its children and by the supervisor for the warden. Looking ([`peek`]) and taking away
//! ([`reap`]) are apart, because between the two the zombie still shows its flags in `/proc`. Nothing here ever waits,
//! and nothing reaps "any child": orphans are looked at by [`next_zombie`] and reaped by number.
#![expect(unsafe_code, reason = "waitid's fifth argument, the usage of exactly this child, is offered by no library")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;

use crate::domain::evidence::ExitStatus;

/// A process that was taken away.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reaped {
    /// How it ended.
    pub exit: ExitStatus,
    /// User and system CPU seconds of it and of the children it waited for.
    pub cpu_s: f64,
    /// Faults that needed I/O, of the same processes.
    pub major_faults: u64,
    /// The largest resident size among the same processes, in bytes. Never less than what the forking process had.
    pub max_rss: u64,
}

/// How the process behind `pidfd` ended, without taking it away; `None`: it lives.
///
/// # Errors
/// `ECHILD`: it is no child of ours, or was already reaped.
pub fn peek(pidfd: BorrowedFd<'_>) -> io::Result<Option<ExitStatus>> {
    let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    Ok(wait(libc::P_PIDFD, id_of(pidfd), flags)?.and_then(|(info, _)| status(&info)))
}

/// Takes the process behind `pidfd` away; `None`: it lives.
///
/// # Errors
/// `ECHILD`: it is no child of ours, or was already reaped.
pub fn reap(pidfd: BorrowedFd<'_>) -> io::Result<Option<Reaped>> {
    take(libc::P_PIDFD, id_of(pidfd))
}

/// Takes the child with this number away; `None`: it lives.
///
/// # Errors
/// `ECHILD`: it is no child of ours, or was already reaped.
pub fn reap_pid(pid: i32) -> io::Result<Option<Reaped>> {
    take(libc::P_PID, libc::id_t::try_from(pid).map_err(io::Error::other)?)
}

/// The number of a child that has ended and was not reaped, whichever the kernel names first.
#[must_use]
pub fn next_zombie() -> Option<i32> {
    let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    let (info, _) = wait(libc::P_ALL, 0, flags).ok()??;
    // SAFETY: waitid filled the record for a child, so the pid member is the one in use.
    Some(unsafe { info.si_pid() })
}

fn id_of(pidfd: BorrowedFd<'_>) -> libc::id_t {
    pidfd.as_raw_fd().unsigned_abs()
}

fn take(kind: libc::idtype_t, id: libc::id_t) -> io::Result<Option<Reaped>> {
    let Some((info, usage)) = wait(kind, id, libc::WEXITED | libc::WNOHANG)? else { return Ok(None) };
    Ok(status(&info).map(|exit| Reaped {
        exit,
        cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        major_faults: u64::try_from(usage.ru_majflt).unwrap_or(0),
        max_rss: u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1024),
    }))
}

/// One call of waitid; `None`: nothing to report.
fn wait(kind: libc::idtype_t, id: libc::id_t, flags: i32) -> io::Result<Option<(libc::siginfo_t, libc::rusage)>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to memory of the right size that lives across the call.
    let answer = unsafe { libc::syscall(libc::SYS_waitid, kind, id, info.as_mut_ptr(), flags, usage.as_mut_ptr()) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed memory is a valid siginfo_t, and the kernel wrote over it.
    let info = unsafe { info.assume_init() };
    // SAFETY: zeroed memory is a valid rusage, and the kernel wrote over it.
    let usage = unsafe { usage.assume_init() };
    // SAFETY: with WNOHANG and nothing to report the record stays zeroed, else the pid member is in use.
    let pid = unsafe { info.si_pid() };
    Ok((pid != 0).then_some((info, usage)))
}

fn status(info: &libc::siginfo_t) -> Option<ExitStatus> {
    // SAFETY: waitid filled the record for a child, so the status member is the one in use.
    let value = unsafe { info.si_status() };
    match info.si_code {
        libc::CLD_EXITED => Some(ExitStatus::Exited(value)),
        libc::CLD_KILLED | libc::CLD_DUMPED => Some(ExitStatus::Signaled(value)),
        _ => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "CPU seconds with microseconds fit a double for centuries")]
fn seconds(time: libc::timeval) -> f64 {
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}
