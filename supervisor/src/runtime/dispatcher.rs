//! The one owner of what runs: slots, memory, claims under way, breakers of kinds, and the phases of a stop.
//!
//! [`Dispatcher::handle`] turns an event into actions. It is synchronous, has no I/O and reads no clock, so it is tested
//! as a table. Whoever drives it (`drive`) carries the actions out and brings their results back as events.
//!
//! Rules held here:
//! - at most one claim is under way; what comes back while stopping is given back uncharged;
//! - nothing is claimed or started without a term and past its trust deadline (I4); a reply that comes too late is given back
//!   (see `lease`, the submodule). When a term is lost its attempts are killed before the warden is told of a new deadline;
//! - nothing is claimed while outcomes cannot be recorded;
//! - an attempt holds its slot and its memory from the claim's reply until *all* that was observed of its end is here;
//! - a kind whose child cannot start is backed off as a kind: 1 s, 2 s, … 32 s, then one attempt as a trial;
//! - a row of ours that we do not hold is given back, unless its outcome was taken within the last lease: then that is sent again (I2);
//! - first stop signal (or none): no new claims, attempts may finish for `drain`; second, or the time is over: children
//!   are told to stop; third: they are killed. Outcomes that the store does not take hold up the stop for 10 s, and after the
//!   third signal not at all: they are in the journal;
//! - 15 s after the last of them should have been killed the warden, which has not said so, is killed: a stop ends.

mod breaker;
mod idle;
mod lease;
mod sent;
mod snapshot;
mod stop;

pub use idle::of_unpaused;
pub use idle::run_elsewhere;
pub use snapshot::HeldOutcome;
pub use snapshot::PieceRun;
pub use snapshot::RunningAttempt;
pub use snapshot::Snapshot;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use jiff::Timestamp;

use crate::config::Config;
use crate::config::KindConfig;
use crate::domain::cause::Cause;
use crate::domain::clock::BootInstant;
use crate::domain::evidence::Stage;
use crate::domain::ids::Fence;
use crate::domain::ids::Term;
use crate::domain::units::Bytes;
use crate::domain::verdict::Ending;
use crate::runtime::dispatcher::breaker::Breakers;
use crate::runtime::dispatcher::sent::Sent;
use crate::runtime::event::Action;
use crate::runtime::event::End;
use crate::runtime::event::Event;
use crate::runtime::event::ExitReason;
use crate::runtime::event::Over;
use crate::runtime::record;
use crate::runtime::record::Observer;
use crate::runtime::spec::row_policy;
use crate::store::ClaimKind;
use crate::store::ClaimRequest;
use crate::store::Claimed;
use crate::store::Finish;
use crate::warden::message::Key;
use crate::warden::message::StopReason;

/// How long the end of a child that was asked to stop by a stranger waits to be judged: a stop signal that goes to a
/// whole unit reaches the child and us in any order, and the child's end must not be judged before ours is known.
const UNIT_STOP: Duration = Duration::from_millis(500);

/// From the kill of an attempt to its proven end the warden takes at most 10 s; one that takes longer is not at work.
const LAST_WORD: Duration = Duration::from_secs(15);

/// How long outcomes that the store does not take hold up a stop.
const LAST_OUTCOMES: Duration = Duration::from_secs(10);

/// What does not change while the supervisor lives.
#[derive(Debug, Clone)]
pub struct Identity {
    /// For the attempts' records.
    pub observer: Observer,
    /// Memory for all attempts together.
    pub budget: Bytes,
    /// End when nothing is left to do.
    pub until_idle: bool,
    /// Terms are leases: before the first deadline is known nothing is trusted.
    pub leased: bool,
}

#[derive(Debug)]
struct Attempt {
    claimed: Claimed,
    /// As it was when the attempt was claimed: a reload in between changes neither its grace nor its policy.
    kind: Arc<KindConfig>,
    stop: Option<StopReason>,
    pid: Option<i32>,
    /// When its program was seen to run.
    started: Option<Timestamp>,
}

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Working,
    Draining,
    Stopping,
    Killing,
}

