//! What a supervisor does before it begins: ends, on record, every attempt whose end nobody recorded.
//!
//! It runs under the database's lock, which the predecessor's warden held until its last child was gone; so nothing that is
//! ended here still runs. First what that warden saw (`ends/`), under the fence of then; then the rows that are left.
//! Idempotent: an `ends/` file is removed only after the store has taken it, and the store recognises what it has taken.

use std::path::Path;

use jiff::Timestamp;

use crate::config::Config;
use crate::domain::evidence::Evidence;
use crate::domain::evidence::ExitMeaning;
use crate::domain::evidence::ExitStatus;
use crate::domain::evidence::Loss;
use crate::domain::evidence::ProcessEvidence;
use crate::domain::retry::OnOom;
use crate::domain::retry::Policy;
use crate::domain::retry::decide;
use crate::domain::verdict::judge;
use crate::runtime::record::Observer;
use crate::store::AttemptRecord;
use crate::store::Finish;
use crate::store::Rescuable;
use crate::store::Store;
use crate::store::StoreError;
use crate::warden::EndFile;
use crate::warden::ends;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Ends that the predecessor's warden had seen.
    pub seen: usize,
    /// Attempts of which nothing but the loss is known.
    pub unseen: usize,
}

/// Records the ends of all attempts that a predecessor left open.
///
/// # Errors
/// The store cannot be reached. What was recorded stays recorded; the rest is found again next time.
pub async fn recover(
    store: &dyn Store,
    config: &Config,
    boot_id: &str,
    now: Timestamp,
) -> Result<Recovered, StoreError> {
    let rows = store.rescuable(&[]).await?;
    let ends = ends::read_all(&config.supervisor.state_dir).unwrap_or_else(|error| {
        tracing::error!(%error, "what the warden before this one saw cannot be read; its attempts count as lost");
        Vec::new()
    });
    let mut recovered = Recovered::default();
    let mut finishes = Vec::new();
    for row in &rows {
        let seen = ends.iter().find(|end| end.fence == row.fence).map(|end| end.process.clone());
        if seen.is_some() {
            recovered.seen += 1
        } else {
            recovered.unseen += 1
        }
        finishes.push(end_of(row, seen, config, boot_id, now));
    }
    for batch in finishes.chunks(500) {
        store.finish(batch).await?;
    }
    for EndFile { fence, .. } in &ends {
        remove_end(&config.supervisor.state_dir, fence);
    }
    Ok(recovered)
}

fn remove_end(state_dir: &Path, fence: &crate::domain::ids::Fence) {
    if let Err(error) = ends::remove(state_dir, fence) {
        tracing::warn!(%error, %fence, "the record of an end stays behind; it will be recognised next time");
    }
}

fn end_of(row: &Rescuable, seen: Option<ProcessEvidence>, config: &Config, boot_id: &str, now: Timestamp) -> Finish {
    let term = row.term.as_ref();
    let kind = config.kinds.get(&row.kind);
    let loss = match term {
        Some(term) if term.boot_id != boot_id => {
            Loss::Host { boot_id_then: term.boot_id.clone(), boot_id_now: boot_id.to_owned() }
        }
        Some(term) => {
            Loss::Supervisor { name: term.name.clone(), pid: Some(term.pid), last_seen: Some(term.last_seen) }
        }
        None => Loss::Supervisor { name: "unknown".to_owned(), pid: None, last_seen: None },
    };
    let mut evidence = Evidence {
        process: seen,
        loss: Some(loss),
        tolerate_oom: kind.is_some_and(|kind| kind.tolerate_oom),
        ..Evidence::default()
    };
    if let Some(Some(ExitStatus::Exited(code))) = evidence.process.as_ref().map(|process| process.exit) {
        evidence.said.exit_meaning = kind
            .and_then(|kind| kind.exit_codes.get(&code).copied())
            .or_else(|| (code == 0).then_some(ExitMeaning::Success));
    }
    let verdict = judge(&evidence);
    let policy = Policy { backoff: row.backoff, on_oom: kind.map_or(OnOom::Retry, |kind| kind.on_oom) };
    let decision = decide(&verdict, &row.budget, &policy, fastrand::f64(), None);
    let observer = Observer {
        supervisor: term.map(|term| term.name.clone()).unwrap_or_default(),
        host: term.map(|term| term.host.clone()).unwrap_or_default(),
    };
    let record = AttemptRecord {
        started_at: evidence.process.as_ref().and_then(|process| process.started_at),
        ended_at: evidence.process.as_ref().and_then(|process| process.ended_at).or(Some(now)),
        supervisor: observer.supervisor,
        host: observer.host,
        evidence,
        ..AttemptRecord::default()
    };
    Finish { fence: row.fence, decision, verdict: Some(verdict), result: None, record: Some(record) }
}
