//! Carries out what the dispatcher decides, and turns what happens into its events.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use sd_notify::NotifyState;
use tokio::sync::Notify;
use tokio::sync::mpsc;
use tokio::sync::oneshot;
use tokio::sync::watch;
use tokio::time::Interval;
use tokio::time::MissedTickBehavior;

use crate::config::KindConfig;
use crate::domain::clock;
use crate::domain::clock::BootInstant;
use crate::domain::evidence::ExitStatus;
use crate::domain::evidence::ProcessEvidence;
use crate::domain::evidence::StartFailure;
use crate::domain::ids::Term;
use crate::domain::report::chain;
use crate::domain::units::Bytes;
use crate::runtime::child;
use crate::runtime::child::LogLine;
use crate::runtime::child::Service;
use crate::runtime::dispatcher::Dispatcher;
use crate::runtime::dispatcher::Snapshot;
use crate::runtime::dispatcher::of_unpaused;
use crate::runtime::dispatcher::run_elsewhere;
use crate::runtime::event::Action;
use crate::runtime::event::ChildOutput;
use crate::runtime::event::End;
use crate::runtime::event::Event;
use crate::runtime::event::ExitReason;
use crate::runtime::event::Over;
use crate::runtime::lease::Pulse;
use crate::runtime::reconcile::Complaints;
use crate::runtime::reconcile::Shown;
use crate::runtime::snapshot;
use crate::runtime::spec::start_spec;
use crate::runtime::vitals::Vitals;
use crate::store::ClaimRequest;
use crate::store::Claimed;
use crate::store::Finish;
use crate::store::LockFile;
use crate::store::Store;
use crate::warden::WardenSetup;
use crate::warden::client;
use crate::warden::client::Launched;
use crate::warden::client::WardenError;
use crate::warden::client::WardenEvent;
use crate::warden::client::WardenEvents;
use crate::warden::client::WardenHandle;
use crate::warden::message::Key;
use crate::warden::message::StopReason;

/// How to make another warden when one dies.
#[derive(Debug)]
pub struct Relaunch {
    /// As the first one was set up.
    pub setup: WardenSetup,
    /// The database's lock, which every warden inherits.
    pub lock: LockFile,
}

/// What the loop works with.
#[derive(Debug)]
pub struct Drive {
    /// Decides.
    pub dispatcher: Dispatcher,
    /// Keeps.
    pub store: Arc<dyn Store>,
    /// Starts and ends children; `None` between two wardens.
    pub warden: Option<WardenHandle>,
    /// What it says.
    pub warden_events: WardenEvents,
    /// For the next one.
    pub relaunch: Arc<Relaunch>,
    /// Where tasks send their events.
    pub events: mpsc::UnboundedSender<Event>,
    /// Where they arrive.
    pub inbox: mpsc::UnboundedReceiver<Event>,
    /// To the finish writer.
    pub outcomes: mpsc::UnboundedSender<(Key, Finish)>,
    /// To the log of children's stderr.
    pub log: mpsc::Sender<LogLine>,
    /// Wakes the promoter.
    pub promote: Arc<Notify>,
    /// What the reconcilers see of the dispatcher.
    pub shown: watch::Sender<Shown>,
    /// What the lease thread sees of it.
    pub pulse: Arc<Pulse>,
    /// How often that has to be shown at least.
    pub tick: Duration,
    /// What was complained of lately.
    pub complaints: Complaints,
    /// Largest result.
    pub max_result: Bytes,
    /// For whoever asks how things stand.
    pub vitals: Arc<Vitals>,
    /// Children whose end is awaited.
    pub ends: HashMap<Key, oneshot::Sender<End>>,
}

/// One thing that happened.
enum Happened {
    Event(Event),
    Warden(Option<WardenEvent>),
    Relaunched(Result<Launched, WardenError>),
}

impl Drive {
    /// Runs until there is a reason to leave; answers that, and the term that is held then.
    pub async fn run(mut self) -> (ExitReason, Option<Term>) {
        let mut relaunching: Option<oneshot::Receiver<Result<Launched, WardenError>>> = None;
        // The manager asked for a sign of life at least this often: half of that, from this loop and nowhere else.
        let mut signs_of_life = sd_notify::watchdog_enabled().map(|most| tokio::time::interval(most / 2));
        let mut ticks = tokio::time::interval(self.tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Every turn, so that a loop that no longer turns loses its lease (I13).
            self.pulse.tick(clock::boottime());
            let deadline = self.dispatcher.next_deadline();
            let happened = tokio::select! {
                warden = self.warden_events.next(), if self.warden.is_some() => Happened::Warden(warden),
                Some(event) = self.inbox.recv() => Happened::Event(event),
                launched = answer(&mut relaunching), if relaunching.is_some() => Happened::Relaunched(launched),
                () = until(deadline) => Happened::Event(Event::Deadline),
                _ = ticks.tick() => {
                    self.pulse.leave_word(snapshot::write(&self.dispatcher.running()));
                    continue;
                }
                () = next(&mut signs_of_life) => {
                    let status = self.dispatcher.status();
                    notify(&[NotifyState::Watchdog, NotifyState::Status(&status)]);
                    continue;
                }
            };
            let event = match happened {
                Happened::Event(event) => event,
                Happened::Warden(Some(WardenEvent::Started { key, pid })) => {
                    Event::Started { key, pid, at: clock::now() }
                }
                Happened::Warden(Some(WardenEvent::Ended { key, evidence })) => {
                    self.deliver(key, End::Seen(evidence));
                    continue;
                }
                Happened::Warden(Some(WardenEvent::Sample { .. })) => continue,
                Happened::Warden(Some(WardenEvent::Lost { pid, exit })) => {
                    relaunching = Some(self.warden_lost(pid, exit));
                    Event::WardenLost
                }
                Happened::Warden(None) => {
                    relaunching = Some(self.warden_lost(0, None));
                    Event::WardenLost
                }
                Happened::Relaunched(launched) => {
                    relaunching = None;
                    self.relaunched(launched)
                }
            };
            if let Some(reason) = self.handle(event) {
                self.dismiss().await;
                return (reason, self.dispatcher.term());
            }
        }
    }

