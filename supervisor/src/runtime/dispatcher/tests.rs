//! The dispatcher as a table: events in, actions out.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;
use crate::config::CommandTemplate;
use crate::config::Database;
use crate::config::Enforce;
use crate::config::MemoryBudget;
use crate::config::Output;
use crate::config::SupervisorConfig;
use crate::domain::cause::Cause;
use crate::domain::clock;
use crate::domain::evidence::ExitMeaning;
use crate::domain::evidence::ExitStatus;
use crate::domain::evidence::Leftover;
use crate::domain::evidence::ProcessEvidence;
use crate::domain::evidence::StartFailure;
use crate::domain::ids::AttemptNo;
use crate::domain::ids::JobId;
use crate::domain::job::Budget;
use crate::domain::job::JobState;
use crate::domain::retry::Backoff;
use crate::domain::retry::Next;
use crate::domain::retry::OnOom;
use crate::runtime::event::ChildOutput;
use crate::store::CancelRequest;
use crate::store::Count;
use crate::store::Finish;
use crate::store::Finished;

const KIND_MEMORY: Bytes = Bytes::mib(64);

pub(in crate::runtime) fn kind(name: &str, slots: u32) -> KindConfig {
    KindConfig {
        name: name.to_owned(),
        command: CommandTemplate { argv: vec!["true".to_owned()] },
        slots,
        memory: KIND_MEMORY,
        enforce: Enforce::Auto,
        on_oom: OnOom::Retry,
        timeout: Duration::from_secs(60),
        grace: Duration::from_secs(10),
        start_timeout: Duration::from_secs(30),
        max_attempts: 3,
        max_interruptions: 5,
        backoff: Backoff::default(),
        env: BTreeMap::new(),
        tolerate_oom: false,
        output: Output::Tail,
        cwd: PathBuf::from("/"),
        user: None,
        group: None,
        nice: None,
        pids: 512,
        exit_codes: BTreeMap::from([(0, ExitMeaning::Success)]),
    }
}

pub(in crate::runtime) fn config(kinds: &[KindConfig]) -> Arc<Config> {
    Arc::new(Config {
        path: PathBuf::from("jobs.toml"),
        database: Database::Sqlite(PathBuf::from("/tmp/x.db")),
        migrate: true,
        supervisor: SupervisorConfig {
            name: "here".to_owned(),
            state_dir: PathBuf::from("/tmp/state"),
            memory_budget: MemoryBudget::Share(0.8),
            drain: Duration::from_secs(30),
            lease: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            max_payload: Bytes::mib(1),
            max_result: Bytes::mib(1),
            retain: (Duration::ZERO, Duration::ZERO, Duration::ZERO),
        },
        kinds: kinds.iter().map(|kind| (kind.name.clone(), kind.clone())).collect(),
        schedules: BTreeMap::new(),
        warnings: Vec::new(),
    })
}

/// A dispatcher and clocks that only move when told to.
struct Bench {
    dispatcher: Dispatcher,
    now: Instant,
    boottime: BootInstant,
}

impl Bench {
    fn new(kinds: &[KindConfig], budget: Bytes, until_idle: bool) -> Self {
        let mut bench = Self::without_term(kinds, budget, until_idle, false);
        bench.handle(Event::CannotRecord);
        bench.handle(Event::TermBegun { term: Term::new(), until: None });
        // Asks for nothing until the test does.
        bench.dispatcher.claim_again = false;
        bench.handle(Event::CanRecord);
        bench
    }

    /// One whose term is a lease that may be trusted for 20 s.
    fn leased(kinds: &[KindConfig]) -> Self {
        let mut bench = Self::without_term(kinds, Bytes::mib(1000), false, true);
        let until = Some(bench.boottime.plus(Duration::from_secs(20)));
        bench.handle(Event::CannotRecord);
        bench.handle(Event::TermBegun { term: Term::new(), until });
        bench.dispatcher.claim_again = false;
        bench.handle(Event::CanRecord);
        bench
    }

    fn without_term(kinds: &[KindConfig], budget: Bytes, until_idle: bool, leased: bool) -> Self {
        let observer = Observer { supervisor: "here".to_owned(), host: "host".to_owned() };
        let identity = Identity { observer, budget, until_idle, leased };
        let dispatcher = Dispatcher::new(identity, config(kinds));
        Self { dispatcher, now: clock::monotonic(), boottime: BootInstant(1_000_000_000) }
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        self.dispatcher.handle(event, self.now, self.boottime)
    }

    fn term(&self) -> Term {
        self.dispatcher.term().expect("a term")
    }

