//! Recording how attempts ended.
//!
//! A batch is one statement, on a connection of its own: it compares the fences and moves the jobs (I5), writes the attempts'
//! rows, and tells the jobs that come after. An outcome that no longer matches goes to [`late`]; what a refused one leaves
//! out, see [`outcome`](crate::store::outcome).
//!
//! - The fence alone finds a row. To ask for `state = 'running'` as well, which `term = …` implies, makes the planner walk
//!   the index of what runs: measured 40 times the time.
//! - `LIMIT $21` cuts nothing: it makes the planner expect one row of the batch, so that it looks each up by its key. Expecting
//!   ten it walks the whole table instead if that was small when it planned, and goes on so when it no longer is.
//! - Rows are changed in the order of ids, here and wherever several are: else two batches may wait for each other.
//! - What is queued or scheduled anew is told to sleepers (`jobvisor.wake`), after it was written.

use std::ops::Range;
use std::sync::Arc;

use sqlx::Postgres;
use sqlx::Row;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;

use super::deadlock::resolved;
use super::depend::children;
use super::row::{cut, cut_int, sql_time};
use super::{PostgresStore, late};
use crate::domain::job::JobState;
use crate::domain::retry::Next;
use crate::store::error::StoreError;
use crate::store::model::{Finish, Finished};
use crate::store::outcome::{Detail, Story, cause, code, in_parts, leaves_row, peak, result, target};

pub(super) const STEP: &str = "record outcomes";

/// The longest wait, in microseconds: a thousand years, so that a due time stays one that databases and calendars know.
const LONGEST_WAIT: u64 = 1000 * 366 * 86_400 * 1_000_000;

/// A job that is put back although somebody asked to cancel it is cancelled: nobody else would do it.
const RECORD: &str = concat!(
    "WITH RECURSIVE f AS (
         UPDATE jobvisor.jobs j
         SET state = CASE WHEN o.wait IS NOT NULL AND j.cancel_requested THEN 'cancelled' ELSE o.state END,
             term = NULL, claim_seq = NULL, last_term = o.term, last_outcome = o.outcome, cancel_requested = false,
             charged = greatest(j.charged - o.refund::int, 0), interruptions = j.interruptions + o.interruption::int,
             result = o.result::json, cause = coalesce(o.cause, j.cause),
             run_at = CASE WHEN o.wait IS NULL OR j.cancel_requested THEN j.run_at
                 ELSE now() + o.wait * interval '1 microsecond' END,
             finished_at = CASE WHEN o.wait IS NULL OR j.cancel_requested THEN now() END,
             peak = CASE WHEN o.peak IS NULL THEN j.peak ELSE greatest(j.peak, o.peak) END
         FROM (SELECT * FROM unnest($1::bigint[], $2::int[], $3::uuid[], $4::text[], $5::text[], $6::bigint[], $7::bool[], $8::bool[],
             $9::text[], $10::text[], $11::bigint[], $12::text[], $13::timestamptz[], $14::timestamptz[], $15::text[],
             $16::text[], $17::text[], $18::text[], $19::text[], $20::text[]) WITH ORDINALITY
             AS o (id, attempt, term, state, outcome, wait, refund, interruption, result, cause, peak, verdict, started_at,
             ended_at, supervisor, host, message, trace, output_tail, evidence, ord)
             LIMIT $21) o
         WHERE j.id = o.id AND j.attempt = o.attempt AND j.term = o.term
         RETURNING o.ord, j.id, j.state, j.claimed_at, o.attempt, o.term, o.outcome, o.refund, o.verdict, o.started_at,
             o.ended_at, o.supervisor, o.host, o.message, o.trace, o.output_tail, o.evidence),
     a AS (
         INSERT INTO jobvisor.attempts (job_id, attempt, term, outcome, verdict, charged, claimed_at, started_at, ended_at,
             finished_at, supervisor, host, message, trace, output_tail, evidence)
         SELECT id, attempt, term, outcome, verdict::json, NOT refund, claimed_at, started_at, ended_at, now(), supervisor,
             host, message, trace, output_tail, evidence::json
         FROM f WHERE evidence IS NOT NULL),
     ",
    children!(),
    "
     SELECT array_agg(ord) AS ords, array_agg(state) AS states,
         CASE WHEN bool_or(state IN ('queued', 'scheduled')) OR EXISTS (SELECT 1 FROM u WHERE state IN ('queued', 'scheduled'))
              THEN jobvisor.wake() END
     FROM f"
);

pub(super) async fn finish(store: &PostgresStore, outcomes: &[Finish]) -> Result<Vec<Finished>, StoreError> {
    let outcomes: Arc<[Finish]> = Arc::from(outcomes);
    in_parts(outcomes.len(), |range, detail| record_range(store, Arc::clone(&outcomes), range, detail)).await
}

async fn record_range(
    store: &PostgresStore,
    outcomes: Arc<[Finish]>,
    range: Range<usize>,
    detail: Detail,
) -> Result<Vec<Finished>, StoreError> {
    let recorded = resolved(|| {
        let (outcomes, range) = (Arc::clone(&outcomes), range.clone());
        store.conns.finishes.run(STEP, move |conn| {
            Box::pin(async move { record(conn, outcomes.get(range).unwrap_or_default(), detail).await })
        })
    });
    let mut answers = Vec::with_capacity(range.len());
    for (at, recorded) in range.clone().zip(recorded.await?) {
        answers.push(match recorded {
            Some(state) => Finished::Recorded(state),
            None => recall(store, Arc::clone(&outcomes), at).await?,
        });
    }
    Ok(answers)
}

