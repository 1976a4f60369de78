//! What the warden says: frames to its supervisor without ever waiting, and, when that is gone, files.
//!
//! `Ended` is kept until it is sent or written; a sample is sent at once or forgotten, and never stands before another frame.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::time::Duration;
use std::time::Instant;

use super::Warden;
use crate::domain::evidence::IntentReason;
use crate::domain::evidence::ProcessEvidence;
use crate::domain::ids::Fence;
use crate::kernel::socket;
use crate::warden::EndFile;
use crate::warden::attempt::now;
use crate::warden::ends;
use crate::warden::message::Key;
use crate::warden::message::Up;

/// Evidence longer than this travels in a memory file.
const INLINE: usize = 32 * 1024;

/// Pause before a send is tried again that was refused for another reason than a full socket.
const RESEND: Duration = Duration::from_millis(5);

/// How long the warden may live after its supervisor.
const AFTERLIFE: Duration = Duration::from_secs(30);

/// Ends that are written again when the supervisor goes, because it may have taken them to its grave: age and number.
const RECENT: (Duration, usize) = (Duration::from_secs(30), 64);

/// A frame that waits for room in the socket.
#[derive(Debug)]
pub(super) struct Outgoing {
    frame: Vec<u8>,
    descriptor: Option<OwnedFd>,
    /// Set for an `Ended`: what to write if it can no longer be sent.
    end: Option<Box<EndFile>>,
}

impl Warden {
    /// Sends what may be lost: now, or not at all.
    pub(super) fn offer(&self, frame: &Up) {
        if self.outbox.is_empty() && self.gone_by.is_none() {
            let frame = wincode::serialize(frame).unwrap_or_default();
            socket::send(self.socket.as_fd(), &frame, &[]).unwrap_or_default();
        }
    }

    /// The supervisor is gone: everything dies at once.
    pub(super) fn be_alone(&mut self) {
        if self.gone_by.is_some() {
            return;
        }
        self.gone_by = now().checked_add(AFTERLIFE);
        for key in self.attempts.keys().copied().collect::<Vec<_>>() {
            self.visit(key, |attempt, ground| attempt.stop(ground, IntentReason::SupervisorGone, 0));
        }
        let fresh = |at: &Instant| at.elapsed() < RECENT.0;
        let recent = std::mem::take(&mut self.recent).into_iter().filter(|(at, _)| fresh(at)).map(|(_, end)| end);
        let waiting = std::mem::take(&mut self.outbox).into_iter().filter_map(|outgoing| outgoing.end);
        for end in waiting.chain(recent) {
            self.write_end(&end);
        }
    }

    fn write_end(&self, end: &EndFile) {
        // A full disk: the rescuer then says what it can without us.
        ends::write(&self.ground.state_dir, end).unwrap_or_default();
    }

    /// The last word about an attempt: to the supervisor, or to the disk.
    pub(super) fn end(&mut self, key: Key, fence: Option<Fence>, evidence: ProcessEvidence) {
        let end = fence.map(|fence| Box::new(EndFile { fence, process: evidence.clone() }));
        if self.gone_by.is_some() {
            return end.iter().for_each(|end| self.write_end(end));
        }
        // Serialising plain data does not fail.
        let json = serde_json::to_vec(&evidence).unwrap_or_default();
        let file = if json.len() > INLINE { socket::sealed(&json).ok() } else { None };
        let in_file = file.is_some();
        let evidence = if in_file { Vec::new() } else { json };
        self.post(&Up::Ended { key, evidence, in_file }, file, end);
    }

    pub(super) fn post(&mut self, frame: &Up, descriptor: Option<OwnedFd>, end: Option<Box<EndFile>>) {
        // Serialising into memory does not fail.
        let frame = wincode::serialize(frame).unwrap_or_default();
        self.outbox.push_back(Outgoing { frame, descriptor, end });
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self) {
        if self.gone_by.is_some() || self.resend.is_some_and(|at| at > now()) {
            return;
        }
        self.resend = None;
        while let Some(outgoing) = self.outbox.front() {
            let descriptors: Vec<BorrowedFd<'_>> = outgoing.descriptor.iter().map(AsFd::as_fd).collect();
            match socket::send(self.socket.as_fd(), &outgoing.frame, &descriptors) {
                Ok(()) => self.sent(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    return self.be_alone();
                }
                // Too many descriptors on their way, no memory for the frame: passes.
                Err(_) => {
                    self.resend = now().checked_add(RESEND);
                    return;
                }
            }
        }
    }

    fn sent(&mut self) {
        let Some(end) = self.outbox.pop_front().and_then(|outgoing| outgoing.end) else { return };
        self.recent.push_back((now(), end));
        if self.recent.len() > RECENT.1 {
            self.recent.pop_front();
        }
    }
}