    /// Lets the warden go and waits for its end, which takes milliseconds, and 2 s where it has to be killed: whoever waited
    /// for this supervisor finds the database's lock free.
    async fn dismiss(&mut self) {
        self.warden = None;
        while self.warden_events.next().await.is_some() {}
    }

    fn handle(&mut self, event: Event) -> Option<ExitReason> {
        if let Event::Status(asking) = event {
            // Who asked may be gone.
            asking.send(self.snapshot()).ok();
            return None;
        }
        if let Event::Recorded { key, .. } = &event {
            self.vitals.recorded(*key);
        }
        if let Event::StopSignal { from, .. } = &event {
            tracing::info!(%from, "asked to stop; {}", self.dispatcher.status());
        } else if matches!(event, Event::Report) {
            tracing::info!("{}", self.dispatcher.status());
        }
        let actions = self.dispatcher.handle(event, clock::monotonic(), clock::boottime());
        let shown = Shown {
            term: self.dispatcher.term(),
            living: self.dispatcher.terms(),
            oldest_unanswered: self.dispatcher.oldest_unanswered(),
        };
        self.shown.send_if_modified(|last| {
            let changed = *last != shown;
            *last = shown;
            changed
        });
        actions.into_iter().find_map(|action| self.act(action))
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.dispatcher.snapshot();
        self.vitals.complete(&mut snapshot);
        if self.store.hears() {
            snapshot.listener = "heard".to_owned();
        }
        snapshot
    }

    fn act(&mut self, action: Action) -> Option<ExitReason> {
        match action {
            Action::Claim(request) => self.claim(request),
            Action::Start { key, claimed, kind } => self.start(key, *claimed, &kind),
            Action::Stop { key, reason, grace } => self.stop(key, reason, grace),
            Action::Record { key, finish } => {
                self.vitals.holds(key, finish.fence);
                // The writer lives as long as this sender; it cannot be gone.
                self.outcomes.send((key, *finish)).ok();
            }
            Action::Trust { until } => self.trust(until),
            Action::KillWarden => {
                tracing::error!("the warden does not answer; it is killed");
                self.warden_events.kill();
            }
            Action::CheckIdle => self.check_idle(),
            Action::Stopping => notify(&[NotifyState::Stopping, NotifyState::Status(&self.dispatcher.status())]),
            Action::Exit(reason) => return Some(reason),
        }
        None
    }

    fn claim(&self, request: ClaimRequest) {
        let (store, events, complaints) = (Arc::clone(&self.store), self.events.clone(), self.complaints.clone());
        tokio::spawn(async move {
            let seq = request.seq;
            let jobs = complaints.hear("claim", store.claim(&request).await);
            events.send(Event::Claimed { seq, jobs }).ok();
        });
    }

    fn check_idle(&self) {
        let (store, events, complaints) = (Arc::clone(&self.store), self.events.clone(), self.complaints.clone());
        let own = self.dispatcher.term();
        tokio::spawn(async move {
            let counts = async {
                store.promote(1000).await?;
                let paused = store.paused().await?;
                // On SQLite other rows are of supervisors that are gone: one holds the lock.
                let terms = if store.is_leased() { store.terms().await? } else { Vec::new() };
                let counts = of_unpaused(store.counts().await?, &paused);
                Ok(Event::Counts { counts, elsewhere: run_elsewhere(&terms, own) })
            };
            // An unreachable store is not an idle one; the next poll asks again.
            let event = complaints.hear("idle check", counts.await).unwrap_or(Event::CountsUnknown);
            events.send(event).ok();
        });
    }

