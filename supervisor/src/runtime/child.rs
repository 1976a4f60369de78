//! The supervisor's side of one child: feeds its stdin, drains its pipes, and says when all is known.
//!
//! One task an attempt. Nothing here ends a child; the warden does that. What is held is bounded whatever the child writes
//! (invariant I7): stdout up to the kind's limit, then its last 64 KiB; stderr its last 64 KiB, and at most 1 KiB of a line
//! is forwarded to the log, through a bounded queue that drops (and counts) rather than waits.
//!
//! The end: the warden's evidence *and* the end of both pipes, in whatever order they come. Once the warden has proven the
//! tree gone the pipes are at their end or will be at once; where a process escaped (no cgroup), they are left after 1 s.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::sync::oneshot;

use crate::config::Output;
use crate::domain::evidence::Said;
use crate::domain::evidence::Speech;
use crate::domain::units::Bytes;
use crate::runtime::event::ChildOutput;
use crate::runtime::event::End;
use crate::warden::client::ParentPipes;
use crate::warden::message::StopReason;

/// How much of a stream's end is kept, in bytes.
const TAIL: usize = 64 * 1024;
/// How long the pipes may stay open after the tree is gone.
const DRAIN: Duration = Duration::from_secs(1);
/// Longest part of a stderr line that goes to the log, in bytes.
const LOG_LINE: usize = 1024;

/// A line of a child's stderr, for the log.
#[derive(Debug)]
pub struct LogLine {
    /// Kind, job and attempt, as the log names them.
    pub job: String,
    /// The line, made printable.
    pub line: String,
}

/// What a child needs to be served.
#[derive(Debug)]
pub struct Service {
    /// Our ends of its pipes.
    pub pipes: ParentPipes,
    /// What goes to its stdin.
    pub stdin: Vec<u8>,
    /// Most bytes of stdout.
    pub max_result: Bytes,
    /// What more than that means.
    pub output: Output,
    /// How the log names it.
    pub name: String,
    /// Where its lines go.
    pub log: mpsc::Sender<LogLine>,
    /// The warden's evidence.
    pub end: oneshot::Receiver<End>,
    /// To ask for the child's end.
    pub stop: mpsc::UnboundedSender<StopReason>,
}

/// Serves a child until all of its end is known.
pub async fn serve(service: Service) -> (End, ChildOutput) {
    let Service { pipes, stdin, max_result, output, name, log, end, stop } = service;
    let limit = usize::try_from(max_result.0).unwrap_or(usize::MAX);
    let mut stdout = Capture::new(limit);
    let mut stderr = Capture::new(0);
    let mut lines = LineForwarder::new(name, log);
    let strict = (output == Output::Strict).then_some(stop);
    let streams = async {
        tokio::join!(
            feed(pipes.stdin, stdin),
            drain(pipes.stdout, &mut stdout, |_, over| {
                if over && let Some(stop) = &strict {
                    stop.send(StopReason::OutputLimit).ok();
                }
            }),
            drain(pipes.stderr, &mut stderr, |bytes, _| lines.push(bytes)),
        )
    };
    let end = both(end, streams).await;
    lines.finish();
    let said = Said {
        speech: Speech::ExitStatus,
        stdout_bytes: stdout.total,
        stderr_bytes: stderr.total,
        truncated: stdout.total > max_result.0,
        ..Said::default()
    };
    (end, ChildOutput { said, stdout: stdout.into_bytes(), stderr: stderr.into_bytes() })
}

/// The evidence and the end of the streams; after the evidence the streams have [`DRAIN`] left.
async fn both(end: oneshot::Receiver<End>, streams: impl Future) -> End {
    tokio::pin!(streams);
    tokio::pin!(end);
    // The sender lives as long as the warden is heard; without it the warden is as good as dead.
    let gone = || End::WardenLost { pid: 0, exit: None };
    tokio::select! {
        _ = &mut streams => end.await.unwrap_or_else(|_| gone()),
        evidence = &mut end => {
            let _cut = tokio::time::timeout(DRAIN, streams).await;
            evidence.unwrap_or_else(|_| gone())
        }
    }
}

