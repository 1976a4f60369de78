//! The warden's one loop: sources in, events to attempts, frames out ([`speech`]).

mod speech;

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;
use std::time::Instant;

use nix::poll::PollFd;
use nix::poll::PollFlags;
use nix::poll::ppoll;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::time::TimeSpec;

use speech::Outgoing;

use super::EndFile;
use super::WardenSetup;
use super::attempt::Attempt;
use super::attempt::Phase;
use super::attempt::now;
use super::ground::Ground;
use super::message::Down;
use super::message::Key;
use super::message::Up;
use super::start;
use super::trust::Trust;
use crate::domain::clock::BootInstant;
use crate::kernel::process;
use crate::kernel::reap;
use crate::kernel::socket;

/// Frames taken in one round.
const FRAMES: usize = 16;

/// Frames taken in one round past the trust deadline: a renewal may lie behind many.
const LATE_FRAMES: usize = 256;

/// Orphans reaped in one round: without a bound a storm of them would keep the loop from everything else.
const ORPHANS: usize = 64;

/// The whole program of the hidden command `jobvisor warden`: descriptor 3 is the socket, 4 the setup.
#[must_use]
pub fn run() -> ExitCode {
    match Warden::stand().and_then(|mut warden| warden.live()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the socket, its only other way to speak, is what failed")]
            {
                eprintln!("jobvisor warden: {error} (this command is started by `jobvisor run`, not by hand)");
            }
            ExitCode::from(2)
        }
    }
}

#[derive(Debug)]
struct Warden {
    socket: OwnedFd,
    signals: SignalFd,
    ground: Ground,
    attempts: BTreeMap<Key, Attempt>,
    trust: Trust,
    outbox: VecDeque<Outgoing>,
    /// No send before this.
    resend: Option<Instant>,
    recent: VecDeque<(Instant, Box<EndFile>)>,
    /// When the warden goes, whatever it holds; set at the end of the socket.
    gone_by: Option<Instant>,
    /// A SIGCHLD came, or the last round left orphans.
    reap: bool,
}

impl Warden {
    /// Takes its place: own session, own children, its socket, and says so.
    fn stand() -> io::Result<Self> {
        let (socket, setup) = (process::inherited(3)?, process::inherited(4)?);
        if !socket::is_pair_end(&socket) {
            return Err(io::Error::other("descriptor 3 is not the supervisor's socket"));
        }
        let setup: WardenSetup = serde_json::from_slice(&socket::read_sealed(setup)?)?;
        // Inherited descriptors beyond are held for their locks; they must not reach a child, which closes all of them.
        let quiet = [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
            Signal::SIGQUIT,
            Signal::SIGTSTP,
            Signal::SIGPIPE,
            Signal::SIGUSR1,
            Signal::SIGUSR2,
        ];
        process::ignore_signals(&quiet).map_err(io::Error::other)?;
        let signals = process::child_signals().map_err(io::Error::other)?;
        process::set_name(c"jv:warden").map_err(io::Error::other)?;
        process::become_subreaper().map_err(io::Error::other)?;
        std::fs::create_dir_all(&setup.state_dir)?;
        let (mut ground, notes) = Ground::survey(setup);
        // A child costs some ten descriptors; with fewer, starts fail with their reason.
        ground.descriptors = process::raise_descriptor_limit().ok();
        let mut warden = Self {
            socket,
            signals,
            ground,
            attempts: BTreeMap::new(),
            trust: Trust::new()?,
            outbox: VecDeque::new(),
            resend: None,
            recent: VecDeque::new(),
            gone_by: None,
            reap: true,
        };
        let capabilities = serde_json::to_vec(&warden.ground.capabilities(notes))?;
        warden.post(&Up::Hello { capabilities }, None, None);
        Ok(warden)
    }

