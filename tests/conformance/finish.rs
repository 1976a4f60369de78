//! Recording outcomes.

use std::time::Duration;

use jobvisor::domain::cause::Cause;
use jobvisor::domain::evidence::{Evidence, ExitStatus, MemoryPicture, ProcessEvidence};
use jobvisor::domain::ids::{AttemptNo, Fence, JobId, Term};
use jobvisor::domain::job::JobState;
use jobvisor::domain::retry::Next;
use jobvisor::domain::units::Bytes;
use jobvisor::domain::verdict::{Ending, Flag};
use jobvisor::store::{AttemptRecord, Finish, Finished, NewJob};

use crate::fixture::Fixture;
use crate::support::{
    LONG, NOW, add, begin, claim_one, failure, finish, given_back, job, new_job, next_attempt, refunded, running,
    state, success,
};

pub(crate) async fn i2_an_outcome_sent_twice_is_known_again(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let (one, two, three) = (running(store, term).await, running(store, term).await, running(store, term).await);
    let outcomes = [success(one), failure(two, Cause::Crash, Next::PutBack(NOW)), given_back(three)];
    let first = store.finish(&outcomes).await.unwrap();
    let queued = Finished::Recorded(JobState::Queued);
    assert_eq!(first, [Finished::Recorded(JobState::Succeeded), queued, queued]);
    assert_eq!(store.finish(&outcomes).await.unwrap(), [Finished::Already; 3]);
    for fence in [one, two, three] {
        assert_eq!(store.attempts(fence.job).await.unwrap().len(), 1);
    }
    assert_eq!(job(store, two.job).await.budget.charged, 1);
    let claimed_again = crate::support::claim(store, term, "k", 2).await;
    assert_eq!(claimed_again.len(), 2);
    assert_eq!(store.finish(&outcomes[1..]).await.unwrap(), [Finished::Already; 2], "also when the next attempt runs");
}

pub(crate) async fn i2_a_light_success_without_a_story_is_known_again(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let fence = running(store, term).await;
    let light = Finish { record: None, ..success(fence) };
    assert_eq!(finish(store, light.clone()).await, Finished::Recorded(JobState::Succeeded));
    assert_eq!(finish(store, light).await, Finished::Already);
    assert_eq!(store.attempts(fence.job).await.unwrap(), []);
    assert_eq!(finish(store, failure(fence, Cause::Crash, Next::Dead)).await, Finished::Stale);
    assert_eq!(job(store, fence.job).await.result.as_deref(), Some("42"));
}

pub(crate) async fn i5_a_stale_fence_changes_nothing(fixture: &dyn Fixture) {
    let store = fixture.store();
    let (term, other) = (begin(store).await, begin(store).await);
    let fence = running(store, term).await;
    let before = job(store, fence.job).await;
    let stale = [
        Fence { term: other, ..fence },
        Fence { term: Term::new(), ..fence },
        next_attempt(fence),
        Fence { attempt: AttemptNo(0), ..fence },
        Fence { job: jobvisor::domain::ids::JobId(fence.job.0 + 1), ..fence },
    ];
    for fence in stale {
        assert_eq!(finish(store, success(fence)).await, Finished::Stale, "{fence:?}");
    }
    assert_eq!(job(store, fence.job).await, before);
    assert_eq!(store.attempts(fence.job).await.unwrap(), []);
    finish(store, failure(fence, Cause::Crash, Next::PutBack(NOW))).await;
    let second = claim_one(store, other, fence.job).await;
    assert_eq!(finish(store, success(fence)).await, Finished::Stale, "the attempt before must not end the next");
    assert_eq!(finish(store, success(second)).await, Finished::Recorded(JobState::Succeeded));
}