    fn start(&mut self, key: Key, claimed: Claimed, kind: &KindConfig) {
        let spec = match start_spec(&claimed, kind) {
            Ok(spec) => spec,
            Err(why) => return self.over(key, End::Refused(why), ChildOutput::default()),
        };
        let Some(warden) = self.warden.clone() else {
            return self.over(key, End::WardenLost { pid: 0, exit: None }, ChildOutput::default());
        };
        let (pipes, stdio) = match client::child_pipes() {
            Ok(pair) => pair,
            Err(error) => return self.over(key, could_not_start("pipes", &error), ChildOutput::default()),
        };
        let (end_sender, end) = oneshot::channel();
        if let Err(error) = warden.start(key, &spec, stdio) {
            // Where it is gone, its loss is about to be told, and nothing is wrong with the kind.
            let gone = matches!(error, WardenError::Gone);
            let end = if gone { End::WardenLost { pid: 0, exit: None } } else { could_not_start("warden", &error) };
            return self.over(key, end, ChildOutput::default());
        }
        self.ends.insert(key, end_sender);
        tracing::info!(job = %claimed.fence.job, attempt = %claimed.fence.attempt, kind = %kind.name, memory = %claimed.memory, "starting");
        let (stop, mut stops) = mpsc::unbounded_channel();
        let service = Service {
            pipes,
            stdin: claimed.payload.into_bytes(),
            max_result: self.max_result,
            output: kind.output,
            name: format!("{} {}/{}", kind.name, claimed.fence.job, claimed.fence.attempt),
            log: self.log.clone(),
            end,
            stop,
        };
        let (events, grace) = (self.events.clone(), kind.grace);
        tokio::spawn(async move {
            let serving = child::serve(service);
            tokio::pin!(serving);
            let (end, output) = loop {
                tokio::select! {
                    done = &mut serving => break done,
                    Some(reason) = stops.recv() => { warden.stop(key, reason, grace).ok(); }
                }
            };
            events.send(over(key, end, output)).ok();
        });
    }

    fn stop(&self, key: Key, reason: StopReason, grace: Duration) {
        if let Some(warden) = &self.warden
            && let Err(error) = warden.stop(key, reason, grace)
        {
            tracing::warn!(error = %chain(&error), ?reason, "the warden cannot be told to end a child");
        }
    }

    fn trust(&self, until: BootInstant) {
        // A warden that is gone has no children to trust with anything; the next one is told before it starts any.
        if let Some(warden) = &self.warden
            && let Err(error) = warden.trust(until)
        {
            tracing::debug!(error = %chain(&error), "the warden cannot be told its deadline");
        }
    }

    fn over(&self, key: Key, end: End, output: ChildOutput) {
        self.events.send(over(key, end, output)).ok();
    }

    fn deliver(&mut self, key: Key, end: End) {
        if let Some(waiting) = self.ends.remove(&key) {
            // A child's task only ends after this message, or with the runtime.
            waiting.send(end).ok();
        }
    }

    /// Sweeps what the dead warden left, then starts another; ends of its attempts are delivered after the sweep (I8).
    fn warden_lost(&mut self, pid: i32, exit: Option<ExitStatus>) -> oneshot::Receiver<Result<Launched, WardenError>> {
        tracing::error!(pid, ?exit, children = self.ends.len(), "the warden died; its children died with it");
        self.warden = None;
        let lost: Vec<_> = self.ends.drain().map(|(_, waiting)| waiting).collect();
        let (sender, receiver) = oneshot::channel();
        let relaunch = Arc::clone(&self.relaunch);
        tokio::task::spawn_blocking(move || {
            let killed = client::sweep_orphans(&[]);
            if killed > 0 {
                tracing::warn!(killed, "processes that outlived the warden were killed");
            }
            let launched = client::launch(&relaunch.setup, &[relaunch.lock.as_fd()]);
            for waiting in lost {
                waiting.send(End::WardenLost { pid, exit }).ok();
            }
            sender.send(launched).ok();
        });
        receiver
    }

    fn relaunched(&mut self, launched: Result<Launched, WardenError>) -> Event {
        match launched.and_then(Launched::attach) {
            Ok((handle, events)) => {
                tracing::info!("another warden stands");
                self.warden = Some(handle);
                self.warden_events = events;
                Event::WardenReplaced
            }
            Err(error) => Event::NoWarden { why: chain(&error) },
        }
    }
}

fn over(key: Key, end: End, output: ChildOutput) -> Event {
    Event::Over(Box::new(Over { key, end, output, random: fastrand::f64(), at: clock::now() }))
}

/// Our own side of a start failed: as good as a failed start, with the same consequences for the kind.
fn could_not_start(step: &str, error: &WardenError) -> End {
    let failure = StartFailure { step: step.to_owned(), errno: 0, message: chain(error) };
    End::Seen(Box::new(ProcessEvidence { start_failure: Some(failure), ..ProcessEvidence::default() }))
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

async fn next(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}

async fn answer(
    relaunching: &mut Option<oneshot::Receiver<Result<Launched, WardenError>>>,
) -> Result<Launched, WardenError> {
    match relaunching {
        Some(receiver) => receiver.await.unwrap_or_else(|_| Err(WardenError::Gone)),
        None => std::future::pending().await,
    }
}

/// Tells the service manager, if there is one.
pub fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