    /// The store takes what was sent under `key`.
    fn recorded(&mut self, key: Key, state: JobState) -> Vec<Action> {
        let fence = self.dispatcher.unrecorded[&key];
        self.taken(key, Finished::Recorded(state), record::give_back(fence))
    }

    fn taken(&mut self, key: Key, finished: Finished, finish: Finish) -> Vec<Action> {
        self.handle(Event::Recorded { key, finished, finish: Box::new(finish) })
    }

    /// Asks for work, is asked for a claim, answers it with `jobs`, and returns the keys that are started.
    fn claim(&mut self, jobs: &[(i64, &str)]) -> Vec<Key> {
        let seq = claim_of(&self.handle(Event::Wake)).expect("a claim").seq;
        let jobs = jobs.iter().map(|&(id, kind)| self.job(id, kind)).collect();
        let actions = self.handle(Event::Claimed { seq, jobs: Some(jobs) });
        if let Some(more) = claim_of(&actions) {
            let seq = more.seq;
            self.handle(Event::Claimed { seq, jobs: Some(Vec::new()) });
        }
        actions
            .iter()
            .filter_map(|action| if let Action::Start { key, .. } = action { Some(*key) } else { None })
            .collect()
    }

    fn job(&self, id: i64, kind: &str) -> Claimed {
        Claimed {
            fence: Fence { job: JobId(id), attempt: AttemptNo(1), term: self.term() },
            kind: kind.to_owned(),
            payload: "{}".to_owned(),
            budget: Budget { charged: 1, max_attempts: 3, interruptions: 0, max_interruptions: 5 },
            memory: KIND_MEMORY,
            priority: 0,
            claimed_at: clock::now(),
            run_at: clock::now(),
        }
    }

    fn stop_one_for_cancel(&mut self, key: Key) {
        let fence = self.dispatcher.attempts[&key].claimed.fence;
        let request = CancelRequest { job: fence.job, attempt: fence.attempt, by: "x".to_owned() };
        assert_eq!(stops(&self.handle(Event::CancelAsked(vec![request]))).len(), 1);
    }

    fn ends(&mut self, key: Key, process: ProcessEvidence) -> Vec<Action> {
        let end = End::Seen(Box::new(process));
        self.handle(Event::Over(Box::new(Over {
            key,
            end,
            output: ChildOutput::default(),
            random: 0.5,
            at: clock::now(),
        })))
    }

    fn stop_signal(&mut self) -> Vec<Action> {
        self.handle(Event::StopSignal { from: "SIGTERM".to_owned(), at: clock::now() })
    }
}

fn claim_of(actions: &[Action]) -> Option<&ClaimRequest> {
    actions.iter().find_map(|action| if let Action::Claim(request) = action { Some(request) } else { None })
}

fn recorded(actions: &[Action]) -> Vec<(Key, &Finish)> {
    let one = |action| if let &Action::Record { key, ref finish } = action { Some((key, &**finish)) } else { None };
    actions.iter().filter_map(one).collect()
}

fn stops(actions: &[Action]) -> Vec<(Key, StopReason, Duration)> {
    let one = |action: &Action| {
        if let Action::Stop { key, reason, grace } = action { Some((*key, *reason, *grace)) } else { None }
    };
    actions.iter().filter_map(one).collect()
}

fn exit_of(actions: &[Action]) -> Option<&ExitReason> {
    actions.iter().find_map(|action| if let Action::Exit(reason) = action { Some(reason) } else { None })
}

fn exited(code: i32) -> ProcessEvidence {
    ProcessEvidence { stage: Stage::AfterExec, exit: Some(ExitStatus::Exited(code)), ..ProcessEvidence::default() }
}

fn not_found() -> ProcessEvidence {
    let failure = StartFailure { step: "exec".to_owned(), errno: 2, message: "no such program".to_owned() };
    ProcessEvidence { start_failure: Some(failure), ..ProcessEvidence::default() }
}

#[test]
fn a_claim_asks_for_free_slots_and_free_memory_and_only_one_is_under_way() {
    let mut bench = Bench::new(&[kind("a", 3), kind("b", 1)], Bytes::mib(200), false);
    let actions = bench.handle(Event::Wake);
    let request = claim_of(&actions).expect("a claim").clone();
    assert_eq!(request.free_memory, Bytes::mib(200));
    assert!(claim_of(&bench.handle(Event::Wake)).is_none(), "one claim at a time");
    let jobs = Some(vec![bench.job(1, "a"), bench.job(2, "b")]);
    let actions = bench.handle(Event::Claimed { seq: request.seq, jobs });
    let again = claim_of(&actions).expect("more may be there");
    assert_eq!(again.free_memory, Bytes::mib(72));
    assert_eq!(again.kinds.iter().map(|kind| (kind.kind.as_str(), kind.free)).collect::<Vec<_>>(), [("a", 2)]);
    assert!(again.seq > request.seq);
}

