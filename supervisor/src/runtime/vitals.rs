//! What the pieces around the dispatcher say of themselves, for `jobvisor status`: when each last ran and what was wrong,
//! and which outcomes are not recorded yet.
//!
//! Written in passing by whoever it concerns and read for [`Snapshot`] alone: nothing is decided by
//! it, and no lock here is held while anything waits.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Instant;

use crate::domain::clock;
use crate::domain::ids::Fence;
use crate::runtime::dispatcher::HeldOutcome;
use crate::runtime::dispatcher::PieceRun;
use crate::runtime::dispatcher::Snapshot;
use crate::warden::message::Key;

/// The piece that records outcomes: what keeps it from that keeps every outcome.
pub const FINISH_WRITER: &str = "finish writer";

/// See the module's head.
#[derive(Debug, Default)]
pub struct Vitals {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pieces: BTreeMap<&'static str, Run>,
    held: BTreeMap<Key, (Fence, Instant)>,
}

#[derive(Debug)]
struct Run {
    at: Instant,
    error: Option<String>,
}

impl Vitals {
    /// A piece ran; `error` is what went wrong, in one line.
    pub fn ran(&self, piece: &'static str, error: Option<String>) {
        self.state().pieces.insert(piece, Run { at: clock::monotonic(), error });
    }

    /// An outcome is on its way to the store.
    pub fn holds(&self, key: Key, fence: Fence) {
        self.state().held.insert(key, (fence, clock::monotonic()));
    }

    /// The store has taken it.
    pub fn recorded(&self, key: Key) {
        self.state().held.remove(&key);
    }

    /// Adds all this to what the dispatcher told.
    pub fn complete(&self, snapshot: &mut Snapshot) {
        let now = clock::monotonic();
        let state = self.state();
        let why = state.pieces.get(FINISH_WRITER).and_then(|run| run.error.clone());
        snapshot.held = state.held.values().map(|(fence, since)| held(fence, now - *since, why.as_deref())).collect();
        snapshot.pieces = state.pieces.iter().map(|(piece, run)| told(piece, run, now)).collect();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn held(fence: &Fence, age: std::time::Duration, why: Option<&str>) -> HeldOutcome {
    HeldOutcome { job: fence.job, attempt: fence.attempt, age_s: age.as_secs_f64(), why: why.map(str::to_owned) }
}

fn told(piece: &str, run: &Run, now: Instant) -> PieceRun {
    PieceRun { piece: piece.to_owned(), age_s: (now - run.at).as_secs_f64(), error: run.error.clone() }
}