pub(crate) async fn a_put_back_job_waits_and_is_promoted(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let fence = running(store, term).await;
    let before = store.now().await.unwrap();
    let delay = Duration::from_millis(40);
    let done = finish(store, failure(fence, Cause::ExitNonzero, Next::PutBack(delay))).await;
    assert_eq!(done, Finished::Recorded(JobState::Scheduled));
    let row = job(store, fence.job).await;
    assert!(row.run_at >= before + delay);
    assert_eq!((row.cause, row.finished_at), (Some(Cause::ExitNonzero), None));
    let promoted = store.promote(10).await.unwrap();
    if promoted.count == 0 {
        assert_eq!(promoted.next_due, Some(row.run_at));
    }
    while state(store, fence.job).await != JobState::Queued {
        store.promote(10).await.unwrap();
    }
    assert!(store.now().await.unwrap() >= row.run_at);
    assert_eq!(claim_one(store, term, fence.job).await, next_attempt(fence));
}

pub(crate) async fn a_job_put_back_without_delay_is_queued(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let fence = running(store, term).await;
    assert_eq!(finish(store, given_back(fence)).await, Finished::Recorded(JobState::Queued));
    let row = job(store, fence.job).await;
    assert_eq!((row.budget.charged, row.attempt), (0, AttemptNo(1)));
    let attempts = store.attempts(fence.job).await.unwrap();
    assert_eq!((attempts[0].verdict.clone(), attempts[0].charged), (None, false));
}

pub(crate) async fn i1_a_refund_gives_the_charge_back_and_an_interruption_counts(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let id = add(store, new_job("k")).await;
    let steps = [
        (Cause::Drained, true, false, (0, 0)),
        (Cause::OomHost, true, true, (0, 1)),
        (Cause::Crash, false, false, (1, 1)),
        (Cause::WardenLost, true, true, (1, 2)),
    ];
    for (cause, refund, interruption, expected) in steps {
        let fence = claim_one(store, term, id).await;
        let mut outcome = failure(fence, cause, Next::PutBack(NOW));
        (outcome.decision.refund, outcome.decision.interruption) = (refund, interruption);
        finish(store, outcome).await;
        let budget = job(store, id).await.budget;
        assert_eq!((budget.charged, budget.interruptions), expected, "{cause}");
    }
    let charged: Vec<bool> = store.attempts(id).await.unwrap().iter().map(|a| a.charged).collect();
    assert_eq!(charged, [false, false, true, false]);
}

pub(crate) async fn i10_an_outcome_after_a_rescue_is_kept_and_a_foreign_cause_refunds(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let fence = running(store, term).await;
    let rescue = failure(fence, Cause::SupervisorLost, Next::PutBack(LONG));
    assert_eq!(finish(store, rescue.clone()).await, Finished::Recorded(JobState::Scheduled));
    assert_eq!(finish(store, rescue).await, Finished::Already);
    let late = refunded(failure(fence, Cause::OomHost, Next::PutBack(NOW)), true);
    for _ in 0..2 {
        assert_eq!(finish(store, late.clone()).await, Finished::Stale);
    }
    let attempt = store.attempts(fence.job).await.unwrap().remove(0);
    assert_eq!(attempt.verdict.map(|v| v.ending), Some(Ending::Failed(Cause::SupervisorLost)));
    let kept: serde_json::Value = serde_json::from_str(&attempt.late_outcome.unwrap()).unwrap();
    assert_eq!(kept["outcome"], "oom_host");
    assert!(!attempt.charged);
    let row = job(store, fence.job).await;
    assert_eq!((row.state, row.budget.charged, row.budget.interruptions), (JobState::Scheduled, 0, 1));

    let ended = running(store, term).await;
    finish(store, failure(ended, Cause::SupervisorLost, Next::Dead)).await;
    finish(store, refunded(failure(ended, Cause::OomHost, Next::PutBack(NOW)), true)).await;
    assert_eq!(job(store, ended.job).await.budget.charged, 1, "a job that has ended keeps its account");
    let attempt = store.attempts(ended.job).await.unwrap().remove(0);
    assert!(attempt.charged && attempt.late_outcome.is_some());
}

