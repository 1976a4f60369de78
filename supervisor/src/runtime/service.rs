//! Wires the supervisor's tasks and runs them until there is a reason to leave.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::config;
use crate::config::Config;
use crate::domain::clock;
use crate::domain::ids::Term;
use crate::domain::job::JobState;
use crate::domain::report::chain;
use crate::domain::units::Bytes;
use crate::kernel::host;
use crate::kernel::signals;
use crate::kernel::signals::Received;
use crate::runtime::child::LogLine;
use crate::runtime::dispatcher::Dispatcher;
use crate::runtime::dispatcher::Identity;
use crate::runtime::drive::Drive;
use crate::runtime::drive::Relaunch;
use crate::runtime::drive::notify;
use crate::runtime::event::Event;
use crate::runtime::event::ExitReason;
use crate::runtime::finisher;
use crate::runtime::reconcile;
use crate::runtime::reconcile::World;
use crate::runtime::record::Observer;
use crate::runtime::recover;
use crate::runtime::spec::row_policy;
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
const LAST_WRITES: Duration = Duration::from_secs(10);

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
    /// The boot id.
    #[error("cannot tell which boot this is")]
    Boot(#[source] crate::kernel::KernelError),
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
}

/// Runs the supervisor until it is told to stop or, with `until_idle`, has nothing left to do.
///
/// # Errors
/// It could not begin. Once it has begun it does not fail; it waits, and says so in the log.
pub async fn run(prepared: Prepared, store: Arc<dyn Store>) -> Result<Left, ServiceError> {
    let Prepared { config, launched, setup, lock, budget, until_idle } = prepared;
    let (events, inbox) = mpsc::unbounded_channel();
    listen(events.clone(), config.path.clone()).map_err(ServiceError::Signals)?;
    let (warden, warden_events) = launched.attach().map_err(ServiceError::Warden)?;
    let observer = Observer { supervisor: config.supervisor.name.clone(), host: host::name() };
    let term = begin(store.as_ref(), &config, &observer).await?;
    let since = clock::now();
    tell_found(store.as_ref()).await.map_err(ServiceError::Store)?;
    startup_schedules(store.as_ref(), &config).await.map_err(ServiceError::Store)?;

    let promote = Arc::new(Notify::new());
    let oldest_unanswered = Arc::new(AtomicU64::new(1));
    let (outcomes, outcome_queue) = mpsc::unbounded_channel();
    let writer = tokio::spawn(finisher::write(Arc::clone(&store), outcome_queue, events.clone(), Arc::clone(&promote)));
    let world = World {
        store: Arc::clone(&store),
        term,
        events: events.clone(),
        promote: Arc::clone(&promote),
        oldest_unanswered: Arc::clone(&oldest_unanswered),
    };
    let (log, lines) = mpsc::channel(LOG_QUEUE);
    let mut background = background(&world, &config, lines);
    let identity = Identity { term, observer, budget, until_idle };
    events.send(Event::Wake).ok();
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
        oldest_unanswered,
        max_result: config.supervisor.max_result,
        ends: HashMap::new(),
    };
    notify(&[sd_notify::NotifyState::Ready]);
    tracing::info!(%term, "taking jobs");
    let reason = drive.run().await;
    background.shutdown().await;
    let complete = tokio::time::timeout(LAST_WRITES, writer).await.is_ok();
    if !complete {
        tracing::error!("outcomes could not be recorded; the next start will find their attempts open");
        return Ok(Left { reason, since, complete });
    }
    if let Err(error) = store.end_term(term).await {
        tracing::warn!(error = %chain(&error), "the end of this term is not on record");
    }
    Ok(Left { reason, since, complete })
}

async fn begin(store: &dyn Store, config: &Config, observer: &Observer) -> Result<Term, ServiceError> {
    let boot_id = host::boot_id(Path::new("/proc")).map_err(ServiceError::Boot)?;
    let recovered = recover::recover(store, config, &boot_id, clock::now()).await.map_err(ServiceError::Store)?;
    if recovered != recover::Recovered::default() {
        tracing::warn!(
            seen = recovered.seen,
            unseen = recovered.unseen,
            "a supervisor before this one died; its open attempts are ended"
        );
    }
    let term = Term::new();
    let pid = i32::try_from(std::process::id()).unwrap_or(0);
    let new = NewTerm {
        term,
        name: observer.supervisor.clone(),
        host: observer.host.clone(),
        pid,
        boot_id,
        identity: crate::store::Identity::default(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kinds: config.kinds.keys().cloned().collect(),
        lease: config.supervisor.lease,
    };
    store.begin_term(&new).await.map_err(ServiceError::Store)?;
    Ok(term)
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

fn background(world: &World, config: &Config, mut lines: mpsc::Receiver<LogLine>) -> JoinSet<()> {
    let (succeeded, cancelled, dead) = config.supervisor.retain;
    let mut tasks = JoinSet::new();
    tasks.spawn(reconcile::keeper(world.clone(), config.supervisor.lease));
    tasks.spawn(reconcile::watcher(world.clone(), config.supervisor.poll));
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
