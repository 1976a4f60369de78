//! Wires the supervisor's tasks and runs them until there is a reason to leave.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::task::JoinSet;

use crate::config;
use crate::config::Config;
use crate::domain::clock;
use crate::domain::clock::BootInstant;
use crate::domain::ids::Fence;
use crate::domain::ids::Term;
use crate::domain::job::JobState;
use crate::domain::report::chain;
use crate::domain::units::Bytes;
use crate::kernel::signals;
use crate::kernel::signals::Received;
use crate::runtime::await_store::Patience;
use crate::runtime::await_store::Waited;
use crate::runtime::child::LogLine;
use crate::runtime::control;
use crate::runtime::dispatcher::Dispatcher;
use crate::runtime::dispatcher::Identity;
use crate::runtime::drive::Drive;
use crate::runtime::drive::Relaunch;
use crate::runtime::drive::notify;
use crate::runtime::event::Event;
use crate::runtime::event::ExitReason;
use crate::runtime::finisher;
use crate::runtime::finisher::Writer;
use crate::runtime::here::Here;
use crate::runtime::here::HereError;
use crate::runtime::journal;
use crate::runtime::lease;
use crate::runtime::lease::Keeper;
use crate::runtime::lease::Lease;
use crate::runtime::lease::Pulse;
use crate::runtime::reconcile;
use crate::runtime::reconcile::Complaints;
use crate::runtime::reconcile::Shown;
use crate::runtime::reconcile::World;
use crate::runtime::record;
use crate::runtime::record::Observer;
use crate::runtime::recover;
use crate::runtime::rescue;
use crate::runtime::spec::row_policy;
use crate::runtime::vitals::Vitals;
use crate::store::Finish;
use crate::store::LockFile;
use crate::store::NewJob;
use crate::store::NewTerm;
use crate::store::Retention;
use crate::store::Store;
use crate::store::StoreError;
use crate::warden::WardenSetup;
use crate::warden::client::Launched;
use crate::warden::client::WardenError;

/// Lines of children's stderr that may wait for the log.
const LOG_QUEUE: usize = 1024;
/// How long outcomes may take to be recorded once everything else has ended.
const LAST_WRITES: Duration = Duration::from_secs(5);
/// How long the end of the term may take to be recorded.
const LAST_CALL: Duration = Duration::from_secs(5);

/// What `run` has prepared before any thread existed.
#[derive(Debug)]
pub struct Prepared {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// The warden, standing.
    pub launched: Launched,
    /// As it was set up.
    pub setup: WardenSetup,
    /// The database's lock.
    pub lock: LockFile,
    /// Memory for all attempts together.
    pub budget: Bytes,
    /// End when nothing is left to do.
    pub until_idle: bool,
}

