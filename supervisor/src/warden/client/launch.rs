//! Starting a warden and hearing its first word.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use nix::poll::PollFd;
use nix::poll::PollFlags;
use nix::poll::PollTimeout;
use nix::poll::poll;

use super::Process;
use super::SILENCE;
use super::WardenError;
use super::failed;
use super::kernel;
use super::wait_for;
use crate::domain::clock;
use crate::kernel::process;
use crate::kernel::socket;
use crate::kernel::socket::Received;
use crate::kernel::spawn;
use crate::kernel::spawn::Doors;
use crate::kernel::spawn::ErrnoPipe;
use crate::kernel::spawn::Plan;
use crate::warden::Capabilities;
use crate::warden::WardenSetup;
use crate::warden::message::Up;

/// How long a new warden may take to say hello: it probes the host's cgroups meanwhile.
const HELLO: Duration = Duration::from_secs(10);

/// Variables that a warden inherits; nothing with a secret.
const ENVIRONMENT: [&str; 4] = ["PATH", "TZ", "RUST_BACKTRACE", "LLVM_PROFILE_FILE"];

/// Which program is the warden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// The running one (`/proc/self/exe`), also when its file was replaced meanwhile.
    Own,
    /// Another build of it.
    At(PathBuf),
}

/// A warden that stands, before the runtime does.
#[derive(Debug)]
pub struct Launched {
    /// Its pid.
    pub pid: i32,
    /// What it can enforce.
    pub capabilities: Capabilities,
    pub(super) process: Process,
    pub(super) socket: OwnedFd,
}

/// Starts a warden from the running program. Makes this process a subreaper, so that what a dead warden leaves behind
/// comes to it. The warden keeps `inherit` open for its life: a lock on one of them is held until the last child is gone.
///
/// # Errors
/// The program cannot be started, or does not say hello within 10 s (it is then killed).
pub fn launch(setup: &WardenSetup, inherit: &[BorrowedFd<'_>]) -> Result<Launched, WardenError> {
    launch_program(&Program::Own, setup, inherit)
}

/// The same with another program.
///
/// # Errors
/// As [`launch`].
pub fn launch_program(
    program: &Program,
    setup: &WardenSetup,
    inherit: &[BorrowedFd<'_>],
) -> Result<Launched, WardenError> {
    process::become_subreaper().map_err(kernel("become a subreaper"))?;
    let path = match program {
        Program::Own => PathBuf::from("/proc/self/exe"),
        Program::At(path) => path.clone(),
    };
    let shown = path.display().to_string();
    let plan = plan(&path).map_err(failed("name the program"))?;
    let (socket, theirs) = socket::pair().map_err(kernel("make a socket"))?;
    let setup = serde_json::to_vec(setup).map_err(|source| WardenError::Form { step: "write the setup", source })?;
    let setup = socket::sealed(&setup).map_err(kernel("write the setup"))?;
    let null = process::null().map_err(kernel("open /dev/null"))?;
    let stderr = io::stderr();
    let mut fds = vec![null.as_fd(), null.as_fd(), stderr.as_fd(), theirs.as_fd(), setup.as_fd()];
    fds.extend(inherit);
    let spawned = spawn::spawn(&plan, &fds, &Doors::default()).map_err(kernel("fork"))?;
    drop(fds);
    drop(theirs);
    let process = Process { pid: spawned.pid, pidfd: spawned.pidfd };
    let hello = hello(&process, &spawned.errno, &socket, &shown);
    match hello {
        Ok(capabilities) => Ok(Launched { pid: process.pid, capabilities, process, socket }),
        Err(error) => {
            process.kill();
            wait_for(|| process.ended().is_some(), SILENCE);
            Err(error)
        }
    }
}

fn plan(path: &Path) -> io::Result<Plan> {
    let variable = |name: &&str| std::env::var_os(name).map(|value| [name.as_bytes(), b"=", value.as_bytes()].concat());
    let env = ENVIRONMENT.iter().filter_map(variable).map(CString::new).collect::<Result<_, _>>()?;
    Ok(Plan {
        programs: vec![CString::new(path.as_os_str().as_bytes())?],
        argv: vec![c"jobvisor".into(), c"warden".into()],
        env,
        ..Plan::default()
    })
}

/// Waits for the first frame, or for the reason why there is none.
fn hello(process: &Process, errno: &OwnedFd, socket: &OwnedFd, program: &str) -> Result<Capabilities, WardenError> {
    let until = clock::monotonic() + HELLO;
    let none = |what| WardenError::NoHello { pid: process.pid, what };
    loop {
        let left = until.saturating_duration_since(clock::monotonic());
        if left.is_zero() {
            return Err(none("did not say hello within 10 s"));
        }
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(failed("poll")(error.into())),
        }
        match socket::receive(socket.as_fd()) {
            Ok(Some(frame)) => return read_hello(&frame).ok_or_else(|| none("sent no hello that we can read")),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Ok(None) | Err(_) => {
                return Err(match spawn::read_errno(errno.as_fd()) {
                    ErrnoPipe::Failed(failure) => WardenError::Exec {
                        program: program.to_owned(),
                        step: failure.step,
                        source: io::Error::from_raw_os_error(failure.errno),
                    },
                    ErrnoPipe::Open | ErrnoPipe::Closed => none("ended before it said hello"),
                });
            }
        }
    }
}

fn read_hello(frame: &Received) -> Option<Capabilities> {
    match wincode::deserialize::<Up>(&frame.bytes).ok()? {
        Up::Hello { capabilities } => serde_json::from_slice(&capabilities).ok(),
        Up::Started { .. } | Up::Ended { .. } | Up::Sample { .. } => None,
    }
}
