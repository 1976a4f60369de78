//! Waking when another process has written to the database.
//!
//! A thread of its own blocks on inotify for the database's folder and rings when the database or its `-wal` file was
//! touched; [`changed`] then asks the *writer* connection for `PRAGMA data_version`, which moves for commits of other
//! connections only. So the store's own writes ring the bell and wake nobody.
//!
//! It is a hint: without inotify (all instances of the user taken) nothing wakes, and callers poll as they do anyway.
//! The thread ends when the last handle on the store is dropped.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use sqlx::sqlite::SqliteConnection;
use tokio::sync::watch;

use super::{SqliteStore, beside};

/// Milliseconds between the looks that follow a ring; a commit takes one fsync, which on a busy disk is long.
const LOOKS_MS: [u64; 7] = [2, 3, 5, 15, 50, 150, 400];

/// Rest of the listening thread after a ring, in milliseconds: one commit touches the WAL a dozen times.
const QUIET: u8 = 2;

/// What was seen so far, and the thread that listens: started by the first who waits, since most commands never do.
#[derive(Debug)]
pub(super) struct Wake {
    /// `data_version` at the last look.
    seen: AtomicI64,
    listener: OnceLock<Option<Listener>>,
}

impl Wake {
    pub(super) const fn new(version: i64) -> Self {
        Self { seen: AtomicI64::new(version), listener: OnceLock::new() }
    }

    fn bell(&self, path: &Path) -> Option<watch::Receiver<()>> {
        let listener = self.listener.get_or_init(|| match Listener::start(path) {
            Ok(listener) => Some(listener),
            Err(error) => {
                tracing::warn!(error, "other processes' jobs are found by polling alone");
                None
            }
        });
        listener.as_ref().map(|listener| listener.bell.clone())
    }
}

/// The bell and the way to end the thread that rings it.
#[derive(Debug)]
struct Listener {
    bell: watch::Receiver<()>,
    stop: Arc<EventFd>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Err(error) = self.stop.write(1) {
            tracing::debug!(%error, "the thread that listens for changes was not told to end");
        }
    }
}

impl Listener {
    fn start(path: &Path) -> Result<Self, &'static str> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(Errno::desc)?;
        let events = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        inotify.add_watch(path.parent().unwrap_or(path), events).map_err(Errno::desc)?;
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map(Arc::new).map_err(Errno::desc)?;
        let names = [path, &beside(path, "-wal")].map(|p| p.file_name().map(ToOwned::to_owned).unwrap_or_default());
        let (ring, bell) = watch::channel(());
        let until = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("store-wake".to_owned())
            .spawn(move || {
                while wait(&inotify, &until) {
                    let touched = inotify.read_events().unwrap_or_default();
                    if touched.iter().any(|event| event.name.as_ref().is_none_or(|name| names.contains(name))) {
                        ring.send_replace(());
                    }
                    if is_over_after(&until, QUIET) {
                        return;
                    }
                }
            })
            .map_err(|_| "no thread can be started")?;
        Ok(Self { bell, stop })
    }
}

/// Blocks until something was touched; false: it is over.
fn wait(inotify: &Inotify, stop: &EventFd) -> bool {
    loop {
        let mut fds = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN), PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => return fds.last().is_none_or(|stop| !stop.any().unwrap_or(true)),
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

/// Rests; true: it was told to end meanwhile.
fn is_over_after(stop: &EventFd, milliseconds: u8) -> bool {
    let mut fds = [PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::from(milliseconds)), Ok(1..))
}

/// Number that moves when another connection has committed.
pub(super) async fn data_version(conn: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("PRAGMA data_version").fetch_one(conn).await
}

/// Waits until another process has committed something since the last look. One waiter at a time is told.
pub(super) async fn changed(store: &SqliteStore) {
    let Some(mut bell) = store.wake.bell(&store.path) else {
        // Nobody rings: the caller's poll is what there is.
        return std::future::pending().await;
    };
    loop {
        bell.mark_unchanged();
        if look_for_a_while(store, &mut bell).await {
            return;
        }
        if bell.changed().await.is_err() {
            // Nobody rings any more: the caller's poll is what is left.
            std::future::pending::<()>().await;
        }
    }
}

/// The bell rings when a writer begins to append to the WAL; the commit counts when it has reached the disk and the
/// shared index, which rings nothing. So a ring is followed by a few looks, further and further apart.
async fn look_for_a_while(store: &SqliteStore, bell: &mut watch::Receiver<()>) -> bool {
    for pause in LOOKS_MS.map(Duration::from_millis) {
        if moved(store).await {
            return true;
        }
        tokio::time::sleep(pause).await;
        if bell.has_changed().unwrap_or(false) {
            return moved(store).await;
        }
    }
    moved(store).await
}

async fn moved(store: &SqliteStore) -> bool {
    let version = data_version(&mut *store.writer.lock().await).await;
    version.is_ok_and(|version| store.wake.seen.swap(version, Ordering::Relaxed) != version)
}