#[test]
fn kinds_take_turns_at_being_first() {
    let mut bench = Bench::new(&[kind("a", 3), kind("b", 3)], Bytes::mib(1000), false);
    let mut first = Vec::new();
    for _ in 0..3 {
        let request = claim_of(&bench.handle(Event::Wake)).expect("a claim").clone();
        first.push(request.kinds[0].kind.clone());
        bench.handle(Event::Claimed { seq: request.seq, jobs: Some(Vec::new()) });
    }
    assert_eq!(first, ["a", "b", "a"]);
}

#[test]
fn slot_and_memory_are_held_until_the_end_is_known_and_the_outcome_is_held_until_it_is_recorded() {
    let mut bench = Bench::new(&[kind("a", 1)], Bytes::mib(1000), true);
    let keys = bench.claim(&[(1, "a")]);
    assert!(claim_of(&bench.handle(Event::Wake)).is_none(), "no slot is free");
    let actions = bench.ends(keys[0], exited(0));
    let outcomes = recorded(&actions);
    assert_eq!(outcomes[0].1.decision.next, Next::Succeeded);
    let seq = claim_of(&actions).expect("the slot is free again").seq;
    let actions = bench.handle(Event::Claimed { seq, jobs: Some(Vec::new()) });
    assert!(!actions.iter().any(|action| matches!(action, Action::CheckIdle)), "an outcome is still to be recorded");
    bench.recorded(keys[0], JobState::Succeeded);
    let seq = claim_of(&bench.handle(Event::Wake)).expect("a claim").seq;
    let actions = bench.handle(Event::Claimed { seq, jobs: Some(Vec::new()) });
    assert!(matches!(actions[..], [Action::CheckIdle]));
    assert_eq!(
        exit_of(&bench.handle(Event::Counts { counts: Vec::new(), elsewhere: BTreeSet::new() })),
        Some(&ExitReason::Idle { stuck: Vec::new() })
    );
}

#[test]
fn i9_the_first_signal_drains_the_second_stops_and_the_third_kills() {
    let mut bench = Bench::new(&[kind("a", 2)], Bytes::mib(1000), false);
    let keys = bench.claim(&[(1, "a"), (2, "a")]);
    let actions = bench.stop_signal();
    assert!(matches!(actions[..], [Action::Stopping]), "attempts may finish: {actions:?}");
    assert!(claim_of(&bench.handle(Event::Wake)).is_none(), "nothing new");
    let grace = Duration::from_secs(10);
    assert_eq!(
        stops(&bench.stop_signal()),
        [(keys[0], StopReason::Drained, grace), (keys[1], StopReason::Drained, grace)]
    );
    let at_once = Duration::ZERO;
    assert_eq!(
        stops(&bench.stop_signal()),
        [(keys[0], StopReason::Drained, at_once), (keys[1], StopReason::Drained, at_once)]
    );
    assert_eq!(exit_of(&bench.ends(keys[0], exited(0))), None);
    assert!(exit_of(&bench.ends(keys[1], exited(0))).is_some());
}

#[test]
fn an_outcome_that_the_store_does_not_take_holds_up_a_stop_until_the_third_signal() {
    let mut bench = Bench::new(&[kind("a", 1)], Bytes::mib(1000), false);
    let keys = bench.claim(&[(1, "a")]);
    bench.ends(keys[0], exited(0));
    let seq = bench.dispatcher.oldest_unanswered();
    bench.handle(Event::Claimed { seq, jobs: Some(Vec::new()) });
    assert_eq!(exit_of(&bench.stop_signal()), None);
    assert_eq!(exit_of(&bench.stop_signal()), None, "it is held");
    assert_eq!(exit_of(&bench.stop_signal()), Some(&ExitReason::Stopped));
}

#[test]
fn i10_an_outcome_that_the_store_does_not_take_holds_up_a_stop_for_ten_seconds() {
    let mut bench = Bench::new(&[kind("a", 1)], Bytes::mib(1000), false);
    let keys = bench.claim(&[(1, "a")]);
    bench.stop_signal();
    assert_eq!(exit_of(&bench.ends(keys[0], exited(0))), None);
    bench.now += Duration::from_secs(9);
    assert_eq!(exit_of(&bench.handle(Event::Wake)), None, "it may still be taken");
    bench.now += Duration::from_secs(1);
    assert!(bench.dispatcher.next_deadline().is_some_and(|at| at <= bench.now));
    assert_eq!(exit_of(&bench.handle(Event::Deadline)), Some(&ExitReason::Stopped));
}