/// See the module's head.
#[derive(Debug)]
pub struct Dispatcher {
    identity: Identity,
    config: Arc<Config>,
    /// The term that we hold, and until when it may be trusted.
    term: Option<Term>,
    until: Option<BootInstant>,
    /// The clock that deadlines are kept by, as of the event that is handled.
    boottime: BootInstant,
    /// The store takes outcomes.
    recording: bool,
    attempts: BTreeMap<Key, Attempt>,
    /// Ends that wait for [`UNIT_STOP`]; their attempts still hold slot and memory.
    undecided: Vec<(Instant, Over)>,
    /// Outcomes on their way to the store.
    unrecorded: BTreeMap<Key, Fence>,
    /// Outcomes that the store has taken lately.
    sent: Sent,
    breakers: Breakers,
    /// Attempts whose processes cannot be killed: recorded as ended, but they hold their slots and memory for good.
    retired: Vec<Claimed>,
    next_key: Key,
    next_seq: u64,
    claim_under_way: Option<u64>,
    claim_again: bool,
    idle_check_under_way: bool,
    turn: usize,
    phase: Phase,
    drain_until: Option<Instant>,
    /// While stopping or after the loss of a term: when the warden is given up, unless all attempts have ended that should have.
    last_word: Option<Instant>,
    /// While stopping, once only outcomes are left: when they no longer hold it up.
    leave_by: Option<Instant>,
    own_stop: Option<Timestamp>,
    /// Between the death of a warden and the next one.
    warden_away: bool,
    no_warden: Option<String>,
}

impl Dispatcher {
    /// A dispatcher that runs nothing yet.
    #[must_use]
    pub fn new(identity: Identity, config: Arc<Config>) -> Self {
        Self {
            sent: Sent::new(config.supervisor.lease),
            identity,
            config,
            term: None,
            until: None,
            boottime: BootInstant(0),
            recording: true,
            attempts: BTreeMap::new(),
            undecided: Vec::new(),
            unrecorded: BTreeMap::new(),
            breakers: Breakers::default(),
            retired: Vec::new(),
            next_key: 1,
            next_seq: 1,
            claim_under_way: None,
            claim_again: false,
            idle_check_under_way: false,
            turn: 0,
            phase: Phase::Working,
            drain_until: None,
            last_word: None,
            leave_by: None,
            own_stop: None,
            warden_away: false,
            no_warden: None,
        }
    }