    fn live(&mut self) -> io::Result<()> {
        loop {
            self.flush();
            if self.gone_by.is_some_and(|by| self.attempts.is_empty() || by <= now()) {
                break;
            }
            let ready = self.wait()?;
            if ready.timer {
                self.trust.hush();
            }
            // The clock is believed only after a look into the socket that came later: a renewal may lie in it.
            let was_past = self.trust.is_past();
            if ready.socket || was_past {
                self.read_socket();
            }
            if !was_past && self.trust.is_past() {
                self.read_socket();
            }
            self.keep_trust();
            if ready.signals {
                while let Ok(Some(_)) = self.signals.read_signal() {
                    self.reap = true;
                }
            }
            self.ground.know_foreigners(&self.attempts);
            for key in ready.attempts {
                self.visit(key, |attempt, ground| {
                    attempt.read_errno(ground);
                    attempt.look_at_end(ground);
                });
            }
            if self.reap {
                self.reap_orphans();
            }
            self.tick();
            self.ground.sweep_if_due();
        }
        if let Some(tree) = &self.ground.tree {
            // Leaves that could not be emptied are left to the next warden's sweep.
            tree.remove().unwrap_or_default();
        }
        Ok(())
    }

    /// Sleeps until a source speaks or something is due.
    fn wait(&self) -> io::Result<Ready> {
        let mut keys = Vec::new();
        let blocked = self.resend.is_some_and(|at| at > now());
        let mut events = PollFlags::empty();
        if self.gone_by.is_none() {
            events |= PollFlags::POLLIN;
            if !self.outbox.is_empty() && !blocked {
                events |= PollFlags::POLLOUT;
            }
        }
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if self.gone_by.is_none() {
            fds.push(PollFd::new(self.socket.as_fd(), events));
            fds.push(PollFd::new(self.trust.timer(), PollFlags::POLLIN));
        }
        let first = fds.len();
        for attempt in self.attempts.values().filter(|attempt| attempt.is_alive()) {
            let sources = [attempt.errno.as_ref().map(AsFd::as_fd), Some(attempt.pidfd.as_fd())];
            for fd in sources.into_iter().flatten() {
                fds.push(PollFd::new(fd, PollFlags::POLLIN));
                keys.push(attempt.key);
            }
        }
        let timeout = self.timeout();
        match ppoll(&mut fds, timeout.map(TimeSpec::from), None) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let spoke = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let readable = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
        let heard = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| events.intersects(readable));
        let mut attempts: Vec<Key> =
            fds.iter().skip(first).zip(keys).filter(|(fd, _)| spoke(fd)).map(|(_, key)| key).collect();
        attempts.dedup();
        let socket = self.gone_by.is_none() && fds.get(1).is_some_and(heard);
        let timer = self.gone_by.is_none() && fds.get(2).is_some_and(spoke);
        Ok(Ready { signals: fds.first().is_some_and(spoke), socket, timer, attempts })
    }

    /// `None`: nothing is due, ever.
    fn timeout(&self) -> Option<Duration> {
        if self.reap {
            return Some(Duration::ZERO);
        }
        let due = self.attempts.values().filter_map(Attempt::wake_at);
        let due = due.chain(self.resend.filter(|_| !self.outbox.is_empty())).chain(self.gone_by);
        let due = due.chain(self.ground.wake_at()).chain(self.trust.wake_at()).min();
        due.map(|at| at.saturating_duration_since(now()))
    }

    fn read_socket(&mut self) {
        if self.gone_by.is_some() {
            return;
        }
        let (frames, open) = self.take_frames();
        // A start is not refused when the renewal that allows it is read already, and only its turn has not come.
        let renewed = frames.iter().rev().find_map(|(frame, _)| match frame {
            Down::Trust { until } => Some(BootInstant(*until)),
            Down::Start { .. } | Down::Stop { .. } => None,
        });
        for (frame, descriptors) in frames {
            match frame {
                Down::Start { key } => self.start(key, descriptors, renewed),
                Down::Stop { key, reason, grace_ms } => {
                    self.visit(key, |attempt, ground| attempt.stop(ground, reason.into(), grace_ms));
                }
                // In its turn: what was to be killed before a thaw must not run again.
                Down::Trust { until } => {
                    self.trust.set(BootInstant(until));
                    if !self.trust.is_past() {
                        self.keep_trust();
                    }
                }
            }
        }
        if !open {
            self.be_alone();
        }
    }

    /// What lies in the socket, and whether more can come.
    fn take_frames(&self) -> (Vec<(Down, Vec<OwnedFd>)>, bool) {
        let mut frames = Vec::new();
        for _ in 0..if self.trust.is_past() { LATE_FRAMES } else { FRAMES } {
            match socket::receive(self.socket.as_fd()) {
                // Of a newer supervisor: what we do not know we do not do.
                Ok(Some(frame)) => {
                    let read = wincode::deserialize::<Down>(&frame.bytes).ok();
                    frames.extend(read.map(|read| (read, frame.descriptors)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::InvalidData) => {}
                Ok(None) | Err(_) => return (frames, false),
            }
        }
        (frames, true)
    }

    /// Without a supervisor everything is being killed, and nothing has to be frozen for that.
    fn keep_trust(&mut self) {
        if self.gone_by.is_none() {
            self.trust.keep(&mut self.attempts, &mut self.ground);
        }
    }

    fn start(&mut self, key: Key, descriptors: Vec<OwnedFd>, renewed: Option<BootInstant>) {
        if self.attempts.contains_key(&key) {
            return;
        }
        match start::begin(&mut self.ground, key, descriptors, self.trust.allows_start(renewed)) {
            Ok(attempt) => drop(self.attempts.insert(key, attempt)),
            Err(refused) => self.end(key, refused.fence, *refused.evidence),
        }
    }

    /// Lets something happen to an attempt, and tells what came of it.
    fn visit(&mut self, key: Key, act: impl FnOnce(&mut Attempt, &mut Ground)) {
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        act(attempt, &mut self.ground);
        match attempt.phase {
            Phase::Running if !attempt.announced => {
                attempt.announced = true;
                let pid = attempt.pid;
                let pidfd = process::duplicate(&attempt.pidfd).ok();
                self.post(&Up::Started { key, pid }, pidfd, None);
            }
            Phase::Ended => {
                if let Some(attempt) = self.attempts.remove(&key) {
                    self.end(key, Some(attempt.spec.fence), attempt.evidence);
                }
            }
            Phase::Starting | Phase::Running | Phase::Emptying { .. } | Phase::Removing { .. } => {}
        }
    }

    fn tick(&mut self) {
        let now = now();
        let due = self.attempts.values().filter(|attempt| attempt.wake_at().is_some_and(|at| at <= now));
        for key in due.map(|attempt| attempt.key).collect::<Vec<_>>() {
            self.visit(key, |attempt, ground| attempt.tick(ground, now));
            let running = self.attempts.get_mut(&key).filter(|attempt| attempt.announced);
            if let Some(bytes) = running.and_then(|attempt| attempt.sampler.news.take()) {
                self.offer(&Up::Sample { key, bytes });
            }
        }
    }

    /// Takes away dead children that are nobody's main process. Stops at one that is: its own turn comes next round.
    fn reap_orphans(&mut self) {
        self.reap = false;
        for _ in 0..ORPHANS {
            let Some(pid) = reap::next_zombie() else { return };
            let main = self.attempts.values().find(|attempt| attempt.pid == pid && attempt.is_alive());
            if let Some(key) = main.map(|attempt| attempt.key) {
                self.visit(key, Attempt::look_at_end);
                continue;
            }
            // Already taken away, by nobody we know of.
            reap::reap_pid(pid).map(drop).unwrap_or_default();
        }
        self.reap = true;
    }
}

/// Who spoke.
#[derive(Debug)]
struct Ready {
    signals: bool,
    socket: bool,
    timer: bool,
    attempts: Vec<Key>,
}