#[test]
fn h3_nothing_is_claimed_while_outcomes_cannot_be_recorded() {
    let mut bench = Bench::new(&[kind("a", 2)], Bytes::mib(1000), true);
    bench.handle(Event::CannotRecord);
    assert!(bench.handle(Event::Wake).is_empty(), "neither a claim nor a look whether all is done");
    assert!(bench.dispatcher.status().contains("cannot be recorded"));
    assert!(claim_of(&bench.handle(Event::CanRecord)).is_some(), "what was wanted meanwhile");
}

fn trusts(actions: &[Action]) -> Vec<BootInstant> {
    let one = |action: &Action| if let Action::Trust { until } = action { Some(*until) } else { None };
    actions.iter().filter_map(one).collect()
}

#[test]
fn i4_nothing_is_claimed_before_the_first_deadline_is_known_and_past_it_until_a_renewal_moves_it() {
    let mut bench = Bench::without_term(&[kind("a", 2)], Bytes::mib(1000), false, true);
    assert!(bench.handle(Event::Wake).is_empty(), "no term yet");
    let (term, start) = (Term::new(), bench.boottime);
    let at = |seconds| start.plus(Duration::from_secs(seconds));
    let actions = bench.handle(Event::TermBegun { term, until: Some(at(20)) });
    assert!(matches!(actions[..], [Action::Trust { until }, Action::Claim(_)] if until == at(20)), "{actions:?}");
    let seq = claim_of(&actions).expect("a claim").seq;
    bench.handle(Event::Claimed { seq, jobs: Some(Vec::new()) });

    bench.boottime = at(20);
    assert!(claim_of(&bench.handle(Event::Wake)).is_none(), "the deadline itself is too late");
    let late = bench.handle(Event::Renewed { term, until: Some(at(19)) });
    assert!(late.is_empty(), "an answer that tells nothing new");
    let stranger = bench.handle(Event::Renewed { term: Term::new(), until: Some(at(60)) });
    assert!(stranger.is_empty(), "another term's renewal");
    let actions = bench.handle(Event::Renewed { term, until: Some(at(26)) });
    assert!(matches!(actions[..], [Action::Trust { until }, Action::Claim(_)] if until == at(26)), "{actions:?}");
}

#[test]
fn i4_a_claim_that_is_answered_past_the_deadline_is_given_back_not_started() {
    let mut bench = Bench::leased(&[kind("a", 2)]);
    let seq = claim_of(&bench.handle(Event::Wake)).expect("a claim").seq;
    bench.boottime = bench.boottime.plus(Duration::from_secs(20));
    let job = bench.job(1, "a");
    let fence = job.fence;
    let actions = bench.handle(Event::Claimed { seq, jobs: Some(vec![job]) });
    assert!(!actions.iter().any(|action| matches!(action, Action::Start { .. })), "{actions:?}");
    let (_, finish) = recorded(&actions)[0];
    assert_eq!((finish.fence, finish.decision.refund, finish.verdict.is_none()), (fence, true, true));
}

#[test]
fn d2_i4_a_lost_term_kills_its_attempts_before_any_new_deadline_and_a_new_term_goes_on() {
    let mut bench = Bench::leased(&[kind("a", 3)]);
    let keys = bench.claim(&[(1, "a"), (2, "a")]);
    let (old, new) = (bench.term(), Term::new());
    let seq = claim_of(&bench.handle(Event::Wake)).expect("a claim").seq;
    let straggler = bench.job(3, "a");
    bench.stop_one_for_cancel(keys[1]);
    let actions = bench.handle(Event::TermLost { term: old });
    let at_once = Duration::ZERO;
    assert_eq!(
        stops(&actions),
        [(keys[0], StopReason::Fenced, at_once), (keys[1], StopReason::Fenced, at_once)],
        "also what was being stopped with its grace"
    );
    assert!(trusts(&actions).is_empty() && claim_of(&actions).is_none(), "{actions:?}");
    assert!(trusts(&bench.handle(Event::Renewed { term: old, until: Some(BootInstant(u64::MAX)) })).is_empty());

    let until = bench.boottime.plus(Duration::from_secs(40));
    let actions = bench.handle(Event::TermBegun { term: new, until: Some(until) });
    assert_eq!(trusts(&actions), [until]);
    // The old term's claim is still to be answered, and its answer is not started under the new one.
    let actions = bench.handle(Event::Claimed { seq, jobs: Some(vec![straggler.clone()]) });
    assert_eq!(recorded(&actions)[0].1.fence, straggler.fence);
    let request = claim_of(&actions).expect("the third slot").clone();
    assert_eq!((request.term, request.kinds[0].free), (new, 1), "killed ones hold their slots until they are gone");
    assert_eq!(bench.dispatcher.terms(), [old, new], "rows of the old one are left alone while something runs");

    let actions = bench.ends(keys[0], exited(0));
    let (key, finish) = recorded(&actions)[0];
    assert_eq!(finish.fence.term, old, "what comes of it is sent under its own fence");
    let finish = finish.clone();
    bench.taken(key, Finished::Stale, finish);
    let rows = vec![(JobId(1), AttemptNo(1))];
    let below = bench.dispatcher.oldest_unanswered();
    assert!(recorded(&bench.handle(Event::OwnRows { term: old, rows, below })).is_empty(), "old answers are ignored");
}