    /// The next time at which [`Event::Deadline`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let breakers = self.breakers.next_trial().into_iter();
        let drain = if self.phase == Phase::Draining { self.drain_until } else { None };
        let undecided = self.undecided.iter().map(|(until, _)| *until);
        breakers.chain(drain).chain(self.last_word).chain(self.leave_by).chain(undecided).min()
    }

    /// The lowest claim sequence whose reply may still come: rows below it are known to be ours or lost.
    #[must_use]
    pub fn oldest_unanswered(&self) -> u64 {
        self.claim_under_way.unwrap_or(self.next_seq)
    }

    /// One line for people and for the service manager.
    #[must_use]
    pub fn status(&self) -> String {
        let phase = match self.phase {
            Phase::Working => "working",
            Phase::Draining => "draining",
            Phase::Stopping | Phase::Killing => "stopping",
        };
        let pids: Vec<String> = self
            .attempts
            .values()
            .map(|attempt| {
                let pid = attempt.pid.map_or_else(|| "starting".to_owned(), |pid| format!("pid {pid}"));
                format!("{} {} ({pid})", attempt.claimed.kind, attempt.claimed.fence)
            })
            .collect();
        format!(
            "{phase}{}: {} running, {} outcome(s) to record, {} of {} reserved{}{}",
            self.trouble(),
            self.attempts.len(),
            self.unrecorded.len(),
            self.reserved(),
            self.identity.budget,
            if pids.is_empty() { "" } else { ": " },
            pids.join(", ")
        )
    }

    /// What follows from an event that is handled at `now`, which is `boottime` by the clock of deadlines.
    pub fn handle(&mut self, event: Event, now: Instant, boottime: BootInstant) -> Vec<Action> {
        let mut actions = Vec::new();
        self.boottime = boottime;
        match event {
            Event::Wake => self.claim_again = true,
            Event::Deadline => self.deadline(now, &mut actions),
            Event::Claimed { seq, jobs } => self.claimed(seq, jobs, &mut actions),
            Event::Started { key, pid, at } => self.started(key, pid, at),
            Event::Over(over) if self.own_stop.is_none() && over.end.is_request_of_a_stranger() => {
                self.undecided.push((now + UNIT_STOP, *over));
            }
            Event::Over(over) => self.over(*over, now, &mut actions),
            Event::Recorded { key, finished, finish } => {
                self.unrecorded.remove(&key);
                self.sent.taken(now, finished, *finish);
            }
            Event::CannotRecord => self.recording = false,
            Event::CanRecord => self.recording = true,
            Event::TermBegun { term, until } => self.term_begun(term, until, &mut actions),
            Event::Renewed { term, until } => self.renewed(term, until, &mut actions),
            Event::TermLost { term } => self.term_lost(term, now, &mut actions),
            Event::OwnRows { term, rows, below } => self.own_rows(term, &rows, below, now, &mut actions),
            Event::CancelAsked(requests) => self.cancel(&requests, &mut actions),
            Event::StopSignal { at, .. } => self.stop_signal(at, now, &mut actions),
            Event::WardenLost => self.warden_away = true,
            Event::WardenReplaced => {
                self.warden_away = false;
                self.claim_again = true;
                self.trust(&mut actions);
            }
            Event::NoWarden { why } => self.no_warden = Some(why),
            Event::Counts { counts, elsewhere } => self.counts(&counts, &elsewhere, now, &mut actions),
            Event::CountsUnknown => self.idle_check_under_way = false,
            // Answered by whoever drives it.
            Event::Report | Event::Status(_) => {}
            Event::Reloaded(config) => {
                // What the log promises: [database] and [supervisor] are as at start.
                let (database, supervisor) = (self.config.database.clone(), self.config.supervisor.clone());
                self.config = Arc::new(Config { database, supervisor, ..Arc::unwrap_or_clone(config) });
                self.claim_again = true;
            }
        }
        self.go_on(now, &mut actions);
        actions
    }

    /// What follows from the state alone: claim, look whether all is done, leave.
    fn go_on(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let quiet = self.is_quiet(now);
        if let Some(why) = self.no_warden.clone() {
            if quiet {
                actions.push(Action::Exit(ExitReason::NoWarden { why }));
            }
            return;
        }
        if self.phase > Phase::Working {
            if quiet {
                actions.push(Action::Exit(ExitReason::Stopped));
            }
            return;
        }
        // Where nothing may be claimed now, `claim_again` stands until something may.
        if self.claim_again && self.claim_under_way.is_none() && self.may_start() && self.recording {
            self.claim_again = false;
            if let Some(request) = self.claim_request(now) {
                self.claim_under_way = Some(request.seq);
                actions.push(Action::Claim(request));
                return;
            }
            self.check_idle(actions);
        }
    }

    fn check_idle(&mut self, actions: &mut Vec<Action>) {
        let quiet = self.attempts.is_empty() && self.unrecorded.is_empty() && self.claim_under_way.is_none();
        if self.identity.until_idle && quiet && !self.idle_check_under_way {
            self.idle_check_under_way = true;
            actions.push(Action::CheckIdle);
        }
    }

    fn reserved(&self) -> Bytes {
        let running = self.attempts.values().map(|attempt| &attempt.claimed);
        Bytes(running.chain(&self.retired).map(|claimed| claimed.memory.0).sum())
    }

    fn running_of(&self, kind: &str) -> u32 {
        let count = self.attempts.values().filter(|attempt| attempt.claimed.kind == kind).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn retired_of(&self, kind: &str) -> u32 {
        let count = self.retired.iter().filter(|claimed| claimed.kind == kind).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn free_slots(&self, kind: &str, slots: u32, now: Instant) -> u32 {
        let slots = self.breakers.usable(kind, slots.saturating_sub(self.retired_of(kind)), now);
        slots.saturating_sub(self.running_of(kind))
    }

    fn claim_request(&mut self, now: Instant) -> Option<ClaimRequest> {
        let term = self.term?;
        let mut kinds: Vec<ClaimKind> = self
            .config
            .kinds
            .values()
            .map(|kind| ClaimKind {
                kind: kind.name.clone(),
                free: self.free_slots(&kind.name, kind.slots, now),
                policy: row_policy(kind),
            })
            .filter(|kind| kind.free > 0)
            .collect();
        let free_memory = Bytes(self.identity.budget.0.saturating_sub(self.reserved().0));
        if kinds.is_empty() || free_memory.0 == 0 {
            return None;
        }
        let turn = self.turn % kinds.len();
        kinds.rotate_left(turn);
        self.turn = self.turn.wrapping_add(1);
        let seq = self.next_seq;
        self.next_seq += 1;
        Some(ClaimRequest { term, seq, kinds, free_memory, whole_budget: self.identity.budget })
    }

    fn claimed(&mut self, seq: u64, jobs: Option<Vec<Claimed>>, actions: &mut Vec<Action>) {
        if self.claim_under_way != Some(seq) {
            return;
        }
        self.claim_under_way = None;
        let Some(jobs) = jobs else { return };
        if jobs.is_empty() {
            self.check_idle(actions);
            return;
        }
        self.claim_again = true;
        for claimed in jobs {
            let kind = self.config.kinds.get(&claimed.kind).cloned().map(Arc::new);
            let may_start = self.may_start() && self.term == Some(claimed.fence.term);
            match kind {
                Some(kind) if self.phase == Phase::Working && may_start && self.no_warden.is_none() => {
                    let key = self.new_key();
                    actions.push(Action::Start { key, claimed: Box::new(claimed.clone()), kind: Arc::clone(&kind) });
                    self.attempts.insert(key, Attempt { claimed, kind, stop: None, pid: None, started: None });
                }
                Some(_) | None => self.give_back(claimed.fence, actions),
            }
        }
    }

    fn new_key(&mut self) -> Key {
        let key = self.next_key;
        self.next_key += 1;
        key
    }

    fn give_back(&mut self, fence: Fence, actions: &mut Vec<Action>) {
        self.record(record::give_back(fence), actions);
    }

    fn record(&mut self, finish: Finish, actions: &mut Vec<Action>) {
        let key = self.new_key();
        self.unrecorded.insert(key, finish.fence);
        actions.push(Action::Record { key, finish: Box::new(finish) });
    }

    fn started(&mut self, key: Key, pid: i32, at: Timestamp) {
        if let Some(attempt) = self.attempts.get_mut(&key) {
            attempt.pid = Some(pid);
            attempt.started = Some(at);
            if self.breakers.started(&attempt.claimed.kind) {
                self.claim_again = true;
            }
        }
    }

    fn over(&mut self, over: Over, now: Instant, actions: &mut Vec<Action>) {
        let key = over.key;
        let Some(attempt) = self.attempts.remove(&key) else { return };
        self.claim_again = true;
        let kind = &attempt.kind;
        let ran = matches!(&over.end, End::Seen(process) if process.stage == Stage::AfterExec);
        let finish = record::conclude(over, &attempt.claimed, kind, self.own_stop, &self.identity.observer);
        if finish.decision.breaker {
            self.breakers.failed(&kind.name, now);
        } else if ran {
            // A short one may end without having been announced.
            self.breakers.started(&kind.name);
        }
        self.unrecorded.insert(key, attempt.claimed.fence);
        if finish.verdict.as_ref().is_some_and(|verdict| verdict.ending == Ending::Failed(Cause::Unkillable)) {
            self.retired.push(attempt.claimed);
        }
        actions.push(Action::Record { key, finish: Box::new(finish) });
    }

    /// Judges the ends that have waited long enough, or all.
    fn decide(&mut self, all: bool, now: Instant, actions: &mut Vec<Action>) {
        for (until, over) in std::mem::take(&mut self.undecided) {
            if all || now >= until {
                self.over(over, now, actions);
            } else {
                self.undecided.push((until, over));
            }
        }
    }
}

#[cfg(test)]
pub(in crate::runtime) mod tests;
