//! The control socket: a line with a question, a line with the answer, both ends of it.
//!
//! `control` in the supervisor's own state folder, for its own user alone (mode 0600). `run` serves it, `jobvisor status` asks.
//! A supervisor that cannot serve it says so in the log and works on.
//!
//! Whoever asks cannot hurt it: 4 of them at once (others wait in the kernel's queue), 256 bytes of question, 2 s from the
//! first byte to the last; and the question reaches the dispatcher as one more event, which it answers without waiting.

use std::io;
use std::io::Read;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncBufReadExt;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::io::BufReader;
use tokio::net::UnixListener;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::kernel::local;
use crate::runtime::dispatcher::Snapshot;
use crate::runtime::event::Event;

/// The socket's name in the folder.
const NAME: &str = "control";
/// How many are answered at once.
const CLIENTS: usize = 4;
/// Longest question.
const QUESTION: u64 = 256;
/// How long one of them may take.
const LIMIT: Duration = Duration::from_secs(2);
/// How long we wait for a place and an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const ANSWER: u64 = 64 << 20;
/// After an accept that failed (no descriptors are left, say).
const BREATH: Duration = Duration::from_millis(500);

/// Serves the socket for as long as it is polled, and takes it away when it is dropped.
pub fn serve(folder: PathBuf, events: UnboundedSender<Event>) -> impl Future<Output = ()> {
    // Here and not in the task: whoever is told that the supervisor stands finds the socket.
    let listener = local::listen(&folder, NAME).and_then(UnixListener::from_std);
    async move {
        match listener {
            Ok(listener) => answer_all(&listener, folder, events).await,
            Err(error) => {
                tracing::warn!(%error, folder = %folder.display(), "no control socket: `jobvisor status` will find nobody");
            }
        }
    }
}

async fn answer_all(listener: &UnixListener, folder: PathBuf, events: UnboundedSender<Event>) {
    let _bound = Bound(folder.join(NAME));
    let places = Arc::new(Semaphore::new(CLIENTS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let events = events.clone();
                tokio::spawn(async move {
                    // Who hangs up, or is too slow, gets no answer.
                    tokio::time::timeout(LIMIT, answer(stream, &events)).await.ok();
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "nobody can be let in to the control socket");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        // What stays there is replaced by the next supervisor.
        std::fs::remove_file(&self.0).ok();
    }
}

async fn answer(mut stream: UnixStream, events: &UnboundedSender<Event>) -> io::Result<()> {
    let mut question = String::new();
    let (reader, mut writer) = stream.split();
    BufReader::new(reader.take(QUESTION)).read_line(&mut question).await?;
    let answer = match question.trim() {
        "status" => {
            let (sender, snapshot) = oneshot::channel();
            events.send(Event::Status(sender)).map_err(io::Error::other)?;
            serde_json::to_string(&snapshot.await.map_err(io::Error::other)?)?
        }
        _ => serde_json::json!({ "error": "the only question known here is `status`" }).to_string(),
    };
    writer.write_all(answer.as_bytes()).await?;
    writer.write_all(b"\n").await?;
    writer.shutdown().await
}

/// Why a supervisor did not say how it stands.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is none.
    #[error("no supervisor runs here: nobody answers in `{folder}`")]
    Nobody {
        /// Where it would be.
        folder: PathBuf,
    },
    /// It is there, and does not answer in time.
    #[error("the supervisor does not answer within {patience:?} (is it stopped?)")]
    Silent {
        /// How long it was waited for.
        patience: Duration,
    },
    /// It cannot be asked.
    #[error("the supervisor in `{folder}` cannot be asked")]
    Socket {
        /// Where.
        folder: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its answer cannot be read: it is of another version.
    #[error("the supervisor's answer cannot be read; it is of another version")]
    Answer(#[source] serde_json::Error),
}

/// Asks the supervisor that uses this folder how it stands. Blocks, for some seconds at most.
///
/// # Errors
/// There is none, or it does not answer, or not to us.
pub fn ask(folder: &Path) -> Result<Snapshot, ControlError> {
    let answer = exchange(folder).map_err(|source| sort(folder, source))?;
    if answer.is_empty() {
        // It left while it was asked.
        return Err(ControlError::Nobody { folder: folder.to_owned() });
    }
    serde_json::from_str(&answer).map_err(ControlError::Answer)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the system's list of errors is open")]
fn sort(folder: &Path, source: io::Error) -> ControlError {
    let folder = folder.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ControlError::Nobody { folder },
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ControlError::Silent { patience: PATIENCE },
        _ => ControlError::Socket { folder, source },
    }
}

fn exchange(folder: &Path) -> io::Result<String> {
    let mut stream = local::connect(folder, NAME, PATIENCE)?;
    stream.write_all(b"status\n")?;
    let mut answer = String::new();
    stream.take(ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}
