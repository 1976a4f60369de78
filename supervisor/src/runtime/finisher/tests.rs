//! The writer against a store that goes away, hangs, or refuses.

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use super::*;
use crate::domain::ids::Term;
use crate::domain::job::JobState;
use crate::runtime::fake::FakeStore;
use crate::runtime::fake::Takes;
use crate::runtime::here;
use crate::runtime::record;
use crate::runtime::rescue::tests::term_of;

struct Bench {
    folder: tempfile::TempDir,
    store: Arc<FakeStore>,
    outcomes: UnboundedSender<(Key, Finish)>,
    events: UnboundedReceiver<Event>,
    task: JoinHandle<()>,
    term: Term,
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = FakeStore::open(folder.path(), true).await;
        let (outcomes, queue) = mpsc::unbounded_channel();
        let (events, inbox) = mpsc::unbounded_channel();
        let writer = Writer {
            store: Arc::clone(&store) as Arc<dyn Store>,
            outcomes: queue,
            events,
            put_back: Arc::new(Notify::new()),
            state_dir: folder.path().to_owned(),
            vitals: Arc::default(),
        };
        let task = tokio::spawn(write(writer));
        let term = term_of(&here::tests::here());
        store.begin_term(&term).await.unwrap();
        Self { folder, store, outcomes, events: inbox, task, term: term.term }
    }

    /// An attempt that runs has ended; its outcome goes to the writer under `key`.
    async fn outcome(&self, key: Key) -> Finish {
        let finish = record::give_back(self.store.running(self.term).await.fence);
        self.outcomes.send((key, finish.clone())).unwrap();
        finish
    }

    async fn next(&mut self) -> Event {
        tokio::time::timeout(Duration::from_secs(20), self.events.recv()).await.expect("an event").expect("a writer")
    }

    fn journal(&self) -> Vec<Finish> {
        journal::read_all(self.folder.path()).unwrap()
    }

    async fn until_journaled(&self, expected: &[&Finish]) {
        let limit = clock::monotonic() + Duration::from_secs(20);
        while self.journal().iter().collect::<Vec<_>>() != expected {
            assert!(clock::monotonic() < limit, "{:?}", self.journal());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test]
async fn i10_outcomes_are_journaled_when_the_store_does_not_take_them_and_forgotten_when_it_does() {
    let mut bench = Bench::new().await;
    let first = bench.outcome(1).await;
    assert!(matches!(bench.next().await, Event::Recorded { key: 1, finish, .. } if *finish == first));
    assert!(!journal::folder(bench.folder.path()).exists(), "an ordinary outcome costs no file");

    bench.store.take(Takes::None);
    let second = bench.outcome(2).await;
    bench.until_journaled(&[&second]).await;
    let third = bench.outcome(3).await;
    bench.until_journaled(&[&second, &third]).await;
    assert!(matches!(bench.next().await, Event::CannotRecord), "after some seconds");
    bench.store.take(Takes::All);
    assert!(matches!(bench.next().await, Event::CanRecord));
    for expected in [2, 3] {
        let event = bench.next().await;
        assert!(
            matches!(event, Event::Recorded { key, finished: Finished::Recorded(JobState::Queued), .. } if key == expected),
            "{event:?}"
        );
    }
    assert!(bench.journal().is_empty());
    drop(bench.outcomes);
    bench.task.await.unwrap();
}

#[tokio::test]
async fn i10_a_store_that_does_not_answer_at_all_is_not_waited_for_with_the_journal() {
    let mut bench = Bench::new().await;
    bench.store.take(Takes::Silent);
    let first = bench.outcome(1).await;
    assert!(matches!(bench.next().await, Event::CannotRecord));
    bench.until_journaled(&[&first]).await;
    // The call still hangs, and what comes meanwhile is kept too.
    let second = bench.outcome(2).await;
    bench.until_journaled(&[&first, &second]).await;
    assert_eq!(*bench.store.batches.lock().unwrap(), [1], "one call at a time");
    bench.task.abort();
}

#[tokio::test]
async fn i10_an_outcome_that_is_refused_is_journaled_and_holds_up_neither_others_nor_new_jobs() {
    let mut bench = Bench::new().await;
    bench.store.take(Takes::None);
    let refused = bench.outcome(1).await;
    bench.store.refuses.lock().unwrap().insert(refused.fence.job);
    let good = bench.outcome(2).await;
    bench.store.take(Takes::All);
    let event = bench.next().await;
    assert!(matches!(&event, Event::Recorded { key: 2, finish, .. } if **finish == good), "{event:?}");
    bench.until_journaled(&[&refused]).await;
    bench.store.refuses.lock().unwrap().clear();
    let event = bench.next().await;
    assert!(matches!(event, Event::Recorded { key: 1, .. }), "it is sent again by itself: {event:?}");
    assert!(bench.journal().is_empty());
}
