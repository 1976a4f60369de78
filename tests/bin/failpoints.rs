//! A store that strikes at a given call: it kills this supervisor or its warden, loses the reply, or refuses the call.
//!
//! `JOBVISOR_FAIL=WHEN CALL=ACT@FILE`, without the blank: `claim.after=kill-supervisor@/tmp/struck`. WHEN is `before` or
//! `after`, CALL `claim` or `finish`, ACT `kill-supervisor`, `kill-warden`, `lose-reply` (after) or `refuse` (before). FILE
//! is made by the first strike, and nothing strikes once it is there. A claim that gets nothing does not count as one
//! after which to strike.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use jobvisor::domain::ids::AttemptNo;
use jobvisor::domain::ids::JobId;
use jobvisor::domain::ids::Term;
use jobvisor::domain::job::Job;
use jobvisor::store::Acted;
use jobvisor::store::AttemptRow;
use jobvisor::store::CancelRequest;
use jobvisor::store::ClaimRequest;
use jobvisor::store::Claimed;
use jobvisor::store::Count;
use jobvisor::store::Enqueued;
use jobvisor::store::Filter;
use jobvisor::store::Finish;
use jobvisor::store::Finished;
use jobvisor::store::LossProof;
use jobvisor::store::NewJob;
use jobvisor::store::NewTerm;
use jobvisor::store::PausedKind;
use jobvisor::store::Promoted;
use jobvisor::store::Renewer;
use jobvisor::store::Rescuable;
use jobvisor::store::Retention;
use jobvisor::store::Store;
use jobvisor::store::StoreError;
use jobvisor::store::TermRow;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use support::kin;

/// The store as the environment asks for it.
pub(crate) fn wrap(inner: Arc<dyn Store>) -> Arc<dyn Store> {
    match std::env::var("JOBVISOR_FAIL") {
        Ok(text) => Arc::new(Failing { inner, plan: Plan::parse(&text).expect("JOBVISOR_FAIL can be read") }),
        Err(_) => inner,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    KillSupervisor,
    KillWarden,
    LoseReply,
    Refuse,
}

/// Where to strike, how, and the file that says that it was done.
#[derive(Debug)]
struct Plan {
    point: String,
    act: Act,
    file: PathBuf,
}

impl Plan {
    fn parse(text: &str) -> Option<Self> {
        let (point, rest) = text.split_once('=')?;
        let (act, file) = rest.split_once('@')?;
        let act = match act {
            "kill-supervisor" => Act::KillSupervisor,
            "kill-warden" => Act::KillWarden,
            "lose-reply" => Act::LoseReply,
            "refuse" => Act::Refuse,
            _ => return None,
        };
        Some(Self { point: point.to_owned(), act, file: file.into() })
    }

    /// Strikes if this is the place and nobody has yet. An error is what the caller of the store gets to see.
    fn strike(&self, point: &'static str) -> Result<(), StoreError> {
        if self.point != point {
            return Ok(());
        }
        let own = std::process::id().cast_signed();
        let warden = kin::warden_of(own).unwrap_or(0);
        if !kin::first_to_strike(&self.file, own, warden) {
            return Ok(());
        }
        match self.act {
            Act::KillSupervisor => kill(own),
            Act::KillWarden => kill(warden),
            Act::LoseReply | Act::Refuse => {
                return Err(StoreError::Unavailable { step: point, source: sqlx::Error::PoolTimedOut });
            }
        }
        Ok(())
    }
}

fn kill(pid: i32) {
    assert!(pid > 0, "there is nobody to kill");
    nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it lives");
}

#[derive(Debug)]
struct Failing {
    inner: Arc<dyn Store>,
    plan: Plan,
}

#[async_trait]
impl Store for Failing {
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        self.plan.strike("claim.before")?;
        let claimed = self.inner.claim(request).await?;
        if !claimed.is_empty() {
            self.plan.strike("claim.after")?;
        }
        Ok(claimed)
    }

    async fn finish(&self, outcomes: &[Finish]) -> Result<Vec<Finished>, StoreError> {
        if !outcomes.is_empty() {
            self.plan.strike("finish.before")?;
        }
        let finished = self.inner.finish(outcomes).await?;
        if !outcomes.is_empty() {
            self.plan.strike("finish.after")?;
        }
        Ok(finished)
    }

    async fn begin_term(&self, supervisor: &NewTerm) -> Result<(), StoreError> {
        self.inner.begin_term(supervisor).await
    }

    fn renewer(&self) -> Box<dyn Renewer> {
        self.inner.renewer()
    }

    fn is_leased(&self) -> bool {
        self.inner.is_leased()
    }

    async fn declare_lost(&self, term: Term, beat: u64, proof: LossProof) -> Result<bool, StoreError> {
        self.inner.declare_lost(term, beat, proof).await
    }

    async fn end_term(&self, term: Term) -> Result<(), StoreError> {
        self.inner.end_term(term).await
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
        self.inner.enqueue(jobs).await
    }

    async fn own_rows(&self, term: Term, below: u64) -> Result<Vec<(JobId, AttemptNo)>, StoreError> {
        self.inner.own_rows(term, below).await
    }

    async fn promote(&self, limit: u32) -> Result<Promoted, StoreError> {
        self.inner.promote(limit).await
    }

    async fn rescuable(&self, living: &[Term]) -> Result<Vec<Rescuable>, StoreError> {
        self.inner.rescuable(living).await
    }

    async fn cancel(&self, ids: &[JobId], by: &str) -> Result<Vec<(JobId, Acted)>, StoreError> {
        self.inner.cancel(ids, by).await
    }

    async fn cancel_requests(&self, term: Term) -> Result<Vec<CancelRequest>, StoreError> {
        self.inner.cancel_requests(term).await
    }

    async fn retry(&self, ids: &[JobId]) -> Result<Vec<(JobId, Acted)>, StoreError> {
        self.inner.retry(ids).await
    }

    async fn pause(&self, kinds: &[String], by: &str) -> Result<(), StoreError> {
        self.inner.pause(kinds, by).await
    }

    async fn resume(&self, kinds: &[String]) -> Result<Vec<String>, StoreError> {
        self.inner.resume(kinds).await
    }

    async fn paused(&self) -> Result<Vec<PausedKind>, StoreError> {
        self.inner.paused().await
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        self.inner.job(id).await
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<AttemptRow>, StoreError> {
        self.inner.attempts(id).await
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Job>, StoreError> {
        self.inner.list(filter).await
    }

    async fn counts(&self) -> Result<Vec<Count>, StoreError> {
        self.inner.counts().await
    }

    async fn oldest_queued(&self) -> Result<Vec<(String, jiff::Timestamp)>, StoreError> {
        self.inner.oldest_queued().await
    }

    async fn schedule_has_unfinished(&self, schedule: &str) -> Result<bool, StoreError> {
        self.inner.schedule_has_unfinished(schedule).await
    }

    async fn prune(&self, older_than: &Retention, limit: u32) -> Result<u64, StoreError> {
        self.inner.prune(older_than, limit).await
    }

    async fn changed(&self) {
        self.inner.changed().await;
    }

    fn hears(&self) -> bool {
        self.inner.hears()
    }

    async fn terms(&self) -> Result<Vec<TermRow>, StoreError> {
        self.inner.terms().await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.inner.now().await
    }
}