#[test]
fn i4_a_warden_that_does_not_kill_what_a_lost_term_left_is_killed_itself() {
    let mut bench = Bench::leased(&[kind("a", 2)]);
    let keys = bench.claim(&[(1, "a")]);
    let (old, until) = (bench.term(), Some(bench.boottime.plus(Duration::from_secs(90))));
    bench.handle(Event::TermLost { term: old });
    bench.handle(Event::TermBegun { term: Term::new(), until });
    bench.now = bench.dispatcher.next_deadline().expect("a last word");
    assert!(bench.handle(Event::Deadline).iter().any(|action| matches!(action, Action::KillWarden)));

    let mut bench = Bench::leased(&[kind("a", 2)]);
    let old_keys = bench.claim(&[(1, "a")]);
    let old = bench.term();
    bench.handle(Event::TermLost { term: old });
    bench.ends(old_keys[0], exited(0));
    let seq = claim_of(&bench.handle(Event::TermBegun { term: Term::new(), until })).expect("a claim").seq;
    let job = bench.job(2, "a");
    bench.handle(Event::Claimed { seq, jobs: Some(vec![job]) });
    assert_eq!(bench.dispatcher.running().len(), 1);
    bench.stop_signal();
    bench.now = bench.dispatcher.next_deadline().expect("a last word");
    assert!(!bench.handle(Event::Deadline).iter().any(|action| matches!(action, Action::KillWarden)), "{keys:?}");
}

#[test]
fn i4_a_new_warden_is_told_the_deadline_before_anything_is_started() {
    let mut bench = Bench::leased(&[kind("a", 2)]);
    bench.handle(Event::WardenLost);
    let (term, until) = (bench.term(), bench.boottime.plus(Duration::from_secs(30)));
    assert!(bench.handle(Event::Renewed { term, until: Some(until) }).is_empty(), "there is nobody to tell");
    let actions = bench.handle(Event::WardenReplaced);
    assert!(matches!(actions[..], [Action::Trust { until: told }, Action::Claim(_)] if told == until), "{actions:?}");
}

#[test]
fn i2_an_outcome_taken_within_the_last_lease_is_sent_again_and_an_older_ones_row_is_given_back() {
    let mut bench = Bench::new(&[kind("a", 3)], Bytes::mib(1000), false);
    let keys = bench.claim(&[(1, "a"), (2, "a")]);
    let mut outcomes = Vec::new();
    for key in keys {
        let actions = bench.ends(key, exited(0));
        let (key, finish) = recorded(&actions)[0];
        outcomes.push((key, finish.clone()));
    }
    let rows = vec![(JobId(1), AttemptNo(1)), (JobId(2), AttemptNo(1))];
    let (term, below) = (bench.term(), 1);
    let asked = || Event::OwnRows { term, rows: rows.clone(), below };
    assert!(recorded(&bench.handle(asked())).is_empty(), "they are on their way");
    let finished = [Finished::Recorded(JobState::Succeeded), Finished::Stale];
    for ((key, finish), finished) in outcomes.clone().into_iter().zip(finished) {
        bench.taken(key, finished, finish);
    }
    bench.now += Duration::from_secs(30);
    let actions = bench.handle(asked());
    let again: Vec<Finish> = recorded(&actions).into_iter().map(|(_, finish)| finish.clone()).collect();
    assert_eq!(again[0], outcomes[0].1, "the same outcome");
    assert!(again[1].verdict.is_none(), "what was refused was not ours to say: {:?}", again[1]);
    let (key, finish) = recorded(&actions)[0];
    let finish = finish.clone();
    bench.taken(key, Finished::Already, finish);
    bench.now += Duration::from_secs(31);
    assert!(recorded(&bench.handle(asked()))[0].1.verdict.is_none(), "longer ago than a lease");
}

