//! Ends, on record, the attempts of supervisors that are gone: by state, per job, idempotent, in every supervisor.
//!
//! Every fifth of the lease (spread by a fifth, so that supervisors do not look in step) the rescuer reads the terms and notes
//! what it sees ([`Observations`]). An open term whose lease has run out by the database's clock *and* that it saw silent for one
//! whole lease is declared lost, by its beat: a renewal that comes first wins (I4). Then, whoever declared it, every running row
//! of a term that is over is ended under its old fence (I5) as `supervisor_lost`, which stays charged (I1), or as `host_rebooted` where our own
//! folder proves that. What was asked to be cancelled is cancelled by the store.
//!
//! Jobs of one lost term come back one after the other, `STAGGER` apart beside their back-off: one of them may have been what
//! killed it, and should meet as few of its neighbours as may be.
//!
//! Terms of our own under which something still runs here or waits to be recorded are left alone.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::config::Config;
use crate::domain::clock;
use crate::domain::evidence::Evidence;
use crate::domain::evidence::ExitMeaning;
use crate::domain::evidence::ExitStatus;
use crate::domain::evidence::Loss;
use crate::domain::evidence::ProcessEvidence;
use crate::domain::ids::Term;
use crate::domain::report::chain;
use crate::domain::retry::Next;
use crate::domain::retry::OnOom;
use crate::domain::retry::Policy;
use crate::domain::retry::decide;
use crate::domain::verdict::judge;
use crate::runtime::here::Here;
use crate::runtime::observe;
use crate::runtime::observe::Observations;
use crate::runtime::reconcile::World;
use crate::runtime::snapshot;
use crate::store::AttemptRecord;
use crate::store::Finish;
use crate::store::Finished;
use crate::store::LossProof;
use crate::store::Rescuable;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::TermRow;

/// Rows that are ended at once.
const BATCH: usize = 100;
/// From one job of a lost term to the next, and the most that this adds.
const STAGGER: Duration = Duration::from_millis(250);
const LONGEST_STAGGER: Duration = Duration::from_secs(30);