/// Writes the payload and closes the pipe. A child that does not read it is none of our business.
async fn feed(mut pipe: pipe::Sender, bytes: Vec<u8>) {
    if let Err(error) = pipe.write_all(&bytes).await {
        tracing::debug!(%error, "the child closed its stdin early");
    }
}

async fn drain(mut pipe: impl AsyncRead + Unpin, capture: &mut Capture, mut seen: impl FnMut(&[u8], bool)) {
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        let bytes = &buffer[..count];
        let was_over = capture.is_over();
        capture.push(bytes);
        seen(bytes, capture.is_over() && !was_over);
    }
}

/// The whole of a stream up to a limit, and its last [`TAIL`] bytes beyond.
#[derive(Debug)]
struct Capture {
    limit: usize,
    total: u64,
    kept: VecDeque<u8>,
}

impl Capture {
    const fn new(limit: usize) -> Self {
        Self { limit, total: 0, kept: VecDeque::new() }
    }

    fn is_over(&self) -> bool {
        self.total > self.limit as u64
    }

    fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let most = if self.is_over() { TAIL } else { self.limit };
        let bytes = &bytes[bytes.len().saturating_sub(most)..];
        let excess = (self.kept.len() + bytes.len()).saturating_sub(most);
        self.kept.drain(..excess.min(self.kept.len()));
        self.kept.extend(bytes);
        if self.is_over() && self.kept.capacity() > 4 * TAIL {
            self.kept.shrink_to(TAIL);
        }
    }

    fn into_bytes(self) -> Vec<u8> {
        self.kept.into()
    }
}

/// Cuts a stream into lines and hands them to the log without ever waiting for it.
#[derive(Debug)]
struct LineForwarder {
    name: String,
    log: mpsc::Sender<LogLine>,
    line: Vec<u8>,
    dropped: u64,
}

impl LineForwarder {
    const fn new(name: String, log: mpsc::Sender<LogLine>) -> Self {
        Self { name, log, line: Vec::new(), dropped: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let room = LOG_LINE.saturating_sub(self.line.len());
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if part.ends_with(b"\n") {
                self.send();
            }
        }
    }

    fn send(&mut self) {
        let line = String::from_utf8_lossy(&self.line).escape_debug().to_string();
        self.line.clear();
        if self.log.try_send(LogLine { job: self.name.clone(), line }).is_err() {
            self.dropped += 1;
        }
    }

    fn finish(&mut self) {
        if !self.line.is_empty() {
            self.send();
        }
        if self.dropped > 0 {
            tracing::warn!(job = %self.name, dropped = self.dropped, "stderr lines were not logged: the log was slower");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_within_its_limit_is_kept_whole_and_one_beyond_keeps_its_end() {
        let mut capture = Capture::new(10);
        capture.push(b"0123456789");
        assert!(!capture.is_over());
        assert_eq!(capture.kept.make_contiguous(), b"0123456789");
        capture.push(b"ab");
        assert!(capture.is_over());
        for _ in 0..1000 {
            capture.push(&[b'x'; 1000]);
        }
        capture.push(b"end");
        let kept = capture.into_bytes();
        assert_eq!(kept.len(), TAIL);
        assert!(kept.ends_with(b"xend"));
    }

    #[test]
    fn lines_reach_the_log_cut_and_printable_and_a_full_log_drops_them() {
        let (log, mut lines) = mpsc::channel(2);
        let mut forwarder = LineForwarder::new("ingest job 1".to_owned(), log);
        forwarder.push(b"one\ntw");
        forwarder.push(b"o\x1b[2J\n");
        forwarder.push(b"three\n");
        assert_eq!(lines.try_recv().unwrap().line, "one");
        assert_eq!(lines.try_recv().unwrap().line, "two\\u{1b}[2J");
        assert_eq!(forwarder.dropped, 1);
        forwarder.push(&[b'x'; 10 * LOG_LINE]);
        assert_eq!(forwarder.line.len(), LOG_LINE);
    }
}