#[test]
fn i9_a_child_that_dies_of_the_units_stop_signal_before_we_see_ours_is_drained_and_alone_it_is_not() {
    let terminated =
        || ProcessEvidence { exit: Some(ExitStatus::Signaled(15)), ended_at: Some(clock::now()), ..exited(0) };
    let mut bench = Bench::new(&[kind("a", 1)], Bytes::mib(1000), false);
    let keys = bench.claim(&[(1, "a")]);
    assert!(bench.ends(keys[0], terminated()).is_empty(), "not judged yet");
    let actions = bench.stop_signal();
    assert_eq!(
        recorded(&actions)[0].1.verdict.as_ref().map(|verdict| verdict.ending.cause()),
        Some(Some(Cause::Drained))
    );
    assert!(recorded(&actions)[0].1.decision.refund);

    let mut bench = Bench::new(&[kind("a", 1)], Bytes::mib(1000), false);
    let keys = bench.claim(&[(1, "a")]);
    bench.ends(keys[0], terminated());
    bench.now = bench.dispatcher.next_deadline().expect("a time at which it is judged");
    let actions = bench.handle(Event::Deadline);
    assert_eq!(
        recorded(&actions)[0].1.verdict.as_ref().map(|verdict| verdict.ending.cause()),
        Some(Some(Cause::KilledExternal))
    );
    assert_eq!(bench.dispatcher.next_deadline(), None);
}

#[test]
fn a_drain_that_takes_too_long_becomes_a_stop() {
    let mut bench = Bench::new(&[kind("a", 1)], Bytes::mib(1000), false);
    bench.claim(&[(1, "a")]);
    bench.stop_signal();
    assert_eq!(bench.dispatcher.next_deadline(), Some(bench.now + Duration::from_secs(30)));
    bench.now += Duration::from_secs(30);
    assert_eq!(stops(&bench.handle(Event::Deadline)).len(), 1);
    // A grace of 10 s, 10 s in which a warden proves an end, and some: then the warden is at fault.
    assert_eq!(bench.dispatcher.next_deadline(), Some(bench.now + Duration::from_secs(25)));
    bench.now += Duration::from_secs(25);
    assert!(matches!(bench.handle(Event::Deadline)[..], [Action::KillWarden]));
    assert_eq!(bench.dispatcher.next_deadline(), None);
}

#[test]
fn i9_a_claim_that_comes_back_while_stopping_is_given_back_uncharged() {
    let mut bench = Bench::new(&[kind("a", 1)], Bytes::mib(1000), false);
    let seq = claim_of(&bench.handle(Event::Wake)).expect("a claim").seq;
    assert!(exit_of(&bench.stop_signal()).is_none(), "the claim's reply is still to come");
    let job = bench.job(1, "a");
    let actions = bench.handle(Event::Claimed { seq, jobs: Some(vec![job]) });
    let outcomes = recorded(&actions);
    assert_eq!(outcomes.len(), 1);
    assert!(outcomes[0].1.decision.refund && outcomes[0].1.verdict.is_none());
    assert!(exit_of(&actions).is_none(), "it is not on record yet");
    let key = outcomes[0].0;
    let actions = bench.recorded(key, JobState::Queued);
    assert_eq!(exit_of(&actions), Some(&ExitReason::Stopped));
}

#[test]
fn i2_a_row_of_ours_that_is_not_held_is_given_back_but_not_one_whose_claim_is_under_way() {
    let mut bench = Bench::new(&[kind("a", 5)], Bytes::mib(1000), false);
    bench.claim(&[(1, "a")]);
    let under_way = bench.dispatcher.oldest_unanswered();
    let rows = vec![(JobId(1), AttemptNo(1)), (JobId(2), AttemptNo(4))];
    let term = bench.term();
    let asked = |term, below| Event::OwnRows { term, rows: rows.clone(), below };
    assert!(recorded(&bench.handle(asked(term, under_way + 1))).is_empty());
    assert!(recorded(&bench.handle(asked(Term::new(), under_way))).is_empty(), "an answer about another term");
    let actions = bench.handle(asked(term, under_way));
    let outcomes = recorded(&actions);
    assert_eq!(outcomes.len(), 1);
    assert_eq!((outcomes[0].1.fence.job, outcomes[0].1.fence.attempt), (JobId(2), AttemptNo(4)));
    assert!(recorded(&bench.handle(asked(term, under_way))).is_empty(), "once");
}

