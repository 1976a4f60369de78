//! The log: key=value lines on stderr, filtered by `JOBVISOR_LOG` (`info` by default); JSON with `--json`.
//!
//! Nobody waits for whoever reads it, and nobody fails with them: once [`detach`]ed, lines go through a bounded queue to a
//! thread of their own. A reader that stands still (a paused terminal, a full pipe) costs lines, which are counted; one that
//! went away costs all of them, and nothing else.

use std::io;
use std::io::IsTerminal;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

/// Lines that may wait for the reader.
const QUEUE: usize = 4096;
/// How long the last lines may take.
const LAST: Duration = Duration::from_secs(1);

static LINES: OnceLock<SyncSender<Line>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

enum Line {
    Text(Vec<u8>),
    /// All that came before is written.
    Flushed(SyncSender<()>),
}

/// Starts the log of this process. Lines are written at once until it is [`detach`]ed.
pub(crate) fn start(json: bool) {
    let filter = EnvFilter::try_from_env("JOBVISOR_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false).with_writer(|| Stderr);
    if json {
        log.json().init();
    } else {
        log.with_ansi(io::stderr().is_terminal()).with_target(false).init();
    }
}

/// From here on no line is waited for. Starts a thread.
///
/// # Errors
/// There can be no thread; lines are then written at once, as before.
pub(crate) fn detach() -> io::Result<()> {
    let (sender, lines) = mpsc::sync_channel(QUEUE);
    thread::Builder::new().name("log".to_owned()).spawn(move || write(&lines))?;
    LINES.set(sender).ok();
    Ok(())
}

/// Waits until what was said so far is written, for a second at most.
pub(crate) fn flush() {
    let Some(lines) = LINES.get() else { return };
    let (sender, flushed) = mpsc::sync_channel(1);
    if lines.try_send(Line::Flushed(sender)).is_ok() {
        flushed.recv_timeout(LAST).ok();
    }
}

fn write(lines: &Receiver<Line>) {
    while let Ok(line) = lines.recv() {
        let mut stderr = io::stderr().lock();
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            writeln!(stderr, "{dropped} lines of the log were dropped: its reader was slower").ok();
        }
        match line {
            Line::Text(text) => drop(stderr.write_all(&text)),
            Line::Flushed(flushed) => drop(flushed.try_send(())),
        }
    }
}

/// Takes one whole line a call, and always does.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match LINES.get() {
            Some(lines) if lines.try_send(Line::Text(line.to_vec())).is_err() => {
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
            Some(_) => {}
            None => drop(io::stderr().write_all(line)),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
