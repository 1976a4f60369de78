//! The supervisor's side: starting a warden, speaking with it, hearing of its end.
//!
//! `main` calls [`launch`] before any thread exists; after the death of a warden the supervisor calls it again from
//! where it is, which is safe, too: nothing but system calls happens between its fork and the `exec` of the warden.
//! [`Launched::attach`] then needs a tokio runtime. Sending never blocks the caller: a task of its own writes a queue.
//! The end of the socket is told once, as [`WardenEvent::Lost`], after the warden was reaped; a warden that is silent
//! for 2 s after the supervisor has let go of all its handles is killed.

mod launch;
mod sweep;

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use nix::fcntl::FcntlArg;
use nix::fcntl::OFlag;
use nix::fcntl::fcntl;
use nix::sys::signal::Signal;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::sync::watch;

use crate::domain::clock;
use crate::domain::clock::BootInstant;
use crate::domain::evidence::ExitStatus;
use crate::domain::evidence::ProcessEvidence;
use crate::domain::evidence::Stage;
use crate::kernel::KernelError;
use crate::kernel::process;
use crate::kernel::reap;
use crate::kernel::socket;
use crate::kernel::socket::Received;
use crate::warden::StartSpec;
use crate::warden::message::Down;
use crate::warden::message::Key;
use crate::warden::message::StopReason;
use crate::warden::message::Up;

pub use launch::Launched;
pub use launch::Program;
pub use launch::launch;
pub use launch::launch_program;
pub use sweep::sweep_orphans;

/// Silence after which a warden that should end is killed.
const SILENCE: Duration = Duration::from_secs(2);

/// How often the end of a warden is looked for once its socket has ended.
const LOOK: Duration = Duration::from_millis(5);

