//! What the store can do in a second. Ignored: it measures, on whatever machine it is run.

use jobvisor::domain::clock::monotonic;

use jobvisor::domain::job::JobState;
use jobvisor::store::{Finish, Finished, NewJob};

use crate::fixture::{Fixture, Sqlite};
use crate::support::{begin, claim, new_job, success};

const JOBS: u32 = 10_000;
const BATCH: u32 = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, run by hand"]
async fn claim_and_finish_of_ten_thousand_light_jobs() {
    let fixture = Sqlite::new().await;
    let store = fixture.store();
    let term = begin(store).await;
    let jobs: Vec<NewJob> = (0..JOBS).map(|_| new_job("k")).collect();
    let start = monotonic();
    store.enqueue(&jobs).await.unwrap();
    println!("enqueue in one batch: {:.0} jobs/s", f64::from(JOBS) / start.elapsed().as_secs_f64());
    let start = monotonic();
    let mut done = 0;
    loop {
        let claimed = claim(store, term, "k", BATCH).await;
        if claimed.is_empty() {
            break;
        }
        let outcomes: Vec<Finish> =
            claimed.iter().map(|c| Finish { record: None, result: None, ..success(c.fence) }).collect();
        let finished = store.finish(&outcomes).await.unwrap();
        done += finished.iter().filter(|f| **f == Finished::Recorded(JobState::Succeeded)).count();
    }
    println!("claim and finish in batches of {BATCH}: {:.0} jobs/s", f64::from(JOBS) / start.elapsed().as_secs_f64());
    assert_eq!(u32::try_from(done), Ok(JOBS));
}