/// Looks for terms that are over, for as long as the supervisor lives.
pub async fn rescuer(world: World, config: Arc<Config>, here: Here) {
    let every = config.supervisor.lease / 5;
    let mut observed = Observations::load(&config.supervisor.state_dir, &here.boot_id);
    loop {
        tokio::time::sleep(every.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
        let living = world.shown.borrow().living.clone();
        world.grumble("rescuer", declare(world.store.as_ref(), &living, &mut observed).await);
        if let Err(error) = observed.save() {
            tracing::debug!(%error, "what was seen of other supervisors is not kept for the next start");
        }
        // Between two terms of our own we hold no lease; others rescue meanwhile.
        let shown = world.shown.borrow().clone();
        if shown.term.is_some() {
            let done = sweep(world.store.as_ref(), &config, &here, &shown.living).await;
            if world.grumble("rescuer", done).is_some_and(|ended| ended > 0) {
                world.promote.notify_one();
            }
        }
    }
}

/// Declares lost what is proven to be.
async fn declare(store: &dyn Store, own: &[Term], observed: &mut Observations) -> Result<(), StoreError> {
    let asked = clock::boottime();
    let rows = store.terms().await?;
    let answered = clock::boottime();
    let open: Vec<&TermRow> = rows.iter().filter(|row| row.is_open() && !own.contains(&row.term)).collect();
    let silent = observed.see(&open, asked, answered);
    for (row, silent) in open.into_iter().zip(silent) {
        if observe::is_lost(row, silent) && store.declare_lost(row.term, row.beat, LossProof::Silence).await? {
            tracing::warn!(
                term = %row.term, supervisor = %row.name, host = %row.host, pid = row.pid, lease = ?row.lease, ?silent,
                "this supervisor gave no sign of life for a whole lease; its term is lost and its attempts are ended"
            );
        }
    }
    Ok(())
}

/// Ends every running row whose term is over. Answers how many were ended here; another supervisor may have been first.
///
/// # Errors
/// The store cannot be reached. What was ended stays ended; the rest is found again.
pub async fn sweep(store: &dyn Store, config: &Config, here: &Here, living: &[Term]) -> Result<usize, StoreError> {
    let mut rows = store.rescuable(living).await?;
    rows.sort_unstable_by_key(|row| (row.fence.term, row.fence.job));
    let mut ended = 0;
    let mut nth = 0;
    let mut last = None;
    let mut finishes = Vec::with_capacity(rows.len());
    for row in &rows {
        nth = if last == Some(row.fence.term) { nth + 1 } else { 0 };
        last = Some(row.fence.term);
        finishes.push(staggered(end_of(row, None, config, here, clock::now()), nth));
    }
    for batch in finishes.chunks(BATCH) {
        let taken = deliver(store, batch).await?;
        for (finish, finished) in batch.iter().zip(taken) {
            if let Some(Finished::Recorded(state)) = finished {
                ended += 1;
                let cause = finish.verdict.as_ref().and_then(|verdict| verdict.ending.cause());
                let cause = cause.map(|cause| cause.code()).unwrap_or_default();
                tracing::warn!(job = %finish.fence.job, attempt = %finish.fence.attempt, cause, %state, "ended for a supervisor that is gone");
            }
        }
    }
    Ok(ended)
}

fn staggered(mut finish: Finish, nth: u32) -> Finish {
    if let Next::PutBack(delay) = &mut finish.decision.next {
        *delay = delay.saturating_add((STAGGER * nth).min(LONGEST_STAGGER));
    }
    finish
}

/// Records outcomes; `None` beside one that the database, though it answers, does not take in any form.
///
/// # Errors
/// The store cannot be reached.
pub async fn deliver(store: &dyn Store, finishes: &[Finish]) -> Result<Vec<Option<Finished>>, StoreError> {
    match store.finish(finishes).await {
        Ok(taken) => return Ok(taken.into_iter().map(Some).collect()),
        Err(error) if error.is_unavailable() => return Err(error),
        Err(_) => {}
    }
    // Each alone, so that one does not hold up the others.
    let mut taken = Vec::with_capacity(finishes.len());
    for finish in finishes {
        taken.push(match store.finish(std::slice::from_ref(finish)).await {
            Ok(one) => one.into_iter().next(),
            Err(error) if error.is_unavailable() => return Err(error),
            Err(error) => {
                tracing::error!(job = %finish.fence.job, attempt = %finish.fence.attempt, error = %chain(&error), "cannot end this attempt");
                None
            }
        });
    }
    Ok(taken)
}

/// The outcome of an attempt whose supervisor is gone; `seen` is what its warden saw of the end.
#[must_use]
pub fn end_of(row: &Rescuable, seen: Option<ProcessEvidence>, config: &Config, here: &Here, now: Timestamp) -> Finish {
    let term = row.term.as_ref();
    let kind = config.kinds.get(&row.kind);
    let last = term
        .and_then(|term| term.snapshot.as_deref())
        .and_then(|text| snapshot::find(text, row.fence.job, row.fence.attempt));
    let mut evidence = Evidence {
        process: seen,
        loss: Some(loss_of(term, here)),
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
    let process = evidence.process.as_ref();
    let message = last.as_ref().filter(|_| process.is_none()).and_then(|last| {
        let (pid, bytes) = (last.pid?, last.bytes?);
        Some(format!(
            "when its supervisor last gave a sign of life it ran as pid {pid} and used {bytes} of {}",
            row.memory
        ))
    });
    let record = AttemptRecord {
        started_at: process.and_then(|process| process.started_at).or_else(|| last.and_then(|last| last.started)),
        ended_at: process.and_then(|process| process.ended_at).or(Some(now)),
        supervisor: term.map(|term| term.name.clone()).unwrap_or_default(),
        host: term.map(|term| term.host.clone()).unwrap_or_default(),
        message,
        evidence,
        ..AttemptRecord::default()
    };
    Finish { fence: row.fence, decision, verdict: Some(verdict), result: None, record: Some(record) }
}

fn loss_of(term: Option<&TermRow>, here: &Here) -> Loss {
    match term {
        Some(term) if here.has_rebooted_since(term) => {
            Loss::Host { boot_id_then: term.boot_id.clone(), boot_id_now: here.boot_id.clone() }
        }
        Some(term) => {
            Loss::Supervisor { name: term.name.clone(), pid: Some(term.pid), last_seen: Some(term.last_seen) }
        }
        None => Loss::Supervisor { name: "unknown".to_owned(), pid: None, last_seen: None },
    }
}

#[cfg(test)]
pub(in crate::runtime) mod tests;