pub(crate) async fn i10_a_late_refund_leaves_a_fresh_budget_alone(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let fence = running(store, term).await;
    finish(store, failure(fence, Cause::SupervisorLost, Next::Dead)).await;
    store.retry(&[fence.job]).await.unwrap();
    let second = claim_one(store, term, fence.job).await;
    assert_eq!(
        finish(store, refunded(failure(fence, Cause::OomHost, Next::PutBack(NOW)), true)).await,
        Finished::Stale
    );
    let row = job(store, fence.job).await;
    assert_eq!((row.budget.charged, row.budget.interruptions), (1, 0));
    assert_eq!(finish(store, success(second)).await, Finished::Recorded(JobState::Succeeded));
}

pub(crate) async fn i10_any_bytes_are_storable(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let fence = running(store, term).await;
    let raw = b"tail \x00\xff\xfe end \xed\xa0\x80 \x1b[31m \\x00";
    let evidence = Evidence { refused: Some("nul \0 here".to_owned()), ..Evidence::default() };
    let record = AttemptRecord {
        message: Some("a\0b".to_owned()),
        trace: Some("line\r\nbell \x07".to_owned()),
        output_tail: jobvisor::domain::text::printable(raw).into_owned(),
        evidence,
        ..AttemptRecord::default()
    };
    let outcome = Finish {
        record: Some(record.clone()),
        result: Some(r#"{"a\u0000b":"\ud800","n":"\u0000"}"#.to_owned()),
        ..success(fence)
    };
    assert_eq!(finish(store, outcome).await, Finished::Recorded(JobState::Succeeded));
    assert_eq!(job(store, fence.job).await.result.as_deref(), Some(r#"{"a\u0000b":"\ud800","n":"\u0000"}"#));
    let kept = store.attempts(fence.job).await.unwrap().remove(0).record;
    assert_eq!(kept.message.as_deref(), Some(r"a\x00b"));
    assert_eq!(kept.trace.as_deref(), Some("line\r\nbell \\x07"));
    assert_eq!(jobvisor::domain::text::restore(&kept.output_tail), raw);
    assert_eq!(kept.evidence, record.evidence);
}

pub(crate) async fn i10_one_bad_outcome_does_not_spoil_its_batch(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let mut outcomes = Vec::new();
    for n in 0..9 {
        let fence = running(store, term).await;
        let result = if n == 4 { "not { json \u{0}".to_owned() } else { n.to_string() };
        outcomes.push(Finish { result: Some(result), ..success(fence) });
    }
    let done = store.finish(&outcomes).await.unwrap();
    assert_eq!(done, [Finished::Recorded(JobState::Succeeded); 9]);
    for (n, outcome) in outcomes.iter().enumerate() {
        let result = job(store, outcome.fence.job).await.result.unwrap();
        let notes = store.attempts(outcome.fence.job).await.unwrap().remove(0).verdict.unwrap().contributing;
        if n == 4 {
            let text: String = serde_json::from_str(&result).unwrap();
            assert_eq!(Some(&text), outcome.result.as_ref());
            assert!(notes[0].contains("kept as text"), "{notes:?}");
        } else {
            assert_eq!((result, notes), (n.to_string(), Vec::new()));
        }
    }
    assert_eq!(store.finish(&outcomes).await.unwrap(), [Finished::Already; 9]);
}

pub(crate) async fn i10_a_row_that_cannot_be_written_in_a_batch_of_fifty_spoils_no_other(fixture: &dyn Fixture) {
    const REFUSED: usize = 7;
    const STALE: usize = 23;
    const MISSING: usize = 31;
    const NEVER_DUE: usize = 42;
    let store = fixture.store();
    let term = begin(store).await;
    let mut outcomes = Vec::new();
    for n in 0..50 {
        let fence = running(store, term).await;
        outcomes.push(match n {
            REFUSED => Finish { result: Some("{\"a\": \u{1}".to_owned()), ..success(fence) },
            STALE => success(Fence { term: Term::new(), ..fence }),
            MISSING => success(Fence { job: JobId(i64::MAX), ..fence }),
            NEVER_DUE => failure(fence, Cause::Crash, Next::PutBack(Duration::MAX)),
            _ => Finish { result: Some(n.to_string()), ..success(fence) },
        });
    }
    let done = store.finish(&outcomes).await.unwrap();
    for (n, (outcome, done)) in outcomes.iter().zip(done).enumerate() {
        let expected = match n {
            STALE | MISSING => Finished::Stale,
            NEVER_DUE => Finished::Recorded(JobState::Scheduled),
            _ => Finished::Recorded(JobState::Succeeded),
        };
        assert_eq!(done, expected, "outcome {n}");
        if expected == Finished::Recorded(JobState::Succeeded) {
            let result = job(store, outcome.fence.job).await.result.unwrap();
            let wanted = outcome.result.clone().unwrap();
            let wanted = if n == REFUSED { serde_json::to_string(&wanted).unwrap() } else { wanted };
            assert_eq!(result, wanted, "outcome {n}");
        }
    }
    assert_eq!(state(store, outcomes[STALE].fence.job).await, JobState::Running);
    assert_eq!(store.finish(&outcomes[..STALE]).await.unwrap(), [Finished::Already; STALE]);
}

pub(crate) async fn i2_an_outcome_twice_in_one_batch_is_recorded_once(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let (one, two) = (running(store, term).await, running(store, term).await);
    let child = add(store, NewJob { after: vec![one.job, two.job], ..new_job("k") }).await;
    let done = store.finish(&[success(one), success(one)]).await.unwrap();
    assert_eq!(done, [Finished::Recorded(JobState::Succeeded), Finished::Already]);
    assert_eq!(state(store, child).await, JobState::Waiting, "the second parent still runs");
    let lost = refunded(failure(two, Cause::WardenLost, Next::PutBack(NOW)), true);
    let done = store.finish(&[lost.clone(), lost]).await.unwrap();
    assert_eq!(done, [Finished::Recorded(JobState::Queued), Finished::Already]);
    let budget = job(store, two.job).await.budget;
    assert_eq!((budget.charged, budget.interruptions), (0, 1), "given back once");
}

pub(crate) async fn two_parents_of_one_child_in_one_batch_release_it_once(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let mut parents = Vec::new();
    for _ in 0..4 {
        parents.push(running(store, term).await);
    }
    let after = |fences: &[Fence]| NewJob { after: fences.iter().map(|f| f.job).collect(), ..new_job("k") };
    let child = add(store, after(&parents[..2])).await;
    let of_three = add(store, after(&parents[..3])).await;
    let doomed = add(store, after(&parents[1..])).await;
    let below = add(store, NewJob { after: vec![child, doomed], ..new_job("k") }).await;
    let done = store.finish(&[success(parents[0]), success(parents[1])]).await.unwrap();
    assert_eq!(done, [Finished::Recorded(JobState::Succeeded); 2]);
    for (id, expected) in [(child, JobState::Queued), (of_three, JobState::Waiting), (doomed, JobState::Waiting)] {
        assert_eq!(state(store, id).await, expected);
    }
    let claimed: Vec<_> = crate::support::claim(store, term, "k", 9).await.iter().map(|c| c.fence.job).collect();
    assert_eq!(claimed, [child]);
    // One succeeds and one is dead, in one batch: their common child can never run.
    let ends = [success(parents[2]), failure(parents[3], Cause::Crash, Next::Dead)];
    store.finish(&ends).await.unwrap();
    for (id, expected) in [
        (child, JobState::Running),
        (of_three, JobState::Queued),
        (doomed, JobState::Cancelled),
        (below, JobState::Cancelled),
    ] {
        assert_eq!(state(store, id).await, expected);
    }
    assert_eq!(store.finish(&ends).await.unwrap(), [Finished::Already; 2]);
    assert_eq!(crate::support::claim(store, term, "k", 9).await.len(), 1);
}

pub(crate) async fn two_parents_of_one_child_that_end_at_the_same_moment_release_it_once(fixture: &dyn Fixture) {
    let store = fixture.store();
    let others = [fixture.another().await, fixture.another().await];
    let term = begin(store).await;
    for _ in 0..20 {
        let parents = [running(store, term).await, running(store, term).await];
        let child = add(store, NewJob { after: parents.iter().map(|f| f.job).collect(), ..new_job("k") }).await;
        let ends = others.iter().zip(parents).map(|(store, fence)| {
            let store = std::sync::Arc::clone(store);
            tokio::spawn(async move { finish(&*store, success(fence)).await })
        });
        for end in ends.collect::<Vec<_>>() {
            assert_eq!(end.await.unwrap(), Finished::Recorded(JobState::Succeeded));
        }
        let fence = claim_one(store, term, child).await;
        assert_eq!(finish(store, success(fence)).await, Finished::Recorded(JobState::Succeeded));
    }
}

pub(crate) async fn the_story_of_an_attempt_is_read_back_as_written(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let fence = running(store, term).await;
    let now = store.now().await.unwrap();
    let process = ProcessEvidence {
        pid: Some(77),
        exit: Some(ExitStatus::Signaled(9)),
        memory: MemoryPicture { peak: Some(Bytes::mib(5)), series: vec![(0.5, u64::MAX)], ..MemoryPicture::default() },
        ..ProcessEvidence::default()
    };
    let record = AttemptRecord {
        started_at: Some(now),
        ended_at: Some(now),
        supervisor: "sup".to_owned(),
        host: "host".to_owned(),
        message: Some("m".to_owned()),
        trace: Some("t".to_owned()),
        output_tail: "o\n".to_owned(),
        evidence: Evidence { process: Some(process), ..Evidence::default() },
    };
    let mut outcome = failure(fence, Cause::OomJobLimit, Next::Dead);
    outcome.record = Some(record.clone());
    if let Some(verdict) = &mut outcome.verdict {
        verdict.flags.push(Flag::Leaked);
        verdict.contributing.push("it leaked".to_owned());
    }
    let expected = outcome.verdict.clone();
    finish(store, outcome).await;
    let attempt = store.attempts(fence.job).await.unwrap().remove(0);
    assert_eq!((attempt.attempt, attempt.term, attempt.charged), (fence.attempt, term, true));
    assert_eq!((attempt.verdict, attempt.record), (expected, record));
    let row = job(store, fence.job).await;
    assert_eq!((row.state, row.cause, row.peak), (JobState::Dead, Some(Cause::OomJobLimit), Some(Bytes::mib(5))));
    assert_eq!(row.finished_at, Some(attempt.finished_at));
}

pub(crate) async fn the_largest_peak_stays_on_the_job(fixture: &dyn Fixture) {
    let store = fixture.store();
    let term = begin(store).await;
    let id = add(store, new_job("k")).await;
    for (peak, expected) in [(Some(7), Some(7)), (Some(3), Some(7)), (None, Some(7)), (Some(9), Some(9))] {
        let fence = claim_one(store, term, id).await;
        let memory = MemoryPicture { peak: peak.map(Bytes), ..MemoryPicture::default() };
        let process = Some(ProcessEvidence { memory, ..ProcessEvidence::default() });
        let evidence = Evidence { process, ..Evidence::default() };
        let mut outcome = refunded(failure(fence, Cause::Crash, Next::PutBack(NOW)), false);
        outcome.record = Some(AttemptRecord { evidence, ..AttemptRecord::default() });
        finish(store, outcome).await;
        assert_eq!(job(store, id).await.peak, expected.map(Bytes));
    }
}