/// What can go wrong between a supervisor and its warden.
#[derive(Debug, thiserror::Error)]
pub enum WardenError {
    /// The program of the warden could not be started.
    #[error("cannot start the warden `{program}` (step `{step}`)")]
    Exec {
        /// Its path.
        program: String,
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The kernel refused something on the way.
    #[error("cannot {step} for the warden")]
    Kernel {
        /// What was tried.
        step: &'static str,
        /// The refusal.
        #[source]
        source: KernelError,
    },
    /// A descriptor or the socket failed.
    #[error("cannot {step} for the warden")]
    Io {
        /// What was tried.
        step: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A message could not be put into, or read from, its form.
    #[error("cannot {step} for the warden")]
    Form {
        /// What was tried.
        step: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// It did not say hello in time, or said something else.
    #[error("the warden (pid {pid}) {what}")]
    NoHello {
        /// Its pid.
        pid: i32,
        /// What it did instead.
        what: &'static str,
    },
    /// It is gone; [`WardenEvent::Lost`] tells or has told how.
    #[error("the warden is gone")]
    Gone,
}

fn kernel(step: &'static str) -> impl Fn(KernelError) -> WardenError {
    move |source| WardenError::Kernel { step, source }
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> WardenError {
    move |source| WardenError::Io { step, source }
}

/// The warden's process, reaped when it has ended.
#[derive(Debug)]
struct Process {
    pid: i32,
    pidfd: OwnedFd,
}

impl Process {
    /// Reaps it; `None`: it lives.
    fn ended(&self) -> Option<Option<ExitStatus>> {
        match reap::reap(self.pidfd.as_fd()) {
            Ok(None) => None,
            Ok(Some(reaped)) => Some(Some(reaped.exit)),
            Err(_) => Some(None),
        }
    }

    fn kill(&self) {
        // Gone already is as good.
        process::pidfd_signal(self.pidfd.as_fd(), Signal::SIGKILL as i32).unwrap_or_default();
    }
}

/// Looks every few milliseconds, until the condition holds or the time is over.
fn wait_for(mut condition: impl FnMut() -> bool, limit: Duration) -> bool {
    let until = clock::monotonic() + limit;
    loop {
        if condition() {
            return true;
        }
        if clock::monotonic() >= until {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

impl Launched {
    /// Hands the socket to the runtime that calls this.
    ///
    /// # Errors
    /// The socket cannot be registered.
    pub fn attach(self) -> Result<(WardenHandle, WardenEvents), WardenError> {
        let socket = std::os::unix::net::UnixDatagram::from(self.socket);
        socket.set_nonblocking(true).map_err(failed("set up the socket"))?;
        let socket = Arc::new(UnixDatagram::from_std(socket).map_err(failed("register the socket"))?);
        let (queue, frames) = mpsc::unbounded_channel();
        let (let_go, released) = watch::channel(None);
        tokio::spawn(write(Arc::clone(&socket), frames, let_go));
        let events = WardenEvents { socket, process: Some(self.process), released, last_heard: clock::monotonic() };
        Ok((WardenHandle { queue }, events))
    }
}

/// A frame on its way down.
#[derive(Debug)]
struct Outgoing {
    frame: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// Writes the queue until all handles are gone or the socket is; then tells the reader.
async fn write(
    socket: Arc<UnixDatagram>,
    mut frames: mpsc::UnboundedReceiver<Outgoing>,
    let_go: watch::Sender<Option<Instant>>,
) {
    while let Some(outgoing) = frames.recv().await {
        let descriptors: Vec<BorrowedFd<'_>> = outgoing.descriptors.iter().map(AsFd::as_fd).collect();
        let sent = loop {
            let send = || socket::send(socket.as_fd(), &outgoing.frame, &descriptors);
            match socket.async_io(Interest::WRITABLE, send).await {
                // Descriptors on their way beyond the limit of this process: the warden takes them in a moment.
                Err(error) if error.raw_os_error() == Some(nix::Error::ETOOMANYREFS as i32) => {
                    tokio::time::sleep(LOOK).await;
                }
                other => break other,
            }
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "the warden no longer listens");
            break;
        }
    }
    // The warden reads what is queued before it sees the end.
    socket.shutdown(std::net::Shutdown::Write).unwrap_or_default();
    let_go.send_replace(Some(clock::monotonic()));
}

/// The child's ends of its pipes.
#[derive(Debug)]
pub struct ChildStdio {
    /// Read end.
    pub stdin: OwnedFd,
    /// Write end.
    pub stdout: OwnedFd,
    /// Write end.
    pub stderr: OwnedFd,
}

/// Our ends of a child's pipes.
#[derive(Debug)]
pub struct ParentPipes {
    /// To the child.
    pub stdin: pipe::Sender,
    /// From the child.
    pub stdout: pipe::Receiver,
    /// From the child.
    pub stderr: pipe::Receiver,
}

/// Makes the three pipes of a child, inside a tokio runtime. Only our ends do not block: the child finds ordinary pipes.
///
/// # Errors
/// The table of descriptors is full.
pub fn child_pipes() -> Result<(ParentPipes, ChildStdio), WardenError> {
    let make = || nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|errno| failed("make a pipe")(errno.into()));
    let quiet = |fd: OwnedFd| match fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)) {
        Ok(_) => Ok(fd),
        Err(errno) => Err(failed("set up a pipe")(errno.into())),
    };
    let register = failed("register a pipe");
    let (stdin, our_stdin) = make()?;
    let (our_stdout, stdout) = make()?;
    let (our_stderr, stderr) = make()?;
    let ours = ParentPipes {
        stdin: pipe::Sender::from_owned_fd(quiet(our_stdin)?).map_err(&register)?,
        stdout: pipe::Receiver::from_owned_fd(quiet(our_stdout)?).map_err(&register)?,
        stderr: pipe::Receiver::from_owned_fd(quiet(our_stderr)?).map_err(&register)?,
    };
    Ok((ours, ChildStdio { stdin, stdout, stderr }))
}

/// Tells the warden what to do. When the last clone is dropped, the warden sees its supervisor gone.
#[derive(Debug, Clone)]
pub struct WardenHandle {
    queue: mpsc::UnboundedSender<Outgoing>,
}

impl WardenHandle {
    /// Starts a child; [`WardenEvents`] tells what becomes of it. `key` must never have been used with this warden.
    ///
    /// # Errors
    /// The warden is gone, or the specification cannot be put into a memory file.
    pub fn start(&self, key: Key, spec: &StartSpec, stdio: ChildStdio) -> Result<(), WardenError> {
        let spec = serde_json::to_vec(spec).map_err(|source| WardenError::Form { step: "write a start", source })?;
        let spec = socket::sealed(&spec).map_err(kernel("write a start"))?;
        self.send(&Down::Start { key }, vec![stdio.stdin, stdio.stdout, stdio.stderr, spec])
    }

    /// Ends a child: SIGTERM now, SIGKILL of everything after `grace` (zero: at once).
    ///
    /// # Errors
    /// The warden is gone.
    pub fn stop(&self, key: Key, reason: StopReason, grace: Duration) -> Result<(), WardenError> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.send(&Down::Stop { key, reason, grace_ms }, Vec::new())
    }

    /// Says how long the supervisor may be trusted to hold its lease. Past that every child is frozen and no start is
    /// accepted, until a later word that lies in the future; the newest word counts. Before the first one there is no deadline.
    ///
    /// # Errors
    /// The warden is gone.
    pub fn trust(&self, until: BootInstant) -> Result<(), WardenError> {
        self.send(&Down::Trust { until: until.0 }, Vec::new())
    }

    fn send(&self, frame: &Down, descriptors: Vec<OwnedFd>) -> Result<(), WardenError> {
        let frame = wincode::serialize(frame)
            .map_err(|error| failed("write a frame")(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        self.queue.send(Outgoing { frame, descriptors }).map_err(|_| WardenError::Gone)
    }
}

/// What the warden tells.
#[derive(Debug, Clone, PartialEq)]
pub enum WardenEvent {
    /// The program runs. A short one may end without this.
    Started {
        /// Which.
        key: Key,
        /// Its pid.
        pid: i32,
    },
    /// Nothing of it is alive any more (or is proven unkillable). The last event about this key.
    Ended {
        /// Which.
        key: Key,
        /// What was seen.
        evidence: Box<ProcessEvidence>,
    },
    /// What a running attempt holds, at most once a second; some are left out when we are slow to listen.
    Sample {
        /// Which.
        key: Key,
        /// Bytes.
        bytes: u64,
    },
    /// The warden is gone, and its direct children with it. The last event.
    Lost {
        /// Its pid.
        pid: i32,
        /// How it ended, where that could be seen.
        exit: Option<ExitStatus>,
    },
}

/// The stream of what the warden tells.
#[derive(Debug)]
pub struct WardenEvents {
    socket: Arc<UnixDatagram>,
    /// `None`: its end was told.
    process: Option<Process>,
    /// Since when nobody can send any more.
    released: watch::Receiver<Option<Instant>>,
    last_heard: Instant,
}

impl WardenEvents {
    /// The next event; `None` after [`WardenEvent::Lost`]. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<WardenEvent> {
        self.process.as_ref()?;
        loop {
            let receive = || socket::receive(self.socket.as_fd());
            let received = tokio::select! {
                received = self.socket.async_io(Interest::READABLE, receive) => received,
                () = silence(self.released.clone(), self.last_heard) => {
                    if let Some(process) = &self.process {
                        tracing::warn!(pid = process.pid, "the warden does not end; it is killed");
                        process.kill();
                    }
                    Ok(None)
                }
            };
            match received {
                Ok(Some(frame)) => {
                    self.last_heard = clock::monotonic();
                    match read_event(frame) {
                        Some(event) => return Some(event),
                        None => tracing::warn!("a frame of the warden that cannot be read"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(%error, "a frame of the warden that cannot be read");
                }
                Ok(None) | Err(_) => return self.lost().await,
            }
        }
    }

    /// Kills the warden, and its children with it; [`WardenEvent::Lost`] follows.
    pub fn kill(&self) {
        if let Some(process) = &self.process {
            process.kill();
        }
    }

    /// Waits for the end of the process, helps after 2 s, and tells once.
    async fn lost(&mut self) -> Option<WardenEvent> {
        let process = self.process.as_ref()?;
        let until = clock::monotonic() + SILENCE;
        let mut killed = false;
        let exit = loop {
            if let Some(exit) = process.ended() {
                break exit;
            }
            if !killed && clock::monotonic() >= until {
                process.kill();
                killed = true;
            }
            tokio::time::sleep(LOOK).await;
        };
        let pid = process.pid;
        self.process = None;
        Some(WardenEvent::Lost { pid, exit })
    }
}

/// Ends 2 s after the last frame, once nobody can send any more.
async fn silence(mut released: watch::Receiver<Option<Instant>>, last_heard: Instant) {
    // An error means that the writing task is gone, which is the same.
    let released = released.wait_for(Option::is_some).await.map_or(None, |at| *at);
    let since = released.map_or_else(clock::monotonic, |at| at.max(last_heard));
    tokio::time::sleep_until(tokio::time::Instant::from_std(since + SILENCE)).await;
}

fn read_event(frame: Received) -> Option<WardenEvent> {
    match wincode::deserialize::<Up>(&frame.bytes).ok()? {
        Up::Hello { .. } => None,
        Up::Started { key, pid } => Some(WardenEvent::Started { key, pid }),
        Up::Sample { key, bytes } => Some(WardenEvent::Sample { key, bytes }),
        Up::Ended { key, evidence, in_file } => {
            let evidence = match frame.descriptors.into_iter().next() {
                Some(file) if in_file => socket::read_sealed(file).unwrap_or_default(),
                Some(_) | None => evidence,
            };
            // Without room for the descriptor the end itself is still told: an attempt must not wait for it for ever.
            let evidence = serde_json::from_slice(&evidence).unwrap_or_else(|error| {
                tracing::error!(key, %error, "the evidence of an end cannot be read; nothing is known of it");
                ProcessEvidence { stage: Stage::AfterExec, ..ProcessEvidence::default() }
            });
            Some(WardenEvent::Ended { key, evidence: Box::new(evidence) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::cause::Cause;
    use crate::domain::evidence::Evidence;
    use crate::domain::verdict::Ending;
    use crate::domain::verdict::judge;

    #[test]
    fn an_end_whose_evidence_had_no_room_is_an_end_of_which_nothing_is_known() {
        let frame = wincode::serialize(&Up::Ended { key: 7, evidence: Vec::new(), in_file: true }).unwrap();
        let event = read_event(Received { bytes: frame, descriptors: Vec::new() });
        let Some(WardenEvent::Ended { key: 7, evidence }) = event else { panic!("{event:?}") };
        let verdict = judge(&Evidence { process: Some(*evidence), ..Evidence::default() });
        assert_eq!(verdict.ending, Ending::Failed(Cause::KilledUnknown));
    }
}
