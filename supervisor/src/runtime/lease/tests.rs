//! The thread against a renewer that can be slow, silent, wrong or told that the term is lost.

use std::time::Instant;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::sync::mpsc::UnboundedReceiver;

use super::*;
use crate::runtime::here;
use crate::store::Identity;

/// How a server behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Good,
    Slow(Duration),
    Silent,
    Failing,
    /// The term was declared lost.
    Lost,
}

#[derive(Debug)]
struct Server {
    mood: Mood,
    /// Each call, with the time at which it came: a term to renew with what was left, or one to begin.
    renewals: Vec<(Term, Option<String>, BootInstant)>,
    begins: Vec<(Term, BootInstant)>,
}

#[derive(Debug, Clone)]
struct FakeRenewer(Arc<Mutex<Server>>);

impl FakeRenewer {
    async fn answer(&self) -> Result<(), StoreError> {
        let mood = self.0.lock().unwrap().mood;
        match mood {
            Mood::Good | Mood::Lost => Ok(()),
            Mood::Slow(delay) => {
                tokio::time::sleep(delay).await;
                Ok(())
            }
            Mood::Silent => std::future::pending().await,
            Mood::Failing => Err(StoreError::Unavailable { step: "renew a term", source: sqlx::Error::PoolTimedOut }),
        }
    }
}

#[async_trait]
impl Renewer for FakeRenewer {
    async fn begin_term(&mut self, supervisor: &NewTerm) -> Result<(), StoreError> {
        {
            let mut server = self.0.lock().unwrap();
            server.begins.push((supervisor.term, clock::boottime()));
        }
        self.answer().await?;
        let mut server = self.0.lock().unwrap();
        if server.mood == Mood::Lost {
            server.mood = Mood::Good;
        }
        Ok(())
    }

    async fn renew(&mut self, term: Term, snapshot: Option<&str>) -> Result<Renewed, StoreError> {
        self.0.lock().unwrap().renewals.push((term, snapshot.map(str::to_owned), clock::boottime()));
        self.answer().await?;
        Ok(if self.0.lock().unwrap().mood == Mood::Lost { Renewed::Lost } else { Renewed::Held })
    }
}

/// A thread that renews at this server, and what it tells.
struct Bench {
    server: Arc<Mutex<Server>>,
    pulse: Arc<Pulse>,
    events: UnboundedReceiver<Event>,
    lease: Lease,
    term: Term,
}

/// What the tests look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Renewed(Term, Option<BootInstant>),
    Lost(Term),
    Begun(Term, Option<BootInstant>),
}

impl Bench {
    fn new(lease: Duration, leased: bool, mood: Mood) -> Self {
        let server = Arc::new(Mutex::new(Server { mood, renewals: Vec::new(), begins: Vec::new() }));
        let (events, inbox) = mpsc::unbounded_channel();
        let pulse = Arc::new(Pulse::new(clock::boottime()));
        let here = here::tests::here();
        let term = Term::new();
        let supervisor = NewTerm {
            term,
            name: here.name,
            host: here.host,
            pid: here.pid,
            boot_id: here.boot_id,
            identity: Identity::default(),
            version: String::new(),
            kinds: Vec::new(),
            lease,
        };
        let renewer = Box::new(FakeRenewer(Arc::clone(&server)));
        let keeper = Keeper { supervisor, leased, renewer, pulse: Arc::clone(&pulse), events };
        Self { server, pulse, events: inbox, lease: Lease::start(keeper).unwrap(), term }
    }

    fn mood(&self, mood: Mood) {
        self.server.lock().unwrap().mood = mood;
    }

    fn calls(&self) -> usize {
        self.server.lock().unwrap().renewals.len()
    }

