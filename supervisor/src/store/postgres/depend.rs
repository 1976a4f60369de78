//! What follows for the jobs that come after others (`after`), in the statement that ends those others.
//!
//! `jobs.waits_for` of a waiting job counts the jobs before it that have not succeeded. Nobody may read their states instead: two
//! statements that end one parent each at the same time do not see each other, but the second to touch the child's row takes
//! its number from the first. A parent that ends while its child is being added is not in the count of either; whoever
//! makes due jobs queued finds such a child.

/// Continues a `WITH RECURSIVE` in which `f (id, state)` are the jobs that have just been moved: `u (state)` are the jobs after
/// them that were let go on or cancelled.
///
/// One `UPDATE`, since a row can be changed only once a statement: what is released by one parent and cancelled for another
/// is cancelled; of two parents of one child the child is told once. In the order of ids, so that two batches over the same
/// children do not wait for each other.
///
/// However the statement is planned, and be it while the tables are empty, it goes from the jobs that were moved to their children
/// by key, never through all jobs: `OFFSET 0` keeps the order of the joins, `LIMIT $21` (which cuts nothing) makes it expect one
/// row, and `starts_with` says `state = 'waiting'` without the index of all that waits.
macro_rules! children {
    () => {
        "lost (id) AS (
             SELECT j.id FROM f CROSS JOIN LATERAL (SELECT job FROM jobvisor.dependencies WHERE parent = f.id OFFSET 0) d
                 CROSS JOIN LATERAL (SELECT id, state FROM jobvisor.jobs WHERE id = d.job OFFSET 0) j
             WHERE f.state IN ('cancelled', 'dead') AND j.state = 'waiting'
             UNION
             SELECT j.id FROM lost CROSS JOIN LATERAL (SELECT job FROM jobvisor.dependencies WHERE parent = lost.id OFFSET 0) d
                 CROSS JOIN LATERAL (SELECT id, state FROM jobvisor.jobs WHERE id = d.job OFFSET 0) j
             WHERE j.state = 'waiting'),
         told (id, fewer, is_lost) AS (
             SELECT t.id, sum(t.fewer)::int, bool_or(t.is_lost)
             FROM (SELECT id, 0, true FROM lost
                   UNION ALL
                   SELECT d.job, 1, false
                   FROM f CROSS JOIN LATERAL (SELECT job FROM jobvisor.dependencies WHERE parent = f.id OFFSET 0) d
                   WHERE f.state = 'succeeded') AS t (id, fewer, is_lost)
             GROUP BY t.id),
         sorted (ids, fewer, are_lost) AS MATERIALIZED (
             SELECT array_agg(id ORDER BY id), array_agg(fewer ORDER BY id), array_agg(is_lost ORDER BY id) FROM told),
         u AS (
             UPDATE jobvisor.jobs j
             SET state = CASE WHEN t.is_lost THEN 'cancelled' WHEN j.waits_for > t.fewer THEN 'waiting'
                     WHEN j.run_at > now() THEN 'scheduled' ELSE 'queued' END,
                 waits_for = greatest(j.waits_for - t.fewer, 0),
                 finished_at = CASE WHEN t.is_lost THEN now() END,
                 cancel_by = CASE WHEN t.is_lost THEN 'a job that it came after' ELSE j.cancel_by END
             FROM sorted
                 CROSS JOIN LATERAL (SELECT * FROM unnest(sorted.ids, sorted.fewer, sorted.are_lost) AS t (id, fewer, is_lost)
                     LIMIT $21) t
             WHERE j.id = t.id AND starts_with(j.state, 'waiting')
             RETURNING j.state)"
    };
}
pub(super) use children;