#[test]
fn a_cancel_stops_the_attempt_it_names_once() {
    let mut bench = Bench::new(&[kind("a", 2)], Bytes::mib(1000), false);
    let keys = bench.claim(&[(1, "a"), (2, "a")]);
    let request = |attempt| vec![CancelRequest { job: JobId(2), attempt: AttemptNo(attempt), by: "x".to_owned() }];
    assert!(stops(&bench.handle(Event::CancelAsked(request(7)))).is_empty(), "another attempt");
    assert_eq!(
        stops(&bench.handle(Event::CancelAsked(request(1)))),
        [(keys[1], StopReason::Cancelled, Duration::from_secs(10))]
    );
    assert!(stops(&bench.handle(Event::CancelAsked(request(1)))).is_empty());
}

#[test]
fn a_kind_whose_child_cannot_start_is_backed_off_as_a_kind_and_burns_no_attempt() {
    let mut bench = Bench::new(&[kind("a", 4), kind("b", 1)], Bytes::mib(1000), false);
    let mut pauses = Vec::new();
    for id in 1..=8 {
        let keys = bench.claim(&[(id, "a")]);
        let actions = bench.ends(keys[0], not_found());
        let (key, finish) = recorded(&actions)[0];
        assert!(finish.decision.refund && finish.decision.breaker);
        // The claim that follows at once is for the healthy kind alone.
        let request = claim_of(&actions).expect("the other kind goes on").clone();
        assert_eq!(request.kinds.iter().map(|kind| kind.kind.as_str()).collect::<Vec<_>>(), ["b"]);
        bench.recorded(key, JobState::Scheduled);
        bench.handle(Event::Claimed { seq: request.seq, jobs: Some(Vec::new()) });
        let until = bench.dispatcher.next_deadline().expect("a pause");
        pauses.push((until - bench.now).as_secs());
        bench.now = until;
        let actions = bench.handle(Event::Deadline);
        let request = claim_of(&actions).expect("a trial").clone();
        let trial = request.kinds.iter().find(|kind| kind.kind == "a").expect("asked for");
        assert_eq!(trial.free, 1, "one at a time until one starts");
        bench.handle(Event::Claimed { seq: request.seq, jobs: Some(Vec::new()) });
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
    let keys = bench.claim(&[(9, "a")]);
    bench.handle(Event::Started { key: keys[0], pid: 1, at: clock::now() });
    assert_eq!(bench.dispatcher.free_slots("a", 4, bench.now), 3, "one start makes the kind whole");
}

#[test]
fn starts_that_fail_side_by_side_are_one_failure_and_a_child_too_short_to_be_announced_is_a_start() {
    let mut bench = Bench::new(&[kind("a", 4)], Bytes::mib(1000), true);
    for key in bench.claim(&[(1, "a"), (2, "a"), (3, "a"), (4, "a")]) {
        bench.ends(key, not_found());
    }
    assert_eq!(bench.dispatcher.breakers.failures("a"), 1);
    bench.now += Duration::from_secs(1);
    let seq = claim_of(&bench.handle(Event::Deadline)).expect("a trial").seq;
    let job = bench.job(5, "a");
    let actions = bench.handle(Event::Claimed { seq, jobs: Some(vec![job]) });
    let key = actions.iter().find_map(|action| if let Action::Start { key, .. } = action { Some(*key) } else { None });
    bench.ends(key.expect("a start"), exited(0));
    assert_eq!(bench.dispatcher.free_slots("a", 4, bench.now), 4);
}

#[test]
fn i8_an_attempt_that_cannot_be_killed_is_recorded_and_keeps_its_slot_and_its_memory() {
    let stuck = Leftover { pid: 7, comm: "stuck".to_owned(), stuck_in: Some("D".to_owned()) };
    let mut bench = Bench::new(&[kind("a", 2)], Bytes::mib(200), true);
    let keys = bench.claim(&[(1, "a")]);
    let actions = bench.ends(keys[0], ProcessEvidence { unkillable: vec![stuck], ..exited(0) });
    assert_eq!(
        recorded(&actions)[0].1.verdict.as_ref().map(|verdict| verdict.ending.cause()),
        Some(Some(Cause::Unkillable))
    );
    let request = claim_of(&actions).expect("the other slot is free").clone();
    assert_eq!((request.kinds[0].free, request.free_memory), (1, Bytes::mib(136)));

    let mut bench = Bench::new(&[kind("a", 1)], Bytes::mib(200), true);
    let keys = bench.claim(&[(1, "a")]);
    let stuck = Leftover { pid: 7, comm: "stuck".to_owned(), stuck_in: Some("D".to_owned()) };
    let actions = bench.ends(keys[0], ProcessEvidence { unkillable: vec![stuck], ..exited(0) });
    assert!(claim_of(&actions).is_none(), "no slot is left");
    bench.recorded(keys[0], JobState::Dead);
    assert!(bench.handle(Event::Wake).iter().any(|action| matches!(action, Action::CheckIdle)));
    let queued = Count { kind: "a".to_owned(), state: JobState::Queued, attempted: 0, jobs: 1, smallest: None };
    let actions = bench.handle(Event::Counts { counts: vec![queued], elsewhere: BTreeSet::new() });
    assert!(matches!(exit_of(&actions), Some(ExitReason::Idle { stuck }) if stuck.len() == 1), "{actions:?}");
}

#[test]
fn until_idle_waits_for_what_can_still_run_and_names_what_nobody_can() {
    let count =
        |kind: &str, state, attempted, smallest| Count { kind: kind.to_owned(), state, attempted, jobs: 2, smallest };
    let cases = [
        (vec![count("a", JobState::Scheduled, 0, None), count("a", JobState::Dead, 2, None)], Some(0)),
        (vec![count("a", JobState::Scheduled, 2, None)], None),
        (vec![count("a", JobState::Running, 2, None)], None),
        (vec![count("a", JobState::Waiting, 0, None), count("a", JobState::Scheduled, 0, None)], None),
        (vec![count("a", JobState::Waiting, 0, None), count("a", JobState::Queued, 0, None)], None),
        (vec![count("a", JobState::Waiting, 0, None), count("nobody", JobState::Queued, 0, None)], Some(2)),
        (vec![count("a", JobState::Queued, 0, None)], None),
        (vec![count("nobody", JobState::Queued, 0, None)], Some(1)),
        (vec![count("a", JobState::Queued, 0, Some(Bytes::mib(2000)))], Some(1)),
        (vec![count("nobody", JobState::Queued, 0, None), count("a", JobState::Scheduled, 1, None)], None),
    ];
    for (counts, expected) in cases {
        let mut bench = Bench::new(&[kind("a", 1)], Bytes::mib(1000), true);
        let seq = claim_of(&bench.handle(Event::Wake)).expect("a claim").seq;
        assert!(matches!(bench.handle(Event::Claimed { seq, jobs: Some(Vec::new()) })[..], [Action::CheckIdle]));
        let actions = bench.handle(Event::Counts { counts: counts.clone(), elsewhere: BTreeSet::new() });
        let stuck = exit_of(&actions).map(|reason| {
            let ExitReason::Idle { stuck } = reason else { panic!("{reason:?}") };
            stuck.len()
        });
        assert_eq!(stuck, expected, "{counts:?}");
        // Where another one lives that runs them, nothing that is left unfinished is hopeless.
        let mut bench = Bench::new(&[kind("a", 1)], Bytes::mib(1000), true);
        let seq = claim_of(&bench.handle(Event::Wake)).expect("a claim").seq;
        bench.handle(Event::Claimed { seq, jobs: Some(Vec::new()) });
        let elsewhere = BTreeSet::from(["a".to_owned(), "nobody".to_owned()]);
        let actions = bench.handle(Event::Counts { counts: counts.clone(), elsewhere });
        assert_eq!(exit_of(&actions).is_some(), expected == Some(0), "{counts:?}");
    }
}

#[test]
fn nothing_is_started_between_two_wardens_and_the_supervisor_leaves_when_there_is_no_other() {
    let mut bench = Bench::new(&[kind("a", 4)], Bytes::mib(1000), false);
    let keys = bench.claim(&[(1, "a")]);
    let under_way = claim_of(&bench.handle(Event::Wake)).expect("a claim").seq;
    bench.handle(Event::WardenLost);
    let job = bench.job(2, "a");
    let actions = bench.handle(Event::Claimed { seq: under_way, jobs: Some(vec![job]) });
    assert_eq!(recorded(&actions).len(), 1, "given back: {actions:?}");
    let given_back = recorded(&actions)[0].0;
    assert!(claim_of(&bench.handle(Event::Wake)).is_none());
    assert!(claim_of(&bench.handle(Event::WardenReplaced)).is_some());
    bench.handle(Event::WardenLost);
    bench.handle(Event::NoWarden { why: "no memory".to_owned() });
    let lost = Over {
        key: keys[0],
        end: End::WardenLost { pid: 7, exit: None },
        output: ChildOutput::default(),
        random: 0.0,
        at: clock::now(),
    };
    let actions = bench.handle(Event::Over(Box::new(lost)));
    assert!(recorded(&actions)[0].1.decision.interruption);
    let seq = bench.dispatcher.oldest_unanswered();
    for key in [given_back, keys[0]] {
        bench.recorded(key, JobState::Scheduled);
    }
    let actions = bench.handle(Event::Claimed { seq, jobs: Some(Vec::new()) });
    assert_eq!(exit_of(&actions), Some(&ExitReason::NoWarden { why: "no memory".to_owned() }));
}