    /// The dispatcher moves until this holds.
    fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let limit = clock::monotonic() + Duration::from_secs(20);
        while !holds(self) {
            assert!(clock::monotonic() < limit, "{what}");
            self.pulse.tick(clock::boottime());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The dispatcher moves until something is told.
    fn next(&mut self) -> Told {
        let limit = clock::monotonic() + Duration::from_secs(20);
        loop {
            match self.events.try_recv() {
                Ok(Event::Renewed { term, until }) => return Told::Renewed(term, until),
                Ok(Event::TermLost { term }) => return Told::Lost(term),
                Ok(Event::TermBegun { term, until }) => return Told::Begun(term, until),
                Ok(other) => panic!("{other:?}"),
                Err(_) => {}
            }
            assert!(clock::monotonic() < limit, "nothing is told");
            self.pulse.tick(clock::boottime());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn stop(self) -> Duration {
        let began: Instant = clock::monotonic();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.lease.stop());
        clock::monotonic() - began
    }
}

const SHORT: Duration = Duration::from_millis(250);
const LONG: Duration = Duration::from_secs(10);

#[test]
fn i4_trust_ends_a_tenth_of_the_lease_and_the_kill_time_before_the_lease_does() {
    let sent = BootInstant(7);
    assert_eq!(trusted_until(sent, Duration::from_secs(30)), sent.plus(Duration::from_millis(26_500)));
    assert_eq!(trusted_until(sent, Duration::from_secs(3)), sent.plus(Duration::from_millis(2_200)));
    assert_eq!(trusted_until(sent, Duration::from_millis(100)), sent, "never before it was asked for");
}

#[test]
fn i4_trust_counts_from_before_the_renewal_was_sent_however_long_its_answer_takes() {
    let mut bench = Bench::new(LONG, true, Mood::Slow(Duration::from_millis(200)));
    let Told::Renewed(term, Some(until)) = bench.next() else { panic!("no deadline") };
    let came = bench.server.lock().unwrap().renewals[0].2;
    assert_eq!(term, bench.term);
    assert!(until <= trusted_until(came, LONG), "{until:?} from {came:?}");
    assert!(until.plus(Duration::from_secs(5)) > trusted_until(came, LONG));
    bench.stop();
}

#[test]
fn i13_nothing_is_renewed_while_the_dispatcher_stands_still() {
    let bench = Bench::new(SHORT, true, Mood::Good);
    bench.pulse.leave_word("[1]".to_owned());
    bench.until("it renews while the dispatcher moves", |bench| bench.calls() >= 3);
    assert_eq!(bench.server.lock().unwrap().renewals.last().unwrap().1.as_deref(), Some("[1]"));
    // The dispatcher stands still: after two fifths of the lease nothing is sent any more.
    std::thread::sleep(SHORT);
    let calls = bench.calls();
    std::thread::sleep(SHORT * 2);
    assert_eq!(bench.calls(), calls, "two leases without a renewal");
    bench.until("it goes on when the dispatcher does", |bench| bench.calls() > calls + 2);
    assert!(bench.server.lock().unwrap().begins.is_empty(), "the term is the same");
    bench.stop();
}

#[test]
fn d10_a_server_that_does_not_answer_is_given_up_and_asked_again_one_call_at_a_time() {
    let mut bench = Bench::new(SHORT, true, Mood::Silent);
    bench.until("the first call is given up", |bench| bench.calls() >= 2);
    assert!(bench.events.try_recv().is_err(), "nothing was renewed");
    let times: Vec<BootInstant> = bench.server.lock().unwrap().renewals.iter().map(|call| call.2).collect();
    assert!(times[1].since(times[0]) >= SHORT * 2, "a connection may have to be made: two leases");
    bench.mood(Mood::Good);
    assert!(matches!(bench.next(), Told::Renewed(..)));
    // Now the connection stands, and a silence is noticed within half a lease.
    bench.mood(Mood::Silent);
    let calls = bench.calls();
    bench.until("it is asked again", |bench| bench.calls() > calls + 1);
    let times: Vec<BootInstant> = bench.server.lock().unwrap().renewals.iter().map(|call| call.2).collect();
    let gap = times[calls + 1].since(times[calls]);
    assert!(gap >= SHORT / 2 && gap < SHORT * 2, "{gap:?}");
    assert!(bench.stop() < Duration::from_secs(5), "a call that hangs does not hold up the end");
}

#[test]
fn d10_a_renewal_that_fails_is_tried_again_long_before_the_next_is_due() {
    let bench = Bench::new(Duration::from_secs(4), true, Mood::Failing);
    bench.until("it is tried again", |bench| bench.calls() >= 2);
    let times: Vec<BootInstant> = bench.server.lock().unwrap().renewals.iter().map(|call| call.2).collect();
    assert!(times[1].since(times[0]) < Duration::from_millis(700), "a fifth of the lease is 800 ms");
    bench.stop();
}

#[test]
fn d2_a_lost_term_is_told_before_a_new_one_begins_and_is_never_renewed_again() {
    let mut bench = Bench::new(SHORT, true, Mood::Good);
    let old = bench.term;
    assert!(matches!(bench.next(), Told::Renewed(term, _) if term == old));
    bench.mood(Mood::Lost);
    let told = std::iter::from_fn(|| Some(bench.next())).find(|told| !matches!(told, Told::Renewed(..)));
    assert_eq!(told, Some(Told::Lost(old)));
    let Told::Begun(new, Some(_)) = bench.next() else { panic!("no new term") };
    assert_ne!(new, old);
    assert!(matches!(bench.next(), Told::Renewed(term, _) if term == new));
    let server = bench.server.lock().unwrap();
    let lost_at = server.renewals.iter().rposition(|call| call.0 == old).unwrap();
    assert!(server.renewals[lost_at + 1..].iter().all(|call| call.0 == new));
    drop(server);
    bench.stop();
}

#[test]
fn i4_a_new_term_whose_begin_was_not_answered_at_first_is_trusted_from_the_first_try() {
    let mut bench = Bench::new(LONG, true, Mood::Lost);
    let old = bench.term;
    // The loss is found, and the server goes away before the new term is begun.
    assert_eq!(bench.next(), Told::Lost(old));
    bench.mood(Mood::Failing);
    bench
        .until("it is tried again", |bench| bench.server.lock().unwrap().begins.len() >= 2 || !bench.events.is_empty());
    bench.mood(Mood::Good);
    let Told::Begun(new, Some(until)) = bench.next() else { panic!("no new term") };
    let begins = bench.server.lock().unwrap().begins.clone();
    assert!(begins.iter().all(|begin| begin.0 == new), "one term, however often it is asked for");
    assert!(until <= trusted_until(begins[0].1, LONG));
    bench.stop();
}

#[test]
fn where_the_lease_is_a_lock_there_are_signs_of_life_and_no_deadline() {
    let mut bench = Bench::new(SHORT, false, Mood::Slow(SHORT));
    let term = bench.term;
    assert_eq!(bench.next(), Told::Renewed(term, None), "a slow answer is no trouble");
    bench.stop();
}