/// Where the jobs of the batch went; `None`: the fence did not hold.
async fn record(
    conn: &mut PgConnection,
    outcomes: &[Finish],
    detail: Detail,
) -> Result<Vec<Option<JobState>>, StoreError> {
    let mut order: Vec<usize> = (0..outcomes.len()).collect();
    order.sort_by_key(|at| outcomes.get(*at).map(|outcome| outcome.fence.job));
    let sorted: Vec<&Finish> = order.iter().filter_map(|at| outcomes.get(*at)).collect();
    let row = bind(&sorted, detail)?.fetch_one(conn).await.map_err(|e| StoreError::sort(STEP, e))?;
    let mut done = vec![None; outcomes.len()];
    for (ord, state) in moved(&row)? {
        if let Some(place) = order.get(ord).and_then(|at| done.get_mut(*at)) {
            *place = Some(state);
        }
    }
    Ok(done)
}

/// The batch is recorded by now: what is refused here must not send it again in halves.
async fn recall(store: &PostgresStore, outcomes: Arc<[Finish]>, at: usize) -> Result<Finished, StoreError> {
    let recalled = store.conns.finishes.run(STEP, move |conn| {
        Box::pin(async move {
            let Some(outcome) = outcomes.get(at) else { return Ok(Finished::Stale) };
            late::recall(conn, outcome).await
        })
    });
    match recalled.await {
        Err(error) if !error.is_unavailable() => {
            tracing::warn!(%error, "an outcome that came too late could not be kept");
            Ok(Finished::Stale)
        }
        done => done,
    }
}

/// Places of the sorted batch whose fence held, and where their jobs went.
fn moved(row: &PgRow) -> Result<Vec<(usize, JobState)>, StoreError> {
    let sort = |e| StoreError::sort(STEP, e);
    let ords: Option<Vec<i64>> = row.try_get("ords").map_err(sort)?;
    let states: Option<Vec<String>> = row.try_get("states").map_err(sort)?;
    let pairs = ords.unwrap_or_default().into_iter().zip(states.unwrap_or_default());
    pairs
        .map(|(ord, state)| {
            let at = usize::try_from(ord - 1).map_err(|_| StoreError::corrupt(format!("ord is {ord}")))?;
            Ok((at, state.parse().map_err(StoreError::corrupt)?))
        })
        .collect()
}

fn bind(outcomes: &[&Finish], detail: Detail) -> Result<Query<'static, Postgres, PgArguments>, StoreError> {
    let column = Column(outcomes);
    let results: Result<Vec<_>, _> = outcomes.iter().map(|outcome| result(outcome, detail)).collect();
    let stories: Result<Vec<Option<Story>>, _> =
        outcomes.iter().map(|o| leaves_row(o).then(|| Story::of(o, detail)).transpose()).collect();
    let query = sqlx::query(RECORD)
        .bind(column.of(|o| o.fence.job.0))
        .bind(column.of(|o| cut_int(o.fence.attempt.0)))
        .bind(column.of(|o| o.fence.term.0))
        .bind(column.of(|o| target(o.decision.next).code()))
        .bind(column.of(|o| code(o.verdict.as_ref())))
        .bind(column.of(|o| wait(o.decision.next)))
        .bind(column.of(|o| o.decision.refund))
        .bind(column.of(|o| o.decision.interruption))
        .bind(results?)
        .bind(column.of(cause))
        .bind(column.of(peak));
    Ok(bind_stories(query, stories?).bind(i64::MAX))
}

/// One column of a batch.
struct Column<'a>(&'a [&'a Finish]);

impl Column<'_> {
    fn of<T>(&self, value: impl Fn(&Finish) -> T) -> Vec<T> {
        self.0.iter().map(|outcome| value(outcome)).collect()
    }
}

/// Microseconds that a job waits that is put back.
fn wait(next: Next) -> Option<i64> {
    match next {
        Next::PutBack(delay) => {
            Some(cut(u64::try_from(delay.as_micros()).map_or(LONGEST_WAIT, |wait| wait.min(LONGEST_WAIT))))
        }
        Next::Succeeded | Next::Cancelled | Next::Dead => None,
    }
}

/// Columns of the attempts' rows; all are null where there is to be none.
fn bind_stories(
    query: Query<'static, Postgres, PgArguments>,
    mut stories: Vec<Option<Story>>,
) -> Query<'static, Postgres, PgArguments> {
    fn taken<T>(stories: &mut [Option<Story>], take: impl Fn(&mut Story) -> T) -> Vec<Option<T>> {
        stories.iter_mut().map(|story| story.as_mut().map(&take)).collect()
    }
    fn flat<T>(stories: &mut [Option<Story>], take: impl Fn(&mut Story) -> Option<T>) -> Vec<Option<T>> {
        taken(stories, take).into_iter().map(Option::flatten).collect()
    }
    query
        .bind(flat(&mut stories, |story| story.verdict.take()))
        .bind(flat(&mut stories, |story| story.started_at.map(sql_time)))
        .bind(flat(&mut stories, |story| story.ended_at.map(sql_time)))
        .bind(taken(&mut stories, |story| std::mem::take(&mut story.supervisor)))
        .bind(taken(&mut stories, |story| std::mem::take(&mut story.host)))
        .bind(flat(&mut stories, |story| story.message.take()))
        .bind(flat(&mut stories, |story| story.trace.take()))
        .bind(taken(&mut stories, |story| std::mem::take(&mut story.output_tail)))
        .bind(taken(&mut stories, |story| std::mem::take(&mut story.evidence)))
}