/// What went wrong with the service itself.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The store.
    #[error("cannot begin")]
    Store(#[source] StoreError),
    /// The warden.
    #[error("cannot begin")]
    Warden(#[source] WardenError),
    /// The signals.
    #[error("cannot listen to signals")]
    Signals(#[source] std::io::Error),
    /// Who we are.
    #[error("cannot begin")]
    Here(#[source] HereError),
    /// The thread that renews the lease.
    #[error("cannot start the thread that renews the lease")]
    Thread(#[source] std::io::Error),
}

/// How it ended, and since when it ran.
#[derive(Debug)]
pub struct Left {
    /// Why.
    pub reason: ExitReason,
    /// When it began to take jobs.
    pub since: Timestamp,
    /// Every outcome is on record.
    pub complete: bool,
    /// The store that it worked with; `None`: it was stopped before that could be reached.
    pub store: Option<Arc<dyn Store>>,
}

/// What stands once a term has begun.
struct Begun {
    store: Arc<dyn Store>,
    supervisor: NewTerm,
    until: Option<BootInstant>,
    here: Here,
}

/// Runs the supervisor until it is told to stop or, with `until_idle`, has nothing left to do. `open` connects to the store.
///
/// # Errors
/// It could not begin. Once it has begun it does not fail; it waits, and says so in the log.
pub async fn run(
    prepared: Prepared,
    open: impl AsyncFnMut() -> Result<Arc<dyn Store>, StoreError>,
) -> Result<Left, ServiceError> {
    let Prepared { config, launched, setup, lock, budget, until_idle } = prepared;
    let (events, mut inbox) = mpsc::unbounded_channel();
    listen(events.clone(), config.path.clone()).map_err(ServiceError::Signals)?;
    let (warden, warden_events) = launched.attach().map_err(ServiceError::Warden)?;
    let mut patience = Patience::new(&mut inbox);
    let begun = begin(&mut patience, &config, open).await?;
    for event in std::mem::take(&mut patience.kept) {
        events.send(event).ok();
    }
    let Waited::Done(Begun { store, supervisor, until, here }) = begun else {
        return Ok(Left { reason: ExitReason::Stopped, since: clock::now(), complete: true, store: None });
    };
    let since = clock::now();

    let (term, promote, complaints) = (supervisor.term, Arc::new(Notify::new()), Complaints::default());
    let vitals = Arc::new(Vitals::default());
    let (outcomes, outcome_queue) = mpsc::unbounded_channel();
    let writer = tokio::spawn(finisher::write(Writer {
        store: Arc::clone(&store),
        outcomes: outcome_queue,
        events: events.clone(),
        put_back: Arc::clone(&promote),
        state_dir: config.supervisor.state_dir.clone(),
        vitals: Arc::clone(&vitals),
    }));
    let (shown, showing) = watch::channel(Shown::default());
    let pulse = Arc::new(Pulse::new(clock::boottime()));
    let lease = Lease::start(Keeper {
        supervisor,
        leased: store.is_leased(),
        renewer: store.renewer(),
        pulse: Arc::clone(&pulse),
        events: events.clone(),
    })
    .map_err(ServiceError::Thread)?;
    let world = World {
        store: Arc::clone(&store),
        events: events.clone(),
        promote: Arc::clone(&promote),
        shown: showing,
        complaints: complaints.clone(),
        vitals: Arc::clone(&vitals),
    };
    let (log, lines) = mpsc::channel(LOG_QUEUE);
    let observer = Observer { supervisor: here.name.clone(), host: here.host.clone() };
    let mut background = background(&world, &config, here, lines);
    let identity = Identity { observer, budget, until_idle, leased: store.is_leased() };
    events.send(Event::TermBegun { term, until }).ok();
    let tick = lease::tick_every(config.supervisor.lease);
    let drive = Drive {
        dispatcher: Dispatcher::new(identity, Arc::clone(&config)),
        store: Arc::clone(&store),
        warden: Some(warden),
        warden_events,
        relaunch: Arc::new(Relaunch { setup, lock }),
        events,
        inbox,
        outcomes,
        log,
        promote,
        shown,
        pulse: Arc::clone(&pulse),
        tick,
        complaints,
        max_result: config.supervisor.max_result,
        vitals,
        ends: HashMap::new(),
    };
    notify(&[sd_notify::NotifyState::Ready]);
    tracing::info!(%term, "taking jobs");
    let (reason, term) = drive.run().await;
    background.shutdown().await;
    let complete = last_writes(writer, &pulse, tick, &config.supervisor.state_dir).await;
    lease.stop().await;
    if complete && let Some(term) = term {
        end_term(store.as_ref(), term).await;
    }
    Ok(Left { reason, since, complete, store: Some(store) })
}

/// Opens the store, ends what predecessors left, and begins a term.
async fn begin(
    patience: &mut Patience<'_>,
    config: &Config,
    mut open: impl AsyncFnMut() -> Result<Arc<dyn Store>, StoreError>,
) -> Result<Waited<Begun>, ServiceError> {
    let here = Here::find(config).map_err(ServiceError::Here)?;
    let Waited::Done(store) = patience.until_done(&mut open).await.map_err(ServiceError::Store)? else {
        return Ok(Waited::Stopped);
    };
    let supervisor = new_term(config, &here);
    // The term may have been begun by a call whose answer was lost: its time counts from the first one.
    let mut first = None;
    let begun = patience.until_done(async || {
        let recovered = recover::recover(store.as_ref(), config, &here, supervisor.term).await?;
        if recovered != recover::Recovered::default() {
            let recover::Recovered { journaled, seen, unseen } = recovered;
            tracing::warn!(journaled, seen, unseen, "a supervisor before this one died; its open attempts are ended");
        }
        let sent = *first.get_or_insert_with(clock::boottime);
        store.begin_term(&supervisor).await?;
        tell_found(store.as_ref()).await?;
        startup_schedules(store.as_ref(), config).await?;
        Ok(store.is_leased().then(|| lease::trusted_until(sent, supervisor.lease)))
    });
    let Waited::Done(until) = begun.await.map_err(ServiceError::Store)? else {
        // It may have been begun: nobody need wait for it to fall silent.
        end_term(store.as_ref(), supervisor.term).await;
        return Ok(Waited::Stopped);
    };
    Ok(Waited::Done(Begun { store, supervisor, until, here }))
}

fn new_term(config: &Config, here: &Here) -> NewTerm {
    NewTerm {
        term: Term::new(),
        name: here.name.clone(),
        host: here.host.clone(),
        pid: here.pid,
        boot_id: here.boot_id.clone(),
        identity: here.identity.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kinds: config.kinds.keys().cloned().collect(),
        lease: config.supervisor.lease,
    }
}

/// Waits for the last outcomes to be recorded, under a lease that is kept meanwhile; answers whether they were.
async fn last_writes(writer: JoinHandle<()>, pulse: &Pulse, tick: Duration, state_dir: &Path) -> bool {
    let end = tokio::time::sleep(LAST_WRITES);
    tokio::pin!(writer, end);
    let written = loop {
        pulse.tick(clock::boottime());
        tokio::select! {
            _ = &mut writer => break true,
            () = &mut end => break false,
            () = tokio::time::sleep(tick) => {}
        }
    };
    // A journal that cannot be read is not an empty one.
    let left = journal::read_all(state_dir).map_or(1, |outcomes| outcomes.len());
    if written && left == 0 {
        return true;
    }
    tracing::error!(
        outcomes = left,
        journal = %journal::folder(state_dir).display(),
        "outcomes could not be recorded; the next start records what is in the journal"
    );
    false
}

/// A store that does not answer now will find the term silent.
async fn end_term(store: &dyn Store, term: Term) {
    let ended = async {
        give_back_rest(store, term).await?;
        store.end_term(term).await
    };
    match tokio::time::timeout(LAST_CALL, ended).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error = %chain(&error), "the end of this term is not on record"),
        Err(_) => tracing::warn!("the end of this term is not on record: the store does not answer"),
    }
}

/// Everything that ran here is on record, so what is still running under our term was claimed by a call whose reply was lost. It goes
/// back uncharged (I2): under a term that is over somebody would take it for lost, and charge it (I9).
async fn give_back_rest(store: &dyn Store, term: Term) -> Result<(), StoreError> {
    let rows = store.own_rows(term, u64::MAX).await?;
    let rest: Vec<Finish> =
        rows.into_iter().map(|(job, attempt)| record::give_back(Fence { job, attempt, term })).collect();
    if !rest.is_empty() {
        rescue::deliver(store, &rest).await?;
    }
    Ok(())
}

/// Says what earlier runs left, so that nobody takes old jobs for new ones or a used database for an empty one.
async fn tell_found(store: &dyn Store) -> Result<(), StoreError> {
    let mut states = BTreeMap::<JobState, u64>::new();
    for count in store.counts().await? {
        *states.entry(count.state).or_default() += count.jobs;
    }
    if !states.is_empty() {
        let jobs = states.values().sum::<u64>();
        let states = states.iter().map(|(state, jobs)| format!("{jobs} {state}")).collect::<Vec<_>>().join(", ");
        tracing::info!(jobs, %states, "found jobs of earlier runs");
    }
    Ok(())
}

/// `@startup`: once per start; passed over while an earlier job of the schedule is unfinished.
async fn startup_schedules(store: &dyn Store, config: &Config) -> Result<(), StoreError> {
    let mut jobs = Vec::new();
    for schedule in config.schedules.values() {
        if store.schedule_has_unfinished(&schedule.name).await? {
            tracing::info!(schedule = %schedule.name, "passed over: its last job is not finished");
            continue;
        }
        let policy = config.kinds.get(&schedule.kind).map(row_policy);
        jobs.push(NewJob {
            kind: schedule.kind.clone(),
            payload: schedule.payload.clone(),
            policy,
            schedule: Some(schedule.name.clone()),
            ..NewJob::default()
        });
    }
    if !jobs.is_empty() {
        store.enqueue(&jobs).await?;
        tracing::info!(jobs = jobs.len(), "enqueued by @startup schedules");
    }
    Ok(())
}

fn background(world: &World, config: &Arc<Config>, here: Here, mut lines: mpsc::Receiver<LogLine>) -> JoinSet<()> {
    let (succeeded, cancelled, dead) = config.supervisor.retain;
    let mut tasks = JoinSet::new();
    tasks.spawn(control::serve(config.supervisor.state_dir.clone(), world.events.clone()));
    tasks.spawn(reconcile::own_rows(world.clone(), config.supervisor.lease));
    tasks.spawn(reconcile::watcher(world.clone(), config.supervisor.poll, config.supervisor.lease));
    tasks.spawn(rescue::rescuer(world.clone(), Arc::clone(config), here));
    tasks.spawn(reconcile::promoter(world.clone()));
    tasks.spawn(reconcile::pruner(world.clone(), Retention { succeeded, cancelled, dead }));
    tasks.spawn(async move {
        while let Some(LogLine { job, line }) = lines.recv().await {
            tracing::info!(target: "child", %job, "{line}");
        }
    });
    tasks
}

fn listen(events: mpsc::UnboundedSender<Event>, path: PathBuf) -> std::io::Result<()> {
    signals::listen(move |received| {
        let event = match received {
            Received::Stop(from) => Some(Event::StopSignal { from, at: clock::now() }),
            Received::Report => Some(Event::Report),
            Received::Reload => reload(&path),
        };
        if let Some(event) = event {
            events.send(event).ok();
        }
    })
}

/// A bad file is refused whole, and the old configuration stays.
fn reload(path: &Path) -> Option<Event> {
    match config::load(path) {
        Ok(config) => {
            tracing::info!(path = %path.display(), "read again; kinds are as it says now, [database] and [supervisor] as at start");
            Some(Event::Reloaded(Arc::new(config)))
        }
        Err(errors) => {
            tracing::error!("kept the old configuration, because the new one has errors:\n{errors}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::fake::FakeStore;
    use crate::runtime::here;

    #[tokio::test]
    async fn i9_what_a_lost_reply_claimed_goes_back_uncharged_before_the_term_ends() {
        let folder = tempfile::tempdir().unwrap();
        let store = FakeStore::open(folder.path(), true).await;
        let row = here::tests::row(&here::tests::here());
        let new = NewTerm {
            term: row.term,
            name: row.name,
            host: row.host,
            pid: row.pid,
            boot_id: row.boot_id,
            identity: row.identity,
            version: row.version,
            kinds: row.kinds,
            lease: row.lease,
        };
        store.begin_term(&new).await.unwrap();
        let claimed = store.running(new.term).await;
        end_term(store.as_ref(), new.term).await;
        let job = store.job(claimed.fence.job).await.unwrap().unwrap();
        assert_eq!((job.state, job.budget.charged), (JobState::Queued, 0));
        assert!(store.terms().await.unwrap().iter().all(|row| !row.is_open()));
    }
}
